"""Transactions of an upload, in this order: claim chunks, settle those that were uploaded, record
the blob, finish it. Rows are there before their objects are, so that no object is ever unknown.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, insert, select, update

from aenv.models.blobs import BlobRef
from aenv.models.errors import NotFoundError
from aenv.store.blob_tables import blobs, chunks, holders, parts, stores
from aenv.store.blobs import leases

SUFFIX_BYTES = 4
_ROWS = 500


@dataclass(frozen=True, slots=True)
class Wanted:
    digest: str
    length: int


@dataclass(frozen=True, slots=True)
class Claim:
    """A chunk that an upload may count on, once it has uploaded it unless it is ``there``."""

    chunk: int
    name: str
    there: bool


def claim(db: Connection, lease: str, wanted: Sequence[Wanted]) -> list[Claim]:
    """One per wanted chunk. A damaged one is to be uploaded again, over itself: what is under a
    name is determined by the name.
    """
    leases.require(db, lease)
    epoch = db.scalar(select(stores.c.epoch))
    found = {
        row.digest: row
        for row in db.execute(
            select(chunks)
            .where(
                chunks.c.digest.in_([one.digest for one in wanted]),
                chunks.c.stored_bytes.is_not(None),
            )
            .order_by(chunks.c.damaged.desc(), chunks.c.id.desc())
        )
    }
    used = [row.id for row in found.values()]
    db.execute(update(chunks).where(chunks.c.id.in_(used)).values(touched=epoch))
    claims = []
    for one in wanted:
        if (row := found.get(one.digest)) is not None:
            claims.append(Claim(row.id, f"{row.digest}-{row.suffix}", not row.damaged))
            continue
        values = {
            "digest": one.digest,
            "suffix": secrets.token_hex(SUFFIX_BYTES),
            "bytes": one.length,
            "lease_id": lease,
            "touched": epoch,
        }
        made = db.execute(insert(chunks).values(values)).inserted_primary_key
        assert made is not None
        claims.append(Claim(made[0], f"{one.digest}-{values['suffix']}", there=False))
    return claims


def settle(db: Connection, lease: str, uploaded: Mapping[int, int]) -> None:
    """Chunk → bytes of its object, which is in the store now."""
    leases.require(db, lease)
    for chunk, stored in uploaded.items():
        values = {"stored_bytes": stored, "lease_id": None, "damaged": False}
        db.execute(update(chunks).where(chunks.c.id == chunk).values(values))


@dataclass(frozen=True, slots=True)
class Draft:
    """A blob whose manifest is about to be uploaded."""

    ref: BlobRef
    stored_bytes: int
    chunks: frozenset[int]
    created_at: int


def record(db: Connection, lease: str, draft: Draft, holder: str) -> BlobRef | None:
    """Note a blob before its manifest is uploaded. When the same content is there already, that
    blob gets the holder and is returned, and the lease has ended.
    """
    leases.require(db, lease)
    if (there := _same(db, draft.ref)) is not None:
        return _give(db, lease, there, holder)
    values = {
        "id": draft.ref.id,
        "digest": draft.ref.digest,
        "bytes": draft.ref.length,
        "stored_bytes": draft.stored_bytes,
        "lease_id": lease,
        "created_at": draft.created_at,
    }
    made = db.execute(insert(blobs).values(values)).inserted_primary_key
    assert made is not None
    rows = [{"blob": made[0], "chunk": chunk} for chunk in sorted(draft.chunks)]
    for start in range(0, len(rows), _ROWS):
        db.execute(insert(parts), rows[start : start + _ROWS])
    return None


def finish(db: Connection, lease: str, ref: BlobRef, holder: str) -> BlobRef:
    """The manifest is there: from here on the blob is. Another's of the same content, finished
    meanwhile, is used instead; ours is garbage then.
    """
    leases.require(db, lease)
    there = _same(db, ref)
    if there is None:
        db.execute(update(blobs).where(blobs.c.id == ref.id).values(lease_id=None))
        there = ref
    return _give(db, lease, there, holder)


def hold(db: Connection, blob_id: str, holder: str) -> None:
    """Idempotent. Raises NotFoundError when the blob is gone."""
    seq = db.scalar(select(blobs.c.seq).where(blobs.c.id == blob_id, blobs.c.lease_id.is_(None)))
    if seq is None:
        raise NotFoundError(f"there is no blob {blob_id}")
    held = select(holders.c.blob).where(holders.c.blob == seq, holders.c.holder == holder)
    if db.scalar(held) is None:
        db.execute(insert(holders).values(blob=seq, holder=holder))


def release(db: Connection, holder: str, blob_id: str | None = None) -> int:
    """Of one blob, or of all; how many. Idempotent."""
    given_up = holders.delete().where(holders.c.holder == holder)
    if blob_id is not None:
        one = select(blobs.c.seq).where(blobs.c.id == blob_id).scalar_subquery()
        given_up = given_up.where(holders.c.blob == one)
    return db.execute(given_up).rowcount


def _give(db: Connection, lease: str, ref: BlobRef, holder: str) -> BlobRef:
    hold(db, ref.id, holder)
    leases.end(db, lease)
    return ref


def _same(db: Connection, ref: BlobRef) -> BlobRef | None:
    """A whole blob of that content."""
    row = db.execute(
        select(blobs)
        .where(
            blobs.c.digest == ref.digest,
            blobs.c.bytes == ref.length,
            blobs.c.lease_id.is_(None),
            blobs.c.damaged.is_(False),
            ~_has_damage(),
        )
        .order_by(blobs.c.seq)
    ).first()
    return BlobRef(row.id, row.digest, row.bytes) if row else None


def _has_damage() -> ColumnElement[bool]:
    return (
        select(parts.c.chunk)
        .join(chunks, chunks.c.id == parts.c.chunk)
        .where(parts.c.blob == blobs.c.seq, chunks.c.damaged)
        .exists()
    )
