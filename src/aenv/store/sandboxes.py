"""Rows of sandboxes: insert, read, change (fenced by id and version), page, count, purge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    and_,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.sqlite import insert as upsert

from aenv.models.sandboxes import EndKind, Resources, SandboxState
from aenv.models.snapshots import PauseMode, RestoreMode
from aenv.models.volumes import VolumeMount
from aenv.store.records import SandboxRecord, TemplateUse, Usage
from aenv.store.tables import labels, sandboxes, template_uses

ENDED = (SandboxState.KILLED, SandboxState.FAILED)


@dataclass(frozen=True, slots=True)
class Page:
    """What a list asks for. ``after`` = (started_at, id) of the last row of the page before;
    ``alive_at``: hide what ends by then (paused ones have no end, nor have those that pause
    instead).
    """

    team: str
    states: tuple[SandboxState, ...]
    alive_at: int
    labels: Mapping[str, str] = field(default_factory=dict)
    template: str | None = None
    started_after: int | None = None
    ascending: bool = False
    after: tuple[int, str] | None = None
    limit: int | None = None


def add(db: Connection, record: SandboxRecord) -> None:
    db.execute(insert(sandboxes).values(_values(record)))
    if record.labels:
        rows = [
            {"sandbox_id": record.id, "key": key, "value": value}
            for key, value in record.labels.items()
        ]
        db.execute(insert(labels), rows)


def get(db: Connection, sandbox_id: str) -> SandboxRecord | None:
    row = (db.execute(select(sandboxes).where(sandboxes.c.id == sandbox_id))).first()
    return _record(row) if row else None


def change(db: Connection, sandbox_id: str, version: int, values: Mapping[str, Any]) -> bool:
    """Write ``values`` and raise the version, if the row still has ``version``; tell whether it
    did.
    """
    result = db.execute(
        update(sandboxes)
        .where(sandboxes.c.id == sandbox_id, sandboxes.c.version == version)
        .values(**values, version=version + 1)
    )
    return result.rowcount == 1


def in_states(db: Connection, states: Sequence[SandboxState]) -> list[SandboxRecord]:
    rows = db.execute(
        select(sandboxes).where(sandboxes.c.state.in_(states)).order_by(sandboxes.c.id)
    )
    return [_record(row) for row in rows]


def paused_unkept(db: Connection) -> list[SandboxRecord]:
    """Those that are paused in memory alone, without an image."""
    query = select(sandboxes).where(
        sandboxes.c.state == SandboxState.PAUSED, sandboxes.c.snapshot_id.is_(None)
    )
    return [_record(row) for row in db.execute(query.order_by(sandboxes.c.end_at))]


def due(db: Connection, now: int, limit: int = 200) -> list[SandboxRecord]:
    """Running sandboxes whose time has passed, the longest overdue first."""
    rows = db.execute(
        select(sandboxes)
        .where(sandboxes.c.state.in_(TIMED), sandboxes.c.end_at <= now)
        .order_by(sandboxes.c.end_at)
        .limit(limit)
    )
    return [_record(row) for row in rows]


def next_end(db: Connection) -> int | None:
    found = db.scalar(select(func.min(sandboxes.c.end_at)).where(sandboxes.c.state.in_(TIMED)))
    return None if found is None else int(found)


def shift_ends(db: Connection, by: int) -> None:
    """Move every deadline: the clock itself was set."""
    db.execute(
        update(sandboxes)
        .where(sandboxes.c.state.in_(TIMED))
        .values(end_at=sandboxes.c.end_at + by, version=sandboxes.c.version + 1)
    )


def page(db: Connection, wanted: Page) -> list[SandboxRecord]:
    query = select(sandboxes).where(*_filters(wanted), *_beyond(wanted))
    time, name = sandboxes.c.started_at, sandboxes.c.id
    order = (time.asc(), name.asc()) if wanted.ascending else (time.desc(), name.desc())
    rows = db.execute(query.order_by(*order).limit(wanted.limit))
    return [_record(row) for row in rows]


def count(db: Connection, wanted: Page) -> int:
    """How many rows the filters match, whatever the page."""
    query = select(func.count()).select_from(sandboxes).where(*_filters(wanted))
    return int(db.scalar(query) or 0)


def usage_by_state(db: Connection) -> dict[SandboxState, Usage]:
    """What the sandboxes that have not ended hold."""
    rows = db.execute(
        _usage(sandboxes.c.state).where(sandboxes.c.state.not_in(ENDED)).group_by(sandboxes.c.state)
    )
    return {SandboxState(row[0]): Usage(row[1], row[2], row[3], row[4]) for row in rows}


def usage_of_key(
    db: Connection, key_id: str, states: Sequence[SandboxState], alive_at: int
) -> Usage:
    row = (
        db.execute(
            _usage(sandboxes.c.key_id)
            .where(
                sandboxes.c.key_id == key_id,
                sandboxes.c.state.in_(states),
                _alive(alive_at),
            )
            .group_by(sandboxes.c.key_id)
        )
    ).first()
    return Usage(row[1], row[2], row[3], row[4]) if row else Usage()


def purge(db: Connection, before: int, limit: int = 500) -> list[str]:
    """Forget sandboxes that ended before ``before``; return their ids."""
    ids = list(
        db.scalars(
            select(sandboxes.c.id)
            .where(sandboxes.c.state.in_(ENDED), sandboxes.c.ended_at < before)
            .limit(limit)
        )
    )
    if ids:
        db.execute(delete(sandboxes).where(sandboxes.c.id.in_(ids)))
    return ids


def count_use(db: Connection, template: str, now: int) -> None:
    fresh = upsert(template_uses).values(template=template, count=1, last_used_at=now)
    db.execute(
        fresh.on_conflict_do_update(
            index_elements=[template_uses.c.template],
            set_={"count": template_uses.c.count + 1, "last_used_at": now},
        )
    )


def uses(db: Connection) -> dict[str, TemplateUse]:
    rows = db.execute(select(template_uses))
    return {row.template: TemplateUse(row.count, row.last_used_at) for row in rows.mappings()}


TIMED = (SandboxState.RUNNING,)
"""States in which the deadline counts: a paused sandbox waits for ever."""

EXPIRING = (SandboxState.CREATING, SandboxState.RUNNING)


def _usage(*keys: ColumnElement[Any]) -> Any:
    return select(
        *keys,
        func.count(),
        func.coalesce(func.sum(sandboxes.c.cpu), 0.0),
        func.coalesce(func.sum(sandboxes.c.memory_mb), 0),
        func.coalesce(func.sum(sandboxes.c.disk_mb), 0),
    )


def _filters(wanted: Page) -> list[ColumnElement[bool]]:
    found = [
        sandboxes.c.team == wanted.team,
        sandboxes.c.state.in_(wanted.states),
        _alive(wanted.alive_at),
    ]
    if wanted.template is not None:
        named = (sandboxes.c.template, sandboxes.c.template_id)
        found.append(or_(*(column == wanted.template for column in named)))
    if wanted.started_after is not None:
        found.append(sandboxes.c.started_at > wanted.started_after)
    found.extend(
        exists().where(
            labels.c.sandbox_id == sandboxes.c.id, labels.c.key == key, labels.c.value == value
        )
        for key, value in wanted.labels.items()
    )
    return found


def _alive(now: int) -> ColumnElement[bool]:
    return or_(sandboxes.c.end_at > now, sandboxes.c.auto_pause, sandboxes.c.state.not_in(EXPIRING))


def _beyond(wanted: Page) -> list[ColumnElement[bool]]:
    if wanted.after is None:
        return []
    time, name = wanted.after
    at, ids = sandboxes.c.started_at, sandboxes.c.id
    if wanted.ascending:
        return [or_(at > time, and_(at == time, ids > name))]
    return [or_(at < time, and_(at == time, ids < name))]


def _values(record: SandboxRecord) -> dict[str, Any]:
    values = {
        name: getattr(record, name)
        for name in SandboxRecord.__dataclass_fields__
        if name != "resources"
    }
    resources = record.resources
    return {
        **values,
        "cpu": resources.cpu,
        "memory_mb": resources.memory_mb,
        "disk_mb": resources.disk_mb,
        "volumes": [asdict(one) for one in record.volumes],
    }


def _record(row: Row[Any]) -> SandboxRecord:
    values = dict(row._mapping)
    values["resources"] = Resources(
        values.pop("cpu"), values.pop("memory_mb"), values.pop("disk_mb")
    )
    values["state"] = SandboxState(values["state"])
    if values["end_kind"] is not None:
        values["end_kind"] = EndKind(values["end_kind"])
    if values["pause_mode"] is not None:
        values["pause_mode"] = PauseMode(values["pause_mode"])
    if values["restored"] is not None:
        values["restored"] = RestoreMode(values["restored"])
    values["secret_env"] = tuple(values["secret_env"])
    values["volumes"] = tuple(VolumeMount.from_json(one) for one in values["volumes"])
    return SandboxRecord(**values)
