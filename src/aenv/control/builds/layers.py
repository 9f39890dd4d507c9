"""Cached steps: the disk after each, kept under its key, those used longest ago dropped first."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

import structlog
from sqlalchemy import Connection

from aenv.control.clocks import Clock
from aenv.control.deadlines import deadline
from aenv.control.images import Images
from aenv.models.errors import AenvError
from aenv.models.snapshots import SnapshotImage
from aenv.node.port import Node
from aenv.store import layers as rows
from aenv.store import snapshots
from aenv.store.catalog import Catalog
from aenv.store.layers import LayerRecord, LayerSize
from aenv.store.records import SnapshotRecord

log = structlog.get_logger()
SIZES_TIMEOUT = 60.0


class Layers:
    """``most_bytes`` and ``most``: what they may hold together."""

    def __init__(
        self,
        catalog: Catalog,
        node: Node,
        images: Images,
        clock: Clock,
        *,
        most_bytes: int,
        most: int = 500,
    ) -> None:
        self._catalog = catalog
        self._node = node
        self._images = images
        self._clock = clock
        self._most_bytes = most_bytes
        self._most = most
        self._turns: dict[str, asyncio.Lock] = {}
        self._held: Counter[str] = Counter()
        self._doomed: set[str] = set()

    @contextmanager
    def session(self) -> Iterator[Session]:
        """For one build: what it has found is not dropped before its end."""
        session = Session(self)
        try:
            yield session
        finally:
            for snapshot_id in session.held:
                self._release(snapshot_id)

    @asynccontextmanager
    async def turn(self, key: str) -> AsyncIterator[None]:
        """One build at a time makes a step."""
        turn = self._turns.setdefault(key, asyncio.Lock())
        async with turn:
            yield
        if not turn.locked() and self._turns.get(key) is turn:
            del self._turns[key]

    async def add(self, key: str, image: SnapshotImage, record: SnapshotRecord) -> None:
        """Keep the disk after a step, in place of an older one of that key."""
        now = self._clock.wall()
        layer = LayerRecord(key, record.team, image.id, image.own_bytes, now, now)

        def write(db: Connection) -> str | None:
            old = rows.get(db, key)
            if old is not None:
                rows.remove(db, [key])
                snapshots.remove(db, [old.snapshot_id])
            snapshots.add(db, record)
            rows.add(db, layer)
            return old.snapshot_id if old else None

        if (old := await self._catalog.write(write)) is not None:
            self._free(old)

    async def shrink(self) -> None:
        """Drop the longest unused until the rest is within bounds. Never fails a build."""
        try:
            async with deadline(SIZES_TIMEOUT, "asking the node for its snapshots"):
                await self._look_at_sizes()
        except AenvError as error:
            log.warning("sizes of cached steps not read", error=str(error))
        found = await self._catalog.read(rows.oldest)
        for one in list(found):
            if _bytes(found) <= self._most_bytes and len(found) <= self._most:
                return
            if not self._held[one.layer.snapshot_id]:
                found.remove(one)
                await self._drop(one.layer)

    async def forget(self, base: str) -> None:
        """Free those that keep the image of a node's template, which is about to go."""
        for layer in await self._catalog.read(lambda db: rows.above(db, base)):
            if self._held[layer.snapshot_id]:
                continue
            await self._forget(layer)
            try:
                await self._images.delete(layer.snapshot_id)
            except (AenvError, TimeoutError):
                self._images.drop(layer.snapshot_id)

    async def _look_at_sizes(self) -> None:
        """What a disk holds is known only some time after it was kept."""
        images = await self._node.snapshots()
        sizes = {one.id: (one.disk_bytes, one.memory_bytes, one.own_bytes) for one in images}
        await self._catalog.write(lambda db: snapshots.resize(db, sizes))

    async def furthest(self, keys: Sequence[str]) -> LayerRecord | None:
        """The one furthest along ``keys`` that there is; all before it count as used, too."""
        now = self._clock.wall()

        def look(db: Connection) -> LayerRecord | None:
            found = rows.among(db, keys)
            last = next((found[key] for key in reversed(keys) if key in found), None)
            if last is not None:
                rows.use(db, keys[: list(keys).index(last.key) + 1], now)
            return last

        return await self._catalog.write(look)

    def hold(self, snapshot_id: str) -> None:
        self._held[snapshot_id] += 1

    def _release(self, snapshot_id: str) -> None:
        self._held[snapshot_id] -= 1
        if self._held[snapshot_id] <= 0:
            del self._held[snapshot_id]
            if snapshot_id in self._doomed:
                self._doomed.discard(snapshot_id)
                self._images.drop(snapshot_id)

    def _free(self, snapshot_id: str) -> None:
        """Its row is gone: free its bytes, once nobody needs them."""
        if self._held[snapshot_id]:
            self._doomed.add(snapshot_id)
        else:
            self._images.drop(snapshot_id)

    async def _forget(self, layer: LayerRecord) -> None:
        def forget(db: Connection) -> None:
            rows.remove(db, [layer.key])
            snapshots.remove(db, [layer.snapshot_id])

        await self._catalog.write(forget)

    async def _drop(self, layer: LayerRecord) -> None:
        await self._forget(layer)
        self._free(layer.snapshot_id)
        log.info("cached step dropped", snapshot_id=layer.snapshot_id, bytes=layer.bytes)


class Session:
    """What one build holds."""

    def __init__(self, layers: Layers) -> None:
        self._layers = layers
        self.held: list[str] = []

    async def furthest(self, keys: Sequence[str]) -> LayerRecord | None:
        """As of :class:`Layers`, and it stays until the session's end."""
        while (found := await self._layers.furthest(keys)) is not None:
            self._hold(found.snapshot_id)
            if await self._is(found):
                return found
        return None

    async def add(self, key: str, image: SnapshotImage, record: SnapshotRecord) -> None:
        self._hold(image.id)
        await self._layers.add(key, image, record)

    def _hold(self, snapshot_id: str) -> None:
        self._layers.hold(snapshot_id)
        self.held.append(snapshot_id)

    async def _is(self, found: LayerRecord) -> bool:
        """Whether it was not dropped before it was held."""
        now = await self._layers.furthest([found.key])
        return now is not None and now.snapshot_id == found.snapshot_id


def _bytes(found: Sequence[LayerSize]) -> int:
    """What cached disks hold together: of each what its parent does not, if that is there."""
    disks = {one.layer.snapshot_id: one.disk for one in found}
    return sum(max(one.own, one.disk - disks.get(one.parent or "", 0)) for one in found)
