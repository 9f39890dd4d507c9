"""Volumes in every kind of store."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from aenv.models.errors import ConflictError, EngineError, SnapshotDamagedError
from aenv.models.settings import Settings
from aenv.models.volumes import VolumeMount
from aenv.node.disks.pool import DiskPool, PoolKind
from aenv.node.host import Host

from .conftest import Identify, fill
from .test_images import any_pool, folders  # noqa: F401 - fixtures

pytestmark = pytest.mark.root
MINE = VolumeMount("vdata", "data", "/data", own=True)


async def test_what_is_made_is_there_until_it_is_dropped(any_pool: DiskPool) -> None:  # noqa: F811
    volumes = any_pool.volumes
    await volumes.make("vdata", 64)
    folder = await volumes.folder("vdata")
    (folder.content / "file").write_text("x")
    status = folder.content.stat()
    assert (status.st_uid, status.st_mode & 0o777) == (1000, 0o777)
    with pytest.raises(ConflictError):
        await volumes.make("vdata", 64)
    await volumes.drop("vdata")
    await volumes.drop("vdata")
    with pytest.raises(EngineError, match="gone"):
        await volumes.folder("vdata")


async def test_a_volume_has_a_quota_of_its_own(pool: DiskPool, lower: Path, identify: Identify):
    await pool.volumes.make("vsmall", 32)
    await pool.volumes.make("vother", 64)
    folder = await pool.volumes.folder("vsmall")
    error = fill(folder.content, 48)
    assert error is not None
    assert error.errno == errno.EDQUOT
    assert fill((await pool.volumes.folder("vother")).content, 16) is None
    disk = await pool.create(identify("a"), [lower], 64)
    assert fill(disk.merged, 16) is None
    use = await pool.volumes.use("vsmall")
    assert use.limit_bytes == 32 << 20
    assert use.used_bytes > 16 << 20
    for name in ("vsmall", "vother"):
        await pool.volumes.drop(name)


async def test_copies_are_kept_with_a_disk_and_go_with_it(
    any_pool: DiskPool,  # noqa: F811
    lower: Path,
    identify: Identify,
) -> None:
    volumes, source = any_pool.volumes, identify("a")
    await any_pool.create(source, [lower], 64)
    await volumes.make("vdata", 64)
    content = (await volumes.folder("vdata")).content
    (content / "f").write_text("then")
    await any_pool.sync(source)
    await any_pool.save(source, "s1", {"vdata": "vdata"})
    (content / "f").write_text("now")
    assert [image.name for image in await any_pool.images()] == ["s1"]

    for letter in ("b", "c"):
        found = await volumes.attach(identify(letter), (MINE,), "s1", 64)
        mine = found["/data"].content / "f"
        assert mine.read_text() == "then"
        mine.write_text(letter)
        again = await volumes.attach(identify(letter), (MINE,), "s1", 64)
        assert (again["/data"].content / "f").read_text() == letter
    assert (content / "f").read_text() == "now"

    await volumes.drop_of(identify("b"))
    assert await volumes.reap({"vdata", identify("c")}) == []
    await any_pool.drop("s1")
    assert await any_pool.images() == []
    with pytest.raises(SnapshotDamagedError, match="data"):
        await volumes.attach(identify("d"), (MINE,), "s1", 64)
    assert (mine).read_text() == "c"
    assert await volumes.reap(set()) == [f"{identify('c')}+vdata", "vdata"]


async def test_reaping_removes_what_is_nobodys_and_half_made_files(
    any_pool: DiskPool,  # noqa: F811
) -> None:
    volumes = any_pool.volumes
    for name in ("vkept", "vgone"):
        await volumes.make(name, 64)
        folder = await volumes.folder(name)
        (folder.staging / "upload").write_text("half")
        (folder.staging / "doomed/deep").mkdir(parents=True)
        (folder.content / "f").write_text("x")
    assert await volumes.reap({"vkept"}) == ["vgone"]
    kept = await volumes.folder("vkept")
    assert list(kept.staging.iterdir()) == []
    assert (kept.content / "f").read_text() == "x"
    await volumes.drop("vkept")


async def test_volumes_outlive_the_pool_and_are_no_disks(settings: Settings, host: Host) -> None:
    pool = DiskPool(settings, host)
    await pool.start()
    assert pool.kind is PoolKind.LOOP
    await pool.volumes.make("vdata", 64)
    ((await pool.volumes.folder("vdata")).content / "f").write_text("x")
    await pool.close()

    pool = DiskPool(settings, host)
    await pool.start()
    assert await pool.reap(frozenset()) == []
    assert ((await pool.volumes.folder("vdata")).content / "f").read_text() == "x"
    await pool.volumes.drop("vdata")
    await pool.close()


async def test_plain_folders_stay_what_they_are_while_they_hold_a_volume(
    folders: DiskPool,  # noqa: F811
    settings: Settings,
    host: Host,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A host that gets btrfs meanwhile must not lose sight of it."""
    await folders.volumes.make("vdata", 64)
    monkeypatch.undo()
    later = DiskPool(settings, host)
    await later.start()
    assert later.kind is PoolKind.DIRECTORY
    await later.volumes.folder("vdata")
    await later.volumes.drop("vdata")
    await later.close()
