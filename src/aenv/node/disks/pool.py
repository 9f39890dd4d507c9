"""The disks of one server instance, in the best store this host offers.

In order: the data folder's own btrfs; a btrfs in one file; plain folders, and said so.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from aenv.models.errors import (
    AenvError,
    ConflictError,
    EngineError,
    NotFoundError,
    SnapshotDamagedError,
)
from aenv.models.settings import Settings
from aenv.node.disks import images
from aenv.node.disks.disk import Disk, DiskUsage
from aenv.node.disks.folderstore import FolderStore
from aenv.node.disks.loopstore import LoopStore
from aenv.node.disks.overlays import UPPER, OverlayDisk, pool_is_full
from aenv.node.disks.records import DiskRecord
from aenv.node.disks.stores import MIB, PoolKind, Store, SubvolumeStore, nearest
from aenv.node.disks.volumes import PoolVolumes
from aenv.node.engine import DiskImage, Finding, Severity
from aenv.node.host import Host

log = logging.getLogger(__name__)

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}\Z")
_RETRY = 10.0

__all__ = ["Disk", "DiskPool", "DiskUsage", "PoolKind"]


class DiskPool:
    """``kind`` is known after :meth:`start`."""

    def __init__(self, settings: Settings, host: Host) -> None:
        self._settings = settings
        self._host = host
        self._store: Store = FolderStore(settings.folders.data / "disks", 0)
        self._mounted = settings.folders.instance_run / "sandboxes"
        self._keeper: asyncio.Task[None] | None = None
        self.volumes = PoolVolumes(lambda: self._store)

    @property
    def kind(self) -> PoolKind:
        return self._store.kind

    async def start(self) -> None:
        """Mount or make the pool. Raises HostSetupError when one with disks cannot be mounted."""
        self._store = await asyncio.to_thread(self._open_store)
        self._keeper = asyncio.create_task(self._keep(), name="aenv-disks")

    async def create(
        self, sandbox_id: str, lowers: Sequence[Path], size_mb: int, *, source: str | None = None
    ) -> Disk:
        """A fresh disk over ``lowers`` (topmost first), mounted; ``source``: it begins as a copy of
        that image.

        Raises CapacityError when the pool is full, ConflictError when the sandbox has one,
        SnapshotDamagedError when there is no such image.
        """
        disk = self._disk(sandbox_id, DiskRecord(tuple(lowers), size_mb, source))
        making = asyncio.create_task(asyncio.to_thread(disk.make))
        try:
            await asyncio.shield(making)
        except asyncio.CancelledError:
            await asyncio.wait([making])
            if making.exception() is None:  # a failed one removed itself, or was another's
                await disk.destroy()
            raise
        except FileExistsError:
            raise ConflictError(f"Sandbox {sandbox_id} has a disk already.") from None
        except FileNotFoundError as error:
            raise SnapshotDamagedError(
                f"The disk of snapshot {source} is gone from {self._store.root} ({error}): nothing "
                "can start from it. Put it back from a copy of the data folder, or delete it."
            ) from None
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise pool_is_full(self._store) from error
            raise EngineError(f"The disk of {sandbox_id} cannot be made: {error}") from error
        return disk

    async def open(self, sandbox_id: str) -> Disk | None:
        """The disk a sandbox has, mounted again if need be; None if it has none.

        Raises EngineError when its layers are gone.
        """
        return await asyncio.to_thread(self._open, sandbox_id)

    async def sync(self, sandbox_id: str) -> None:
        """Write what is dirty of a sandbox's disk, so that a copy of it is quick to make."""
        await asyncio.to_thread(self._store.sync, sandbox_id)

    async def save(
        self, sandbox_id: str, name: str, volumes: Mapping[str, str] | None = None
    ) -> DiskImage:
        """Keep a copy of a sandbox's disk as an image of that name, and with it of ``volumes`` (the
        store's name of each, by id).

        Raises ConflictError (the name is taken), NotFoundError, DiskFullError, EngineError.
        """
        if not _NAME.match(name):
            raise EngineError(f"{name!r} is no name for a disk image.")
        return await asyncio.to_thread(images.save, self._store, sandbox_id, name, volumes or {})

    async def images(self) -> list[DiskImage]:
        """All images with their sizes now."""
        return await asyncio.to_thread(images.list_images, self._store)

    async def drop(self, name: str) -> None:
        """Delete an image and free its bytes; idempotent. Disks made from it stay."""
        await asyncio.to_thread(images.drop, self._store, name)

    async def tree(self, name: str) -> Path:
        """The upper folder of an image. Raises NotFoundError."""
        upper = self._store.image_path(name) / UPPER
        if not await asyncio.to_thread(upper.is_dir):
            raise NotFoundError(f"There is no disk image {name}.")
        return upper

    async def verify(self, name: str) -> None:
        """Read all of an image. Raises NotFoundError, EngineError naming what is damaged."""
        await asyncio.to_thread(images.verify, self._store, name)

    async def reap(self, keep: frozenset[str]) -> list[str]:
        """Destroy the disks of sandboxes not in ``keep``; return their ids."""
        return await asyncio.to_thread(self._reap, keep)

    async def findings(self) -> list[Finding]:
        """What the pool is; before :meth:`start`, what it will be. Changes nothing."""
        if self._keeper is None:
            return await asyncio.to_thread(self._prospect)
        return await asyncio.to_thread(self._store.findings)

    async def room(self) -> int:
        """Bytes that all disks together may still write."""
        return await asyncio.to_thread(self._store.room)

    async def close(self) -> None:
        """Leave mounted what sandboxes use; unmount the pool when no disk is left."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if not await asyncio.to_thread(self._store.names):
            await asyncio.to_thread(self._store.stop)

    def _stores(self) -> tuple[SubvolumeStore, LoopStore]:
        settings, data = self._settings, self._settings.folders.data
        reserve = settings.disk_reserve_mb * MIB
        native = SubvolumeStore(data / "disks", self._host, reserve)
        most = settings.pool_mb * MIB
        return native, LoopStore(data, self._host, most_bytes=most, reserve_bytes=reserve)

    def _prospect(self) -> list[Finding]:
        data = self._settings.folders.data
        _, loop = self._stores()
        if loop.exists():
            return [loop.prospect()]
        if not self._host.volumes.is_btrfs(nearest(data)):
            kept = self._plain("")
            return kept.findings() if kept.holds_any() else [loop.prospect()]
        return [Finding("disk", Severity.OK, f"{data} is on btrfs: disks are limited")]

    def _open_store(self) -> Store:
        data = self._settings.folders.data
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        native, loop = self._stores()
        if loop.exists():
            loop.start()
            return loop
        on_btrfs = self._host.volumes.is_btrfs(data)
        kept = self._plain("")
        if not on_btrfs and kept.holds_any():
            kept.start()
            return kept
        reasons = []
        for store in (native, loop) if on_btrfs else (loop,):
            try:
                store.start()
            except (AenvError, OSError) as error:
                reasons.append(str(error))
            else:
                return store
        fallback = self._plain("; ".join(reasons))
        fallback.start()
        log.warning("disks are not limited on this host: %s", "; ".join(reasons))
        return fallback

    def _plain(self, reason: str) -> FolderStore:
        settings = self._settings
        return FolderStore(settings.folders.data / "disks", settings.disk_reserve_mb * MIB, reason)

    def _open(self, sandbox_id: str) -> Disk | None:
        record = DiskRecord.read(self._store.path(sandbox_id))
        if record is None:
            return None
        disk = self._disk(sandbox_id, record)
        disk.mount()
        return disk

    def _reap(self, keep: frozenset[str]) -> list[str]:
        mounted = (
            [entry.name for entry in self._mounted.iterdir()] if self._mounted.is_dir() else []
        )
        stored = self._store.names()
        for name in {*mounted, *stored} - keep:
            self._disk(name, DiskRecord((), 0)).remove()
        return sorted(set(stored) - keep)

    def _disk(self, sandbox_id: str, record: DiskRecord) -> OverlayDisk:
        if not _NAME.match(sandbox_id):
            raise EngineError(f"{sandbox_id!r} is no sandbox id.")
        return OverlayDisk(sandbox_id, record, self._store, self._host, self._mounted)

    async def _keep(self) -> None:
        while True:
            try:
                pause = await asyncio.to_thread(self._store.tend)
            except (AenvError, OSError) as error:
                log.warning("the pool of disks cannot be tended: %s", error)
                pause = _RETRY
            await asyncio.sleep(pause)
