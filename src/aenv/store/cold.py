"""Rows of snapshots in the blob store; each goes with its snapshot's row."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Row, Select, delete, insert, select, update

from aenv.models.snapshots import ColdCopy, Kept, SnapshotKind
from aenv.store.blob_tables import holders
from aenv.store.cold_tables import cold_copies
from aenv.store.tables import sandboxes, snapshots

HOLDER = "snapshot:"
KINDS = (SnapshotKind.PAUSE, SnapshotKind.NAMED, SnapshotKind.TEMPLATE)
"""What is put into the store: what lasts. Cached steps of builds can be made anew."""


class ColdState(StrEnum):
    UPLOADING = "uploading"
    STORED = "stored"


@dataclass(frozen=True, slots=True)
class ColdRecord:
    """``copy``: of a stored one. ``error``: why the last attempt failed."""

    snapshot_id: str
    state: ColdState
    copy: ColdCopy | None = field(default=None, repr=False)
    bytes: int = 0
    bytes_new: int = 0
    bytes_sent: int = 0
    error: str | None = None


def get(db: Connection, snapshot_id: str) -> ColdRecord | None:
    found = db.execute(select(cold_copies).where(cold_copies.c.snapshot_id == snapshot_id)).first()
    if found is None:
        return None
    values = dict(found._mapping)
    del values["updated_at"]
    values["state"] = ColdState(values["state"])
    values["copy"] = ColdCopy.from_json(values["copy"]) if values["copy"] else None
    return ColdRecord(**values)


def begin(db: Connection, snapshot_id: str, now: int) -> bool:
    """False when there is no such snapshot any more."""
    if db.scalar(select(snapshots.c.id).where(snapshots.c.id == snapshot_id)) is None:
        return False
    db.execute(delete(cold_copies).where(cold_copies.c.snapshot_id == snapshot_id))
    state = ColdState.UPLOADING
    db.execute(insert(cold_copies).values(snapshot_id=snapshot_id, state=state, updated_at=now))
    return True


def finish(db: Connection, kept: Kept, now: int) -> bool:
    """False when the snapshot is gone meanwhile."""
    copy = kept.copy
    changed = db.execute(
        update(cold_copies)
        .where(cold_copies.c.snapshot_id == copy.snapshot_id)
        .values(
            state=ColdState.STORED,
            copy=copy.to_json(),
            bytes=copy.bytes,
            bytes_new=kept.bytes_new,
            bytes_sent=kept.bytes_sent,
            error=None,
            updated_at=now,
        )
    )
    return changed.rowcount > 0


def fail(db: Connection, snapshot_id: str, error: str, now: int) -> None:
    db.execute(
        update(cold_copies)
        .where(cold_copies.c.snapshot_id == snapshot_id)
        .values(error=error, updated_at=now)
    )


def stored(db: Connection, ids: Collection[str] | None = None) -> frozenset[str]:
    """Of these, or of all, those that are whole in the store."""
    found = select(cold_copies.c.snapshot_id).where(cold_copies.c.state == ColdState.STORED)
    if ids is not None:
        found = found.where(cold_copies.c.snapshot_id.in_(ids))
    return frozenset(db.scalars(found))


def waiting(db: Connection, before: int) -> list[str]:
    """What was taken before that moment and is not in the store yet, the oldest first. Those with
    volumes stay where the volumes are.
    """
    whole = select(cold_copies.c.snapshot_id).where(cold_copies.c.state == ColdState.STORED)
    found = _with_volumes().where(
        snapshots.c.kind.in_(KINDS),
        snapshots.c.created_at <= before,
        snapshots.c.id.not_in(whole),
    )
    rows = db.execute(found.order_by(snapshots.c.created_at))
    return [row.id for row in rows if not _is_bound(row)]


def bound(db: Connection, snapshot_id: str) -> bool:
    """Whether it comes with volumes, or its paused sandbox has some: they are on one host alone."""
    row = db.execute(_with_volumes().where(snapshots.c.id == snapshot_id)).first()
    return row is not None and _is_bound(row)


def _with_volumes() -> Select[Any]:
    own = sandboxes.c.volumes.label("held")
    joined = snapshots.outerjoin(sandboxes, sandboxes.c.id == snapshots.c.sandbox_id)
    return select(snapshots.c.id, snapshots.c.kind, snapshots.c.volumes, own).select_from(joined)


def _is_bound(row: Row[Any]) -> bool:
    return bool(row.volumes or (row.kind == SnapshotKind.PAUSE and row.held))


def orphans(db: Connection) -> list[str]:
    """Holders of blobs whose snapshot is gone."""
    found = db.scalars(
        select(holders.c.holder).where(holders.c.holder.like(f"{HOLDER}%")).distinct()
    )
    names = set(found)
    ids = db.scalars(
        select(snapshots.c.id).where(
            snapshots.c.id.in_([name.removeprefix(HOLDER) for name in names])
        )
    )
    return sorted(names - {f"{HOLDER}{one}" for one in ids})
