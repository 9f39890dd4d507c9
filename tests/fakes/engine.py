"""An engine whose machines are fake agents in this process.

It honours the port; what it made and did not remove is in ``engine.alive``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.fakes.agent import AgentBehaviour, FakeAgent

from aenv.models.errors import Culprit, EngineError
from aenv.models.sandboxes import AGENT_PORT, NetworkPolicy, SandboxExit
from aenv.node.engine import (
    Address,
    Capabilities,
    Engine,
    ExecResult,
    Finding,
    GuestNetwork,
    Isolation,
    Machine,
    MachineSpec,
    MachineStats,
    MemoryImage,
)

FAKE = Capabilities(
    engine="fake",
    isolation=Isolation.KERNEL,
    needs_root=True,
    limits=True,
    network_isolation=True,
    egress_policy=True,
    freeze=True,
)


class FakeMachine(Machine):
    def __init__(self, engine: FakeEngine, spec: MachineSpec) -> None:
        self.engine = engine
        self.spec = spec
        self.sandbox_id = spec.sandbox_id
        self.agent = FakeAgent(engine.behaviour)
        self.policies: list[NetworkPolicy] = [spec.network]
        self._address = Address("127.0.0.1", 1)
        self._end: asyncio.Future[SandboxExit] = asyncio.get_running_loop().create_future()

    async def boot(self) -> None:
        self._address = await self.agent.start()
        self.engine.alive.add(self.sandbox_id)

    async def die(
        self, reason: str, *, code: int | None = 137, culprit: Culprit = Culprit.POLICY
    ) -> None:
        await self.agent.stop()
        self._finish(SandboxExit(self.sandbox_id, code, culprit, reason))

    def address(self, port: int) -> Address:
        return self._address if port == AGENT_PORT else Address("127.0.0.1", port)

    @property
    def guest_network(self) -> GuestNetwork | None:
        return GuestNetwork("10.93.0.2", ("10.93.0.1",))

    async def wait(self) -> SandboxExit:
        return await asyncio.shield(self._end)

    async def exec(self, argv: Sequence[str], *, timeout: float = 30) -> ExecResult:
        raise EngineError("a fake machine runs no programs")

    async def freeze(self) -> None: ...

    async def thaw(self) -> None: ...

    async def checkpoint(self, destination: Path) -> MemoryImage:
        raise EngineError("a fake machine has no memory")

    async def stats(self) -> MachineStats:
        if self._end.done():
            raise EngineError(self._end.result().reason)
        self.engine.cpu_seconds += 1
        return MachineStats(self.engine.cpu_seconds, 5000, 3, 100, 200)

    async def set_network(self, policy: NetworkPolicy) -> None:
        self.policies.append(policy)

    async def destroy(self) -> None:
        self.engine.destroys.append(self.sandbox_id)
        if self.engine.destroy_gate is not None:
            await self.engine.destroy_gate.wait()
        if self.engine.destroy_errors:
            raise self.engine.destroy_errors.pop()
        await self.agent.stop()
        self._finish(SandboxExit(self.sandbox_id, 137, Culprit.CALLER, "destroyed"))
        self.engine.alive.discard(self.sandbox_id)

    def _finish(self, end: SandboxExit) -> None:
        if not self._end.done():
            self._end.set_result(end)


@dataclass
class FakeEngine(Engine):
    """``boot_gate`` holds boots back, ``boot_error`` fails them; machines outlive a node."""

    behaviour: AgentBehaviour = field(default_factory=AgentBehaviour)
    capabilities: Capabilities = FAKE
    boot_gate: asyncio.Event | None = None
    boot_error: EngineError | None = None
    destroy_gate: asyncio.Event | None = None
    destroy_errors: list[EngineError] = field(default_factory=list)
    machines: dict[str, FakeMachine] = field(default_factory=dict)
    alive: set[str] = field(default_factory=set)
    destroys: list[str] = field(default_factory=list)
    booting: int = 0
    most_booting: int = 0
    cpu_seconds: float = 0.0

    async def probe(self) -> list[Finding]:
        return []

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def boot(self, spec: MachineSpec) -> Machine:
        self.booting += 1
        self.most_booting = max(self.most_booting, self.booting)
        try:
            if self.boot_gate is not None:
                await self.boot_gate.wait()
            if self.boot_error is not None:
                raise self.boot_error
            machine = FakeMachine(self, spec)
            await machine.boot()
            self.machines[spec.sandbox_id] = machine
            return machine
        finally:
            self.booting -= 1

    async def restore(self, spec: MachineSpec, image: MemoryImage) -> Machine:
        raise EngineError("a fake machine has no memory")

    async def adopt(self, sandbox_id: str) -> Machine:
        if sandbox_id not in self.machines:
            raise EngineError(f"there is no machine {sandbox_id}")
        return self.machines[sandbox_id]

    async def reap(self, keep: frozenset[str]) -> list[str]:
        gone = sorted(self.alive - keep)
        for sandbox_id in gone:
            await self.machines[sandbox_id].destroy()
        return gone
