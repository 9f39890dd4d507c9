"""A whole control plane over a fake node and a fake clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.fakes.clock import FakeClock
from tests.fakes.node import FakeNode

from aenv.control.builds.startups import Patience
from aenv.control.forks import ForkRequest
from aenv.control.keys import Caller
from aenv.control.requests import CreateRequest
from aenv.control.resumes import Call
from aenv.control.system import System, Timing
from aenv.models.errors import AenvError
from aenv.models.folders import Folders
from aenv.models.settings import Settings
from aenv.store import sandboxes as rows
from aenv.store.records import SandboxRecord, SnapshotRecord

QUICK = Timing(
    template_wait=0.05,
    tick=0.01,
    retry_pause=0.01,
    cold_lull=0.0,
    cold_every=0.05,
    patience=Patience(0.01, 0.01, 0.2),
)


@dataclass
class House:
    """``restart`` is what happens after kill -9: the same folders and machines, a new server."""

    root: Path
    node: FakeNode = field(default_factory=FakeNode)
    clock: FakeClock = field(default_factory=FakeClock)
    options: Mapping[str, Any] = field(default_factory=dict)
    system: System = field(init=False)

    @property
    def settings(self) -> Settings:
        folders = Folders(
            self.root / "data", self.root / "cache", self.root / "config", self.root / "run"
        )
        return replace(Settings(folders), **self.options)

    async def open(self) -> House:
        self.system = await System.open(self.settings, self.node, clock=self.clock, timing=QUICK)
        return self

    async def abandon(self) -> None:
        """What kill -9 leaves: nothing runs any more, nothing was tidied up.

        The catalog goes first, so that what is called off cannot write how it ended.
        """
        await self.system.catalog.close()
        for task in [*self.system._loops, *self.system._background._tasks]:
            task.cancel()

    async def restart(self) -> House:
        knobs, infos, entries = self.node.knobs, self.node.infos, self.node.entries
        ended = self.node.ended
        self.node = FakeNode(self.node.host)
        self.node.knobs, self.node.infos, self.node.entries = knobs, infos, entries
        self.node.ended = ended
        return await self.open()

    @property
    def caller(self) -> Caller:
        return self.system.keys.authenticate(self.system.keys.local)

    async def create(self, **options: Any) -> SandboxRecord:
        request = CreateRequest(**{"template": "base", "timeout": 300, **options})
        return await self.system.sandboxes.create(self.caller, request)

    async def pause(self, sandbox_id: str, **options: Any) -> None:
        await self.system.sandboxes.pause(self.caller, sandbox_id, **options)

    async def connect(
        self, sandbox_id: str, seconds: int = 60, **options: Any
    ) -> tuple[SandboxRecord, bool]:
        call = Call(seconds, **options)
        return await self.system.sandboxes.connect(self.caller, sandbox_id, call)

    async def snapshot(
        self, sandbox_id: str, name: str | None = None, **options: Any
    ) -> SnapshotRecord:
        snapshots = self.system.snapshots
        return await snapshots.create(self.caller.team, sandbox_id, name=name, **options)

    async def fork(
        self, sandbox_id: str, count: int = 1, **options: Any
    ) -> list[SandboxRecord | AenvError]:
        request = ForkRequest(count, **options)
        return await self.system.forks.fork(self.caller, sandbox_id, request)

    async def row(self, sandbox_id: str) -> SandboxRecord:
        found = await self.system.catalog.read(lambda db: rows.get(db, sandbox_id))
        assert found is not None
        return found

    async def state(self, sandbox_id: str) -> str:
        return (await self.row(sandbox_id)).state.value

    async def living(self) -> list[SandboxRecord]:
        states = ("creating", "running", "killing")
        return await self.system.catalog.read(lambda db: rows.in_states(db, states))  # type: ignore[arg-type]
