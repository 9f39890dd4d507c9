"""Disks on a real btrfs: limited, apart from each other, found again, and gone without a trace."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from pathlib import Path

import pytest

from aenv.models.errors import CapacityError, ConflictError, EngineError, HostSetupError
from aenv.models.settings import Settings
from aenv.node.disks.pool import DiskPool, PoolKind
from aenv.node.engine import Severity
from aenv.node.host import Host, open_host

from .conftest import Identify, fill, make_settings, mounts_under

pytestmark = pytest.mark.root


async def test_a_disk_shows_its_layers_and_keeps_changes_apart(
    pool: DiskPool, lower: Path, identify: Identify
) -> None:
    disk = await pool.create(identify("a"), [lower], 64)
    (disk.merged / "etc/motd").write_text("changed\n")
    (disk.merged / "etc").rename(disk.merged / "etc2")
    assert (lower / "etc/motd").read_text() == "welcome\n"
    assert (disk.upper / "etc2").is_dir()
    assert disk.merged.stat().st_mode & 0o777 == 0o755


async def test_the_topmost_layer_wins(
    pool: DiskPool, lower: Path, tmp_path: Path, identify: Identify
) -> None:
    top = tmp_path / "top: with, odd\\name"
    (top / "etc").mkdir(parents=True)
    (top / "etc/motd").write_text("top\n")
    disk = await pool.create(identify("a"), [top, lower], 64)
    assert (disk.merged / "etc/motd").read_text() == "top\n"


async def test_a_full_disk_stops_its_own_sandbox_only(
    pool: DiskPool, lower: Path, identify: Identify
) -> None:
    full = await pool.create(identify("a"), [lower], 32)
    other = await pool.create(identify("b"), [lower], 64)
    refused = await asyncio.to_thread(fill, full.merged, 48)
    assert refused is not None
    assert refused.errno in (errno.EDQUOT, errno.ENOSPC)
    assert await asyncio.to_thread(fill, other.merged, 40) is None
    assert full.usage().used_bytes <= full.usage().limit_bytes == 32 << 20


async def test_deleting_files_gives_the_room_back(
    pool: DiskPool, lower: Path, identify: Identify
) -> None:
    disk = await pool.create(identify("a"), [lower], 32)
    assert await asyncio.to_thread(fill, disk.merged, 48) is not None
    (disk.merged / "big").unlink()
    assert await asyncio.to_thread(fill, disk.merged, 16, "again") is None


async def test_usage_counts_what_was_written(
    pool: DiskPool, lower: Path, identify: Identify
) -> None:
    disk = await pool.create(identify("a"), [lower], 64)
    before = disk.usage().used_bytes
    assert await asyncio.to_thread(fill, disk.merged, 10) is None
    assert 10 << 20 <= disk.usage().used_bytes - before <= 12 << 20


async def test_destroy_leaves_nothing_and_may_be_repeated(
    pool: DiskPool, settings: Settings, host: Host, lower: Path, identify: Identify
) -> None:
    disk = await pool.create(identify("a"), [lower], 64)
    await disk.destroy()
    await disk.destroy()
    assert not disk.merged.parent.exists()
    assert not disk.upper.exists()
    assert mounts_under(host, settings.folders.instance_run) == []
    with pytest.raises(EngineError, match="gone"):
        disk.usage()


async def test_a_busy_disk_is_destroyed_all_the_same(
    pool: DiskPool, lower: Path, identify: Identify
) -> None:
    disk = await pool.create(identify("a"), [lower], 64)
    held = os.open(disk.merged / "held", os.O_CREAT | os.O_WRONLY)
    await disk.destroy()
    os.close(held)
    assert not disk.merged.exists()


async def test_a_sandbox_has_one_disk(pool: DiskPool, lower: Path, identify: Identify) -> None:
    disk = await pool.create(identify("a"), [lower], 64)
    (disk.merged / "mine").touch()
    with pytest.raises(ConflictError):
        await pool.create(identify("a"), [lower], 64)
    assert (disk.merged / "mine").exists()


async def test_a_name_that_leads_elsewhere_is_refused(pool: DiskPool, lower: Path) -> None:
    with pytest.raises(EngineError, match="no sandbox id"):
        await pool.create("../../escape", [lower], 64)


async def test_many_at_once(pool: DiskPool, lower: Path) -> None:
    names = [f"i{number:019}" for number in range(20)]
    disks = await asyncio.gather(*(pool.create(name, [lower], 16) for name in names))
    assert all((disk.merged / "etc/motd").exists() for disk in disks)
    assert await pool.reap(frozenset(names[:1])) == names[1:]


async def test_a_cancelled_create_leaves_nothing(
    pool: DiskPool, settings: Settings, host: Host, lower: Path, identify: Identify
) -> None:
    creating = asyncio.create_task(pool.create(identify("a"), [lower], 64))
    await asyncio.sleep(0)
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    assert await pool.open(identify("a")) is None
    assert mounts_under(host, settings.folders.instance_run) == []


async def test_a_cancelled_second_create_leaves_the_first_disk_alone(
    pool: DiskPool, lower: Path, identify: Identify
) -> None:
    disk = await pool.create(identify("a"), [lower], 64)
    (disk.merged / "mine").write_text("precious")
    creating = asyncio.create_task(pool.create(identify("a"), [lower], 64))
    await asyncio.sleep(0)
    creating.cancel()
    with pytest.raises((asyncio.CancelledError, ConflictError)):
        await creating
    assert (disk.merged / "mine").read_text() == "precious"


async def test_a_pool_that_was_just_closed_opens_again(
    settings: Settings, host: Host, lower: Path, identify: Identify
) -> None:
    for _ in range(8):
        pool = DiskPool(settings, host)
        await pool.start()
        disk = await pool.create(identify("a"), [lower], 64)
        await disk.destroy()
        await pool.close()


async def test_a_restart_finds_disks_and_reaps_the_rest(
    pool: DiskPool, settings: Settings, host: Host, lower: Path, identify: Identify
) -> None:
    kept = await pool.create(identify("a"), [lower], 64)
    await pool.create(identify("b"), [lower], 64)
    (kept.merged / "file").write_text("still here")
    again = DiskPool(settings, host)
    await again.start()
    assert await again.reap(frozenset({identify("a")})) == [identify("b")]
    found = await again.open(identify("a"))
    assert found is not None
    assert (found.merged / "file").read_text() == "still here"
    assert found.usage().limit_bytes == 64 << 20
    assert found.lowers == (lower,)
    await again.close()


async def test_after_a_reboot_everything_is_mounted_again(
    pool: DiskPool, settings: Settings, host: Host, lower: Path, identify: Identify
) -> None:
    """A reboot loses the mounts and the run folder, not the pool's file."""
    disk = await pool.create(identify("a"), [lower], 64)
    (disk.merged / "file").write_text("still here")
    host.mounts.unmount(disk.merged)
    disk.merged.rmdir()
    host.mounts.unmount(settings.folders.data / "pool")
    again = DiskPool(settings, host)
    await again.start()
    found = await again.open(identify("a"))
    assert found is not None
    assert (found.merged / "file").read_text() == "still here"
    await again.close()


