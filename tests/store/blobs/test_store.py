"""Put, read, fetch, hold, release: what users of the store are promised."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.store.blobs.conftest import OpenStore
from tests.store.blobs.contents import MIB, PAGE, objects_in, pages, stream, whole

from aenv.models.errors import (
    BlobMissingError,
    BlobStoreUnreachableError,
    HostSetupError,
    InvalidRequestError,
    NotFoundError,
)
from aenv.models.settings import BlobSettings
from aenv.store.blobs.chunks import HOLE
from aenv.store.blobs.store import BlobStore


async def test_what_was_put_is_read_back(store: BlobStore, tmp_path: Path) -> None:
    content = pages(700) + bytes(HOLE) + pages(3, 1) + b"end"
    path = tmp_path / "image"
    path.write_bytes(content)

    done = await store.put(path, holder="test")
    assert (done.ref.length, done.ref.digest) == (len(content), hashlib.sha256(content).hexdigest())
    assert done.bytes_zero == HOLE
    assert (done.bytes_new, done.bytes_shared) == (len(content) - HOLE, 0)
    assert await whole(store, done.ref.id) == content

    await store.fetch(done.ref, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == content
    assert (tmp_path / "copy").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("content", [b"", b"x", bytes(PAGE), bytes(5 * MIB), pages(1)])
async def test_small_and_empty_content(store: BlobStore, content: bytes, tmp_path: Path) -> None:
    done = await store.put(stream(content), holder="test")
    assert await whole(store, done.ref.id) == content
    await store.fetch(done.ref, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == content


async def test_the_same_content_is_one_blob_and_sends_nothing(store: BlobStore) -> None:
    content = pages(600)
    first = await store.put(stream(content), holder="one")
    before = objects_in(store)
    second = await store.put(stream(content), holder="two")
    assert second.ref == first.ref
    assert (second.bytes_new, second.bytes_sent) == (0, 0)
    assert second.bytes_shared == len(content)
    assert objects_in(store) == before


async def test_a_child_sends_what_differs_from_its_parent(store: BlobStore) -> None:
    parent = pages(4000)
    child = parent[: 1000 * PAGE] + pages(2, 1) + parent[1000 * PAGE :]
    await store.put(stream(parent), holder="parent")
    done = await store.put(stream(child), holder="child")
    assert done.bytes_new < len(child) // 4
    assert done.bytes_new + done.bytes_shared == len(child)
    assert await whole(store, done.ref.id) == child


async def test_what_repeats_within_a_blob_is_stored_once(store: BlobStore) -> None:
    one = pages(64) + bytes(HOLE)
    done = await store.put(stream(one * 20), holder="test")
    assert done.bytes_new == 64 * PAGE
    assert await whole(store, done.ref.id) == one * 20


async def test_holes_of_files_are_not_read_and_not_written(
    store: BlobStore, tmp_path: Path
) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 30)
        file.seek(512 * MIB)
        file.write(pages(100))
    done = await store.put(path, holder="test")
    assert done.bytes_new == 100 * PAGE
    await store.fetch(done.ref, tmp_path / "copy")
    assert (tmp_path / "copy").stat().st_blocks * 512 < 4 * MIB
    with (tmp_path / "copy").open("rb") as copy:
        copy.seek(512 * MIB)
        assert copy.read(100 * PAGE) == pages(100)

    dense = await store.put(stream(path.read_bytes(), MIB), holder="dense")
    assert dense.ref == done.ref


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.integers(0, 3000 * PAGE), st.integers(0, 900 * PAGE))
def test_any_range_is_what_it_is_in_the_content(
    ranges: tuple[asyncio.AbstractEventLoop, BlobStore, str, bytes], offset: int, length: int
) -> None:
    loop, store, blob_id, content = ranges

    async def read() -> bytes:
        return await (await store.reader(blob_id)).read(offset, length)

    assert loop.run_until_complete(read()) == content[offset : offset + length]


@pytest.fixture
def ranges(tmp_path: Path) -> object:
    from tests.store.blobs.conftest import settings_in

    from aenv.store.catalog import Catalog

    async def prepare() -> tuple[BlobStore, str, bytes, Catalog]:
        catalog = await Catalog.open(tmp_path / "data" / "catalog.sqlite")
        found = await BlobStore.open(settings_in(tmp_path), catalog)
        content = pages(1000) + bytes(HOLE * 2) + pages(900, 1) + b"tail"
        done = await found.put(stream(content), holder="test")
        return found, done.ref.id, content, catalog

    loop = asyncio.new_event_loop()
    found, blob_id, content, catalog = loop.run_until_complete(prepare())
    yield loop, found, blob_id, content
    loop.run_until_complete(catalog.close())
    loop.close()


async def test_ranges_that_make_no_sense(store: BlobStore) -> None:
    done = await store.put(stream(pages(2)), holder="test")
    reader = await store.reader(done.ref.id)
    assert await reader.read(10**9, 10) == b""
    with pytest.raises(InvalidRequestError):
        await reader.read(-1, 10)
    with pytest.raises(InvalidRequestError, match="no blob id"):
        await store.reader("../../etc/passwd")
    with pytest.raises(BlobMissingError):
        await store.reader("0" * 64)


async def test_memory_stays_bounded_however_long_a_stream_is(store: BlobStore) -> None:
    """A source that could give ten times as much as is in flight is not read ahead of the store."""
    read = 0
    gate = asyncio.Event()
    put = store.objects.put

    async def slow(key: str, data: bytes) -> None:
        await gate.wait()
        await put(key, data)

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        for number in range(100):
            read += MIB
            yield pages(256, number)

    store.objects.put = slow  # type: ignore[method-assign]
    task = asyncio.create_task(store.put(endless(), holder="test"))
    seen = -1
    while read == 0 or read != seen:
        seen = read
        await asyncio.sleep(1)
    assert 8 * MIB <= read <= 60 * MIB
    gate.set()
    assert (await task).ref.length == 100 * MIB


async def test_a_released_blob_is_collected_and_what_others_need_is_not(store: BlobStore) -> None:
    parent, child = pages(1500), pages(1200) + pages(300, 7)
    first = await store.put(stream(parent), holder="snapshot:parent")
    second = await store.put(stream(child), holder="snapshot:child")
    assert await store.release("snapshot:parent") == 1
    assert await store.release("snapshot:parent") == 0

    freed = await store.gc()
    assert freed.blobs == 1
    assert 0 < freed.bytes_freed < len(parent)
    assert await whole(store, second.ref.id) == child
    with pytest.raises(BlobMissingError):
        await store.reader(first.ref.id)

    await store.release("snapshot:child", second.ref.id)
    await store.gc()
    assert objects_in(store) == {}


async def test_two_holders_must_both_let_go(store: BlobStore) -> None:
    done = await store.put(stream(pages(10)), holder="one")
    await store.hold(done.ref.id, "two")
    await store.hold(done.ref.id, "two")
    await store.release("one")
    await store.gc()
    assert await whole(store, done.ref.id) == pages(10)
    await store.release("two")
    await store.gc()
    with pytest.raises(NotFoundError):
        await store.hold(done.ref.id, "three")


async def test_a_blob_that_is_being_read_outlives_its_release(store: BlobStore) -> None:
    done = await store.put(stream(pages(900)), holder="one")
    async with store.reading(done.ref.id) as reader:
        await store.release("one")
        await store.gc()
        assert await reader.read(0, 900 * PAGE) == pages(900)
    await store.gc()
    assert objects_in(store) == {}
    with pytest.raises(NotFoundError):
        async with store.reading(done.ref.id):
            raise AssertionError("it is gone")


async def test_two_nodes_share_one_folder_and_one_catalog(open_store: OpenStore) -> None:
    one, two = await open_store(), await open_store()
    done = await one.put(stream(pages(800)), holder="one")
    assert await whole(two, done.ref.id) == pages(800)
    again, fresh = await asyncio.gather(
        two.put(stream(pages(800)), holder="two"), one.put(stream(pages(800, 1)), holder="x")
    )
    assert again.bytes_new == 0
    await asyncio.gather(one.gc(), two.gc(), one.release("x"), two.release("one"))
    assert await whole(one, again.ref.id) == pages(800)
    await asyncio.gather(one.gc(), two.gc())
    with pytest.raises(BlobMissingError):
        await two.reader(fresh.ref.id)


async def test_two_writers_of_one_content_end_with_one_blob(open_store: OpenStore) -> None:
    one, two = await open_store(), await open_store()
    first, second = await asyncio.gather(
        one.put(stream(pages(3000)), holder="one"), two.put(stream(pages(3000)), holder="two")
    )
    assert first.ref == second.ref
    await one.gc()
    assert await whole(two, first.ref.id) == pages(3000)
    assert len([key for key in objects_in(one) if key.startswith("blobs/")]) == 1


async def test_a_store_of_another_catalog_is_refused(open_store: OpenStore, tmp_path: Path) -> None:
    shared = BlobSettings(folder=str(tmp_path / "shared"))
    first = await open_store("one", shared)
    await first.put(stream(pages(1)), holder="test")
    with pytest.raises(HostSetupError, match="belongs to another server"):
        await open_store("two", shared)


async def test_a_store_that_is_not_mounted_is_not_taken_for_an_empty_one(
    open_store: OpenStore, tmp_path: Path
) -> None:
    place = tmp_path / "mounted"
    first = await open_store("one", BlobSettings(folder=str(place)))
    done = await first.put(stream(pages(1)), holder="test")
    place.rename(tmp_path / "elsewhere")
    with pytest.raises(HostSetupError, match="mount what is missing"):
        await open_store("one", BlobSettings(folder=str(place)))

    moved = await open_store("one", BlobSettings(folder=str(tmp_path / "elsewhere")))
    assert await whole(moved, done.ref.id) == pages(1)


async def test_a_store_that_was_unmounted_meanwhile(store: BlobStore) -> None:
    """Nothing is written into the empty folder that is left."""
    await store.put(stream(pages(1)), holder="one")
    folder = store.objects.folder
    assert folder is not None
    folder.rename(folder.with_name("away"))
    folder.mkdir()
    for work in (store.put(stream(pages(1, 1)), holder="two"), store.gc(), store.usage()):
        with pytest.raises(BlobStoreUnreachableError, match="mount it again"):
            await work
    assert objects_in(store) == {}
    folder.rmdir()
    folder.with_name("away").rename(folder)
    assert (await store.put(stream(pages(1)), holder="two")).bytes_new == 0
