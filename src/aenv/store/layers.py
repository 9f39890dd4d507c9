"""Rows of cached build steps: the disk after each, by its key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, delete, insert, select, update

from aenv.store.build_tables import layers
from aenv.store.tables import snapshots


@dataclass(frozen=True, slots=True)
class LayerRecord:
    """``bytes``: of its own when it was made; :func:`oldest` tells them as they are. Times in
    nanoseconds.
    """

    key: str
    team: str
    snapshot_id: str
    bytes: int
    created_at: int
    used_at: int


def add(db: Connection, record: LayerRecord) -> bool:
    """False when somebody else has made this one meanwhile."""
    if get(db, record.key) is not None:
        return False
    db.execute(insert(layers).values(asdict(record)))
    return True


def get(db: Connection, key: str) -> LayerRecord | None:
    row = db.execute(select(layers).where(layers.c.key == key)).first()
    return LayerRecord(**row._mapping) if row else None


def among(db: Connection, keys: Sequence[str]) -> dict[str, LayerRecord]:
    """Those of ``keys`` that there are."""
    found = db.execute(select(layers).where(layers.c.key.in_(keys)))
    return {row.key: LayerRecord(**row._mapping) for row in found}


def use(db: Connection, keys: Sequence[str], now: int) -> None:
    db.execute(update(layers).where(layers.c.key.in_(keys)).values(used_at=now))


@dataclass(frozen=True, slots=True)
class LayerSize:
    """``disk``: bytes of the whole disk; ``own``: of what it shares with no other."""

    layer: LayerRecord
    parent: str | None
    disk: int
    own: int


def oldest(db: Connection) -> list[LayerSize]:
    """All, those used last at the end, with their sizes as the snapshots' rows tell them."""
    found = select(
        layers,
        snapshots.c.parent,
        snapshots.c.disk_bytes.label("disk"),
        snapshots.c.own_bytes.label("own"),
    ).join(snapshots, snapshots.c.id == layers.c.snapshot_id)
    rows = db.execute(found.order_by(layers.c.used_at, layers.c.created_at))
    names = LayerRecord.__dataclass_fields__
    return [
        LayerSize(
            LayerRecord(**{name: row._mapping[name] for name in names}),
            row.parent,
            row.disk,
            row.own,
        )
        for row in rows
    ]


def above(db: Connection, base: str) -> list[LayerRecord]:
    """Those of disks on top of a node's template."""
    found = select(layers).join(snapshots, snapshots.c.id == layers.c.snapshot_id)
    return [
        LayerRecord(**row._mapping) for row in db.execute(found.where(snapshots.c.base == base))
    ]


def remove(db: Connection, keys: Sequence[str]) -> None:
    db.execute(delete(layers).where(layers.c.key.in_(keys)))
