"""An engine whose machines are fake agents in this process.

It honours the port; what it made and did not remove is in ``engine.alive``. The disk of a machine
is its ``disk``, a text; its memory is what its agent was told.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.fakes.agent import AgentBehaviour, FakeAgent

from aenv.models.errors import Culprit, EngineError, ImageUnusableError, NotFoundError
from aenv.models.sandboxes import AGENT_PORT, NetworkPolicy, SandboxExit
from aenv.node.engine import (
    Address,
    Capabilities,
    DiskImage,
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
    memory_snapshot=True,
    live_fork=True,
    disk_snapshot=True,
)


class FakeMachine(Machine):
    def __init__(self, engine: FakeEngine, spec: MachineSpec) -> None:
        self.engine = engine
        self.spec = spec
        self.sandbox_id = spec.sandbox_id
        self.agent = FakeAgent(engine.behaviour)
        self.policies: list[NetworkPolicy] = [spec.network]
        self.disk = engine.disks[spec.disk.name] if spec.disk else ""
        self.is_frozen = False
        self.remembered: list[dict[str, Any]] = []
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

    @property
    def frozen(self) -> bool:
        return self.is_frozen

    async def freeze(self) -> None:
        self._do("freeze")
        self.is_frozen = True
        self.agent.behaviour = replace(self.agent.behaviour, silent=True)

    async def thaw(self) -> None:
        self._do("thaw")
        self.is_frozen = False
        self.agent.behaviour = replace(self.agent.behaviour, silent=False)

    async def sync(self) -> None:
        self._do("sync")

    async def checkpoint(self, destination: Path) -> MemoryImage:
        assert self.is_frozen
        self._do("checkpoint")
        await asyncio.to_thread(_write_pages, destination, self.agent.inits[-1:])
        return MemoryImage(destination, "fake", self.engine.release)

    async def save_disk(self, name: str, *, volumes: bool = False) -> DiskImage:
        self._do("save_disk")
        self.engine.disks[name] = self.disk
        return DiskImage(name, len(self.disk), 0)

    async def stats(self) -> MachineStats:
        if self._end.done():
            raise EngineError(self._end.result().reason)
        self.engine.cpu_seconds += 1
        return MachineStats(self.engine.cpu_seconds, self.engine.memory_bytes, 3, 100, 200)

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

    def _do(self, what: str) -> None:
        self.engine.done.append(what)
        if self._end.done():
            raise EngineError(self._end.result().reason)
        if errors := self.engine.errors.get(what):
            raise errors.pop(0)

    def _finish(self, end: SandboxExit) -> None:
        if not self._end.done():
            self._end.set_result(end)


@dataclass
class FakeEngine(Engine):
    """``boot_gate`` holds boots back, ``boot_error`` fails them; machines outlive a node.

    ``errors``: what is raised by the next calls of a machine's method, or of ``restore``.
    """

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
    release: str = "1"
    memory_bytes: int = 5000
    disks: dict[str, str] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    errors: dict[str, list[Exception]] = field(default_factory=dict)

    @property
    def memory_format(self) -> str:
        return self.release

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
        self.done.append("restore")
        if image.engine_version != self.release:
            raise ImageUnusableError(f"made by release {image.engine_version}")
        if errors := self.errors.get("restore"):
            raise errors.pop(0)
        machine = await self.boot(spec)
        assert isinstance(machine, FakeMachine)
        machine.remembered = json.loads((image.path / "pages").read_text())
        return machine

    async def disk_images(self) -> list[DiskImage]:
        return [DiskImage(name, len(disk), len(disk)) for name, disk in self.disks.items()]

    async def drop_disk(self, name: str) -> None:
        self.disks.pop(name, None)

    async def verify_disk(self, name: str) -> None:
        if name not in self.disks:
            raise NotFoundError(f"no disk {name}")

    async def adopt(self, sandbox_id: str) -> Machine:
        if sandbox_id not in self.machines:
            raise EngineError(f"there is no machine {sandbox_id}")
        return self.machines[sandbox_id]

    async def reap(self, keep: frozenset[str]) -> list[str]:
        gone = sorted(self.alive - keep)
        for sandbox_id in gone:
            await self.machines[sandbox_id].destroy()
        return gone


def _write_pages(folder: Path, remembered: list[dict[str, Any]]) -> None:
    folder.mkdir()
    (folder / "pages").write_text(json.dumps(remembered))
