"""Where the volumes of disks live: here subvolumes with a quota, elsewhere plain folders.

A disk is a folder ``<root>/<sandbox id>``, an image (a copy that never changes)
``<root>/.images/<name>``, a volume ``<root>/.volumes/<name>``. Everything here blocks.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from aenv.node.disks.disk import DiskUsage
from aenv.node.disks.removals import remove_tree
from aenv.node.engine import Finding, Severity
from aenv.node.host import Host

MIB = 1 << 20
_IMAGES = ".images"
VOLUMES = ".volumes"
"""``VOLUMES/name`` serves as the name of a disk wherever one is asked for."""
_TURN = 2.0


class PoolKind(StrEnum):
    """BTRFS: the data folder is on btrfs. LOOP: a btrfs in one file. DIRECTORY: no limits."""

    BTRFS = "btrfs"
    LOOP = "loop"
    DIRECTORY = "directory"


@dataclass(frozen=True, slots=True)
class ImageUsage:
    """Bytes in an image, and those that nothing else shares."""

    bytes: int
    own_bytes: int


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
    def sync(self, name: str) -> None:
        """Write what is dirty of a volume."""

    @abstractmethod
    def save(self, name: str, image: str) -> None:
        """Keep a copy of a volume, durably. FileExistsError, FileNotFoundError."""

    @abstractmethod
    def make_from(self, image: str, name: str, limit_bytes: int) -> Path:
        """A new volume that begins as a copy of an image. FileExistsError, FileNotFoundError."""

    @abstractmethod
    def image_usage(self, image: str) -> ImageUsage: ...

    @abstractmethod
    def drop(self, image: str) -> None:
        """Delete an image and free its bytes; idempotent."""

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
        return _folders_in(self.root)

    def images(self) -> list[str]:
        return _folders_in(self.root / _IMAGES)

    def volumes(self) -> list[str]:
        return _folders_in(self.root / VOLUMES)

    def holds_any(self) -> bool:
        return bool(self.names() or self.images() or self.volumes())

    def path(self, name: str) -> Path:
        return self.root / name

    def image_path(self, image: str) -> Path:
        return self.root / _IMAGES / image


class SubvolumeStore(Store):
    """The data folder is on btrfs already."""

    kind = PoolKind.BTRFS

    def __init__(self, root: Path, host: Host, reserve_bytes: int) -> None:
        self.root = root
        self._volumes = host.volumes
        self._reserve = reserve_bytes
        self._deleted = False

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
            self._deleted = True
        else:
            remove_tree(path)

    def usage(self, name: str) -> DiskUsage:
        usage = self._volumes.usage(self.path(name))
        return DiskUsage(usage.used, usage.limit)

    def sync(self, name: str) -> None:
        self._volumes.sync(self.path(name))

    def save(self, name: str, image: str) -> None:
        target = self.image_path(image)
        target.parent.mkdir(mode=0o700, exist_ok=True)
        self._volumes.snapshot(self.path(name), target, read_only=True)

    def make_from(self, image: str, name: str, limit_bytes: int) -> Path:
        path = self.path(name)
        self._volumes.snapshot(self.image_path(image), path, read_only=False)
        try:
            self._volumes.set_limit(path, limit_bytes)
        except BaseException:
            self.remove(name)
            raise
        return path

    def image_usage(self, image: str) -> ImageUsage:
        usage = self._volumes.usage(self.image_path(image))
        return ImageUsage(usage.used, usage.own)

    def drop(self, image: str) -> None:
        path = self.image_path(image)
        if self._volumes.is_subvolume(path):
            self._volumes.delete(path)
            self._deleted = True

    def tend(self) -> float:
        """btrfs takes deleted volumes apart, and counts whose their bytes are now, when it is
        pushed; counting a large one it gives up, and has to be asked to begin anew.
        """
        if self._deleted:
            self._deleted = False
            self._volumes.sync(self.root)
            self._volumes.enable_quota(self.root)
        return _TURN

    def room(self) -> int:
        return free_bytes(self.root) - self._reserve

    def findings(self) -> list[Finding]:
        return [Finding("disk", Severity.OK, f"disks are btrfs subvolumes in {self.root}")]


def _folders_in(folder: Path) -> list[str]:
    """Those whose making has ended, by name."""
    if not folder.is_dir():
        return []
    found = (entry.name for entry in folder.iterdir() if entry.is_dir())
    return sorted(name for name in found if not name.startswith("."))


def free_bytes(path: Path) -> int:
    """What an ordinary user may still write where ``path`` is or will be."""
    status = os.statvfs(nearest(path))
    return status.f_bavail * status.f_frsize


def nearest(path: Path) -> Path:
    """``path``, or the folder above it that exists."""
    while not path.exists():
        path = path.parent
    return path
