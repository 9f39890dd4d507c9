"""Reading all that is stored and comparing it with its names. What is damaged is noted in the
catalog: uploads do not count on it any more, and a put of the same content mends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, func, select, update

from aenv.models.blobs import Damage, Progress, Verified
from aenv.models.errors import BlobDamagedError, BlobMissingError
from aenv.store.blob_tables import blobs, chunks, holders, parts
from aenv.store.blobs import frames, manifests
from aenv.store.blobs.condemning import chunk_key
from aenv.store.blobs.ledger import Ledger
from aenv.store.blobs.objects import Objects
from aenv.store.blobs.reads import read_chunk

REQUESTS = 8
PAGE = 64
_Check = Callable[[Row[Any]], Awaitable[tuple[str, int, str | None]]]


@dataclass(frozen=True, slots=True)
class _Outcome:
    row: Row[Any]
    key: str
    size: int
    reason: str | None


async def verify(objects: Objects, ledger: Ledger, report: Callable[[Progress], None]) -> Verified:
    """Reads every whole chunk and manifest once. The store's own failures end it."""
    work = _Verification(objects, ledger, report)
    await work.chunks()
    await work.manifests()
    return Verified(work.blobs, work.done - work.blobs, work.bytes, tuple(work.damages))


class _Verification:
    def __init__(
        self, objects: Objects, ledger: Ledger, report: Callable[[Progress], None]
    ) -> None:
        self._objects = objects
        self._ledger = ledger
        self._report = report
        self._requests = asyncio.Semaphore(REQUESTS)
        self.blobs = self.done = self.bytes = 0
        self.damages: list[Damage] = []

    async def chunks(self) -> None:
        last = 0
        while rows := await self._ledger.read(partial(_chunks, after=last)):
            last = rows[-1].id
            outcomes = await self._all(rows, self._chunk)
            self.damages += await self._ledger.write(partial(_mark_chunks, outcomes=outcomes))

    async def manifests(self) -> None:
        last = 0
        while rows := await self._ledger.read(partial(_blobs, after=last)):
            last = rows[-1].seq
            self.blobs += len(rows)
            outcomes = await self._all(rows, self._manifest)
            self.damages += await self._ledger.write(partial(_mark_blobs, outcomes=outcomes))

    async def _all(self, rows: Sequence[Row[Any]], check: _Check) -> list[_Outcome]:
        async def one(row: Row[Any]) -> _Outcome:
            async with self._requests:
                key, size, reason = await check(row)
            return _Outcome(row, key, size, reason)

        outcomes = list(await asyncio.gather(*(one(row) for row in rows)))
        self.done += len(rows)
        self.bytes += sum(outcome.size for outcome in outcomes)
        self._report(Progress("reading objects", self.done, await self._ledger.read(_total)))
        return outcomes

    async def _chunk(self, row: Row[Any]) -> tuple[str, int, str | None]:
        key = chunk_key(row)
        try:
            await read_chunk(self._objects, f"{row.digest}-{row.suffix}", row.bytes)
        except BlobMissingError:
            return key, 0, "missing"
        except BlobDamagedError as error:
            return key, row.stored_bytes, str(error)
        return key, row.stored_bytes, None

    async def _manifest(self, row: Row[Any]) -> tuple[str, int, str | None]:
        key = manifests.key_of(row.id)
        try:
            data = await self._objects.get(key, frames.largest(manifests.LARGEST))
            await asyncio.to_thread(manifests.decode, row.id, data)
        except BlobMissingError:
            return key, 0, "missing"
        except BlobDamagedError as error:
            return key, row.stored_bytes, str(error)
        return key, len(data), None


def _chunks(db: Connection, after: int) -> Sequence[Row[Any]]:
    whole = (chunks.c.id > after, chunks.c.stored_bytes.is_not(None))
    return db.execute(select(chunks).where(*whole).order_by(chunks.c.id).limit(PAGE)).all()


def _blobs(db: Connection, after: int) -> Sequence[Row[Any]]:
    whole = (blobs.c.seq > after, blobs.c.lease_id.is_(None))
    return db.execute(select(blobs).where(*whole).order_by(blobs.c.seq).limit(PAGE)).all()


def _total(db: Connection) -> int:
    whole = select(func.count()).select_from(chunks).where(chunks.c.stored_bytes.is_not(None))
    manifest = select(func.count()).select_from(blobs).where(blobs.c.lease_id.is_(None))
    return int(db.scalar(whole) or 0) + int(db.scalar(manifest) or 0)


def _mark_chunks(db: Connection, outcomes: list[_Outcome]) -> list[Damage]:
    """Those that were collected while they were read are no damage."""
    damages = []
    for outcome in outcomes:
        bad = outcome.reason is not None
        one = update(chunks).where(chunks.c.id == outcome.row.id).values(damaged=bad)
        if db.execute(one).rowcount and outcome.reason is not None:
            hit = select(parts.c.blob).where(parts.c.chunk == outcome.row.id)
            damages.append(_damage(db, outcome.key, outcome.reason, blobs.c.seq.in_(hit)))
    return damages


def _mark_blobs(db: Connection, outcomes: list[_Outcome]) -> list[Damage]:
    damages = []
    for outcome in outcomes:
        bad = outcome.reason is not None
        one = update(blobs).where(blobs.c.seq == outcome.row.seq).values(damaged=bad)
        if db.execute(one).rowcount and outcome.reason is not None:
            hit = blobs.c.seq == outcome.row.seq
            damages.append(_damage(db, outcome.key, outcome.reason, hit))
    return damages


def _damage(db: Connection, key: str, reason: str, hit: ColumnElement[bool]) -> Damage:
    ids = db.scalars(select(blobs.c.id).where(hit).order_by(blobs.c.seq))
    names = select(holders.c.holder).join(blobs, blobs.c.seq == holders.c.blob).distinct()
    who = db.scalars(names.where(hit).order_by(holders.c.holder))
    return Damage(key, reason, tuple(ids), tuple(who))
