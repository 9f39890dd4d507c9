"""Control groups by the files of v1 and of v2. Everything here blocks."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from aenv.models.sandboxes import Resources
from aenv.node.host.hierarchies import UNIFIED_CONTROLLERS, Hierarchies

MIB = 1 << 20
PERIOD = 100_000
PIDS_LIMIT = 4096
_MINIMUM_QUOTA = 1000


@dataclass(frozen=True, slots=True)
class CgroupStats:
    """``memory_bytes`` leaves out what the kernel can take back (inactive file pages).

    ``oom_kills``: processes the kernel killed because the group was at its memory limit.
    """

    cpu_seconds: float
    memory_bytes: int
    pids: int
    oom_kills: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    quota_us: int
    memory_bytes: int
    pids: int = PIDS_LIMIT

    @classmethod
    def of(cls, resources: Resources, overhead_mb: int) -> Limits:
        quota = max(_MINIMUM_QUOTA, round(resources.cpu * PERIOD))
        return cls(quota, (resources.memory_mb + overhead_mb) * MIB)


class Version(ABC):
    """How groups of one version of the interface are made and read."""

    @abstractmethod
    def folders(self, path: str) -> list[Path]:
        """Where a group with limits is made."""

    def everywhere(self, path: str) -> list[Path]:
        """Where the engine may have made it too."""
        return self.folders(path)

    @abstractmethod
    def obstacle(self) -> str | None:
        """Why :meth:`prepare` would fail, as far as can be seen without changing anything."""

    @abstractmethod
    def prepare(self, path: str) -> None:
        """Make a parent that groups with limits can be made in."""

    @abstractmethod
    def limit(self, path: str, limits: Limits) -> None: ...

    @abstractmethod
    def stats(self, path: str) -> CgroupStats: ...


class V1(Version):
    def __init__(self, hierarchies: Hierarchies) -> None:
        self._mounts = hierarchies.v1
        self._others = hierarchies.others

    def folders(self, path: str) -> list[Path]:
        return list(dict.fromkeys(mount / path.lstrip("/") for mount in self._mounts.values()))

    def everywhere(self, path: str) -> list[Path]:
        return self.folders(path) + [mount / path.lstrip("/") for mount in self._others]

    def obstacle(self) -> str | None:
        return _first_read_only(self._mounts.values())

    def prepare(self, path: str) -> None:
        for folder in self.folders(path):
            folder.mkdir(parents=True, exist_ok=True)

    def limit(self, path: str, limits: Limits) -> None:
        write = self._writer(path)
        write("cpu", "cpu.cfs_period_us", PERIOD)
        write("cpu", "cpu.cfs_quota_us", limits.quota_us)
        write("memory", "memory.limit_in_bytes", limits.memory_bytes)
        write("pids", "pids.max", limits.pids)

    def stats(self, path: str) -> CgroupStats:
        folder = {name: mount / path.lstrip("/") for name, mount in self._mounts.items()}
        return CgroupStats(
            cpu_seconds=_number(folder["cpuacct"] / "cpuacct.usage") / 1e9,
            memory_bytes=max(
                0,
                _number(folder["memory"] / "memory.usage_in_bytes")
                - _field(folder["memory"] / "memory.stat", "total_inactive_file"),
            ),
            pids=_number(folder["pids"] / "pids.current"),
            oom_kills=_field(folder["memory"] / "memory.oom_control", "oom_kill"),
        )

    def _writer(self, path: str) -> Callable[[str, str, int], None]:
        def write(controller: str, name: str, value: int) -> None:
            (self._mounts[controller] / path.lstrip("/") / name).write_text(str(value))

        return write


class V2(Version):
    def __init__(self, mount: Path) -> None:
        self._mount = mount

    def folders(self, path: str) -> list[Path]:
        return [self._mount / path.lstrip("/")]

    def obstacle(self) -> str | None:
        enabled = (self._mount / "cgroup.subtree_control").read_text().split()
        if set(UNIFIED_CONTROLLERS) <= set(enabled):
            return _first_read_only([self._mount])
        is_kernels_root = not (self._mount / "cgroup.type").exists()
        if not is_kernels_root and (self._mount / "cgroup.procs").read_text().strip():
            return f"{self._mount} holds processes itself (a container), so it cannot be divided"
        return _first_read_only([self._mount])

    def prepare(self, path: str) -> None:
        """Every group above needs the controllers enabled for its children."""
        enable = " ".join(f"+{name}" for name in UNIFIED_CONTROLLERS)
        folder = self._mount
        for part in ("", *path.strip("/").split("/")):
            folder = folder / part
            folder.mkdir(exist_ok=True)
            control = folder / "cgroup.subtree_control"
            if not set(UNIFIED_CONTROLLERS) <= set(control.read_text().split()):
                control.write_text(enable)

    def limit(self, path: str, limits: Limits) -> None:
        [folder] = self.folders(path)
        (folder / "cpu.max").write_text(f"{limits.quota_us} {PERIOD}")
        (folder / "memory.max").write_text(str(limits.memory_bytes))
        (folder / "pids.max").write_text(str(limits.pids))

    def stats(self, path: str) -> CgroupStats:
        [folder] = self.folders(path)
        return CgroupStats(
            cpu_seconds=_field(folder / "cpu.stat", "usage_usec") / 1e6,
            memory_bytes=max(
                0,
                _number(folder / "memory.current")
                - _field(folder / "memory.stat", "inactive_file"),
            ),
            pids=_number(folder / "pids.current"),
            oom_kills=_field(folder / "memory.events", "oom_kill"),
        )


def _first_read_only(mounts: Iterable[Path]) -> str | None:
    for mount in mounts:
        if not os.access(mount, os.W_OK):
            return f"{mount} is not writable"
    return None


def _number(file: Path) -> int:
    return int(file.read_text())


def _field(file: Path, name: str) -> int:
    for line in file.read_text().splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0
