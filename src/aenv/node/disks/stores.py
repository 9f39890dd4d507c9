"""Where the volumes of disks live: subvolumes with a quota, or plain folders.

A volume is a folder ``<root>/<sandbox id>``. Everything here blocks.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from enum import StrEnum
from pathlib import Path

from aenv.node.disks.disk import DiskUsage
from aenv.node.disks.walks import FolderSizes
from aenv.node.engine import Finding, Severity
from aenv.node.host import Host

MIB = 1 << 20


class PoolKind(StrEnum):
    """BTRFS: the data folder is on btrfs. LOOP: a btrfs in one file. DIRECTORY: no limits."""

    BTRFS = "btrfs"
    LOOP = "loop"
    DIRECTORY = "directory"


class Store(ABC):
    kind: PoolKind
    root: Path

    @abstractmethod
    def start(self) -> None:
        """Make it usable. HostSetupError or OSError when this host cannot have it."""

    @abstractmethod
    def make(self, name: str, limit_bytes: int) -> Path:
        """A new empty volume. FileExistsError."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Delete a volume and all in it; idempotent."""

    @abstractmethod
    def usage(self, name: str) -> DiskUsage: ...

    @abstractmethod
    def room(self) -> int:
        """Bytes that may still be written by all disks together."""

    @abstractmethod
    def findings(self) -> list[Finding]: ...

    def tend(self) -> float:
        """Look after it; returns the seconds until it wants to be looked after again."""
        return 60.0

    def stop(self) -> None:  # noqa: B027 - most stores hold nothing
        """Let go of it; only called when no volume is in use."""

    def names(self) -> list[str]:
        if not self.root.is_dir():
            return []
        return sorted(entry.name for entry in self.root.iterdir() if entry.is_dir())

    def path(self, name: str) -> Path:
        return self.root / name


class FolderStore(Store):
    """The last resort: nothing stops one sandbox from filling the host's disk."""

    kind = PoolKind.DIRECTORY

    def __init__(self, root: Path, reserve_bytes: int, reason: str = "") -> None:
        self.root = root
        self._reserve = reserve_bytes
        self._reason = reason
        self._sizes = FolderSizes()

    def start(self) -> None:
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)

    def make(self, name: str, limit_bytes: int) -> Path:
        self.path(name).mkdir(mode=0o700)
        return self.path(name)

    def remove(self, name: str) -> None:
        self._sizes.forget(self.path(name))
        shutil.rmtree(self.path(name), ignore_errors=not self.path(name).exists())

    def usage(self, name: str) -> DiskUsage:
        return DiskUsage(self._sizes.of(self.path(name)), 0)

    def room(self) -> int:
        return free_bytes(self.root) - self._reserve

    def findings(self) -> list[Finding]:
        because = f" ({self._reason})" if self._reason else ""
        return [
            Finding(
                "disk",
                Severity.WARNING,
                f"disks are plain folders in {self.root}: diskSizeMB is not enforced and one "
                f"sandbox can fill the disk of all{because}",
                "apt-get install btrfs-progs; modprobe -a btrfs loop; then restart the server",
            )
        ]


class SubvolumeStore(Store):
    """The data folder is on btrfs already."""

    kind = PoolKind.BTRFS

    def __init__(self, root: Path, host: Host, reserve_bytes: int) -> None:
        self.root = root
        self._volumes = host.volumes
        self._reserve = reserve_bytes

    def start(self) -> None:
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._volumes.enable_quota(self.root)

    def make(self, name: str, limit_bytes: int) -> Path:
        path = self.path(name)
        self._volumes.create(path)
        try:
            self._volumes.set_limit(path, limit_bytes)
            path.chmod(0o700)
        except BaseException:
            self.remove(name)
            raise
        return path

    def remove(self, name: str) -> None:
        path = self.path(name)
        if self._volumes.is_subvolume(path):
            self._volumes.delete(path)
        elif path.exists():
            shutil.rmtree(path)

    def usage(self, name: str) -> DiskUsage:
        usage = self._volumes.usage(self.path(name))
        return DiskUsage(usage.used, usage.limit)

    def room(self) -> int:
        return free_bytes(self.root) - self._reserve

    def findings(self) -> list[Finding]:
        return [Finding("disk", Severity.OK, f"disks are btrfs subvolumes in {self.root}")]


def free_bytes(path: Path) -> int:
    """What an ordinary user may still write where ``path`` is or will be."""
    status = os.statvfs(nearest(path))
    return status.f_bavail * status.f_frsize


def nearest(path: Path) -> Path:
    """``path``, or the folder above it that exists."""
    while not path.exists():
        path = path.parent
    return path
