"""What goes wrong: refusals, full disks, sources that fail, killed processes."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.store.blobs.conftest import OpenStore
from tests.store.blobs.contents import PAGE, names_in, objects_in, pages, stream, whole

from aenv.models.errors import (
    BlobStoreDeniedError,
    DiskFullError,
    HostSetupError,
    UploadLapsedError,
)
from aenv.models.settings import BlobSettings
from aenv.store.blobs.ledger import SECOND, Ledger
from aenv.store.blobs.store import BlobStore


def make_read_only(mounted: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", mounted], check=True)


async def test_an_upload_that_stood_still_too_long_says_so_and_can_be_done_again(
    store: BlobStore,
) -> None:
    now = 10**18
    ledger = Ledger(store.ledger._catalog, "slow", now=lambda: now)
    slow = BlobStore(store.objects, ledger)

    async def stalling() -> AsyncIterator[bytes]:
        nonlocal now
        for number in range(40):
            yield pages(256, number)
        now += 3600 * SECOND
        await slow.gc()

    with pytest.raises(UploadLapsedError, match="do it again"):
        await slow.put(stalling(), holder="one")
    done = await slow.put(stream(b"".join(pages(256, n) for n in range(40))), holder="one")
    assert done.ref.length == 40 * 256 * PAGE


async def test_a_source_that_fails_leaves_only_what_gc_takes(store: BlobStore) -> None:
    async def failing() -> AsyncIterator[bytes]:
        for number in range(40):
            yield pages(256, number)
        raise ConnectionResetError("the registry cut it")

    with pytest.raises(ConnectionResetError):
        await store.put(failing(), holder="one")
    assert await store.release("one") == 0
    assert objects_in(store) != {}
    await store.gc()
    assert objects_in(store) == {}


async def test_a_cancelled_put_holds_nothing_up(store: BlobStore) -> None:
    started = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        for number in range(20):
            yield pages(256, number)
        started.set()
        await asyncio.sleep(3600)

    task = asyncio.create_task(store.put(endless(), holder="one"))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await store.gc()
    assert objects_in(store) == {}


async def test_a_folder_that_is_closed_to_us(open_store: OpenStore, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    store = await open_store()
    assert store.objects.folder is not None
    store.objects.folder.chmod(0o500)
    try:
        with pytest.raises(BlobStoreDeniedError, match="permissions of the folder"):
            await store.put(stream(pages(1)), holder="one")
    finally:
        store.objects.folder.chmod(0o700)


async def test_a_folder_that_cannot_be_made(open_store: OpenStore, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HostSetupError, match=r"store\.folder"):
        await open_store("one", BlobSettings(folder=str(tmp_path / "file" / "blobs")))


@pytest.fixture
def small_disk(tmp_path: Path) -> AsyncIterator[Path]:
    """A file system of 8 MiB."""
    if os.geteuid() != 0 or sys.platform != "linux":
        pytest.skip("mounting needs root on Linux")
    folder = tmp_path / "small"
    folder.mkdir(mode=0o700)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "aenv-test", folder], check=True
    )
    yield folder  # type: ignore[misc]
    subprocess.run(["umount", folder], check=True)


@pytest.mark.root
async def test_a_full_disk_is_said_so_and_what_was_there_stays(
    open_store: OpenStore, small_disk: Path, tmp_path: Path
) -> None:
    store = await open_store("one", BlobSettings(folder=str(small_disk / "blobs")))
    kept = await store.put(stream(pages(500)), holder="kept")
    with pytest.raises(DiskFullError, match="aenv store gc"):
        await store.put(stream(pages(2500, 1)), holder="lost")
    await store.gc()
    assert await whole(store, kept.ref.id) == pages(500)
    assert (await store.verify()).damages == ()
    fits = await store.put(stream(pages(500, 2)), holder="fits")
    assert await whole(store, fits.ref.id) == pages(500, 2)

    (small_disk / "filler").write_bytes(bytes(3 << 20))
    with pytest.raises(DiskFullError, match="no room for"):
        await store.fetch(fits.ref, small_disk / "b")
    assert names_in(small_disk, "b") == ["blobs"]


@pytest.mark.root
async def test_a_folder_that_became_read_only(open_store: OpenStore, small_disk: Path) -> None:
    store = await open_store("one", BlobSettings(folder=str(small_disk / "blobs")))
    kept = await store.put(stream(pages(5)), holder="kept")
    make_read_only(small_disk)
    with pytest.raises(BlobStoreDeniedError, match="permissions of the folder"):
        await store.put(stream(pages(5, 1)), holder="lost")
    assert await whole(store, kept.ref.id) == pages(5)


PUT = """
import asyncio, os, sys
from pathlib import Path
from aenv.models.folders import Folders
from aenv.models.settings import Settings
from aenv.store.blobs.store import BlobStore
from aenv.store.catalog import Catalog

