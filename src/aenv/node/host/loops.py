"""Loop devices by ioctl (linux/loop.h), so that no losetup is needed."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aenv.models.errors import HostSetupError
from aenv.node.host.port import LoopDevices

_libc = ctypes.CDLL(None, use_errno=True)

_CTL_GET_FREE = 0x4C82
_CONFIGURE = 0x4C0A
_GET_STATUS = 0x4C05
_SET_CAPACITY = 0x4C07
_SET_DIRECT_IO = 0x4C08
_READ_ONLY, _AUTOCLEAR = 1, 4
# struct loop_config: fd, block size, loop_info64 (flags at 52, file name at 56), 8 reserved words
_CONFIG = struct.Struct("=II 52x I 64s 112x 64x")
_STATUS_SIZE = 232
_LOOP_MAJOR = 7
_TRIES = 16


class RootLoopDevices(LoopDevices):
    @contextmanager
    def attach(self, file: Path, *, read_only: bool = False) -> Iterator[Path]:
        existing = self.find(file)
        pinned = None if existing is None else _pin(existing)
        if existing is not None and pinned is not None:
            try:
                yield existing
            finally:
                os.close(pinned)
            return
        access = os.O_RDONLY if read_only else os.O_RDWR
        backing = os.open(file, access | os.O_CLOEXEC)
        try:
            device, path = _configure(backing, file, access, read_only=read_only)
        finally:
            os.close(backing)
        try:
            yield path
        finally:
            os.close(device)

    def find(self, file: Path) -> Path | None:
        wanted = str(file.resolve())
        for entry in Path("/sys/block").glob("loop*/loop/backing_file"):
            try:
                if entry.read_text().rstrip("\n") == wanted:
                    return Path("/dev") / entry.parts[-3]
            except OSError:
                continue
        return None

    def allocate(self, file: Path, size: int) -> None:
        fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            before = os.fstat(fd).st_size
            # not posix_fallocate: it writes zeros where the file system cannot allocate
            if _libc.fallocate(fd, 0, ctypes.c_int64(0), ctypes.c_int64(size)) != 0:
                code = ctypes.get_errno()
                os.ftruncate(fd, before)
                raise OSError(code, f"allocate {size} bytes: {os.strerror(code)}", str(file))
            os.fsync(fd)
        finally:
            os.close(fd)

    def resized(self, device: Path) -> None:
        fd = os.open(device, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.ioctl(fd, _SET_CAPACITY)
        finally:
            os.close(fd)


def _configure(backing: int, file: Path, access: int, *, read_only: bool) -> tuple[int, Path]:
    """A free device over ``backing``; another process may take the free one first, so try again."""
    flags = _AUTOCLEAR | (_READ_ONLY if read_only else 0)
    config = _CONFIG.pack(backing, 0, flags, os.fsencode(file.name)[:63])
    for _ in range(_TRIES):
        path = _free_device()
        device = os.open(path, access | os.O_CLOEXEC)
        try:
            fcntl.ioctl(device, _CONFIGURE, config)
        except OSError as error:
            os.close(device)
            if error.errno != errno.EBUSY:
                raise
        else:
            _direct_io(device)
            return device, path
    raise HostSetupError("Every free loop device was taken by others; try again.")


def _pin(path: Path) -> int | None:
    """Keep a device attached; None if it is just being detached."""
    try:
        device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.ioctl(device, _GET_STATUS, bytearray(_STATUS_SIZE))
    except OSError:
        os.close(device)
        return None
    return device


def _free_device() -> Path:
    try:
        control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise HostSetupError(
            f"This host has no loop devices ({error.strerror}: /dev/loop-control). "
            "Load them with: modprobe loop"
        ) from error
    try:
        number = fcntl.ioctl(control, _CTL_GET_FREE)
    finally:
        os.close(control)
    path = Path(f"/dev/loop{number}")
    if not path.exists():
        os.mknod(path, 0o600 | 0o060000, os.makedev(_LOOP_MAJOR, number))
    return path


def _direct_io(device: int) -> None:
    """Skip the page cache of the file below (the file system above has its own), where it can."""
    try:
        fcntl.ioctl(device, _SET_DIRECT_IO, 1)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTTY, errno.EOPNOTSUPP):
            raise
