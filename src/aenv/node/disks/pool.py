"""Where the disks of one server instance live."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from aenv.models.settings import Settings
from aenv.node.disks.disk import Disk
from aenv.node.engine import Finding
from aenv.node.host import Host


class PoolKind(StrEnum):
    BTRFS = "btrfs"
    LOOP = "loop"
    DIRECTORY = "directory"


class DiskPool:
    kind: PoolKind

    def __init__(self, settings: Settings, host: Host) -> None:
        raise NotImplementedError

    async def start(self) -> None:
        """Mount or make the pool. Raises HostSetupError, CapacityError."""
        raise NotImplementedError

    async def create(self, sandbox_id: str, lowers: Sequence[Path], size_mb: int) -> Disk:
        """A fresh disk over ``lowers`` (topmost first), mounted. CapacityError when the pool is full."""
        raise NotImplementedError

    async def open(self, sandbox_id: str) -> Disk | None:
        """The disk a sandbox has, mounted again if need be."""
        raise NotImplementedError

    async def reap(self, keep: frozenset[str]) -> list[str]:
        """Destroy the disks of sandboxes not in ``keep``; return their ids."""
        raise NotImplementedError

    async def findings(self) -> list[Finding]:
        raise NotImplementedError

    async def close(self) -> None:
        """Leave mounted what sandboxes use; unmount the pool when none is left."""
        raise NotImplementedError
