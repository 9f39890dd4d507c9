"""The blob store as operators see it: opened by who needs it, told about while it works."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes.node import FakeNode
from tests.store.blobs.conftest import settings_in
from tests.store.blobs.contents import pages, stream

from aenv.control.storage import Storage, Usage
from aenv.models.blobs import Collected, SpaceUse, Verified
from aenv.models.errors import HostSetupError
from aenv.models.settings import BlobSettings
from aenv.node import space
from aenv.store.catalog import Catalog


async def test_usage_gc_and_verify(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    catalog = await Catalog.open(settings.folders.data / "catalog.sqlite")
    storage = Storage(settings, catalog, FakeNode())
    store = await storage.blobs()
    await store.put(stream(pages(70)), holder="one")

    *_, used = [one async for one in storage.usage()]
    *_, found = [one async for one in storage.verify()]
    await store.release("one")
    *_, freed = [one async for one in storage.gc()]
    await catalog.close()

    assert isinstance(used, Usage)
    assert (used.store.blobs, used.store.bytes_logical) == (1, 70 * 4096)
    assert isinstance(found, Verified)
    assert (found.chunks, found.damages) == (1, ())
    assert isinstance(freed, Collected)
    assert (freed.blobs, freed.objects_deleted) == (1, 2)


async def test_a_store_that_could_not_be_opened_is_opened_later(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.write_text("in the way")
    settings = settings_in(tmp_path, BlobSettings(folder=str(place / "blobs")))
    catalog = await Catalog.open(settings.folders.data / "catalog.sqlite")
    storage = Storage(settings, catalog, FakeNode())
    with pytest.raises(HostSetupError, match=r"store\.folder"):
        await anext(storage.gc())
    place.unlink()
    assert (await storage.blobs()).objects.folder == place / "blobs"
    await catalog.close()


def test_a_server_starts_without_loading_what_blobs_need() -> None:
    code = (
        "import sys, aenv.control.system, aenv.server.app, aenv.node.local\n"
        "sys.exit(any(name in sys.modules for name in ('obstore', 'aenv.store.blobs.store')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class TestSpace:
    def test_every_byte_of_the_folders_is_explained(self, tmp_path: Path) -> None:
        folders = settings_in(tmp_path).folders
        for name in (
            "data/catalog.sqlite",
            "data/disks/i1/file",
            "data/disks/.images/s1/file",
            "data/snapshots/s1/memory",
            "data/logs/i1.log",
            "data/blobs/chunks/ab/x",
            "data/strange",
            "cache/images/layers/k/layer.erofs",
            "cache/unknown/x",
        ):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(b"x" * 10_000)
        (tmp_path / "data" / "logs" / "again").hardlink_to(tmp_path / "data" / "strange")

        found = {one.name: one for one in space.survey(folders)}

        allocated = {
            path.stat().st_ino: path.stat().st_blocks * 512
            for root in ("data", "cache")
            for path in (tmp_path / root).rglob("*")
            if path.name not in ("disks",)
        }
        assert sum(one.bytes for one in found.values()) == sum(allocated.values())
        assert found["data: disks of sandboxes"].count == 1
        assert found["data: disk images of snapshots"].count == 1
        assert found["data: logs of sandboxes"].count == 2
        assert found["cache: other"].count == 1

    def test_the_file_of_the_disk_pool(self, tmp_path: Path) -> None:
        folders = settings_in(tmp_path).folders
        folders.data.mkdir()
        (folders.data / "pool.btrfs").write_bytes(bytes(100_000))
        (folders.data / "pool").mkdir()
        [free] = space.survey(folders)
        size = (folders.data / "pool.btrfs").stat().st_blocks * 512
        assert free == replace(
            SpaceUse("data: disk pool, free for disks", size, 1), place=free.place
        )

    def test_nothing_there(self, tmp_path: Path) -> None:
        assert space.survey(settings_in(tmp_path / "none").folders) == []
