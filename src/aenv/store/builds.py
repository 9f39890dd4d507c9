"""Rows of built templates and their builds: insert, read, advance, tag, delete."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update

from aenv.models.sandboxes import Resources
from aenv.models.templates import GuestFacts, ImageFacts
from aenv.store.build_tables import builds, tags, templates


class BuildStatus(StrEnum):
    """WAITING: asked for, or in the queue."""

    WAITING = "waiting"
    BUILDING = "building"
    READY = "ready"
    ERROR = "error"


UNFINISHED = (BuildStatus.WAITING, BuildStatus.BUILDING)


@dataclass(frozen=True, slots=True)
class TemplateRecord:
    """A template that is built. Times are nanoseconds since the epoch."""

    id: str
    team: str
    name: str
    created_at: int
    updated_at: int
    public: bool = False


@dataclass(frozen=True, slots=True)
class BuildRecord:
    """``tags``: those it gets when it is ready. ``message``, ``step``: why it failed, and where.
    ``image``: what the image below it says of itself.
    """

    id: str
    template_id: str
    version: int
    status: BuildStatus
    resources: Resources
    created_at: int
    tags: tuple[str, ...] = ()
    snapshot_id: str | None = None
    facts: GuestFacts | None = field(default=None, repr=False)
    image: ImageFacts | None = field(default=None, repr=False)
    message: str | None = None
    step: str | None = None
    started_at: int | None = None
    finished_at: int | None = None

    @property
    def failure(self) -> str | None:
        """The step that failed and why; None unless it failed."""
        if self.status is not BuildStatus.ERROR:
            return None
        where = f"step {self.step}: " if self.step else ""
        return f"{where}{self.message or 'the build failed'}"


@dataclass(frozen=True, slots=True)
class TagRecord:
    template_id: str
    tag: str
    build_id: str
    created_at: int


def add_template(db: Connection, record: TemplateRecord) -> None:
    db.execute(insert(templates).values(asdict(record)))


def template(db: Connection, template_id: str) -> TemplateRecord | None:
    row = db.execute(select(templates).where(templates.c.id == template_id)).first()
    return TemplateRecord(**row._mapping) if row else None


def template_named(db: Connection, team: str, name: str) -> TemplateRecord | None:
    found = select(templates).where(templates.c.team == team, templates.c.name == name)
    row = db.execute(found).first()
    return TemplateRecord(**row._mapping) if row else None


def all_templates(db: Connection, team: str) -> list[TemplateRecord]:
    """The team's, by name."""
    found = select(templates).where(templates.c.team == team).order_by(templates.c.name)
    return [TemplateRecord(**row._mapping) for row in db.execute(found)]


def names(db: Connection) -> dict[str, str]:
    """Of all teams' templates, by id."""
    return {row.id: row.name for row in db.execute(select(templates.c.id, templates.c.name))}


def set_public(db: Connection, template_id: str, public: bool, now: int) -> None:
    db.execute(
        update(templates).where(templates.c.id == template_id).values(public=public, updated_at=now)
    )


def remove_template(db: Connection, template_id: str) -> list[str]:
    """With its builds and tags; the snapshots that nothing needs now."""
    kept = select(builds.c.snapshot_id).where(
        builds.c.template_id == template_id, builds.c.snapshot_id.is_not(None)
    )
    found = list(db.scalars(kept))
    db.execute(delete(templates).where(templates.c.id == template_id))
    return found


def add(db: Connection, record: BuildRecord) -> None:
    db.execute(insert(builds).values(_values(record)))


def get(db: Connection, build_id: str) -> BuildRecord | None:
    row = db.execute(select(builds).where(builds.c.id == build_id)).first()
    return _record(row) if row else None


def ids(db: Connection) -> frozenset[str]:
    """Of all builds."""
    return frozenset(db.scalars(select(builds.c.id)))


def of_template(db: Connection, template_id: str) -> list[BuildRecord]:
    """The newest first."""
    order = (builds.c.created_at.desc(), builds.c.id.desc())
    found = select(builds).where(builds.c.template_id == template_id).order_by(*order)
    return [_record(row) for row in db.execute(found)]


