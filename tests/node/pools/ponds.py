"""A node of fakes with warm pools, asked as control asks it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tests.fakes.engine import FakeMachine
from tests.fakes.waiting import until
from tests.node.nodes import RESOURCES, Bench, make_spec

from aenv.models.pools import PoolReport
from aenv.node.local import LocalNode
from aenv.node.port import RunningSandbox, SandboxSpec


@dataclass
class Pond:
    bench: Bench
    node: LocalNode = field(init=False)

    def __post_init__(self) -> None:
        self.node = self.bench.node()

    async def start(self) -> None:
        self.node = self.bench.node()
        await self.node.start(())

    async def close(self) -> None:
        await self.node.close()

    async def claim(self, template: str = "base", *, snapshot: str | None = None) -> str | None:
        return await self.node.claim(template, RESOURCES, snapshot=snapshot)

    async def create(
        self, template: str = "base", **changes: object
    ) -> tuple[SandboxSpec, RunningSandbox]:
        """Claim, then create: what control does."""
        claimed = await self.claim(template, snapshot=changes.get("snapshot"))  # type: ignore[arg-type]
        spec = replace(make_spec(template=template, sandbox_id=claimed), **changes)  # type: ignore[arg-type]
        return spec, await self.node.create(spec)

    async def filled(self, machines: int = 1, template: str = "base") -> None:
        """Return when so many wait for the template."""
        await until(lambda: self.waiting(template) == machines)

    async def warm(self, template: str = "base") -> None:
        """Have one waiting."""
        await self.claim(template)
        await self.filled(1, template)

    def waiting(self, template: str = "base") -> int:
        return sum(one.machines for one in self.report().shares if one.template == template)

    def report(self) -> PoolReport:
        return self.node._makers.pools.report()

    def machine(self, sandbox_id: str) -> FakeMachine:
        return self.bench.engine.machines[sandbox_id]

    @property
    def alive(self) -> set[str]:
        return self.bench.engine.alive
