"""From a spec to a running sandbox, or to nothing at all: what fails or is cancelled is undone."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Protocol, TypeVar

from aenv.models.errors import (
    AenvError,
    EngineError,
    EnvironmentFaultError,
    HostSetupError,
    NotFoundError,
    TemplateBuildError,
    TemplateNotReadyError,
)
from aenv.models.sandboxes import AGENT_PORT, SandboxExit
from aenv.models.settings import Settings
from aenv.models.templates import TemplateInfo, TemplateProgress
from aenv.node.admission import Admission
from aenv.node.agents import AgentClient
from aenv.node.engine import Engine, Isolation, Machine, MachineSpec, Rootfs
from aenv.node.engine_set import EngineSet, require_policy
from aenv.node.guests import guest_init
from aenv.node.port import SandboxSpec
from aenv.node.residents import Resident

AGENT_DEADLINE = 20.0
READY_DEADLINE = 60.0
READY_INTERVAL = 0.5
BUILT_IN = ("base", "host")

T = TypeVar("T")


class OpenImage(Protocol):
    """A template that is there and mounted."""

    @property
    def info(self) -> TemplateInfo: ...
    @property
    def rootfs(self) -> Rootfs: ...


class Images(Protocol):
    """The part of ``images.ImageStore`` a node uses."""

    async def start(self) -> None: ...
    async def close(self) -> None: ...
    async def open(self, name: str) -> OpenImage: ...
    async def ensure(self, name: str, wait: float = 0) -> TemplateProgress: ...
    async def progress(self, name: str) -> TemplateProgress: ...
    async def list(self) -> list[TemplateInfo]: ...
    async def delete(self, name: str) -> None: ...


class Launcher:
    """Makes residents."""

    def __init__(
        self,
        settings: Settings,
        engines: EngineSet,
        images: Images,
        admission: Admission,
        agent: Path,
    ) -> None:
        self._settings = settings
        self._engines = engines
        self._images = images
        self._admission = admission
        self._agent = agent

    async def launch(self, spec: SandboxSpec) -> Resident:
        """Admit, boot, initialise, run the template's start command. Leaves nothing on failure."""
        engine = await self._engines.get(spec.engine or self._settings.engine)
        require_policy(engine.capabilities, spec.network)
        async with self._admission.admit(spec.resources, engine.disk_room):
            info, rootfs = await self._open(engine, spec.template)
            async with AsyncExitStack() as undo:
                machine = await engine.boot(self._machine_spec(spec, engine, rootfs))
                undo.push_async_callback(_destroy, machine)
                agent = AgentClient(
                    machine.address(AGENT_PORT),
                    host_secret=spec.host_secret,
                    access_token=spec.access_token,
                )
                await alive(machine, self._initialise(spec, engine, machine, agent, info))
                undo.pop_all()
        return Resident(spec.sandbox_id, machine, engine.capabilities, agent, info)

    async def template(self, engine: Engine, name: str) -> TemplateInfo:
        """What is known of a template for a sandbox that already runs."""
        try:
            info, _ = await self._open(engine, name)
        except AenvError:
            return TemplateInfo(name, digest="", size_bytes=0, built_at=0, reproducible=False)
        return info

    def _machine_spec(self, spec: SandboxSpec, engine: Engine, rootfs: Rootfs) -> MachineSpec:
        if not self._agent.is_file():
            raise HostSetupError(
                f"the guest agent is missing at {self._agent}; reinstall aenv-platform, or run "
                "scripts/bootstrap in a checkout"
            )
        return MachineSpec(
            sandbox_id=spec.sandbox_id,
            rootfs=rootfs,
            resources=spec.resources,
            network=spec.network,
            hostname=spec.sandbox_id,
            agent=self._agent,
            agent_env={"AENV_HOST_VERIFIER": hashlib.sha256(spec.host_secret.encode()).hexdigest()},
            host_ca=self._injects_ca(engine),
        )

    def _injects_ca(self, engine: Engine) -> bool:
        own_files = engine.capabilities.isolation is not Isolation.NONE
        return self._settings.inject_host_ca and own_files

    async def _open(self, engine: Engine, name: str) -> tuple[TemplateInfo, Rootfs]:
        if engine.capabilities.isolation is Isolation.NONE:
            return _host_files(name), Rootfs(lowers=())
        try:
            image = await self._images.open(name)
        except (TemplateNotReadyError, TemplateBuildError):
            await self._images.ensure(name)
            image = await self._images.open(name)
        return image.info, image.rootfs

    async def _initialise(
        self,
        spec: SandboxSpec,
        engine: Engine,
        machine: Machine,
        agent: AgentClient,
        template: TemplateInfo,
    ) -> None:
        init = guest_init(
            spec,
            template,
            engine.capabilities,
            machine.guest_network,
            host_ca=self._injects_ca(engine),
        )
        await agent.initialise(init, timeout=AGENT_DEADLINE)
        if template.start_cmd:
            await agent.spawn(template.start_cmd, user=template.default_user)
        if template.ready_cmd:
            await _wait_ready(agent, template, template.ready_cmd)


async def alive(machine: Machine, work: Awaitable[T]) -> T:
    """The result of ``work``, or EngineError as soon as the machine has ended."""
    task = asyncio.ensure_future(work)
    end = asyncio.create_task(machine.wait())
    try:
        await asyncio.wait({task, end}, return_when=asyncio.FIRST_COMPLETED)
        if end.done() and not end.cancelled():
            raise EngineError(_ended(end.result()))
        return await task
    finally:
        for pending in (task, end):
            pending.cancel()
        await asyncio.gather(task, end, return_exceptions=True)


async def _wait_ready(agent: AgentClient, template: TemplateInfo, command: str) -> None:
    said = "it did not end in time"
    try:
        async with asyncio.timeout(READY_DEADLINE):
            while True:
                result = await agent.run(
                    command, user=template.default_user, timeout=READY_DEADLINE
                )
                if result.exit_code == 0:
                    return
                said = f"exit code {result.exit_code}: {result.output[-500:].strip()}"
                await asyncio.sleep(READY_INTERVAL)
    except TimeoutError:
        raise EnvironmentFaultError(
            f"the ready command of template {template.name!r} did not succeed within "
            f"{READY_DEADLINE:g} s ({said}); mend the template's start or ready command"
        ) from None


async def _destroy(machine: Machine) -> None:
    """Undo a boot, also while being cancelled."""
    await asyncio.shield(asyncio.ensure_future(machine.destroy()))


def _ended(found: SandboxExit) -> str:
    code = "" if found.code is None else f" (exit code {found.code})"
    return f"the sandbox ended while it was being started: {found.reason}{code}"


def _host_files(name: str) -> TemplateInfo:
    """What an engine without isolation offers under a template's name: the host itself."""
    if name not in BUILT_IN:
        raise NotFoundError(
            f"template {name!r} is unknown to an engine without isolation; it runs on the host's "
            f"own files, as {' or '.join(BUILT_IN)}"
        )
    return TemplateInfo(name, digest="host", size_bytes=0, built_at=0, reproducible=False)