def forget_oldest(db: Connection, template_id: str, keep: int) -> list[str]:
    """Remove builds beyond the ``keep`` newest that are over and that no tag names; their ids."""
    named = {one.build_id for one in tags_of(db, template_id)}
    doomed = [
        one.id
        for one in of_template(db, template_id)[keep:]
        if one.id not in named and one.status not in UNFINISHED
    ]
    db.execute(delete(builds).where(builds.c.id.in_(doomed)))
    return doomed


def unfinished(db: Connection) -> list[BuildRecord]:
    found = select(builds).where(builds.c.status.in_(UNFINISHED))
    return [_record(row) for row in db.execute(found)]


def advance(
    db: Connection, record: BuildRecord, status: BuildStatus, **changes: Any
) -> BuildRecord:
    """Change it, unless it was changed since it was read: LookupError."""
    after = replace(record, status=status, version=record.version + 1, **changes)
    done = db.execute(
        update(builds)
        .where(builds.c.id == record.id, builds.c.version == record.version)
        .values(_values(after))
    )
    if not done.rowcount:
        raise LookupError(record.id)
    if status is BuildStatus.READY:
        db.execute(
            update(templates)
            .where(templates.c.id == record.template_id)
            .values(updated_at=after.finished_at)
        )
    return after


def tag(db: Connection, build: BuildRecord, names: Iterable[str], now: int) -> None:
    """Point tags at a build, wherever they pointed."""
    for name in names:
        untag(db, build.template_id, [name])
        db.execute(
            insert(tags).values(
                template_id=build.template_id, tag=name, build_id=build.id, created_at=now
            )
        )


def untag(db: Connection, template_id: str, names: Iterable[str]) -> int:
    """How many there were."""
    chosen = (tags.c.template_id == template_id, tags.c.tag.in_(list(names)))
    return db.execute(delete(tags).where(*chosen)).rowcount


def tags_of(db: Connection, template_id: str) -> list[TagRecord]:
    """The newest first."""
    found = select(tags).where(tags.c.template_id == template_id)
    rows = db.execute(found.order_by(tags.c.created_at.desc(), tags.c.tag))
    return [TagRecord(**row._mapping) for row in rows]


def tagged(db: Connection, template_id: str, name: str) -> BuildRecord | None:
    """The build that a tag names."""
    found = select(builds).join(tags, tags.c.build_id == builds.c.id)
    row = db.execute(found.where(tags.c.template_id == template_id, tags.c.tag == name)).first()
    return _record(row) if row else None


def forget_untagged(db: Connection, template_id: str) -> list[str]:
    """Let go of the images that no tag names any more; their snapshots."""
    named = select(tags.c.build_id).where(tags.c.template_id == template_id)
    loose = (
        builds.c.template_id == template_id,
        builds.c.snapshot_id.is_not(None),
        builds.c.id.not_in(named),
    )
    found = list(db.scalars(select(builds.c.snapshot_id).where(*loose)))
    db.execute(update(builds).where(*loose).values(snapshot_id=None))
    return found


def _values(record: BuildRecord) -> dict[str, Any]:
    values = {
        name: getattr(record, name)
        for name in BuildRecord.__dataclass_fields__
        if name not in ("resources", "facts", "image")
    }
    resources = record.resources
    return {
        **values,
        "tags": list(record.tags),
        "cpu": resources.cpu,
        "memory_mb": resources.memory_mb,
        "disk_mb": resources.disk_mb,
        "facts": asdict(record.facts) if record.facts else None,
        "image": asdict(record.image) if record.image else None,
    }


def _record(row: Row[Any]) -> BuildRecord:
    values = dict(row._mapping)
    resources = Resources(values.pop("cpu"), values.pop("memory_mb"), values.pop("disk_mb"))
    image = values.pop("image")
    return BuildRecord(
        **{
            **values,
            "status": BuildStatus(values["status"]),
            "tags": tuple(values["tags"]),
            "facts": GuestFacts.from_json(values["facts"]),
            "image": _image(image) if image else None,
            "resources": resources,
        }
    )


def _image(content: dict[str, Any]) -> ImageFacts:
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in content.items()
    }
    return ImageFacts(**fields)