async def main():
    folder = Path(sys.argv[1])
    folders = Folders(*(folder / name for name in ("data", "cache", "config", "run")))
    catalog = await Catalog.open(folders.data / "catalog.sqlite")
    store = await BlobStore.open(Settings(folders), catalog)
    print("ready", flush=True)
    tell = lambda now: print(now.done, flush=True)
    await store.put(Path(sys.argv[2]), holder="child", report=tell)
    print("done", flush=True)

asyncio.run(main())
"""


async def test_kill_9_in_the_middle_of_a_put(open_store: OpenStore, tmp_path: Path) -> None:
    """What is left is garbage at worst; the same put goes on with what lacks."""
    store = await open_store()
    content = b"".join(pages(2560, number) for number in range(6))
    path = tmp_path / "image"
    path.write_bytes(content)

    def put_and_kill() -> None:
        command = [sys.executable, "-c", PUT, str(tmp_path / "one"), str(path)]
        env = {**os.environ, "PYTHONPATH": str(Path("src").absolute())}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as child:
            assert child.stdout is not None
            for line in child.stdout:
                assert not line.startswith("done")
                if re.fullmatch(r"[1-9]\d+\n", line):
                    child.send_signal(signal.SIGKILL)
                    break

    await asyncio.to_thread(put_and_kill)
    left = objects_in(store)
    assert left
    assert not [key for key in left if key.startswith("blobs/")]

    done = await store.put(path, holder="again")
    assert done.bytes_shared > 0
    assert done.bytes_new + done.bytes_shared == len(content)
    assert await whole(store, done.ref.id) == content
    assert (await store.verify()).damages == ()

    later = Ledger(store.ledger._catalog, now=lambda: 2**62)
    await store.release("again")
    for staged in await store.objects.staged():
        os.utime(staged, (1, 1))
    await BlobStore(store.objects, later).gc()
    assert [part.count for part in (await store.usage()).parts] == [1]


async def test_what_killed_writes_staged_is_counted_and_removed(store: BlobStore) -> None:
    await store.put(stream(pages(1)), holder="one")
    folder = store.objects.folder
    assert folder is not None
    staged = folder / "chunks" / "00" / "name#1"
    staged.parent.mkdir(exist_ok=True)
    staged.write_bytes(bytes(5000))
    fresh = staged.with_name("name#2")
    fresh.write_bytes(b"x")
    os.utime(staged, (1, 1))

    parts = {part.name: part for part in (await store.usage()).parts}
    assert [(p.bytes, p.count) for name, p in parts.items() if "killed" in name] == [(5001, 2)]
    await store.gc()
    assert (staged.exists(), fresh.exists()) == (False, True)


async def test_usage_explains_every_byte(store: BlobStore) -> None:
    await store.put(stream(pages(70, 1)), holder="kept")
    await store.put(stream(pages(70, 2)), holder="released")
    await store.release("released")
    folder = store.objects.folder
    assert folder is not None
    (folder / "stranger").write_bytes(b"12345")

    found = await store.usage()
    total = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert found.bytes_stored == total
    by_name = {part.name.split(" (")[0]: part.bytes for part in found.parts}
    assert by_name["unknown to the catalog"] == 5
    assert by_name["chunks and blobs that nobody needs"] > 0
    assert (found.blobs, found.bytes_logical) == (2, 140 * PAGE)
