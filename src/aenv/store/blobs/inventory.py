"""What the objects in the store are for, by the catalog."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum

from sqlalchemy import Connection, func, select

from aenv.models.blobs import Progress, SpaceUse, StoreUsage
from aenv.store.blob_tables import blobs, chunks, garbage, holders, parts
from aenv.store.blobs import manifests
from aenv.store.blobs.ledger import Ledger
from aenv.store.blobs.objects import Objects

MARKER = "aenv-store.json"
"""The object that says whose store it is."""


class Kind(StrEnum):
    """For people: the names in ``aenv store usage``."""

    NEEDED = "chunks that blobs need"
    MANIFEST = "manifests of blobs"
    UPLOADING = "uploads under way or broken off"
    RELEASED = "chunks and blobs that nobody needs (aenv store gc frees them)"
    CONDEMNED = "condemned, not deleted yet (aenv store gc frees them)"
    MARKER = "the store's own marker"
    UNKNOWN = "unknown to the catalog (aenv store gc frees them after a day)"
    STAGED = "left by killed writes (aenv store gc frees them)"


async def classify(ledger: Ledger, keys: Sequence[str]) -> dict[str, Kind]:
    return await ledger.read(lambda db: _classify(db, keys))


async def usage(objects: Objects, ledger: Ledger, report: Callable[[Progress], None]) -> StoreUsage:
    """Every object is counted, so it takes long on a large store."""
    found: dict[Kind, list[int]] = {kind: [0, 0] for kind in Kind}
    seen = 0
    async for batch in objects.listed():
        kinds = await classify(ledger, [one.key for one in batch])
        for one in batch:
            _count(found, kinds[one.key], one.size)
        seen += len(batch)
        report(Progress("counting objects", seen))
    for path in await objects.staged():
        _count(found, Kind.STAGED, path.stat().st_size if path.exists() else 0)
    count, logical = await ledger.read(_totals)
    uses = tuple(SpaceUse(kind.value, size, n) for kind, (size, n) in found.items() if n)
    return StoreUsage(objects.location, count, logical, uses)


def _count(found: dict[Kind, list[int]], kind: Kind, size: int) -> None:
    found[kind][0] += size
    found[kind][1] += 1


def _classify(db: Connection, keys: Sequence[str]) -> dict[str, Kind]:
    kinds = dict.fromkeys(keys, Kind.UNKNOWN)
    names = {key.rpartition("/")[2]: key for key in keys}
    kinds.update(_chunk_kinds(db, names))
    kinds.update(_blob_kinds(db, names))
    rows = db.scalars(select(garbage.c.key).where(garbage.c.key.in_(list(keys))))
    kinds.update(dict.fromkeys(rows, Kind.CONDEMNED))
    if MARKER in kinds:
        kinds[MARKER] = Kind.MARKER
    return kinds


def _chunk_kinds(db: Connection, names: dict[str, str]) -> dict[str, Kind]:
    digests = [name.partition("-")[0] for name in names if "-" in name]
    needed = select(parts.c.chunk).where(parts.c.chunk == chunks.c.id).exists()
    rows = db.execute(
        select(
            chunks.c.digest, chunks.c.suffix, chunks.c.stored_bytes, needed.label("needed")
        ).where(chunks.c.digest.in_(digests))
    )
    kinds = {}
    for row in rows:
        kind = Kind.NEEDED if row.needed else Kind.RELEASED
        name = f"{row.digest}-{row.suffix}"
        key = manifests.chunk_key(name)
        if names.get(name) == key:
            kinds[key] = Kind.UPLOADING if row.stored_bytes is None else kind
    return kinds


def _blob_kinds(db: Connection, names: dict[str, str]) -> dict[str, Kind]:
    held = select(holders.c.blob).where(holders.c.blob == blobs.c.seq).exists()
    rows = db.execute(
        select(blobs.c.id, blobs.c.lease_id, held.label("held")).where(blobs.c.id.in_(list(names)))
    )
    kinds = {}
    for row in rows:
        kind = Kind.MANIFEST if row.held else Kind.RELEASED
        key = manifests.key_of(row.id)
        if names.get(row.id) == key:
            kinds[key] = Kind.UPLOADING if row.lease_id is not None else kind
    return kinds


def _totals(db: Connection) -> tuple[int, int]:
    whole = blobs.c.lease_id.is_(None)
    row = db.execute(
        select(func.count(), func.coalesce(func.sum(blobs.c.bytes), 0)).where(whole)
    ).one()
    return int(row[0]), int(row[1])
