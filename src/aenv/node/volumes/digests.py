"""The digest of a tree: what two folders have in common if and only if a program sees the same."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CHUNK = 1 << 20


def of_tree(root: Path) -> str:
    """``sha256:`` of every entry in the order of its path: path, type, mode, owner, and its
    content's digest or link's target. Times do not count. Nothing may write meanwhile. OSError.
    """
    whole = hashlib.sha256()
    waiting = [b""]
    while waiting:
        folder = waiting.pop()
        handle = os.open(os.fsencode(root) + folder, _FOLDER)
        try:
            inner = []
            for name in sorted(os.fsencode(one) for one in os.listdir(handle)):
                status = os.stat(name, dir_fd=handle, follow_symlinks=False)
                path = folder + b"/" + name
                _count(whole, path, status, _said(handle, name, status))
                if stat.S_ISDIR(status.st_mode):
                    inner.append(path)
            waiting += reversed(inner)
        finally:
            os.close(handle)
    return f"sha256:{whole.hexdigest()}"


def _count(whole: hashlib._Hash, path: bytes, status: os.stat_result, said: bytes) -> None:
    facts = f"{status.st_mode:o} {status.st_uid} {status.st_gid} {status.st_rdev}".encode()
    for part in (path, facts, said):
        whole.update(len(part).to_bytes(8, "big") + part)


def _said(folder: int, name: bytes, status: os.stat_result) -> bytes:
    if stat.S_ISLNK(status.st_mode):
        return os.readlink(name, dir_fd=folder)
    if not stat.S_ISREG(status.st_mode):
        return b""
    content = hashlib.sha256()
    handle = os.open(name, _FILE, dir_fd=folder)
    try:
        while chunk := os.read(handle, _CHUNK):
            content.update(chunk)
    finally:
        os.close(handle)
    return content.digest()
