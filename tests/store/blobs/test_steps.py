"""A put and a collection meet at every one of their requests, or end there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from obstore.store import MemoryStore
from tests.store.blobs.contents import pages, stream, whole
from tests.store.blobs.stepping import Work

from aenv.models.blobs import Collected, Uploaded
from aenv.models.errors import UploadLapsedError
from aenv.store.blobs import markers, uploads
from aenv.store.blobs.chunks import HOLE
from aenv.store.blobs.ledger import LEASE_SECONDS, SECOND, Ledger
from aenv.store.blobs.objects import Objects
from aenv.store.blobs.store import BlobStore
from aenv.store.catalog import Catalog

OLD = pages(8, 1) + bytes(HOLE) + pages(8, 2) + bytes(HOLE) + pages(8, 3)
NEW = pages(8, 2) + bytes(HOLE) + pages(8, 4) + bytes(HOLE) + pages(8, 3) + pages(8, 5)
MOST = 60


class Clock:
    def __init__(self) -> None:
        self.now = 10**18

    def __call__(self) -> int:
        return self.now

    def lapse(self) -> None:
        self.now += round(2 * LEASE_SECONDS * SECOND)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[BlobStore]:
    """It holds OLD, which is released: the chunks that NEW shares with it are garbage."""
    monkeypatch.setattr(uploads, "BATCH_PIECES", 1)
    catalog = await Catalog.open(tmp_path / "catalog.sqlite")
    found = BlobStore(Objects(MemoryStore(), "memory"), Ledger(catalog, now=clock))
    await markers.claim(found.objects, found.ledger)
    yield found
    await catalog.close()


async def put_new(store: BlobStore) -> Uploaded:
    return await store.put(stream(NEW), holder="new")


async def collect(store: BlobStore) -> Collected:
    return await store.gc(unknown_after=timedelta(0))


async def keys(store: BlobStore) -> set[str]:
    return {one.key async for batch in store.objects.listed() for one in batch}


async def begin(store: BlobStore) -> None:
    await store.put(stream(OLD), holder="old")
    await store.release("old")


async def end(store: BlobStore, clock: Clock) -> None:
    """NEW is whole; released, it leaves nothing."""
    again = await put_new(store)
    assert await whole(store, again.ref.id) == NEW
    assert (await store.verify()).damages == ()
    await store.release("new")
    clock.lapse()
    await collect(store)
    assert len(await keys(store)) == 1


async def test_a_collection_within_a_put(store: BlobStore, clock: Clock) -> None:
    for steps in range(MOST):
        await begin(store)
        work = Work(store, steps, put_new)
        stopped = await work.rest()
        await collect(store)
        if stopped:
            await work.go_on(1000)
        done = work.outcome()
        assert isinstance(done, Uploaded), (steps, done)
        assert await whole(store, done.ref.id) == NEW
        await end(store, clock)
        if not stopped:
            assert steps > 10
            return
    raise AssertionError("a put takes more requests than that")


async def test_a_put_within_a_collection(store: BlobStore, clock: Clock) -> None:
    for steps in range(MOST):
        await begin(store)
        work = Work(store, steps, collect)
        stopped = await work.rest()
        done = await put_new(store)
        if stopped:
            await work.go_on(1000)
        assert isinstance(work.outcome(), Collected), work.outcome()
        assert await whole(store, done.ref.id) == NEW
        await end(store, clock)
        if not stopped:
            assert steps > 6
            return
    raise AssertionError("a collection takes more requests than that")


@pytest.mark.parametrize("what", [put_new, collect])
async def test_a_kill_at_every_request_leaves_garbage_at_worst(
    store: BlobStore, clock: Clock, what: object
) -> None:
    for steps in range(MOST):
        await begin(store)
        work = Work(store, steps, what)  # type: ignore[arg-type]
        stopped = await work.rest()
        await work.kill()
        await store.release("new")
        clock.lapse()
        await collect(store)
        assert len(await keys(store)) == 1
        await end(store, clock)
        if not stopped:
            return
    raise AssertionError("it takes more requests than that")


async def test_a_lease_that_lapsed_within_a_put(store: BlobStore, clock: Clock) -> None:
    """The put fails or is whole; what it wrote after its lease had lapsed is unknown, and goes."""
    for steps in range(MOST):
        await begin(store)
        work = Work(store, steps, put_new)
        stopped = await work.rest()
        clock.lapse()
        await collect(store)
        if not stopped:
            return
        await work.go_on(1000)
        done = work.outcome()
        assert isinstance(done, Uploaded | UploadLapsedError), (steps, done)
        if isinstance(done, Uploaded):
            assert await whole(store, done.ref.id) == NEW
            await store.release("new")
        await collect(store)
        assert len(await keys(store)) == 1
    raise AssertionError("a put takes more requests than that")
