"""Opening files below a folder that somebody else may change at any moment.

A guest owns what is in its volumes: links that lead out of them, folders that turn into links
between two system calls. So the kernel resolves each path, with the folder as its root (openat2(2),
RESOLVE_IN_ROOT), never we by its text. A kernel without it opens name by name and follows no link.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Callable

_SYS_OPENAT2 = 437
_NO_XDEV, _NO_MAGICLINKS, _IN_ROOT = 0x01, 0x02, 0x10
_RESOLVE = _NO_XDEV | _NO_MAGICLINKS | _IN_ROOT
_PLACE = os.O_PATH | os.O_CLOEXEC
_FOLDER = _PLACE | os.O_DIRECTORY | os.O_NOFOLLOW
_ATTEMPTS = 8


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


def place(root: int, path: bytes, *, follow: bool = True) -> int:
    """A descriptor (O_PATH) of what ``path`` names below ``root``: it can be looked at and opened
    anew, and stays the same file. ``follow``: a link at its end, too. OSError.
    """
    flags = _PLACE if follow else _PLACE | os.O_NOFOLLOW
    relative = path.lstrip(b"/") or b"."
    try:
        return _openat2(root, relative, flags)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
    return place_by_names(root, relative)


def place_by_names(root: int, path: bytes) -> int:
    """As :func:`place`, for kernels before 5.6: a link anywhere is ELOOP, also at the end where it
    is not to be followed.
    """
    found = os.open(".", _FOLDER, dir_fd=root)
    names = [name for name in path.split(b"/") if name not in (b"", b".")]
    try:
        for index, name in enumerate(names):
            if name == b"..":
                raise OSError(errno.EACCES, os.strerror(errno.EACCES))
            last = index == len(names) - 1
            inner = os.open(name, _PLACE | os.O_NOFOLLOW if last else _FOLDER, dir_fd=found)
            os.close(found)
            found = inner
    except BaseException:
        os.close(found)
        raise
    return found


def make_folders(root: int, path: bytes, made: Callable[[int, bytes], None] | None = None) -> None:
    """Those of ``path`` that are missing, for all to enter; ``made`` is told of each: the folder it
    is in, and its name. OSError.
    """
    folders = [part for part in path.split(b"/") if part]
    for index, name in enumerate(folders):
        try:
            os.close(place(root, b"/".join(folders[: index + 1])))
        except FileNotFoundError:
            parent = place(root, b"/".join(folders[:index]) or b".")
            try:
                os.mkdir(name, 0o755, dir_fd=parent)
                if made is not None:
                    made(parent, name)
            except FileExistsError:  # another was quicker, or a link leads nowhere: seen next
                continue
            finally:
                os.close(parent)


def reopened(found: int, flags: int) -> int:
    """Open what a descriptor of :func:`place` stands for, if it is a regular file or a folder: to
    open a FIFO would hang, and to open a device would do something. OSError (ENXIO).
    """
    kind = stat.S_IFMT(os.fstat(found).st_mode)
    if kind not in (stat.S_IFREG, stat.S_IFDIR):
        raise OSError(errno.ENXIO, "it is no regular file")
    return os.open(f"/proc/self/fd/{found}", flags | os.O_CLOEXEC)


def _openat2(root: int, path: bytes, flags: int) -> int:
    how = _OpenHow(flags, 0, _RESOLVE)
    for _ in range(_ATTEMPTS):
        found = int(
            _syscall(_SYS_OPENAT2, root, path, ctypes.byref(how), ctypes.sizeof(how)),
        )
        if found >= 0:
            return found
        code = ctypes.get_errno()
        if code != errno.EAGAIN:  # somebody renamed a folder meanwhile
            break
    if code == errno.EPERM:  # seccomp filters that do not know it answer so
        code = errno.ENOSYS
    raise OSError(code, os.strerror(code))


_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long
