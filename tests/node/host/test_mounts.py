"""Mounts, loop devices and btrfs as the kernel does them."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from aenv.models.errors import HostSetupError
from aenv.models.folders import Folders
from aenv.models.settings import Settings
from aenv.node.host import Host, open_host

pytestmark = pytest.mark.root
MIB = 1 << 20


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    folders = Folders(tmp_path / "data", tmp_path / "cache", tmp_path / "config", tmp_path / "run")
    opened = open_host(Settings(folders))
    yield opened
    for mount in reversed(opened.mounts.table()):
        if mount.target.is_relative_to(tmp_path):
            opened.mounts.unmount(mount.target)
    opened.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A path with what mount tables and overlay options have to escape."""
    made = tmp_path / "odd: name, with\\all"
    for name in ("lower", "upper", "work", "merged"):
        (made / name).mkdir(parents=True)
    (made / "lower/file").write_text("below")
    return made


def test_an_overlay_is_found_and_unmounted_even_when_busy(host: Host, folder: Path) -> None:
    merged = folder / "merged"
    host.mounts.overlay([folder / "lower"], folder / "upper", folder / "work", merged)
    found = host.mounts.find(merged)
    assert found is not None
    assert (found.kind, found.writable) == ("overlay", True)
    held = os.open(merged / "file", os.O_RDONLY)
    assert host.mounts.unmount(merged)
    os.close(held)
    assert not host.mounts.unmount(merged)
    assert host.mounts.find(merged) is None


def test_an_overlay_without_an_upper_is_read_only(host: Host, folder: Path) -> None:
    host.mounts.overlay([folder / "upper", folder / "lower"], None, None, folder / "merged")
    with pytest.raises(OSError, match="Read-only") as refused:
        (folder / "merged/new").touch()
    assert refused.value.errno == errno.EROFS


def test_more_layers_than_the_kernel_takes_are_said(host: Host, folder: Path) -> None:
    with pytest.raises(HostSetupError, match="Use shorter folders"):
        host.mounts.overlay(
            [folder / "lower"] * 200, folder / "upper", folder / "work", folder / "merged"
        )


def test_an_image_is_mounted_read_only(host: Host, folder: Path, tmp_path: Path) -> None:
    if shutil.which("mkfs.erofs") is None:
        pytest.skip("erofs-utils is not installed")
    image = tmp_path / "image.erofs"
    subprocess.run(["mkfs.erofs", "-q", image, folder / "lower"], check=False, capture_output=True)
    if not image.exists():
        subprocess.run(["mkfs.erofs", image, folder / "lower"], check=True, capture_output=True)
    host.mounts.image(image, folder / "merged")
    assert (folder / "merged/file").read_text() == "below"
    found = host.mounts.find(folder / "merged")
    assert found is not None
    assert not found.writable


def test_a_bind_mount_is_read_only_unless_asked(host: Host, folder: Path) -> None:
    host.mounts.bind(folder / "lower", folder / "merged")
    with pytest.raises(OSError, match="Read-only"):
        (folder / "merged/file").write_text("changed")
    host.mounts.unmount(folder / "merged")
    host.mounts.bind(folder / "lower", folder / "merged", read_only=False)
    (folder / "merged/file").write_text("changed")
    assert (folder / "lower/file").read_text() == "changed"


def test_a_file_gets_one_loop_device_that_goes_with_its_last_user(
    host: Host, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    host.loops.allocate(file, 8 * MIB)
    with host.loops.attach(file) as device, host.loops.attach(file) as same:
        assert device == same == host.loops.find(file)
    assert host.loops.find(file) is None


def test_an_allocation_that_fails_leaves_the_file_as_it_was(host: Host, tmp_path: Path) -> None:
    file = tmp_path / "file"
    host.loops.allocate(file, MIB)
    assert file.stat().st_blocks * 512 >= MIB
    with pytest.raises(OSError, match="allocate") as refused:
        host.loops.allocate(file, 1 << 50)
    assert refused.value.errno in (errno.ENOSPC, errno.EFBIG)
    assert file.stat().st_size == MIB


def test_a_subvolume_is_limited_counted_and_deleted(host: Host, tmp_path: Path) -> None:
    file, mounted = tmp_path / "pool", tmp_path / "mounted"
    mounted.mkdir()
    host.loops.allocate(file, 256 * MIB)
    host.volumes.format(file)
    assert file.stat().st_blocks * 512 >= 256 * MIB
    with host.loops.attach(file) as device:
        host.mounts.device(device, mounted, kind="btrfs", options="nodiscard")
    host.volumes.enable_quota(mounted)
    host.volumes.enable_quota(mounted)
    volume = mounted / "volume"
    host.volumes.create(volume)
    assert host.volumes.is_subvolume(volume)
    assert not host.volumes.is_subvolume(mounted / "absent")
    host.volumes.set_limit(volume, 8 * MIB)
    with pytest.raises(OSError, match="quota") as full:
        (volume / "big").write_bytes(os.urandom(12 * MIB))
    assert full.value.errno == errno.EDQUOT
    usage = host.volumes.usage(volume)
    assert 0 < usage.used <= usage.limit == 8 * MIB
    host.volumes.set_limit(volume, None)
    assert host.volumes.usage(volume).limit == 0
    host.volumes.delete(volume)
    assert not volume.exists()
    host.mounts.unmount(mounted)
    assert host.loops.find(file) is None


def test_an_ordinary_file_system_is_not_btrfs(host: Host, tmp_path: Path) -> None:
    assert not host.volumes.is_btrfs(Path("/proc"))


def test_no_mount_honours_what_guests_may_have_made(host: Host, folder: Path) -> None:
    host.mounts.overlay([folder / "lower"], folder / "upper", folder / "work", folder / "merged")
    (folder / "bound").mkdir()
    host.mounts.bind(folder / "merged", folder / "bound", read_only=False)
    for target in (folder / "merged", folder / "bound"):
        flags = os.statvfs(target).f_flag
        assert flags & os.ST_NOSUID
        assert flags & 4, "nodev"
