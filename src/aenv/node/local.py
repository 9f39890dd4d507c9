"""The node in this process: engines, images, logs and metrics of this host behind the Node port.

A sandbox is in ``_arrivals`` while it is being made and in ``_residents`` until nothing is left of
it; a create and a destroy of one sandbox may overlap in any order. A paused one is a resident while
its machine is frozen in memory, and nothing but a stored snapshot afterwards.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

from aenv.models.blobs import SpaceUse
from aenv.models.errors import AenvError, ConflictError, NotFoundError
from aenv.models.memory import MemoryReport
from aenv.models.registries import RegistryLogin
from aenv.models.sandboxes import (
    LogEntry,
    NetworkPolicy,
    Resources,
    SandboxExit,
    SandboxMetrics,
)
from aenv.models.settings import Settings
from aenv.models.snapshots import ColdCopy, Kept, SnapshotImage
from aenv.models.templates import TemplateInfo, TemplateProgress
from aenv.models.volumes import VolumeUse
from aenv.node import leftovers, space
from aenv.node.adoptions import Adopter
from aenv.node.agentwire import AgentInit
from aenv.node.agentwork import AgentWorkbench
from aenv.node.arrivals import Arrivals
from aenv.node.captures import Capturer, Order
from aenv.node.cold.copies import ColdCopies
from aenv.node.cold.layers import SealedLayers
from aenv.node.engine import Engine, Finding
from aenv.node.engine_set import require_policy
from aenv.node.guests import nameservers
from aenv.node.hosts import describe
from aenv.node.logfiles import LogQuery
from aenv.node.logs import LogKeeper
from aenv.node.lowers import Lowers
from aenv.node.makers import Makers
from aenv.node.memory import HostMemory
from aenv.node.memos import Memos
from aenv.node.metrics import MetricsSampler
from aenv.node.parts import NodeParts, hot_budget
from aenv.node.pauses import Pauses
from aenv.node.port import Adoption, AdoptRequest, Node, NodeInfo, RunningSandbox, SandboxSpec
from aenv.node.residents import Resident, Residents
from aenv.node.snapshots.store import SnapshotStore
from aenv.node.stored import StoredSnapshots
from aenv.node.surroundings import of_this_host
from aenv.node.usage import MemoryUse
from aenv.node.volumes.content import VolumeContent
from aenv.node.volumes.shelf import Volumes
from aenv.node.workbench import Surroundings, Workbench

if TYPE_CHECKING:
    from aenv.store.blobs.store import BlobStore

logger = logging.getLogger(__name__)


class LocalNode(Node):
    """``parts`` are those of this host unless given."""

    def __init__(self, settings: Settings, parts: NodeParts | None = None) -> None:
        parts = parts or NodeParts.of_this_host(settings)
        self._settings = settings
        self._measure = parts.measure
        self._engines = parts.engines
        self._images = parts.images
        folders = settings.folders
        self._logs = LogKeeper(folders.data / "logs")
        self._sampler = MetricsSampler(self._on_hang)
        self._memos = Memos(folders.instance_run / "residents", parts.images.unpin)
        self._residents = Residents(self._logs, self._sampler, self._memos)
        self._snapshots = SnapshotStore(folders.data / "snapshots", gone=parts.images.unpin)
        self._sealed = SealedLayers(folders, parts.host)
        lowers = Lowers(parts.images, self._sealed)
        self._cold = ColdCopies(parts.engines, self._snapshots, self._sealed, lowers)
        capturer = Capturer(self._snapshots, self._logs, lowers)
        self._pauses = Pauses(self._residents, capturer, self._memos, hot_budget(settings))
        self._arrivals = Arrivals(self._residents, self._pauses, self._logs, self.destroy)
        self._memory = HostMemory(
            settings, parts.gauges, MemoryUse(self._residents, self._sampler.memory)
        )
        self._makers = Makers(
            settings,
            parts,
            lowers,
            self._snapshots,
            self._logs,
            self._memos,
            self._memory.admission,
            self._arrivals.busy,
        )
        self._memory.give_back("pooled", self._makers.pools.relieve, self._makers.pools.share)
        self._memory.give_back("hot", self._pauses.relieve)
        self._pools = self._makers.pools
        self._volumes = Volumes(parts.engines)
        self._stored = StoredSnapshots(parts.engines, self._snapshots, self._pauses)

    async def start(
        self, adopt: tuple[AdoptRequest, ...], *, snapshots: frozenset[str] = frozenset()
    ) -> Adoption:
        await self._logs.open(request.sandbox_id for request in adopt)
        await asyncio.to_thread(self._memos.reap, frozenset(one.sandbox_id for one in adopt))
        await self._snapshots.open(snapshots)
        await self._sealed.open()
        baked = await self._makers.bakes.open()
        for name in {request.engine for request in adopt}:
            self._engines.keep[name] = frozenset(r.sandbox_id for r in adopt if r.engine == name)
        await self._images.start()
        await self._engines.get(self._settings.engine)
        for capabilities in self._engines.capabilities():
            if not capabilities.needs_root:
                await self._engines.get_if_possible(capabilities.engine)
        await self._stored.reap(snapshots | baked)
        await self._makers.bakes.prune(
            self._engines.started(), await self._images.list(), snapshots
        )
        adopter = Adopter(self._engines, self._makers.launcher, self._memos, self._snapshots)
        found = await asyncio.gather(*(adopter.adopt(request) for request in adopt))
        for request, one in zip(adopt, found, strict=True):
            if isinstance(one, Resident):
                self._residents.settle(one, request.resources)
        self._sampler.start()
        self._memory.pressure.start()
        self._pauses.squeeze()
        here = [one for one in found if isinstance(one, Resident)]
        return Adoption(
            running=tuple(one.describe() for one in here if not one.hot),
            ended=tuple(one for one in found if isinstance(one, SandboxExit)),
            reaped=tuple(self._engines.reaped),
            paused=tuple(one.sandbox_id for one in here if one.hot),
        )

    async def close(self) -> None:
        await self._arrivals.launching.close()
        await self._memory.pressure.close()
        await self._pools.close()
        await self._pauses.close()
        await self._residents.close()
        await self._sampler.close()
        await self._logs.close()
        await self._snapshots.close()
        await self._makers.bakes.close()
        await self._engines.close()
        await self._sealed.close()
        await self._images.close()

    async def clear(self) -> bool:
        return await asyncio.to_thread(leftovers.remove, self._settings.folders)

    async def info(self) -> NodeInfo:
        headroom = await asyncio.to_thread(self._measure)
        folders = self._settings.folders
        known, pools = self._engines.capabilities(), self._pools.report()
        return await asyncio.to_thread(
            describe, folders.instance, known, folders.data, headroom, pools
        )

    async def memory(self) -> MemoryReport:
        return await self._memory.report()

    async def space(self) -> list[SpaceUse]:
        return await asyncio.to_thread(space.survey, self._settings.folders)

    async def probe(self) -> list[Finding]:
        return await self._engines.probe()

    async def create(self, spec: SandboxSpec) -> RunningSandbox:
        return (await self._arrivals.make(self._makers, spec, same_life=False)).describe()

    async def destroy(self, sandbox_id: str) -> None:
        await self._arrivals.launching.cancel(sandbox_id)
        await self._pools.abandon(sandbox_id)
        if resident := self._residents.get(sandbox_id):
            await self._residents.leave(resident)
        await self._volumes.drop_of(sandbox_id)

    async def settle(self, sandbox_id: str) -> None:
        await self._resident(sandbox_id).machine.sync()

    async def workbench(self, sandbox_id: str) -> Workbench:
        return AgentWorkbench(self._resident(sandbox_id), self._memos)

    async def surroundings(self) -> Surroundings:
        return await asyncio.to_thread(of_this_host, os.environ)

    async def snapshot(
        self,
        sandbox_id: str,
        snapshot_id: str,
        *,
        memory: bool = True,
        parent: str | None = None,
        thawed: Callable[[], Awaitable[None]] | None = None,
    ) -> SnapshotImage:
        order = Order("snapshot", snapshot_id, memory, parent, thawed, volumes=True)
        return await self._pauses.snapshot(*await self._whose(sandbox_id), order)

    async def pause(
        self, sandbox_id: str, snapshot_id: str, *, memory: bool = True, parent: str | None = None
    ) -> SnapshotImage:
        order = Order("pause", snapshot_id, memory, parent)
        return await self._pauses.pause(*await self._whose(sandbox_id), order)

    async def keep(
        self, sandbox_id: str, snapshot_id: str, *, parent: str | None = None
    ) -> SnapshotImage:
        order = Order("keep", snapshot_id, memory=True, parent=parent)
        return await self._pauses.keep(*await self._whose(sandbox_id), order)

    async def resume(self, spec: SandboxSpec) -> RunningSandbox:
        resident = self._residents.get(spec.sandbox_id)
        if resident is not None and await self._arrivals.thaw(self._makers, resident, spec):
            return resident.describe()
        if spec.snapshot is None:
            raise NotFoundError(f"sandbox {spec.sandbox_id} is not in memory, and has no snapshot")
        return (await self._arrivals.make(self._makers, spec, same_life=True)).describe()

    async def demote(self, sandbox_id: str) -> bool:
        return await self._pauses.demote(sandbox_id)

    async def delete_snapshot(self, snapshot_id: str) -> None:
        await self._cold.call_off(snapshot_id)
        await self._pools.drain(snapshot=snapshot_id)
        await self._stored.delete(snapshot_id)
        await self._sealed.sweep()

    async def has_snapshot(self, snapshot_id: str) -> bool:
        return self._snapshots.exists(snapshot_id)

    async def store_snapshot(self, snapshot_id: str, blobs: BlobStore) -> Kept:
        return await self._cold.put(snapshot_id, blobs)

    async def fetch_snapshot(self, copy: ColdCopy, blobs: BlobStore) -> None:
        await self._cold.fetch(copy, blobs)

    async def evict_snapshot(self, snapshot_id: str, *, hot: bool = True) -> bool:
        if not await self._pauses.demote_those_of(snapshot_id, only_look=not hot):
            return False
        await self.delete_snapshot(snapshot_id)
        return True

    async def snapshots(self) -> list[SnapshotImage]:
        return await self._stored.all()

    async def verify_snapshot(self, snapshot_id: str) -> None:
        await self._stored.verify(snapshot_id)

    async def claim(
        self,
        template: str,
        resources: Resources,
        *,
        snapshot: str | None = None,
        engine: str | None = None,
    ) -> str | None:
        return self._pools.claim(template, resources, snapshot=snapshot, engine=engine)

    async def unclaim(self, sandbox_id: str) -> None:
        self._pools.unclaim(sandbox_id)

    async def forget(self, sandbox_id: str) -> None:
        self._sampler.forget(sandbox_id)
        await self._logs.forget(sandbox_id)

    async def set_network(self, sandbox_id: str, policy: NetworkPolicy) -> None:
        resident = self._resident(sandbox_id)
        require_policy(resident.capabilities, policy)
        async with resident.network_lock:
            await resident.machine.set_network(policy)
            if resident.hot is not None:
                return  # its guest is told when it is resumed
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

    async def make_volume(self, volume_id: str, size_mb: int) -> None:
        await self._volumes.make(volume_id, size_mb)

    async def drop_volume(self, volume_id: str) -> None:
        await self._volumes.drop(volume_id)

    async def reap_volumes(self, keep: frozenset[str]) -> list[str]:
        return await self._volumes.reap(keep)

    async def volume_use(self, volume_id: str) -> VolumeUse:
        return await self._volumes.use(volume_id)

    async def volume_content(self, volume_id: str) -> VolumeContent:
        return await self._volumes.content(volume_id)

    async def templates(self) -> list[TemplateInfo]:
        return await self._images.list()

    async def template_progress(self, name: str) -> TemplateProgress:
        return await self._images.progress(name)

    async def ensure_template(
        self,
        name: str,
        *,
        wait: float = 0,
        anew: bool = False,
        login: RegistryLogin | None = None,
    ) -> TemplateProgress:
        return await self._images.ensure(name, wait=wait, anew=anew, login=login)

    async def delete_template(self, name: str) -> None:
        used = [resident.template.name for resident in self._residents]
        used += self._arrivals.launching.templates()
        if count := used.count(name):
            raise ConflictError(
                f"template {name!r} is in use by {count} sandboxes of this server; kill them first"
            )
        await self._pools.drain(template=name)
        await self._images.delete(name)

    async def _whose(self, sandbox_id: str) -> tuple[Resident, Engine]:
        resident = self._resident(sandbox_id)
        return resident, await self._engines.get(resident.capabilities.engine)

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
