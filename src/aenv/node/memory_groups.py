"""The memory limits of the control groups this process is in, v1 and v2: what an operator, a
service manager or a container grants the server.

A limit is counted as ours as a whole: sandboxes have groups of their own beside the server's, so
what they use is added to what the server's group uses. File pages that the kernel can drop at once
do not count as used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from aenv.node.host.hierarchies import Hierarchies

SANDBOXES = "aenv"
_NO_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True)
class _Files:
    limit: str
    used: str
    reclaimable: str


_V1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Files("memory.max", "memory.current", "inactive_file")


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """Bytes. ``folder``: the group that has it."""

    folder: Path
    limit: int
    used: int

    @property
    def available(self) -> int:
        return max(0, self.limit - self.used)


def limits(instance: str, proc: Path = Path("/proc/self")) -> list[MemoryLimit]:
    """Of our own group and those above it, innermost first; ``instance`` names the groups of our
    sandboxes. Empty where nothing limits us.
    """
    found = _hierarchies(proc / "mountinfo")
    mount = found.unified or found.v1.get("memory")
    if mount is None:
        return []
    files = _V2 if found.unified else _V1
    own = _own_group(proc / "cgroup", mount, "" if found.unified else "memory")
    return list(_limited(mount, own, mount / SANDBOXES / instance, files))


def stall_file(proc: Path = Path("/proc")) -> Path:
    """Where the kernel tells how much tasks wait for memory: of the group that limits our sandboxes
    and us, if it is ours alone (v2), else of the host.
    """
    mount = _hierarchies(proc / "self" / "mountinfo").unified
    if mount is not None:
        file = mount / "memory.pressure"
        limited = _number(mount / _V2.limit) is not None
        if limited and file.exists():
            return file
    return proc / "pressure" / "memory"


@cache
def _hierarchies(mountinfo: Path) -> Hierarchies:
    """Read once: they stay where they are, and the table of a host with many sandboxes is long."""
    return Hierarchies.find(mountinfo)


def _limited(mount: Path, own: Path, sandboxes: Path, files: _Files) -> Iterator[MemoryLimit]:
    for folder in (own, *own.parents):
        if not folder.is_relative_to(mount):
            return
        limit = _number(folder / files.limit)
        if limit is None or limit >= _NO_LIMIT:
            continue
        used = _working_set(folder, files)
        if not sandboxes.is_relative_to(folder):
            used += _working_set(sandboxes, files)
        yield MemoryLimit(folder, limit, used)


def _own_group(table: Path, mount: Path, controller: str) -> Path:
    """In a container that sees only its own group, the path is of the host and that group is the
    mount.
    """
    try:
        lines = table.read_text().splitlines()
    except OSError:
        return mount
    for line in lines:
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            folder = mount / path.lstrip("/")
            return folder if folder.is_dir() and ".." not in folder.parts else mount
    return mount


def _working_set(folder: Path, files: _Files) -> int:
    used = _number(folder / files.used) or 0
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return used
    for line in lines:
        name, _, value = line.partition(" ")
        if name == files.reclaimable:
            return max(0, used - int(value))
    return used


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
