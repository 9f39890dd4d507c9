"""What the bytes in a server's folders are for: those of its data folder, and those of the cache
that all servers of the host share. Allocated bytes, a file with several names counted once.
Blocking.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from aenv.models.blobs import SpaceUse
from aenv.models.folders import Folders

POOL, POOL_FILE = "pool", "pool.btrfs"
_DATA = {
    "disks": "disks of sandboxes",
    "snapshots": "memory images and facts of snapshots and paused sandboxes",
    "sealed": "sealed disks of snapshots",
    "baked": "memory images of templates",
    "builds": "files and logs of template builds",
    "process": "sandboxes of the engine process",
    "gvisor": "what guests are given",
    "logs": "logs of sandboxes",
    "blobs": "blob store",
    "tls": "certificates",
}
_CACHE = {
    "images": "base images and layers",
    "runsc": "runsc",
    "apt": "packages for template builds",
    "tools": "tools of tests",
}
_OTHER = "other"
_HIDDEN = {".images": "disk images of snapshots", ".volumes": "volumes"}


def survey(folders: Folders) -> list[SpaceUse]:
    """The data folder's by what they are for, then the cache's; what is unknown is ``other``."""
    return [
        *_folder(folders.data, "data", _DATA),
        *_pool(folders.data),
        *_folder(folders.cache, "cache", _CACHE),
    ]


def _folder(root: Path, kind: str, known: dict[str, str]) -> Iterator[SpaceUse]:
    if not root.is_dir():
        return
    found: dict[str, tuple[int, int, str]] = {}
    seen: set[int] = set()
    device = root.stat().st_dev
    for entry in sorted(os.scandir(root), key=lambda one: one.name):
        if entry.name in (POOL, POOL_FILE):
            continue
        for name, path in _parts(entry, known):
            size, count = _allocated(path, device, seen)
            before = found.get(name, (0, 0, path))
            found[name] = (before[0] + size, before[1] + count, before[2])
    for name, (size, count, path) in found.items():
        if count:
            yield SpaceUse(f"{kind}: {name}", size, count, path)


def _parts(entry: os.DirEntry[str], known: dict[str, str]) -> Iterator[tuple[str, str]]:
    """What an entry of a folder is for, with its path; disks, images and volumes are three."""
    if entry.name == "disks" and entry.is_dir(follow_symlinks=False):
        for one in os.scandir(entry.path):
            yield _HIDDEN.get(one.name, known["disks"]), one.path
        return
    if entry.name.startswith("catalog.sqlite"):
        yield "catalog", entry.path
    elif entry.name.startswith("server."):
        yield "the server's log and lock", entry.path
    else:
        yield known.get(entry.name, _OTHER), entry.path


def _pool(data: Path) -> Iterator[SpaceUse]:
    """The file of the disk pool: what is written within, and what is kept free for disks."""
    file = data / POOL_FILE
    if not file.exists():
        return
    allocated = file.stat().st_blocks * 512
    root = data / POOL
    used = 0
    if root.is_mount():
        within = os.statvfs(root)
        used = min(allocated, (within.f_blocks - within.f_bfree) * within.f_frsize)
        yield SpaceUse("data: disk pool, written by disks, images and volumes", used, 1, str(root))
    yield SpaceUse("data: disk pool, free for disks", allocated - used, 1, str(file))


def _allocated(path: str, device: int, seen: set[int]) -> tuple[int, int]:
    """Bytes and files below ``path`` on ``device`` that were not seen before."""
    size = count = 0
    waiting = [path]
    while waiting:
        one = waiting.pop()
        try:
            status = os.lstat(one)
            if status.st_dev != device or status.st_ino in seen:
                continue
            seen.add(status.st_ino)
            size += status.st_blocks * 512
            if os.path.isdir(one) and not os.path.islink(one):
                waiting += [entry.path for entry in os.scandir(one)]
            else:
                count += 1
        except OSError:  # it went away meanwhile
            continue
    return size, count
