"""Rows of cached build steps: the disk after each, by its key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, delete, insert, select, update

from aenv.store.build_tables import layers


@dataclass(frozen=True, slots=True)
class LayerRecord:
    """``bytes``: what it holds that its parent does not, about. Times in nanoseconds."""

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


def oldest(db: Connection) -> list[LayerRecord]:
    """All, those used last at the end."""
    found = db.execute(select(layers).order_by(layers.c.used_at, layers.c.created_at))
    return [LayerRecord(**row._mapping) for row in found]


def remove(db: Connection, keys: Sequence[str]) -> None:
    db.execute(delete(layers).where(layers.c.key.in_(keys)))
