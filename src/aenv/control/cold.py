"""Snapshots and the blob store: put there some seconds after they were taken, dropped here when the
host wants the room, fetched before something starts from them.

A snapshot goes only once the catalog has on disk that the store has all of it. Whoever starts from
one is in :meth:`Cold.here` meanwhile, and what is in there is never dropped.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

import structlog

from aenv.control.clocks import SECOND, Clock
from aenv.control.deadlines import deadline
from aenv.control.storage import Storage
from aenv.control.turns import Turns
from aenv.models.errors import (
    AenvError,
    BlobStoreError,
    CapabilityError,
    ConflictError,
    NotFoundError,
)
from aenv.models.settings import BlobSettings, Settings
from aenv.models.snapshots import Kept, SnapshotKind, SnapshotPlace
from aenv.node.port import Node
from aenv.store import cold as rows
from aenv.store import snapshots
from aenv.store.catalog import Catalog
from aenv.store.cold import ColdState

log = structlog.get_logger()
FETCH_TIMEOUT = 3600.0
LULL = 5.0
EVERY = 5.0
LONGEST_PAUSE = 300.0
MIB = 1 << 20


class Cold:
    """``lull``: seconds before a new snapshot is put into the store; many are gone by then.
    ``every``: seconds between two looks at what is to be done.
    """

    def __init__(
        self,
        settings: Settings,
        catalog: Catalog,
        node: Node,
        clock: Clock,
        storage: Storage,
        turns: Turns,
        *,
        lull: float = LULL,
        every: float = EVERY,
    ) -> None:
        self._settings = settings.store
        self._catalog = catalog
        self._node = node
        self._clock = clock
        self._storage = storage
        self._turns = turns
        self._lull = lull
        self._every = every
        self._users: Counter[str] = Counter()
        self._used: dict[str, int] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._keeping: dict[str, asyncio.Task[None]] = {}
        self._again: dict[str, tuple[int, float]] = {}

    @asynccontextmanager
    async def here(self, snapshot_id: str | None) -> AsyncIterator[None]:
        """Have a snapshot on the node, fetched if it lacks it. Raises SnapshotDamagedError,
        DiskFullError, BlobStoreError; what is nowhere is the node's to tell.
        """
        if snapshot_id is None:
            yield
            return
        async with self._lock(snapshot_id):
            await self._fetch(snapshot_id)
            self._users[snapshot_id] += 1
        try:
            yield
        finally:
            self._users[snapshot_id] -= 1
            self._used[snapshot_id] = self._clock.wall()

    async def keep(self, snapshot_id: str) -> None:
        """Have it in the store, now. Callers of one snapshot share the work. Raises what putting
        it does, ConflictError when it was deleted meanwhile.
        """
        record = await self._catalog.read(lambda db: rows.get(db, snapshot_id))
        if record is not None and record.state is ColdState.STORED:
            return
        task = self._keeping.get(snapshot_id)
        if task is None:
            task = asyncio.create_task(self._keep(snapshot_id), name=f"keep {snapshot_id}")
            self._keeping[snapshot_id] = task
            task.add_done_callback(lambda done: self._kept(snapshot_id, done))
        await asyncio.shield(task)

    async def evict(self, snapshot_id: str, *, hot: bool = True) -> bool:
        """Have it in the store alone. False when it is in use, or, without ``hot``, when its
        sandbox is frozen in memory. NotFoundError, CapabilityError, and as :meth:`keep`.
        """
        record = await self._catalog.read(lambda db: snapshots.get(db, snapshot_id))
        if record is None:
            raise NotFoundError(f"there is no snapshot {snapshot_id}")
        if await self._catalog.read(lambda db: rows.bound(db, snapshot_id)):
            raise CapabilityError(
                f"snapshot {snapshot_id} comes with volumes, which are on this host alone: it stays"
            )
        await self.keep(snapshot_id)
        if record.kind is SnapshotKind.PAUSE:
            return await self._turns.take(
                record.sandbox_id, lambda: self._drop(snapshot_id, hot=hot)
            )
        return await self._drop(snapshot_id, hot=hot)

    async def places(self, ids: Collection[str]) -> dict[str, SnapshotPlace]:
        whole = await self._catalog.read(lambda db: rows.stored(db, ids))
        here = {one for one in ids if await self._node.has_snapshot(one)}
        return {one: SnapshotPlace.of(here=one in here, stored=one in whole) for one in ids}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._every)
            try:
                await self.tend()
            except AenvError as error:
                log.warning("snapshots not put into the store, tried again", error=str(error))
            except Exception as error:  # noqa: BLE001 - the loop must go on
                log.error("the loop of cold snapshots failed", error=repr(error))

    async def close(self) -> None:
        for task in list(self._keeping.values()):
            task.cancel()
        await asyncio.gather(*self._keeping.values(), return_exceptions=True)

    async def tend(self) -> None:
        """One look: let go of blobs of what is gone, put what is new, come back to the budget."""
        for holder in await self._catalog.read(rows.orphans):
            await (await self._storage.blobs()).release(holder)
        if keeps(self._settings):
            await self._keep_all()
        if self._settings.local_mb is not None:
            await self._trim(self._settings.local_mb * MIB)

    async def _keep_all(self) -> None:
        now = self._clock.wall()
        due = await self._catalog.read(
            lambda db: rows.waiting(db, now - round(self._lull * SECOND))
        )
        self._again = {one: self._again[one] for one in due if one in self._again}
        for snapshot_id in due:
            at, _ = self._again.get(snapshot_id, (0, 0.0))
            if at > now or not await self._node.has_snapshot(snapshot_id):
                continue
            try:
                await self.keep(snapshot_id)
            except (ConflictError, NotFoundError):
                continue
            except BlobStoreError:
                self._postpone(snapshot_id)
                raise
            except AenvError as error:
                self._postpone(snapshot_id)
                log.warning("not put into the store", snapshot_id=snapshot_id, error=str(error))

    def _postpone(self, snapshot_id: str) -> None:
        _, pause = self._again.get(snapshot_id, (0, self._every))
        until = self._clock.wall() + round(pause * SECOND)
        self._again[snapshot_id] = until, min(2 * pause, LONGEST_PAUSE)

    async def _trim(self, budget: int) -> None:
        """Drop what is stored, the longest unused first."""
        images = await self._node.snapshots()
        excess = sum(image.own_bytes for image in images) - budget
        whole = await self._catalog.read(rows.stored)
        able = [image for image in images if image.id in whole]
        able.sort(key=lambda one: self._used.get(one.id, round(one.created_at * SECOND)))
        for image in able:
            if excess <= 0:
                return
            try:
                if await self.evict(image.id, hot=False):
                    excess -= image.own_bytes
            except (ConflictError, NotFoundError):
                continue

    async def _keep(self, snapshot_id: str) -> None:
        now = self._clock.wall
        if not await self._catalog.write(lambda db: rows.begin(db, snapshot_id, now())):
            raise NotFoundError(f"there is no snapshot {snapshot_id}")
        try:
            kept = await self._node.store_snapshot(snapshot_id, await self._storage.blobs())
        except AenvError as error:
            words = error.message
            await self._catalog.write(lambda db: rows.fail(db, snapshot_id, words, now()))
            raise
        if not await self._turns.insist_lasting(lambda db: rows.finish(db, kept, now())):
            raise ConflictError(f"snapshot {snapshot_id} was deleted meanwhile")
        self._tell(kept)

    async def _drop(self, snapshot_id: str, *, hot: bool) -> bool:
        async with self._lock(snapshot_id):
            if self._users[snapshot_id]:
                return False
            record = await self._catalog.read(lambda db: rows.get(db, snapshot_id))
            if record is None or record.state is not ColdState.STORED:
                raise ConflictError(f"snapshot {snapshot_id} was deleted meanwhile")
            dropped = await self._node.evict_snapshot(snapshot_id, hot=hot)
        if dropped:
            log.info("snapshot dropped here, it is in the store", snapshot_id=snapshot_id)
        return dropped

    async def _fetch(self, snapshot_id: str) -> None:
        if await self._node.has_snapshot(snapshot_id):
            return
        record = await self._catalog.read(lambda db: rows.get(db, snapshot_id))
        if record is None or record.copy is None:
            return
        async with deadline(FETCH_TIMEOUT, "fetching the snapshot from the blob store"):
            await self._node.fetch_snapshot(record.copy, await self._storage.blobs())
        log.info("snapshot fetched", snapshot_id=snapshot_id, bytes=record.bytes)

    def _kept(self, snapshot_id: str, done: asyncio.Task[None]) -> None:
        self._keeping.pop(snapshot_id, None)
        if not done.cancelled() and (error := done.exception()) is not None:
            log.debug("not kept", snapshot_id=snapshot_id, error=str(error))

    def _tell(self, kept: Kept) -> None:
        log.info(
            "snapshot is in the store",
            snapshot_id=kept.copy.snapshot_id,
            bytes=kept.copy.bytes,
            new=kept.bytes_new,
            shared=kept.bytes_shared,
            sent=kept.bytes_sent,
        )

    def _lock(self, snapshot_id: str) -> asyncio.Lock:
        return self._locks.setdefault(snapshot_id, asyncio.Lock())


def keeps(settings: BlobSettings) -> bool:
    """Whether snapshots are put into the store by themselves: unless told otherwise, if that is
    not a folder of this very data folder.
    """
    if settings.snapshots is not None:
        return settings.snapshots
    return settings.bucket is not None or settings.folder is not None
