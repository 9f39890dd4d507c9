"""Transactions of the garbage collection: what nobody needs is moved from the rows that uploads
look at into ``garbage`` first, and deleted from the store afterwards.

A chunk that an upload has counted on since it began stays, for it was touched in an epoch not older
than the upload's own. Whoever comes later does not find it, and uploads it under another name. So a
collection may be killed anywhere and run twice at once, with uploads beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, delete, func, insert, or_, select

from aenv.store.blob_tables import blobs, chunks, garbage, holders, leases, parts
from aenv.store.blobs import manifests

BATCH = 500


def condemn_blobs(db: Connection) -> int:
    """Up to BATCH blobs that nobody holds; how many."""
    held = select(holders.c.blob).where(holders.c.blob == blobs.c.seq).exists()
    rows = db.execute(select(blobs).where(~held, _unowned(blobs.c.lease_id)).limit(BATCH)).all()
    _throw(db, ((manifests.key_of(row.id), row.stored_bytes) for row in rows))
    db.execute(delete(blobs).where(blobs.c.seq.in_([row.seq for row in rows])))
    return len(rows)


def condemn_chunks(db: Connection) -> int:
    """Up to BATCH chunks that no blob has and no upload counts on; how many."""
    oldest = db.scalar(select(func.min(leases.c.epoch)))
    needed = select(parts.c.chunk).where(parts.c.chunk == chunks.c.id).exists()
    doomed = select(chunks).where(~needed, _unowned(chunks.c.lease_id))
    if oldest is not None:
        doomed = doomed.where(or_(chunks.c.touched < oldest, chunks.c.stored_bytes.is_(None)))
    rows = db.execute(doomed.limit(BATCH)).all()
    _throw(db, ((chunk_key(row), row.stored_bytes or 0) for row in rows))
    db.execute(delete(chunks).where(chunks.c.id.in_([row.id for row in rows])))
    return len(rows)


def condemned(db: Connection) -> list[tuple[str, int]]:
    """Up to BATCH keys to delete, with the bytes that this frees as far as known."""
    rows = db.execute(select(garbage).order_by(garbage.c.key).limit(BATCH))
    return [(row.key, row.bytes) for row in rows]


def deleted(db: Connection, keys: Sequence[str]) -> None:
    db.execute(delete(garbage).where(garbage.c.key.in_(keys)))


def chunk_key(row: Row[Any]) -> str:
    return manifests.chunk_key(f"{row.digest}-{row.suffix}")


def _unowned(lease_id: ColumnElement[Any]) -> ColumnElement[bool]:
    """Of no upload under way."""
    lives = select(leases.c.id).where(leases.c.id == lease_id).exists()
    return or_(lease_id.is_(None), ~lives)


def _throw(db: Connection, keys: Iterable[tuple[str, int]]) -> None:
    rows = [{"key": key, "bytes": size} for key, size in keys]
    if rows:
        db.execute(insert(garbage), rows)
