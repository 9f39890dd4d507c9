"""btrfs by ioctl (linux/btrfs.h): subvolumes and quota groups in well under a millisecond."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

from aenv.models.errors import HostSetupError
from aenv.node.host.port import Volumes, VolumeUsage

_SUBVOL_CREATE = 0x5000940E
_SNAP_DESTROY = 0x5000940F
_SNAP_CREATE_V2 = 0x50009417
_RESIZE = 0x50009403
_SYNC = 0x9408
_INO_LOOKUP = 0xD0009412
_FS_INFO = 0x8400941F
_QUOTA_CTL = 0xC0109428
_QUOTA_RESCAN = 0x4040942C
_QGROUP_CREATE = 0x4010942A
_QGROUP_LIMIT = 0x8030942B
_FIRST_FREE_INODE = 256
_QUOTA_ENABLE = 1
_LIMIT_REFERENCED = 1
_UNLIMITED = 2**64 - 1
_READ_ONLY = 2
_VOL_ARGS = struct.Struct("=q4088s")
_VOL_ARGS_V2 = struct.Struct("=qQQ32x4040s")
_LOOKUP = struct.Struct("=QQ4080x")
_LIMIT = struct.Struct("=QQQQQQ")
_FORMAT_TIMEOUT = 120


class RootVolumes(Volumes):
    def is_btrfs(self, path: Path) -> bool:
        try:
            with _opened(path) as fd:
                _filesystem_id(fd)
        except OSError as error:
            if error.errno in (errno.ENOTTY, errno.EINVAL, errno.EOPNOTSUPP):
                return False
            raise
        return True

    def format(self, file: Path) -> None:
        tool = shutil.which("mkfs.btrfs")
        if tool is None:
            raise HostSetupError(
                "mkfs.btrfs is missing, so disks cannot be limited. "
                "Install it with: apt-get install btrfs-progs"
            )
        # -K: discarding would punch holes into the preallocated file
        command = [tool, "-q", "-f", "-K", "-m", "single", "-d", "single", str(file)]
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=_FORMAT_TIMEOUT
        )
        if done.returncode != 0:
            raise HostSetupError(f"mkfs.btrfs failed on {file}: {done.stderr.strip()}")

    def enable_quota(self, path: Path) -> None:
        with _opened(path) as fd:
            fcntl.ioctl(fd, _QUOTA_CTL, bytearray(struct.pack("=QQ", _QUOTA_ENABLE, 0)))
            groups = Path("/sys/fs/btrfs") / str(_filesystem_id(fd)) / "qgroups"
            if _number(groups / "inconsistent"):
                self._count_again(fd)

    def _count_again(self, fd: int) -> None:
        """Counts may be off after a crash; counting runs in the background."""
        try:
            fcntl.ioctl(fd, _QUOTA_RESCAN, bytearray(64))
        except OSError as error:
            if error.errno != errno.EINPROGRESS:
                raise

    def create(self, path: Path) -> None:
        with _opened(path.parent) as parent:
            fcntl.ioctl(parent, _SUBVOL_CREATE, _named(path))

    def delete(self, path: Path) -> None:
        with _opened(path) as fd:
            group = _subvolume_id(fd)
        with _opened(path.parent) as parent:
            fcntl.ioctl(parent, _SNAP_DESTROY, _named(path))
            try:
                fcntl.ioctl(parent, _QGROUP_CREATE, struct.pack("=QQ", 0, group))
            except OSError as error:
                # newer kernels drop the group themselves once the subvolume is cleaned
                if error.errno not in (errno.EBUSY, errno.ENOENT, errno.ENOTCONN):
                    raise

    def snapshot(self, source: Path, target: Path, *, read_only: bool) -> None:
        with _opened(source) as fd, _opened(target.parent) as parent:
            name, flags = os.fsencode(target.name), _READ_ONLY if read_only else 0
            arguments = bytearray(_VOL_ARGS_V2.pack(fd, 0, flags, name))
            fcntl.ioctl(parent, _SNAP_CREATE_V2, arguments)

    def is_subvolume(self, path: Path) -> bool:
        try:
            return path.stat().st_ino == _FIRST_FREE_INODE and self.is_btrfs(path)
        except FileNotFoundError:
            return False

    def set_limit(self, path: Path, limit: int | None) -> None:
        bytes_ = _UNLIMITED if limit is None else limit
        with _opened(path) as fd:
            arguments = _LIMIT.pack(_subvolume_id(fd), _LIMIT_REFERENCED, bytes_, 0, 0, 0)
            fcntl.ioctl(fd, _QGROUP_LIMIT, arguments)

    def usage(self, path: Path) -> VolumeUsage:
        with _opened(path) as fd:
            group = f"0_{_subvolume_id(fd)}"
            folder = Path("/sys/fs/btrfs") / str(_filesystem_id(fd)) / "qgroups" / group
        limit = _number(folder / "max_referenced")
        used = _number(folder / "referenced") + _number(folder / "rsv_data")
        own = _number(folder / "exclusive")
        return VolumeUsage(used, 0 if limit == _UNLIMITED else limit, own)

    def sync(self, path: Path) -> None:
        with _opened(path) as fd:
            fcntl.ioctl(fd, _SYNC)

    def grow(self, mount: Path) -> None:
        with _opened(mount) as fd:
            fcntl.ioctl(fd, _RESIZE, bytearray(_VOL_ARGS.pack(0, b"max")))


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _named(path: Path) -> bytearray:
    return bytearray(_VOL_ARGS.pack(0, os.fsencode(path.name)))


def _subvolume_id(fd: int) -> int:
    found = bytearray(_LOOKUP.pack(0, _FIRST_FREE_INODE))
    fcntl.ioctl(fd, _INO_LOOKUP, found)
    return int(_LOOKUP.unpack(found)[0])


def _filesystem_id(fd: int) -> UUID:
    """max id, device count, fsid (struct btrfs_ioctl_fs_info_args)."""
    found = bytearray(1024)
    fcntl.ioctl(fd, _FS_INFO, found)
    return UUID(bytes=bytes(found[16:32]))


def _number(file: Path) -> int:
    try:
        return int(file.read_text())
    except FileNotFoundError:
        return 0
