"""The blob store as operators see it: what it and the host's folders hold, whether it is sound, and
freeing what nobody needs. The store is opened by the first who uses it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from aenv.control.deadlines import deadline
from aenv.models.blobs import Collected, Progress, SpaceUse, StoreUsage, Verified
from aenv.models.settings import Settings
from aenv.node.port import Node
from aenv.store.catalog import Catalog

if TYPE_CHECKING:
    from aenv.store.blobs.store import BlobStore

T = TypeVar("T")
Report = Callable[[Progress], None]
PULSE = 0.5
"""Seconds between two reports of how far work is."""
TIMEOUT = 120.0


@dataclass(frozen=True, slots=True)
class Usage:
    """``store``: every byte of the blob store; ``host``: of this host's folders."""

    store: StoreUsage
    host: tuple[SpaceUse, ...]


class Storage:
    def __init__(self, settings: Settings, catalog: Catalog, node: Node) -> None:
        self._settings = settings
        self._catalog = catalog
        self._node = node
        self._store: BlobStore | None = None
        self._opening = asyncio.Lock()

    async def blobs(self) -> BlobStore:
        """Raises HostSetupError, and what the store fails with; tried anew the next time."""
        async with self._opening:
            if self._store is None:
                from aenv.store.blobs.store import BlobStore

                self._store = await BlobStore.open(self._settings, self._catalog)
            return self._store

    def usage(self) -> AsyncGenerator[Progress | Usage, None]:
        async def work(report: Report) -> Usage:
            store = await (await self.blobs()).usage(report=report)
            report(Progress("measuring folders", 0))
            async with deadline(TIMEOUT, "measuring the node's folders"):
                return Usage(store, tuple(await self._node.space()))

        return _told(work)

    def gc(self) -> AsyncGenerator[Progress | Collected, None]:
        async def work(report: Report) -> Collected:
            return await (await self.blobs()).gc(report=report)

        return _told(work)

    def verify(self) -> AsyncGenerator[Progress | Verified, None]:
        async def work(report: Report) -> Verified:
            return await (await self.blobs()).verify(report=report)

        return _told(work)


async def _told(
    work: Callable[[Report], Coroutine[Any, Any, T]],
) -> AsyncGenerator[Progress | T, None]:
    """How far the work is, now and then, and what it came to. Closing it calls the work off."""
    newest = Progress("opening the store", 0)

    def report(now: Progress) -> None:
        nonlocal newest
        newest = now

    task = asyncio.create_task(work(report))
    try:
        while not (await asyncio.wait({task}, timeout=PULSE))[0]:
            yield newest
        yield task.result()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait({task})
