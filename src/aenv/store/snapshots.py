"""Rows of snapshots: insert, read, find by what callers name them, page, delete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, delete, insert, or_, select, update

from aenv.models.sandboxes import Resources, SandboxState
from aenv.models.snapshots import SnapshotKind
from aenv.models.volumes import VolumeMount
from aenv.store.records import SnapshotRecord
from aenv.store.tables import sandboxes, snapshots

HOLDING = (SandboxState.PAUSING, SandboxState.PAUSED, SandboxState.RESUMING)
"""States of sandboxes that need their image."""
LASTING = (SnapshotKind.NAMED, SnapshotKind.TEMPLATE, SnapshotKind.LAYER)


@dataclass(frozen=True, slots=True)
class SnapshotPage:
    """What a list asks for. ``after`` = (created_at, id) of the last row of the page before."""

    team: str
    sandbox_id: str | None = None
    name: str | None = None
    tag: str | None = None
    after: tuple[int, str] | None = None
    limit: int | None = None


def add(db: Connection, record: SnapshotRecord) -> None:
    db.execute(insert(snapshots).values(_values(record)))


def get(db: Connection, snapshot_id: str) -> SnapshotRecord | None:
    row = db.execute(select(snapshots).where(snapshots.c.id == snapshot_id)).first()
    return _record(row) if row else None


def remove(db: Connection, ids: Iterable[str]) -> None:
    db.execute(delete(snapshots).where(snapshots.c.id.in_(list(ids))))


def resize(db: Connection, sizes: Mapping[str, tuple[int, int, int]]) -> None:
    """Write disk, memory and own bytes as a node sees them now."""
    for snapshot_id, (disk, memory, own) in sizes.items():
        db.execute(
            update(snapshots)
            .where(snapshots.c.id == snapshot_id)
            .values(disk_bytes=disk, memory_bytes=memory, own_bytes=own)
        )


def named(db: Connection, team: str, name: str, tag: str | None = None) -> list[SnapshotRecord]:
    """Those a caller means by ``name``: a name or a template id, of any tag unless one is given."""
    found = [snapshots.c.team == team, _kept(), _means(name)]
    if tag is not None:
        found.append(snapshots.c.tag == tag)
    rows = db.execute(select(snapshots).where(*found).order_by(snapshots.c.created_at.desc()))
    return [_record(row) for row in rows]


def page(db: Connection, wanted: SnapshotPage) -> list[SnapshotRecord]:
    """Kept ones, the newest first."""
    filters = [snapshots.c.team == wanted.team, _kept()]
    if wanted.sandbox_id is not None:
        filters.append(snapshots.c.sandbox_id == wanted.sandbox_id)
    if wanted.name is not None:
        filters.append(_means(wanted.name))
    if wanted.tag is not None:
        filters.append(snapshots.c.tag == wanted.tag)
    if wanted.after is not None:
        at, name = wanted.after
        created, ids = snapshots.c.created_at, snapshots.c.id
        filters.append(or_(created < at, and_(created == at, ids < name)))
    order = (snapshots.c.created_at.desc(), snapshots.c.id.desc())
    rows = db.execute(select(snapshots).where(*filters).order_by(*order).limit(wanted.limit))
    return [_record(row) for row in rows]


def needed(db: Connection) -> frozenset[str]:
    """The images a restart must keep: those somebody asked for, templates, cached steps, and those
    of paused sandboxes (while pausing: the image that may just have become whole).
    """
    kept = db.scalars(select(snapshots.c.id).where(snapshots.c.kind.in_(LASTING)))
    held = db.scalars(
        select(sandboxes.c.snapshot_id).where(
            sandboxes.c.state.in_(HOLDING), sandboxes.c.snapshot_id.is_not(None)
        )
    )
    return frozenset(kept) | frozenset(held)


def forget_unneeded(db: Connection) -> None:
    """Drop rows whose images :func:`needed` does not name."""
    db.execute(delete(snapshots).where(snapshots.c.id.not_in(needed(db))))


def _kept() -> ColumnElement[bool]:
    return snapshots.c.kind == SnapshotKind.NAMED


def _means(name: str) -> ColumnElement[bool]:
    return or_(snapshots.c.name == name, snapshots.c.template_id == name)


def _values(record: SnapshotRecord) -> dict[str, Any]:
    names = [name for name in SnapshotRecord.__dataclass_fields__ if name != "resources"]
    resources = record.resources
    return {
        **{name: getattr(record, name) for name in names},
        "cpu": resources.cpu,
        "memory_mb": resources.memory_mb,
        "disk_mb": resources.disk_mb,
        "volumes": [asdict(one) for one in record.volumes],
    }


def _record(row: Row[Any]) -> SnapshotRecord:
    values = dict(row._mapping)
    values["kind"] = SnapshotKind(values["kind"])
    values["resources"] = Resources(
        values.pop("cpu"), values.pop("memory_mb"), values.pop("disk_mb")
    )
    values["volumes"] = tuple(VolumeMount.from_json(one) for one in values["volumes"])
    return SnapshotRecord(**values)
