"""Kept copies of disks, in every kind of store."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from aenv.models.errors import ConflictError, NotFoundError, SnapshotDamagedError
from aenv.models.settings import Settings
from aenv.node.disks.pool import DiskPool, PoolKind
from aenv.node.disks.records import VERSION, DiskRecord
from aenv.node.host import Host

from .conftest import Identify, fill

pytestmark = pytest.mark.root


@pytest.fixture
async def folders(
    settings: Settings, host: Host, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[DiskPool]:
    """A pool of plain folders, as on a host without btrfs."""
    monkeypatch.setattr(host.volumes, "is_btrfs", lambda path: False)
    monkeypatch.setattr(host.volumes, "format", _refuse)
    pool = DiskPool(settings, host)
    await pool.start()
    assert pool.kind is PoolKind.DIRECTORY
    yield pool
    await pool.reap(frozenset())
    await pool.close()


def _refuse(file: Path) -> None:
    raise OSError(errno.EOPNOTSUPP, "no btrfs here")


@pytest.fixture(params=["pool", "folders"])
def any_pool(request: pytest.FixtureRequest) -> DiskPool:
    found: DiskPool = request.getfixturevalue(request.param)
    return found


async def test_a_copy_is_of_its_moment_and_never_changes(
    any_pool: DiskPool, lower: Path, identify: Identify
) -> None:
    disk = await any_pool.create(identify("a"), [lower], 64)
    (disk.merged / "file").write_text("first")
    (disk.merged / "etc/motd").unlink()
    await any_pool.sync(disk.sandbox_id)
    image = await any_pool.save(disk.sandbox_id, "s1")
    (disk.merged / "file").write_text("second")

    copy = await any_pool.create(identify("b"), [lower], 64, source=image.name)

    assert (copy.merged / "file").read_text() == "first"
    assert not (copy.merged / "etc/motd").exists()
    (copy.merged / "file").write_text("third")
    other = await any_pool.create(identify("c"), [lower], 64, source="s1")
    assert (other.merged / "file").read_text() == "first"
    assert [one.name for one in await any_pool.images()] == ["s1"]
    await any_pool.verify("s1")
    await any_pool.drop("s1")
    await any_pool.drop("s1")
    assert await any_pool.images() == []
    assert (other.merged / "file").read_text() == "first"


async def test_a_name_is_taken_once_and_what_is_missing_is_said(
    any_pool: DiskPool, lower: Path, identify: Identify
) -> None:
    await any_pool.create(identify("a"), [lower], 64)
    await any_pool.save(identify("a"), "s1")
    with pytest.raises(ConflictError):
        await any_pool.save(identify("a"), "s1")
    with pytest.raises(NotFoundError):
        await any_pool.save(identify("x"), "s2")
    with pytest.raises(SnapshotDamagedError):
        await any_pool.create(identify("b"), [lower], 64, source="nothing")
    with pytest.raises(NotFoundError):
        await any_pool.verify("nothing")
    assert [one.name for one in await any_pool.images()] == ["s1"]
    assert await any_pool.reap(frozenset()) == [identify("a")]
    await any_pool.drop("s1")


async def test_images_stay_when_their_sandboxes_go_and_over_a_restart(
    pool: DiskPool, settings: Settings, host: Host, lower: Path, identify: Identify
) -> None:
    disk = await pool.create(identify("a"), [lower], 64)
    (disk.merged / "file").write_text("kept")
    await pool.save(disk.sandbox_id, "s1")
    await pool.reap(frozenset())
    await pool.close()

    again = DiskPool(settings, host)
    await again.start()
    copy = await again.create(identify("b"), [lower], 64, source="s1")

    assert (copy.merged / "file").read_text() == "kept"
    await copy.destroy()
    await again.drop("s1")
    await again.close()


async def test_sizes_tell_what_is_shared_and_what_dropping_frees(
    pool: DiskPool, lower: Path, identify: Identify
) -> None:
    disk = await pool.create(identify("a"), [lower], 256)
    assert await asyncio.to_thread(fill, disk.merged, 40) is None
    shared = await pool.save(disk.sandbox_id, "s1")
    assert shared.bytes >= 40 << 20
    assert shared.own_bytes < 1 << 20
    before = await pool.room()

    await disk.destroy()
    await reaches(lambda: own_bytes(pool), 40 << 20)
    await pool.drop("s1")

    await reaches(pool.room, before + (39 << 20))


async def own_bytes(pool: DiskPool) -> int:
    return (await pool.images())[0].own_bytes


async def reaches(measure: Callable[[], Awaitable[int]], least: int) -> None:
    async with asyncio.timeout(20):
        measured = await measure()
        while measured < least:
            await asyncio.sleep(0.1)
            measured = await measure()


async def test_a_copy_has_a_quota_of_its_own(
    pool: DiskPool, lower: Path, identify: Identify
) -> None:
    disk = await pool.create(identify("a"), [lower], 128)
    assert await asyncio.to_thread(fill, disk.merged, 20) is None
    await pool.save(disk.sandbox_id, "s1")
    copy = await pool.create(identify("b"), [lower], 32, source="s1")

    refused = await asyncio.to_thread(fill, copy.merged, 20, "more")

    assert refused is not None
    assert refused.errno in (errno.EDQUOT, errno.ENOSPC)
    assert await asyncio.to_thread(fill, disk.merged, 40, "more") is None
    await pool.drop("s1")


async def test_a_record_of_version_1_is_read_as_a_disk_that_began_empty(tmp_path: Path) -> None:
    old = {"version": 1, "lowers": ["/base"], "size_mb": 64}
    (tmp_path / "disk.json").write_text(json.dumps(old))

    record = DiskRecord.read(tmp_path)

    assert record == DiskRecord((Path("/base"),), 64, None)
    assert record is not None
    record.write(tmp_path)
    assert json.loads((tmp_path / "disk.json").read_text())["version"] == VERSION
    assert DiskRecord.read(tmp_path) == record


async def test_a_record_of_a_later_version_is_not_understood(tmp_path: Path) -> None:
    newer = {"version": VERSION + 1, "lowers": [], "size_mb": 64}
    (tmp_path / "disk.json").write_text(json.dumps(newer))
    assert DiskRecord.read(tmp_path) is None
