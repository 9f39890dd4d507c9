"""The snapshots of one node: a folder with manifest.json, private.json and the memory image each.

A snapshot is made beside its place, fsynced, and renamed into it, after its disk image is on disk:
whoever sees a folder sees a whole snapshot. It is renamed away before anything of it is deleted.
Those who start from a snapshot hold it (:meth:`SnapshotStore.using`); its deletion waits for them.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

from aenv.models.errors import (
    ConflictError,
    DiskFullError,
    EngineError,
    InvalidRequestError,
    NotFoundError,
    SnapshotDamagedError,
)
from aenv.models.snapshots import SNAPSHOT_ID
from aenv.node.snapshots import checksums, manifest
from aenv.node.snapshots.found import Known, salvaged, scan
from aenv.node.snapshots.found import Stored as Stored
from aenv.node.snapshots.manifest import MEMORY, Manifest, Private

logger = logging.getLogger(__name__)

_PATIENCE = 60.0
_SYNCS = 16
"""Files that are fsynced at once: the file system commits them together."""
_LULL = 2.0
"""Seconds a checksum waits: the processors belong to whoever asked for the snapshot, and many a
snapshot is gone by then.
"""


@dataclass(frozen=True, slots=True)
class Draft:
    """A snapshot that is being made: ``folder`` is its own until it is published."""

    id: str
    folder: Path

    @property
    def memory(self) -> Path:
        """Where its memory image goes."""
        return self.folder / MEMORY


class SnapshotStore:
    """``lull``: seconds a checksum waits before it is computed. ``gone`` is told of the places of
    those that were deleted or never finished.
    """

    def __init__(
        self,
        folder: Path,
        *,
        lull: float = _LULL,
        gone: Callable[[Path], None] = lambda _: None,
    ) -> None:
        self._folder = folder
        self._gone = gone
        self._lull = lull
        self._found: dict[str, Stored] = {}
        self._unreadable: dict[str, EngineError] = {}
        self._deletions: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._drafts: set[str] = set()
        self._unsummed: asyncio.Queue[Stored] = asyncio.Queue()
        self._summer: asyncio.Task[None] | None = None
        self._sum: asyncio.Task[str] | None = None

    async def open(self, keep: frozenset[str]) -> None:
        """Read what is there; remove what was never finished and what is not in ``keep``."""
        self._found, self._unreadable = await asyncio.to_thread(scan, self._folder, keep)
        for stored in self._found.values():
            self._sum_later(stored)

    async def close(self) -> None:
        """Sum no more images. The one being summed is finished: its thread cannot be stopped,
        and would write into a folder that is another server's by then.
        """
        if self._summer is not None:
            self._summer.cancel()
            await asyncio.gather(self._summer, return_exceptions=True)
            self._summer = None
        if self._sum is not None:
            await asyncio.gather(self._sum, return_exceptions=True)

    def __contains__(self, snapshot_id: str | None) -> bool:
        return snapshot_id in self._found

    def exists(self, snapshot_id: str) -> bool:
        """Whether anything of it is here, damaged or not."""
        return snapshot_id in self._found or snapshot_id in self._unreadable

    def all(self) -> list[Stored]:
        return list(self._found.values())

    def place(self, snapshot_id: str) -> Path:
        """Where the snapshot is, or will be."""
        return self._folder / snapshot_id

    @asynccontextmanager
    async def draft(self, snapshot_id: str) -> AsyncIterator[Draft]:
        """Room for a new snapshot, gone afterwards unless it was published. ConflictError."""
        if not SNAPSHOT_ID.match(snapshot_id):
            raise InvalidRequestError(f"{snapshot_id!r} is no snapshot id")
        if snapshot_id in self._found or snapshot_id in self._drafts:
            raise ConflictError(f"snapshot {snapshot_id} exists already")
        draft = Draft(snapshot_id, self._folder / f".new-{snapshot_id}")
        self._drafts.add(snapshot_id)
        try:
            with _disk_errors():
                await asyncio.to_thread(_make_empty, draft.folder)
            yield draft
        finally:
            self._drafts.discard(snapshot_id)
            await asyncio.to_thread(shutil.rmtree, draft.folder, ignore_errors=True)
            if snapshot_id not in self._found:
                self._gone(self.place(snapshot_id))

    async def publish(self, draft: Draft, facts: Manifest, private: Private) -> Stored:
        """From here on the snapshot is there, and stays. Raises DiskFullError, EngineError."""
        place = self.place(draft.id)
        with _disk_errors():
            await asyncio.to_thread(_seal, draft.folder, place, facts, private)
        stored = self._found[draft.id] = Stored(place, facts, private)
        self._sum_later(stored)
        return stored

    @asynccontextmanager
    async def using(self, snapshot_id: str) -> AsyncIterator[Stored]:
        """Keep it from being deleted for a while. Raises NotFoundError."""
        stored = self.get(snapshot_id)
        stored.users += 1
        stored.unused.clear()
        try:
            yield stored
        finally:
            stored.users -= 1
            if not stored.users:
                stored.unused.set()

    def salvage(self, snapshot_id: str, known: Known) -> None:
        """Have the disk of a snapshot whose manifest is damaged, with what the caller knows. Does
        nothing for any other.
        """
        damage = self._unreadable.get(snapshot_id)
        if isinstance(damage, SnapshotDamagedError):
            self._found[snapshot_id] = salvaged(self.place(snapshot_id), known, damage)
            del self._unreadable[snapshot_id]

    def damaged(self) -> list[str]:
        """Those that have lost more than their memory can do without."""
        found = [name for name, stored in self._found.items() if stored.damage]
        return [*found, *self._unreadable]

    def get(self, snapshot_id: str) -> Stored:
        """Raises NotFoundError, EngineError when it cannot be read."""
        if snapshot_id in self._unreadable:
            raise self._unreadable[snapshot_id]
        if snapshot_id not in self._found:
            raise NotFoundError(f"there is no snapshot {snapshot_id} on this node")
        return self._found[snapshot_id]

    async def delete(self, snapshot_id: str, drop_disk: Callable[[], Awaitable[None]]) -> None:
        """Free its bytes, those of its disk by ``drop_disk``. Idempotent, also at once."""
        async with self._deletions.setdefault(snapshot_id, asyncio.Lock()):
            await self._delete(snapshot_id, drop_disk)

    async def _delete(self, snapshot_id: str, drop_disk: Callable[[], Awaitable[None]]) -> None:
        self._unreadable.pop(snapshot_id, None)
        stored = self._found.pop(snapshot_id, None)
        if stored is not None and stored.users:
            try:
                async with asyncio.timeout(_PATIENCE):
                    await stored.unused.wait()
            except TimeoutError:
                logger.warning("snapshot %s is deleted while it is in use", snapshot_id)
        place, doomed = self.place(snapshot_id), self._folder / f".gone-{snapshot_id}"
        if await asyncio.to_thread(place.exists):
            await asyncio.to_thread(place.rename, doomed)
        await drop_disk()
        await asyncio.to_thread(shutil.rmtree, doomed, ignore_errors=True)
        self._gone(place)

    async def verify(self, snapshot_id: str) -> None:
        """Compare the memory image with its checksum, once there is one. Raises EngineError."""
        async with self.using(snapshot_id) as stored:
            if stored.damage is not None:
                raise SnapshotDamagedError(stored.damage)
            if not stored.manifest.has_memory:
                return
            stored.manifest.memory_image(stored.folder)
            found = await asyncio.to_thread(checksums.of, stored.folder / MEMORY)
            if stored.checksum and found != stored.checksum:
                raise SnapshotDamagedError(
                    f"the memory image of snapshot {snapshot_id} is damaged: its checksum is "
                    f"{found[:12]}…, not {stored.checksum[:12]}…; what starts from it boots from "
                    "its disk"
                )

    def _sum_later(self, stored: Stored) -> None:
        if stored.checksum or not stored.manifest.has_memory:
            return
        self._unsummed.put_nowait(stored)
        if self._summer is None or self._summer.done():
            self._summer = asyncio.create_task(self._sum_all(), name="snapshot-checksums")

    async def _sum_all(self) -> None:
        while not self._unsummed.empty():
            await asyncio.sleep(self._lull)
            stored = self._unsummed.get_nowait()
            if self._found.get(stored.manifest.id) is not stored:
                continue
            try:
                self._sum = asyncio.create_task(_patiently(checksums.add, stored.folder))
                stored.checksum = await asyncio.shield(self._sum)
            except OSError as error:  # a full disk: a restart tries again
                if self._found.get(stored.manifest.id) is stored:  # not deleted meanwhile
                    logger.info("no checksum for snapshot %s: %s", stored.manifest.id, error)


async def _patiently(work: Callable[[Path], str], folder: Path) -> str:
    """In a thread that runs when nobody else wants the processor."""
    with ThreadPoolExecutor(1, "aenv-checksum", initializer=_give_way) as patient:
        return await asyncio.get_running_loop().run_in_executor(patient, work, folder)


def _give_way() -> None:
    if sys.platform == "linux":  # where a thread has a priority of its own
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)


def _make_empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)


def _seal(folder: Path, place: Path, facts: Manifest, private: Private) -> None:
    manifest.write(folder, facts, private)
    with ThreadPoolExecutor(_SYNCS, "aenv-fsync") as syncs:
        list(syncs.map(_fsync, [folder, *folder.rglob("*")]))
    folder.rename(place)
    _fsync(place.parent)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class _disk_errors:  # noqa: N801 - reads as a statement
    """Turn what the host's disk answers into errors of ours."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, OSError):
            return
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError("no room for the snapshot; free some disk space") from error
        raise EngineError(f"the snapshot cannot be stored: {error}") from error