async def test_a_half_made_disk_is_reaped(
    pool: DiskPool, settings: Settings, host: Host, identify: Identify
) -> None:
    host.volumes.create(settings.folders.data / "pool" / identify("a"))
    assert await pool.open(identify("a")) is None
    assert await pool.reap(frozenset()) == [identify("a")]


async def test_missing_layers_are_named(
    pool: DiskPool, host: Host, lower: Path, tmp_path: Path, identify: Identify
) -> None:
    disk = await pool.create(identify("a"), [lower], 64)
    host.mounts.unmount(disk.merged)
    await asyncio.to_thread(lower.rename, tmp_path / "moved")
    with pytest.raises(EngineError, match="lacks its layer"):
        await pool.open(identify("a"))


async def test_the_pools_file_is_never_sparse_and_grows_ahead_of_need(
    tmp_path: Path, lower: Path, identify: Identify
) -> None:
    settings = make_settings(tmp_path, pool_mb=3072)
    host = open_host(settings)
    pool = DiskPool(settings, host)
    await pool.start()
    file = settings.folders.data / "pool.btrfs"
    try:
        started = file.stat()
        assert started.st_blocks * 512 >= started.st_size == 2048 << 20
        disk = await pool.create(identify("a"), [lower], 4096)
        big = os.open(disk.upper / "big", os.O_CREAT | os.O_WRONLY)
        os.posix_fallocate(big, 0, 1400 << 20)  # takes the room without writing gigabytes
        os.close(big)
        deadline = asyncio.get_running_loop().time() + 10
        while file.stat().st_size < 3072 << 20:  # it grows while its blocks are allocated
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.05)
        assert file.stat().st_blocks * 512 >= file.stat().st_size
    finally:
        await pool.reap(frozenset())
        await pool.close()
        host.close()


async def test_the_reserve_of_the_host_is_kept(
    tmp_path: Path, lower: Path, identify: Identify
) -> None:
    settings = make_settings(tmp_path, reserve_mb=1 << 40)
    host = open_host(settings)
    pool = DiskPool(settings, host)
    await pool.start()
    try:
        assert pool.kind is PoolKind.DIRECTORY
        assert [finding.severity for finding in await pool.findings()] == [Severity.WARNING]
        with pytest.raises(CapacityError, match="left"):
            await pool.create(identify("a"), [lower], 64)
    finally:
        await pool.close()
        host.close()


@pytest.fixture
def broken(settings: Settings) -> Path:
    settings.folders.data.mkdir(parents=True)
    file = settings.folders.data / "pool.btrfs"
    file.write_bytes(b"no file system" * 100000)
    return file


