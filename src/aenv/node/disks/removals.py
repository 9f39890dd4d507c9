"""Removing what guests made: however deep, whatever its modes and attributes, following nothing."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import secrets
import stat
import struct
import sys
from contextlib import suppress
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602  # linux/fs.h: FS_IOC_GETFLAGS, FS_IOC_SETFLAGS
_FLAGS = struct.Struct("l")
_LOCKS = 0x10 | 0x20  # immutable, append only
_ATTEMPTS = 5


def remove_tree(folder: Path) -> None:
    """Delete a folder and all in it; a missing one is no error. OSError for what cannot be deleted.

    Folders are emptied one after the other, and their subfolders moved to the top meanwhile:
    neither Python's recursion, nor descriptors, nor the length of a path limits the depth.
    """
    for left in reversed(range(_ATTEMPTS)):
        try:
            _remove(folder)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or not left:  # else somebody still writes there
                raise
        else:
            return


def _remove(folder: Path) -> None:
    top = _open_folder(str(folder))
    try:
        mark, count = f".doomed-{secrets.token_hex(8)}", itertools.count()
        while names := _sorted_out(top):
            for name in names:
                inner = _open_folder(name, top)
                try:
                    for one in _sorted_out(inner):
                        _move(one, inner, f"{mark}-{next(count)}", top)
                finally:
                    os.close(inner)
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(folder)


def _sorted_out(folder: int) -> list[str]:
    """Unlink all but the subfolders of an open folder; their names."""
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        if not is_folder:
            _unlink(name, folder)
    return [name for name, is_folder in found if is_folder]


def _unlink(name: str, folder: int) -> None:
    with suppress(FileNotFoundError):
        try:
            os.unlink(name, dir_fd=folder)
        except PermissionError:
            if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                raise
            file = os.open(name, _FILE, dir_fd=folder)
            try:
                _unlock(file)
            finally:
                os.close(file)
            os.unlink(name, dir_fd=folder)


def _move(name: str, folder: int, new: str, top: int) -> None:
    try:
        os.rename(name, new, src_dir_fd=folder, dst_dir_fd=top)
    except PermissionError:
        os.close(_open_folder(name, folder))
        os.rename(name, new, src_dir_fd=folder, dst_dir_fd=top)


def _open_folder(name: str, parent: int | None = None) -> int:
    """A descriptor of a folder that may be emptied and moved from now on."""
    try:
        folder = os.open(name, _FOLDER, dir_fd=parent)
    except PermissionError:
        _let_in(name, parent)
        folder = os.open(name, _FOLDER, dir_fd=parent)
    try:
        _unlock(folder)
        mode = stat.S_IMODE(os.fstat(folder).st_mode)
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            os.fchmod(folder, mode | stat.S_IRWXU)
    except BaseException:
        os.close(folder)
        raise
    return folder


def _let_in(name: str, parent: int | None) -> None:
    """Our own folder, which its owner may not read."""
    if sys.platform != "linux":
        os.chmod(name, stat.S_IRWXU, dir_fd=parent, follow_symlinks=False)
        return
    place = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{place}", stat.S_IRWXU)
    finally:
        os.close(place)


def _unlock(descriptor: int) -> None:
    """What ``chattr +i`` and ``+a`` set; many file systems know neither."""
    if sys.platform != "linux":
        return
    with suppress(OSError):
        (flags,) = _FLAGS.unpack(fcntl.ioctl(descriptor, _GET_FLAGS, bytes(_FLAGS.size)))
        if flags & _LOCKS:
            fcntl.ioctl(descriptor, _SET_FLAGS, _FLAGS.pack(flags & ~_LOCKS))
