"""Rows of volumes and of their holders."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update

from aenv.models.volumes import VolumeMode
from aenv.store.volume_tables import claims, volumes


@dataclass(frozen=True, slots=True)
class VolumeRecord:
    """``created_at`` in nanoseconds since the epoch. ``digest``: of the tree, of a sealed one."""

    id: str
    team: str
    name: str
    size_mb: int
    mode: VolumeMode
    token: str = field(repr=False)
    created_at: int
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    volume_id: str
    sandbox_id: str
    read_only: bool


def add(db: Connection, record: VolumeRecord) -> None:
    db.execute(insert(volumes).values(asdict(record)))


def get(db: Connection, volume_id: str) -> VolumeRecord | None:
    row = db.execute(select(volumes).where(volumes.c.id == volume_id)).first()
    return _record(row) if row else None


def named(db: Connection, team: str, name: str) -> VolumeRecord | None:
    query = select(volumes).where(volumes.c.team == team, volumes.c.name == name)
    row = db.execute(query).first()
    return _record(row) if row else None


def of_team(db: Connection, team: str) -> list[VolumeRecord]:
    query = select(volumes).where(volumes.c.team == team).order_by(volumes.c.name)
    return [_record(row) for row in db.execute(query)]


def ids(db: Connection) -> frozenset[str]:
    return frozenset(db.scalars(select(volumes.c.id)))


def remove(db: Connection, volume_id: str) -> None:
    db.execute(delete(volumes).where(volumes.c.id == volume_id))


def seal(db: Connection, volume_id: str, digest: str | None) -> None:
    """Nobody writes to it from here on."""
    values = {"mode": VolumeMode.READ_ONLY, "digest": digest}
    db.execute(update(volumes).where(volumes.c.id == volume_id).values(**values))


def claim(db: Connection, wanted: Claim) -> None:
    db.execute(insert(claims).values(asdict(wanted)))


def holders(db: Connection, volume_ids: Collection[str]) -> list[Claim]:
    query = select(claims).where(claims.c.volume_id.in_(volume_ids)).order_by(claims.c.sandbox_id)
    return [Claim(**row._mapping) for row in db.execute(query)]


def release(db: Connection, sandbox_id: str) -> None:
    db.execute(delete(claims).where(claims.c.sandbox_id == sandbox_id))


def _record(row: Row[Any]) -> VolumeRecord:
    values = dict(row._mapping)
    values["mode"] = VolumeMode(values["mode"])
    return VolumeRecord(**values)
