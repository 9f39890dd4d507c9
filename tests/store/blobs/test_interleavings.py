"""Puts, releases and collections of several processes, stopped, killed and resumed between any two
of their requests, with leases that lapse meanwhile: what somebody holds is whole, always, and
nothing is left in the end but what is needed.

How far a work has come when it stops depends on threads, too. So no rule is chosen by it: a rule
that finds nothing to do does nothing, and hypothesis meets the same choices when it repeats a run.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from obstore.store import MemoryStore
from tests.store.blobs.contents import pages, stream, whole
from tests.store.blobs.stepping import Work

from aenv.models.blobs import Uploaded
from aenv.models.errors import UploadLapsedError
from aenv.store.blobs import inventory, markers, uploads
from aenv.store.blobs.chunks import HOLE
from aenv.store.blobs.inventory import Kind
from aenv.store.blobs.ledger import LEASE_SECONDS, SECOND, Ledger
from aenv.store.blobs.objects import Objects
from aenv.store.blobs.store import BlobStore
from aenv.store.catalog import Catalog

T = TypeVar("T")
CHUNKS = [pages(8, seed) + bytes(HOLE) for seed in range(3)]
ALL = 10**9
Steps = st.sampled_from([ALL, 5, 6, 7, 8, 4, 9, 10, 2])


@dataclass
class _Begun:
    """A put of ``content`` for ``holder``, or a collection."""

    work: Work
    holder: str = ""
    content: bytes = b""
    over: bool = False


class Interleavings(RuleBasedStateMachine):
    begun: Bundle[_Begun] = Bundle("begun")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.now = 10**18
        self.held: dict[str, tuple[str, bytes]] = {}
        self.works: list[Work] = []
        self.undecided: set[str] = set()
        """Holders of puts that have not told how they ended."""

    @initialize()
    def begin(self) -> None:
        async def open_() -> tuple[Catalog, BlobStore]:
            catalog = await Catalog.open(Path(self.folder.name) / "catalog.sqlite")
            ledger = Ledger(catalog, "observer", now=lambda: self.now)
            store = BlobStore(Objects(MemoryStore(), "memory"), ledger)
            await markers.claim(store.objects, store.ledger)
            return catalog, store

        self.catalog, self.store = self.run(open_())

    @rule(target=begun, wanted=st.lists(st.integers(0, 2), min_size=1, max_size=3), steps=Steps)
    def put(self, wanted: list[int], steps: int) -> _Begun:
        holder, content = f"holder-{len(self.works)}", b"".join(CHUNKS[n] for n in wanted)
        self.undecided.add(holder)
        work = self.start(steps, lambda s: s.put(stream(content), holder=holder))
        return self.rest(_Begun(work, holder, content), self.run(work.rest()))

    @rule()
    def collect_all(self) -> None:
        self.run(self.store.gc(unknown_after=timedelta(0)))

    @rule(target=begun, steps=Steps)
    def collect(self, steps: int) -> _Begun:
        work = self.start(steps, lambda s: s.gc(unknown_after=timedelta(0)))
        return self.rest(_Begun(work), self.run(work.rest()))

    @rule(one=begun, steps=Steps)
    def go_on(self, one: _Begun, steps: int) -> None:
        if not one.over:
            self.rest(one, self.run(one.work.go_on(steps)))

    @rule(one=begun)
    def kill(self, one: _Begun) -> None:
        """What it had finished stays; whether its last transaction was that, only the catalog
        knows.
        """
        if one.over:
            return
        one.over = True
        self.run(one.work.kill())
        if one.holder in self.undecided:
            self.undecided.discard(one.holder)
            self.run(self.store.release(one.holder))

    @rule(number=st.integers(0, 100))
    def release(self, number: int) -> None:
        if self.held:
            holder = sorted(self.held)[number % len(self.held)]
            del self.held[holder]
            self.run(self.store.release(holder))

    @rule()
    def leases_lapse(self) -> None:
        if self.undecided:
            self.let_lapse()

    @invariant()
    def what_is_held_is_whole(self) -> None:
        for blob_id, content in dict(self.held.values()).items():
            assert self.run(whole(self.store, blob_id)) == content

    def teardown(self) -> None:
        try:
            if hasattr(self, "store"):
                self.finish()
        finally:
            self.loop.close()
            self.folder.cleanup()

    def finish(self) -> None:
        for work in self.works:
            self.run(work.kill())
        for holder in self.undecided:
            self.run(self.store.release(holder))
        self.let_lapse()
        self.run(self.store.gc(unknown_after=timedelta(0)))
        self.what_is_held_is_whole()
        assert self.kinds() <= {Kind.NEEDED, Kind.MANIFEST, Kind.MARKER}
        for holder in self.held:
            self.run(self.store.release(holder))
        self.run(self.store.gc(unknown_after=timedelta(0)))
        assert self.kinds() == {Kind.MARKER}
        self.run(self.catalog.close())

    def let_lapse(self) -> None:
        self.now += round(2 * LEASE_SECONDS * SECOND)

    def kinds(self) -> set[Kind]:
        async def look() -> set[Kind]:
            keys = [one.key async for batch in self.store.objects.listed() for one in batch]
            return set((await inventory.classify(self.store.ledger, keys)).values())

        return self.run(look())

    def start(self, steps: int, what: Any) -> Work:
        async def create() -> Work:
            return Work(self.store, steps, what)

        self.works.append(self.run(create()))
        return self.works[-1]

    def rest(self, one: _Begun, stopped: bool) -> _Begun:
        """Take down how it ended, if it has."""
        one.over = not stopped
        if one.over:
            outcome = one.work.outcome()
            if isinstance(outcome, Uploaded):
                self.held[one.holder] = (outcome.ref.id, one.content)
            elif isinstance(outcome, BaseException):
                assert isinstance(outcome, UploadLapsedError), repr(outcome)
            self.undecided.discard(one.holder)
        return one

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)


@pytest.mark.timeout(900)
def test_interleavings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "BATCH_PIECES", 1)
    checks = list(HealthCheck)
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Interleavings,
        settings=settings(
            max_examples=60, stateful_step_count=60, deadline=None, suppress_health_check=checks
        ),
    )
