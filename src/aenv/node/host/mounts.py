"""Mounts by mount(2) and umount2(2).

None honours set-uid bits or device files on the host: guests write to some of them. (Inside a
sandbox its own kernel judges those bits.)
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

from aenv.models.errors import HostSetupError
from aenv.node.host.port import LoopDevices, Mount, Mounts

_libc = ctypes.CDLL(None, use_errno=True)

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT = 1, 2, 4, 32
MS_NOATIME, MS_BIND, MS_REC, MS_PRIVATE = 1024, 4096, 16384, 262144
MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8
_INERT = MS_NOSUID | MS_NODEV
_OPTIONS_LIMIT = 4095
_BUSY_TRIES, _BUSY_PAUSE = 5, 0.01
_OCTAL = re.compile(r"\\([0-7]{3})")


def mount(source: str, target: Path, kind: str, flags: int = 0, options: str = "") -> None:
    result = _libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        kind.encode(),
        ctypes.c_ulong(flags),
        os.fsencode(options),
    )
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"mount {kind} on {target}: {os.strerror(code)}", source)


def unmount(target: Path, flags: int = UMOUNT_NOFOLLOW) -> None:
    if _libc.umount2(os.fsencode(target), ctypes.c_int(flags)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"unmount {target}: {os.strerror(code)}")


class RootMounts(Mounts):
    def __init__(self, loops: LoopDevices) -> None:
        self._loops = loops

    def overlay(
        self, lowers: Sequence[Path], upper: Path | None, work: Path | None, target: Path
    ) -> None:
        options = "lowerdir=" + ":".join(_escape(lower) for lower in lowers)
        if upper is None or work is None:
            self._overlay(target, MS_RDONLY, options)
            return
        options += f",upperdir={_escape(upper)},workdir={_escape(work)}"
        try:
            self._overlay(target, 0, options + ",redirect_dir=on,metacopy=off,index=off")
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._overlay(target, 0, options)

    def _overlay(self, target: Path, flags: int, options: str) -> None:
        if len(os.fsencode(options)) > _OPTIONS_LIMIT:
            raise HostSetupError(
                f"The layers of {target} need mount options of {len(options)} bytes, the kernel "
                f"takes {_OPTIONS_LIMIT}. Use shorter folders (AENV_DATA_DIR, AENV_CACHE_DIR)."
            )
        mount("overlay", target, "overlay", flags | _INERT, options)

    def image(self, source: Path, target: Path, *, kind: str = "erofs") -> None:
        try:
            mount(str(source), target, kind, MS_RDONLY | _INERT)
        except OSError as error:
            if error.errno not in (errno.ENOTBLK, errno.EINVAL, errno.ENODEV):
                raise
            with self._loops.attach(source, read_only=True) as device:
                mount(str(device), target, kind, MS_RDONLY | _INERT)

    def device(self, source: Path, target: Path, *, kind: str, options: str = "") -> None:
        mount(str(source), target, kind, MS_NOATIME | _INERT, options)

    def bind(self, source: Path, target: Path, *, read_only: bool = True) -> None:
        mount(str(source), target, "none", MS_BIND | MS_REC)
        mode = MS_RDONLY if read_only else 0
        mount("none", target, "none", MS_BIND | MS_REMOUNT | mode | _INERT)

    def unmount(self, target: Path) -> bool:
        found = False
        while self._unmount_once(target):
            found = True
        return found

    def _unmount_once(self, target: Path) -> bool:
        for attempt in range(_BUSY_TRIES):
            try:
                unmount(target)
            except OSError as error:
                if error.errno in (errno.EINVAL, errno.ENOENT):
                    return False
                if error.errno != errno.EBUSY:
                    raise
                time.sleep(_BUSY_PAUSE * attempt)
            else:
                return True
        unmount(target, UMOUNT_NOFOLLOW | MNT_DETACH)
        return True

    def table(self) -> list[Mount]:
        return [_parse(line) for line in _mountinfo()]

    def find(self, target: Path) -> Mount | None:
        wanted = str(target)
        found = [line for line in _mountinfo() if _target(line) == wanted]
        return _parse(found[-1]) if found else None


def _mountinfo() -> list[str]:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        return list(lines)


def _target(line: str) -> str:
    return _unescape(line.split(" ", 5)[4])


def _parse(line: str) -> Mount:
    """See proc(5): the 5th field is the mount point; after ``-``: type, source, options."""
    left, _, right = line.rstrip("\n").partition(" - ")
    kind, source, options = (*right.split(" ", 2), "", "")[:3]
    return Mount(_unescape(source), Path(_target(left)), kind, options)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    return _OCTAL.sub(lambda match: chr(int(match.group(1), 8)), text)


def _escape(path: Path) -> str:
    """A path inside overlayfs options, where ``:`` and ``,`` separate and a backslash escapes."""
    return re.sub(r"([\\:,])", r"\\\1", str(path))
