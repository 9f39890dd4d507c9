"""From a spec to a running sandbox, or to nothing at all: what fails or is cancelled is undone.

A sandbox that starts from a snapshot goes on from its memory. If that cannot be restored it boots
from the snapshot's disk instead, runs the template's start command, and says so.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
import uuid
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from aenv.models.errors import (
    AgentUnreachableError,
    EngineError,
    EnvironmentFaultError,
    HostSetupError,
    ImageUnusableError,
)
from aenv.models.sandboxes import AGENT_PORT, SandboxExit
from aenv.models.settings import Settings
from aenv.models.snapshots import RestoreMode
from aenv.models.templates import TemplateInfo
from aenv.node import faults
from aenv.node.admission import Admission, Demand
from aenv.node.agents import AgentClient
from aenv.node.agentwire import AgentInit
from aenv.node.engine import Capabilities, Engine, Isolation, Machine, MachineSpec
from aenv.node.engine_set import EngineSet, require_policy
from aenv.node.guests import guest_init
from aenv.node.memos import Memos
from aenv.node.origins import Origin, Origins
from aenv.node.port import SandboxSpec
from aenv.node.residents import Resident

logger = logging.getLogger(__name__)

AGENT_DEADLINE = 20.0
READY_DEADLINE = 60.0
READY_INTERVAL = 0.5
RESTORE_DEADLINE = 10.0
RESTORES = 2
"""How often a memory image is tried that this host should be able to restore."""

T = TypeVar("T")


class Launcher:
    """Makes residents."""

    def __init__(
        self,
        settings: Settings,
        engines: EngineSet,
        origins: Origins,
        admission: Admission,
        memos: Memos,
        agent: Path,
    ) -> None:
        self._settings = settings
        self._engines = engines
        self._origins = origins
        self._admission = admission
        self._memos = memos
        self._agent = agent

    async def launch(self, spec: SandboxSpec, *, same_life: bool = False) -> Resident:
        """Admit, then boot and start the template's command, or go on from a snapshot; leaves
        nothing on failure. ``same_life``: it is the sandbox of the snapshot, coming back.
        """
        if spec.snapshot is None:
            engine = await self._engine(spec.engine)
            require_policy(engine.capabilities, spec.network)
            return await self._launch(spec, engine, await self._origins.template(engine, spec))
        async with self._origins.snapshot(spec.snapshot) as stored:
            engine = await self._engine(spec.engine or stored.manifest.engine)
            require_policy(engine.capabilities, spec.network)
            origin = await self._origins.of(stored, engine, spec, same_life=same_life)
            return await self._launch(origin.completed(spec), engine, origin)

    async def _engine(self, name: str | None) -> Engine:
        return await self._engines.get(name or self._settings.engine)

    async def _launch(self, spec: SandboxSpec, engine: Engine, origin: Origin) -> Resident:
        demand = Demand(spec.template, spec.resources, origin.image_bytes)
        async with self._admission.admit(demand, engine.disk_room):
            memo = origin.memo(spec)
            self._memos.write(spec.sandbox_id, memo)
            async with AsyncExitStack() as undo:
                undo.callback(self._memos.remove, spec.sandbox_id)
                await self._origins.pin(engine, memo, self._memos.place(spec.sandbox_id))
                resident = await self._bring_up(spec, engine, origin)
                undo.push_async_callback(_destroy, resident.machine)
                resident.memo = replace(memo, ready=True)
                self._memos.write(spec.sandbox_id, resident.memo)
                undo.pop_all()
        return resident

    async def _bring_up(self, spec: SandboxSpec, engine: Engine, origin: Origin) -> Resident:
        """From memory if that works, else from its disk."""
        note = origin.note
        for _ in range(RESTORES if origin.memory else 0):
            try:
                return await self._restore(spec, engine, origin)
            except (EngineError, AgentUnreachableError) as error:
                note = f"its memory could not be restored ({error}): it was booted from its disk"
                if isinstance(error, ImageUnusableError):
                    break
        if note:
            logger.warning("%s", note, extra={"sandbox_id": spec.sandbox_id})
        resident = await self._boot(spec, engine, origin)
        resident.note = note
        return resident

    async def _restore(self, spec: SandboxSpec, engine: Engine, origin: Origin) -> Resident:
        assert origin.memory is not None
        assert origin.stored is not None
        async with AsyncExitStack() as undo:
            machine_spec = self._machine_spec(spec, engine, origin)
            machine = await engine.restore(machine_spec, origin.memory())
            undo.push_async_callback(_destroy, machine)
            await faults.reach("restore.restored")
            agent = _client(machine, spec, origin.stored.private.host_secret)
            init = self._init(spec, engine, machine, origin)
            failures = await alive(machine, agent.initialise(init, timeout=RESTORE_DEADLINE))
            await faults.reach("restore.told")
            undo.pop_all()
        return Resident(
            spec.sandbox_id,
            machine,
            engine.capabilities,
            _client(machine, spec),
            origin.info,
            restored=RestoreMode.WARM,
            failures=failures,
            log_seq=origin.log_seq,
            image=origin.image_bytes,
        )

    async def _boot(self, spec: SandboxSpec, engine: Engine, origin: Origin) -> Resident:
        async with AsyncExitStack() as undo:
            machine = await engine.boot(self._machine_spec(spec, engine, origin))
            undo.push_async_callback(_destroy, machine)
            await faults.reach("create.booted")
            agent = _client(machine, spec)
            init = self._init(spec, engine, machine, origin)
            failures = await alive(machine, _start(agent, init, origin.info))
            undo.pop_all()
        return Resident(
            spec.sandbox_id,
            machine,
            engine.capabilities,
            agent,
            origin.info,
            restored=RestoreMode.DISK if origin.stored else None,
            failures=failures,
            log_seq=0,
        )

    async def template(self, engine: Engine, name: str, digest: str | None) -> TemplateInfo:
        """What is known of a template for a sandbox that already runs."""
        return await self._origins.known(engine, name, digest)

    def refreshed(self, spec: SandboxSpec, resident: Resident, away: float) -> AgentInit:
        """What a guest is told that was frozen and runs on."""
        assert resident.memo is not None
        engine = resident.capabilities
        known = {**resident.memo.env_vars, **spec.env_vars}
        secret = spec.secret_env | frozenset(resident.memo.secret_env)
        told = guest_init(
            replace(spec, env_vars=known, secret_env=secret),
            resident.template,
            engine,
            resident.machine.guest_network,
            host_ca=self._injects_ca(engine),
        )
        return replace(told, restored=True, resumed=True, life_id=_new_life(), away=away)

    def _machine_spec(self, spec: SandboxSpec, engine: Engine, origin: Origin) -> MachineSpec:
        if not self._agent.is_file():
            raise HostSetupError(
                f"the guest agent is missing at {self._agent}; reinstall aenv-platform, or run "
                "scripts/bootstrap in a checkout"
            )
        return MachineSpec(
            sandbox_id=spec.sandbox_id,
            rootfs=origin.rootfs,
            resources=spec.resources,
            network=spec.network,
            hostname=spec.sandbox_id,
            agent=self._agent,
            agent_env={"AENV_HOST_VERIFIER": _verifier(spec)},
            host_ca=self._injects_ca(engine.capabilities),
            disk=origin.disk,
            same_life=origin.same_life,
        )

    def _injects_ca(self, capabilities: Capabilities) -> bool:
        own_files = capabilities.isolation is not Isolation.NONE
        return self._settings.inject_host_ca and own_files

    def _init(
        self, spec: SandboxSpec, engine: Engine, machine: Machine, origin: Origin
    ) -> AgentInit:
        told = guest_init(
            spec,
            origin.info,
            engine.capabilities,
            machine.guest_network,
            host_ca=self._injects_ca(engine.capabilities),
        )
        if origin.stored is None:
            return told
        return replace(
            told,
            next_verifier=_verifier(spec),
            restored=True,
            resumed=origin.same_life,
            life_id=_new_life(),
            away=max(0.0, time.time() - origin.stored.manifest.created_at),
        )


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


async def _start(agent: AgentClient, init: AgentInit, template: TemplateInfo) -> tuple[str, ...]:
    """Initialise a fresh guest, run the template's start command, and wait for its ready one."""
    failures = await agent.initialise(init, timeout=AGENT_DEADLINE)
    if template.start_cmd:
        await agent.spawn(template.start_cmd, user=template.default_user)
    if template.ready_cmd:
        await _wait_ready(agent, template, template.ready_cmd)
    return failures


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


def _client(machine: Machine, spec: SandboxSpec, secret: str | None = None) -> AgentClient:
    """``secret``: what a restored agent still demands until it is told the sandbox's own."""
    return AgentClient(
        machine.address(AGENT_PORT),
        host_secret=secret or spec.host_secret,
        access_token=spec.access_token,
    )


def _verifier(spec: SandboxSpec) -> str:
    return hashlib.sha256(spec.host_secret.encode()).hexdigest()


def _new_life() -> str:
    return uuid.uuid4().hex
