"""What the catalog knows of the blob store, as its users need it."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from sqlalchemy import Connection

from aenv.models.blobs import BlobRef
from aenv.models.errors import AenvError
from aenv.store.blobs import condemning, leases, uploading
from aenv.store.blobs.uploading import Claim, Draft, Wanted
from aenv.store.catalog import Catalog

T = TypeVar("T")
SECOND = 10**9
LEASE_SECONDS = 600.0
"""Longer than any request to the store, and than two nodes' clocks are apart."""


class Ledger:
    """``node``: who uploads, for people. ``now``: nanoseconds since the epoch."""

    def __init__(
        self,
        catalog: Catalog,
        node: str = "",
        *,
        now: Callable[[], int] = time.time_ns,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self._catalog = catalog
        self._node = node
        self._now = now
        self._seconds = lease_seconds

    @asynccontextmanager
    async def upload(self) -> AsyncIterator[str]:
        """The lease of an upload, kept alive meanwhile. What follows protects what it counts on."""
        lease = secrets.token_hex(10)
        await self.write(lambda db: leases.begin_upload(db, lease, self._node, self._expiry()))
        async with self._kept(lease):
            yield lease

    @asynccontextmanager
    async def reading(self, blob_id: str) -> AsyncIterator[None]:
        """Keep a blob from being collected. Raises NotFoundError."""
        lease = secrets.token_hex(10)

        def begin(db: Connection) -> None:
            leases.begin_reading(db, lease, self._node, self._expiry())
            uploading.hold(db, blob_id, leases.LEASE + lease)

        await self.write(begin)
        async with self._kept(lease):
            yield

    async def claim(self, lease: str, wanted: Sequence[Wanted]) -> list[Claim]:
        return await self.write(lambda db: uploading.claim(db, lease, wanted))

    async def settle(self, lease: str, uploaded: Mapping[int, int]) -> None:
        await self.write(lambda db: uploading.settle(db, lease, uploaded))

    async def record(
        self, lease: str, ref: BlobRef, size: int, chunks: frozenset[int], holder: str
    ) -> BlobRef | None:
        draft = Draft(ref, size, chunks, self._now())
        return await self.write(lambda db: uploading.record(db, lease, draft, holder))

    async def finish(self, lease: str, ref: BlobRef, holder: str) -> BlobRef:
        return await self.write(lambda db: uploading.finish(db, lease, ref, holder))

    async def hold(self, blob_id: str, holder: str) -> None:
        await self.write(lambda db: uploading.hold(db, blob_id, holder))

    async def release(self, holder: str, blob_id: str | None = None) -> int:
        return await self.write(lambda db: uploading.release(db, holder, blob_id))

    async def expire(self) -> int:
        return await self.write(lambda db: leases.expire(db, self._now()))

    async def condemn_blobs(self) -> int:
        return await self.write(condemning.condemn_blobs)

    async def condemn_chunks(self) -> int:
        return await self.write(condemning.condemn_chunks)

    async def condemned(self) -> list[tuple[str, int]]:
        return await self.read(condemning.condemned)

    async def deleted(self, keys: Sequence[str]) -> None:
        await self.write(lambda db: condemning.deleted(db, keys))

    async def read(self, work: Callable[[Connection], T]) -> T:
        return await self._catalog.read(work)

    async def write(self, work: Callable[[Connection], T]) -> T:
        return await self._catalog.write(work)

    def _expiry(self) -> int:
        return self._now() + round(self._seconds * SECOND)

    @asynccontextmanager
    async def _kept(self, lease: str) -> AsyncIterator[None]:
        keeper = asyncio.create_task(self._renew(lease), name="blob lease")
        try:
            yield
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
            with suppress(AenvError):  # it ends by itself in time
                await asyncio.shield(self.write(lambda db: leases.end(db, lease)))

    async def _renew(self, lease: str) -> None:
        while True:
            await asyncio.sleep(self._seconds / 4)
            with suppress(AenvError):  # whoever needs the lease is told by the next transaction
                await self.write(lambda db: leases.renew(db, lease, self._expiry()))
