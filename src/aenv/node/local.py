"""The node in this process: engines, images, logs and metrics of this host behind the Node port.

A sandbox is in ``_launches`` while it is being made and in ``_residents`` until nothing is left of
it; a create and a destroy of one sandbox may overlap in any order.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import aenv
from aenv.models.errors import (
    AenvError,
    ConflictError,
    EngineError,
    HostSetupError,
    NotFoundError,
)
from aenv.models.sandboxes import LogEntry, NetworkPolicy, SandboxExit, SandboxMetrics
from aenv.models.settings import Settings
from aenv.models.templates import TemplateInfo, TemplateProgress
from aenv.node import leftovers
from aenv.node.admission import MIB, Admission
from aenv.node.adoptions import adopt as adopt_one
from aenv.node.agentwire import AgentInit
from aenv.node.engine import Finding
from aenv.node.engine_set import EngineSet, require_policy
from aenv.node.engines import available, create_engine
from aenv.node.guests import nameservers
from aenv.node.host import Host, open_host
from aenv.node.hosts import Headroom, describe, measure_headroom
from aenv.node.images import ImageStore
from aenv.node.launches import Images, Launcher
from aenv.node.logfiles import LogQuery
from aenv.node.logs import LogKeeper
from aenv.node.metrics import MetricsSampler
from aenv.node.port import Adoption, AdoptRequest, Node, NodeInfo, RunningSandbox, SandboxSpec
from aenv.node.residents import DESTROY_DEADLINE, Resident, Residents

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeParts:
    """What a node is made of. ``agent``: the binary; ``measure``: what the host has left."""

    engines: EngineSet
    images: Images
    agent: Path
    measure: Callable[[], Headroom]

    @classmethod
    def of_this_host(cls, settings: Settings) -> Self:
        return cls(
            engines=EngineSet(settings, available(), create_engine),
            images=ImageStore(settings, _host_if_root(settings)),
            agent=Path(aenv.__file__).parent / "_bin" / "agent",
            measure=lambda: measure_headroom(settings.folders.data),
        )


@dataclass(frozen=True, slots=True)
class _Launch:
    task: asyncio.Task[Resident]
    template: str


class LocalNode(Node):
    """``parts`` are those of this host unless given."""

    def __init__(self, settings: Settings, parts: NodeParts | None = None) -> None:
        parts = parts or NodeParts.of_this_host(settings)
        self._settings = settings
        self._measure = parts.measure
        self._engines = parts.engines
        self._images = parts.images
        self._launcher = Launcher(
            settings, parts.engines, parts.images, _admission(settings, parts), parts.agent
        )
        self._logs = LogKeeper(settings.folders.data / "logs")
        self._sampler = MetricsSampler(self._on_hang)
        self._residents = Residents(self._logs, self._sampler)
        self._launches: dict[str, _Launch] = {}

    async def start(
        self, adopt: tuple[AdoptRequest, ...], *, snapshots: frozenset[str] = frozenset()
    ) -> Adoption:
        await self._logs.open(request.sandbox_id for request in adopt)
        for name in {request.engine for request in adopt}:
            self._engines.keep[name] = frozenset(r.sandbox_id for r in adopt if r.engine == name)
        await self._images.start()
        await self._engines.get(self._settings.engine)
        for capabilities in self._engines.capabilities():
            if not capabilities.needs_root:
                await self._engines.get_if_possible(capabilities.engine)
        found = await asyncio.gather(
            *(adopt_one(self._engines, self._launcher, request) for request in adopt)
        )
        for request, one in zip(adopt, found, strict=True):
            if isinstance(one, Resident):
                self._residents.settle(one, request.resources)
        self._sampler.start()
        return Adoption(
            running=tuple(one.describe() for one in found if isinstance(one, Resident)),
            ended=tuple(one for one in found if isinstance(one, SandboxExit)),
            reaped=tuple(self._engines.reaped),
        )

    async def close(self) -> None:
        launches = [launch.task for launch in self._launches.values()]
        for task in launches:
            task.cancel()
        await asyncio.gather(*launches, return_exceptions=True)
        await self._residents.close()
        await self._sampler.close()
        await self._logs.close()
        await self._engines.close()
        await self._images.close()

    async def clear(self) -> None:
        if not await asyncio.to_thread(leftovers.remove, self._settings.folders):
            logger.warning("%s is still in use", self._settings.folders.instance_run)

    async def info(self) -> NodeInfo:
        headroom = await asyncio.to_thread(self._measure)
        folders = self._settings.folders
        return await asyncio.to_thread(
            describe, folders.instance, self._engines.capabilities(), folders.data, headroom
        )

    async def probe(self) -> list[Finding]:
        return await self._engines.probe()

    async def create(self, spec: SandboxSpec) -> RunningSandbox:
        if spec.sandbox_id in self._launches or self._residents.get(spec.sandbox_id):
            raise ConflictError(f"sandbox {spec.sandbox_id} exists already")
        task = asyncio.create_task(self._launch(spec), name=f"launch-{spec.sandbox_id}")
        self._launches[spec.sandbox_id] = _Launch(task, spec.template)
        task.add_done_callback(lambda _: self._launches.pop(spec.sandbox_id, None))
        try:
            resident = await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and not _cancelling():
                raise _killed(spec) from None
            await asyncio.shield(self.destroy(spec.sandbox_id))
            raise
        if resident.departure is not None:
            raise _killed(spec)
        return resident.describe()

    async def destroy(self, sandbox_id: str) -> None:
        if launch := self._launches.get(sandbox_id):
            launch.task.cancel()
            await asyncio.wait({launch.task}, timeout=DESTROY_DEADLINE)
            if not launch.task.done():
                raise EngineError(f"sandbox {sandbox_id} is being started and does not let go")
        if resident := self._residents.get(sandbox_id):
            await self._residents.leave(resident)

    async def forget(self, sandbox_id: str) -> None:
        self._sampler.forget(sandbox_id)
        await self._logs.forget(sandbox_id)

    async def set_network(self, sandbox_id: str, policy: NetworkPolicy) -> None:
        resident = self._resident(sandbox_id)
        require_policy(resident.capabilities, policy)
        async with resident.network_lock:
            await resident.machine.set_network(policy)
            servers = nameservers(policy, resident.machine.guest_network)
            if servers != resident.nameservers:
                await resident.agent.init(AgentInit(dns_servers=servers))
                resident.nameservers = servers

    async def metrics(
        self, sandbox_id: str, *, start: float | None = None, end: float | None = None
    ) -> list[SandboxMetrics]:
        return await self._sampler.query(sandbox_id, start=start, end=end)

    async def logs(
        self,
        sandbox_id: str,
        *,
        after: int = 0,
        limit: int = 1000,
        descending: bool = False,
        level: str | None = None,
        search: str | None = None,
        start: float | None = None,
    ) -> list[LogEntry]:
        query = LogQuery(after, limit, descending, level, search, start)
        return await self._logs.query(sandbox_id, query)

    async def note(self, sandbox_id: str, message: str, *, level: str = "info") -> None:
        await self._logs.note(sandbox_id, message, level=level)

    async def healthy(self, sandbox_id: str) -> bool:
        try:
            await self._resident(sandbox_id).agent.health()
        except AenvError:
            return False
        return True

    async def exits(self) -> AsyncIterator[SandboxExit]:
        async for end in self._residents.exits():
            yield end

    async def templates(self) -> list[TemplateInfo]:
        return await self._images.list()

    async def template_progress(self, name: str) -> TemplateProgress:
        return await self._images.progress(name)

    async def ensure_template(self, name: str, *, wait: float = 0) -> TemplateProgress:
        return await self._images.ensure(name, wait=wait)

    async def delete_template(self, name: str) -> None:
        used = [resident.template.name for resident in self._residents]
        used += [launch.template for launch in self._launches.values()]
        if count := used.count(name):
            raise ConflictError(
                f"template {name!r} is in use by {count} sandboxes of this server; kill them first"
            )
        await self._images.delete(name)

    async def _launch(self, spec: SandboxSpec) -> Resident:
        resident = await self._launcher.launch(spec)
        resident.nameservers = nameservers(spec.network, resident.machine.guest_network)
        self._residents.settle(resident, spec.resources)
        return resident

    async def _on_hang(self, sandbox_id: str, hangs: bool) -> None:
        """Told in the sandbox's log and ours; what to do about it is its owner's decision."""
        said = "does not answer" if hangs else "answers again"
        level = "error" if hangs else "info"
        logger.warning("the guest agent %s", said, extra={"sandbox_id": sandbox_id})
        await self._logs.note(sandbox_id, f"the guest agent {said}", level=level)

    def _resident(self, sandbox_id: str) -> Resident:
        resident = self._residents.get(sandbox_id)
        if resident is None:
            raise NotFoundError(f"sandbox {sandbox_id} does not run on this node")
        return resident


def _admission(settings: Settings, parts: NodeParts) -> Admission:
    return Admission(
        parts.measure,
        memory_reserve=settings.memory_reserve_mb * MIB,
        disk_reserve=settings.disk_reserve_mb * MIB,
        boots=max(4, 2 * (os.cpu_count() or 1)),
    )


def _host_if_root(settings: Settings) -> Host | None:
    try:
        return open_host(settings)
    except HostSetupError:
        return None


def _cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _killed(spec: SandboxSpec) -> ConflictError:
    return ConflictError(f"sandbox {spec.sandbox_id} was killed while it was starting")