async def test_a_broken_pool_is_said_and_not_replaced(
    settings: Settings, host: Host, broken: Path
) -> None:
    with pytest.raises(HostSetupError, match="cannot be mounted"):
        await DiskPool(settings, host).start()
    assert (await asyncio.to_thread(broken.read_bytes)).startswith(b"no file system")
    assert host.loops.find(broken) is None


async def test_when_the_pool_is_full_for_good_the_small_ones_go_on(
    pool: DiskPool, lower: Path, identify: Identify
) -> None:
    greedy = await pool.create(identify("a"), [lower], 4096)
    modest = await pool.create(identify("b"), [lower], 4096)
    await asyncio.to_thread(fill, greedy.merged, 360)
    deadline = asyncio.get_running_loop().time() + 10
    while greedy.usage().limit_bytes == 4096 << 20:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.05)
    assert await asyncio.to_thread(fill, greedy.merged, 64, "more") is not None
    assert await asyncio.to_thread(fill, modest.merged, 24) is None
    (greedy.merged / "big").unlink()
    deadline = asyncio.get_running_loop().time() + 60
    while greedy.usage().limit_bytes != 4096 << 20:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.05)


async def test_a_data_folder_on_btrfs_needs_no_file(
    settings: Settings, host: Host, tmp_path: Path, lower: Path, identify: Identify
) -> None:
    file, data = tmp_path / "disk", settings.folders.data
    data.mkdir()
    host.loops.allocate(file, 512 << 20)
    host.volumes.format(file)
    with host.loops.attach(file) as device:
        host.mounts.device(device, data, kind="btrfs")
    pool = DiskPool(make_settings(tmp_path, reserve_mb=16), host)
    try:
        await pool.start()
        assert pool.kind is PoolKind.BTRFS
        disk = await pool.create(identify("a"), [lower], 32)
        refused = await asyncio.to_thread(fill, disk.merged, 48)
        assert refused is not None
        assert refused.errno == errno.EDQUOT
        await disk.destroy()
        assert sorted(path.name for path in data.iterdir()) == ["disks"]
    finally:
        await pool.reap(frozenset())
        await pool.close()
        host.mounts.unmount(data)


async def test_disks_in_plain_folders_are_kept_where_limits_have_become_possible(
    tmp_path: Path, lower: Path, identify: Identify, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who follows the advice to install btrfs-progs must not lose what is paused or kept."""
    name, settings = identify("a"), make_settings(tmp_path)
    host = open_host(settings)
    with monkeypatch.context() as without:
        without.setattr(shutil, "which", lambda tool: None)
        assert "will not be limited" in (await DiskPool(settings, host).findings())[0].summary
        pool = DiskPool(settings, host)
        await pool.start()
        disk = await pool.create(name, [lower], 64)
        (disk.merged / "kept").write_text("precious")
        await pool.close()

    pool = DiskPool(settings, host)
    assert "it stays so" in (await pool.findings())[0].summary
    await pool.start()
    try:
        assert pool.kind is PoolKind.DIRECTORY
        found = await pool.open(name)
        assert found is not None
        assert (found.merged / "kept").read_text() == "precious"
        await found.destroy()
    finally:
        await pool.reap(frozenset())
        await pool.close()

    pool = DiskPool(settings, host)
    await pool.start()
    assert pool.kind is PoolKind.LOOP
    await pool.close()
    assert mounts_under(host, tmp_path) == []


async def test_plain_folders_count_what_is_in_them(
    tmp_path: Path, lower: Path, identify: Identify, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without mkfs.btrfs there are no limits, and that is said."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/du").symlink_to(shutil.which("du") or "du")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    settings = make_settings(tmp_path)
    host = open_host(settings)
    pool = DiskPool(settings, host)
    await pool.start()
    try:
        assert pool.kind is PoolKind.DIRECTORY
        assert "mkfs.btrfs is missing" in (await pool.findings())[0].summary
        disk = await pool.create(identify("a"), [lower], 1)
        assert await asyncio.to_thread(fill, disk.merged, 4) is None
        deadline = asyncio.get_running_loop().time() + 5
        while disk.usage().used_bytes < 4 << 20:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.02)
        assert disk.usage().limit_bytes == 0
        await disk.destroy()
        assert mounts_under(host, tmp_path) == []
    finally:
        await pool.reap(frozenset())
        await pool.close()
        host.close()


async def test_looking_before_the_start_changes_nothing(settings: Settings, host: Host) -> None:
    [found] = await DiskPool(settings, host).findings()
    assert (found.severity, "pool.btrfs" in found.summary) == (Severity.OK, True)
    assert not settings.folders.data.exists()
    short = make_settings(settings.folders.data.parent, reserve_mb=1 << 40)
    [found] = await DiskPool(short, host).findings()
    assert found.severity is Severity.WARNING
