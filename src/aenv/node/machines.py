"""Machines with guests: booted or restored from an origin and told who they are, or made ready to
be told later, and frozen until then.

A machine that waits knows a secret of its own. One that was booted for a template without commands
has been told nothing yet, so that it becomes a sandbox as any fresh boot does; all others become
one as a fork does.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from aenv.models.errors import HostSetupError
from aenv.models.sandboxes import AGENT_PORT
from aenv.models.settings import Settings
from aenv.models.snapshots import RestoreMode
from aenv.node import faults
from aenv.node.agents import AgentClient
from aenv.node.agentwire import AgentInit
from aenv.node.engine import Capabilities, Engine, Isolation, Machine, MachineSpec
from aenv.node.guests import guest_init
from aenv.node.origins import Origin
from aenv.node.port import SandboxSpec
from aenv.node.residents import Resident
from aenv.node.starting import AGENT_DEADLINE, alive, destroy, start

RESTORE_DEADLINE = 10.0


@dataclass(slots=True, eq=False)
class Waiting:
    """A machine that is frozen until a sandbox is made of it. ``secret``: what its agent demands;
    ``told``: its guest was somebody already. ``taken``: it belongs to a sandbox, or is gone.
    """

    machine: Machine
    engine: Engine
    origin: Origin
    secret: str
    told: bool
    since: float
    taken: bool = False

    def serves(self, origin: Origin) -> bool:
        """Whether it was made of what ``origin`` names now."""
        return not self.taken and self.origin.info == origin.info

    async def discard(self) -> None:
        """Destroy it, unless it belongs to a sandbox."""
        if not self.taken:
            self.taken = True
            await destroy(self.machine)


class Machines:
    """``agent``: the binary that machines are booted with."""

    def __init__(self, settings: Settings, agent: Path) -> None:
        self._settings = settings
        self.agent = agent

    async def boot(self, spec: SandboxSpec, engine: Engine, origin: Origin) -> Resident:
        async with AsyncExitStack() as undo:
            machine = await engine.boot(self._machine_spec(spec, engine, origin))
            undo.push_async_callback(destroy, machine)
            await faults.reach("create.booted")
            agent = _client(machine, spec)
            init = self._init(spec, engine, machine, origin, restored=origin.stored is not None)
            failures = await alive(machine, start(agent, init, origin.info))
            undo.pop_all()
        mode = RestoreMode.DISK if origin.stored else None
        return _resident(spec, engine, machine, origin, restored=mode, failures=failures)

    async def restore(self, spec: SandboxSpec, engine: Engine, origin: Origin) -> Resident:
        assert origin.memory is not None
        assert origin.stored is not None
        async with AsyncExitStack() as undo:
            machine_spec = self._machine_spec(spec, engine, origin)
            machine = await engine.restore(machine_spec, origin.memory())
            undo.push_async_callback(destroy, machine)
            await faults.reach("restore.restored")
            agent = _client(machine, spec, origin.stored.private.host_secret)
            init = self._init(spec, engine, machine, origin, restored=True)
            failures = await alive(machine, agent.initialise(init, timeout=RESTORE_DEADLINE))
            await faults.reach("restore.told")
            undo.pop_all()
        mode = RestoreMode.WARM if origin.asked.stored else None
        resident = _resident(spec, engine, machine, origin, restored=mode, failures=failures)
        resident.log_seq, resident.image = origin.log_seq, origin.image_bytes
        return resident

    async def prepare(self, spec: SandboxSpec, engine: Engine, origin: Origin) -> Waiting:
        """Freeze a machine as soon as its agent answers. ``spec`` names it and its secret."""
        told, secret = True, spec.host_secret
        async with AsyncExitStack() as undo:
            machine_spec = self._machine_spec(spec, engine, origin)
            if origin.memory is not None and origin.stored is not None:
                machine = await engine.restore(machine_spec, origin.memory())
                secret = origin.stored.private.host_secret
            else:
                machine = await engine.boot(machine_spec)
                told = origin.has_commands or origin.stored is not None
            undo.push_async_callback(destroy, machine)
            agent = _client(machine, spec, secret)
            if told and origin.memory is None:
                init = self._init(spec, engine, machine, origin, restored=origin.stored is not None)
                await alive(machine, start(agent, init, origin.info))
            else:
                await alive(machine, agent.ready(timeout=AGENT_DEADLINE))
            await machine.freeze()
            undo.pop_all()
        return Waiting(machine, engine, origin, secret, told, time.time())

    async def hand_over(self, waiting: Waiting, spec: SandboxSpec) -> Resident:
        """Make the sandbox ``spec`` of a machine that waits, or destroy it."""
        machine, engine, origin = waiting.machine, waiting.engine, waiting.origin
        waiting.taken = True
        async with AsyncExitStack() as undo:
            undo.push_async_callback(destroy, machine)
            await machine.set_network(spec.network)
            await machine.thaw()
            await faults.reach("claim.thawed")
            agent = _client(machine, spec, waiting.secret)
            init = self._init(spec, engine, machine, origin, restored=waiting.told)
            if waiting.told:
                since = origin.stored.manifest.created_at if origin.stored else waiting.since
                init = replace(init, away=max(0.0, time.time() - since))
            init = replace(init, next_verifier=_verifier(spec))
            failures = await alive(machine, agent.initialise(init, timeout=RESTORE_DEADLINE))
            await faults.reach("claim.told")
            undo.pop_all()
        mode = None
        if origin.asked.stored is not None:
            mode = RestoreMode.WARM if origin.memory else RestoreMode.DISK
        resident = _resident(spec, engine, machine, origin, restored=mode, failures=failures)
        resident.pooled, resident.image = True, origin.image_bytes
        return resident

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
        if not (resident.memo.env_known or spec.env_vars):
            told = replace(told, env_vars=None)
        return replace(told, restored=True, resumed=True, life_id=_new_life(), away=away)

    def _machine_spec(self, spec: SandboxSpec, engine: Engine, origin: Origin) -> MachineSpec:
        if not self.agent.is_file():
            raise HostSetupError(
                f"the guest agent is missing at {self.agent}; reinstall aenv-platform, or run "
                "scripts/bootstrap in a checkout"
            )
        return MachineSpec(
            sandbox_id=spec.sandbox_id,
            rootfs=origin.rootfs,
            resources=spec.resources,
            network=spec.network,
            hostname=spec.sandbox_id,
            agent=self.agent,
            agent_env={"AENV_HOST_VERIFIER": _verifier(spec)},
            host_ca=self._injects_ca(engine.capabilities),
            disk=origin.disk,
            same_life=origin.same_life,
            volumes=spec.volumes,
        )

    def _injects_ca(self, capabilities: Capabilities) -> bool:
        own_files = capabilities.isolation is not Isolation.NONE
        return self._settings.inject_host_ca and own_files

    def _init(
        self, spec: SandboxSpec, engine: Engine, machine: Machine, origin: Origin, *, restored: bool
    ) -> AgentInit:
        """``restored``: the guest's memory or disk were somebody's."""
        told = guest_init(
            spec,
            origin.info,
            engine.capabilities,
            machine.guest_network,
            host_ca=self._injects_ca(engine.capabilities),
        )
        if not restored:
            return told
        if origin.same_life and origin.memory and not (origin.env_known or spec.env_vars):
            told = replace(told, env_vars=None)  # its memory knows them
        since = origin.stored.manifest.created_at if origin.stored else time.time()
        return replace(
            told,
            next_verifier=_verifier(spec),
            restored=True,
            resumed=origin.same_life,
            life_id=_new_life(),
            away=max(0.0, time.time() - since),
        )


def _resident(
    spec: SandboxSpec,
    engine: Engine,
    machine: Machine,
    origin: Origin,
    *,
    restored: RestoreMode | None,
    failures: tuple[str, ...],
) -> Resident:
    return Resident(
        spec.sandbox_id,
        machine,
        engine.capabilities,
        _client(machine, spec),
        origin.info,
        restored=restored,
        failures=failures,
        log_seq=0,
    )


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
