"""A disk as an overlay: read-only layers, and a volume of a store above them. Everything blocks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from pathlib import Path

from aenv.models.errors import CapacityError, EngineError
from aenv.node.disks.disk import Disk, DiskUsage
from aenv.node.disks.records import DiskRecord
from aenv.node.disks.stores import MIB, Store
from aenv.node.host import Host

UPPER = "upper"
_SMALLEST_ROOM = 128 * MIB


class OverlayDisk(Disk):
    def __init__(
        self, sandbox_id: str, record: DiskRecord, store: Store, host: Host, mounted: Path
    ) -> None:
        self.sandbox_id = sandbox_id
        self.lowers = record.lowers
        self.merged = mounted / sandbox_id / "merged"
        self._volume = store.path(sandbox_id)
        self.upper = self._volume / UPPER
        self._record = record
        self._store = store
        self._mounts = host.mounts

    def usage(self) -> DiskUsage:
        try:
            return self._store.usage(self.sandbox_id)
        except OSError as error:
            raise EngineError(f"The disk of {self.sandbox_id} is gone: {error}") from error

    async def destroy(self) -> None:
        await asyncio.to_thread(self.remove)

    def make(self) -> None:
        """Empty, or as a copy of the image its record names."""
        if self._store.room() < _SMALLEST_ROOM:
            raise pool_is_full(self._store)
        size, source = self._record.size_mb * MIB, self._record.source
        if source is None:
            volume = self._store.make(self.sandbox_id, size)
        else:
            volume = self._store.make_from(source, self.sandbox_id, size)
        try:
            self.upper.mkdir(mode=0o755, exist_ok=source is not None)
            if source is None and self.lowers:
                _take_after(self.upper, self.lowers[0])
            (volume / "work").mkdir(mode=0o700, exist_ok=source is not None)
            self._record.write(volume)
            self.mount()
        except BaseException:
            self.remove()
            raise

    def mount(self) -> None:
        if self.merged.is_dir() and self._mounts.find(self.merged) is not None:
            return
        missing = [lower for lower in self.lowers if not lower.is_dir()]
        if missing:
            raise EngineError(f"The disk of {self.sandbox_id} lacks its layer {missing[0]}.")
        self.merged.mkdir(mode=0o755, parents=True, exist_ok=True)
        self._mounts.overlay(self.lowers, self.upper, self._volume / "work", self.merged)

    def remove(self) -> None:
        self._mounts.unmount(self.merged)
        for folder in (self.merged, self.merged.parent):
            with contextlib.suppress(OSError):  # the engine may keep files beside it
                folder.rmdir()
        self._store.remove(self.sandbox_id)


def _take_after(upper: Path, lower: Path) -> None:
    """The root has the owner and mode that the layers give it."""
    status = lower.stat()
    os.chown(upper, status.st_uid, status.st_gid)
    upper.chmod(stat.S_IMODE(status.st_mode))


def pool_is_full(store: Store) -> CapacityError:
    return CapacityError(
        f"The disks of all sandboxes together have {max(0, store.room()) // MIB} MiB left. "
        "End sandboxes, free space on the host, or raise the setting pool_mb.",
        retry_after=10,
    )
