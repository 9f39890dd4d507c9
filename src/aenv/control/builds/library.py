"""Built templates as callers name them: found, listed, tagged, shared, deleted.

A reference is ``[team/]name[:tag]`` or an id, with a tag or without; the tag is ``default`` unless
one is named. Another team's template is found if it is public.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from aenv.control.clocks import Clock
from aenv.control.images import Images
from aenv.models.errors import ForbiddenError, InvalidRequestError, NotFoundError
from aenv.models.ids import TEMPLATE_NAME
from aenv.store import builds as rows
from aenv.store import sandboxes, snapshots
from aenv.store.builds import BuildRecord, BuildStatus, TagRecord, TemplateRecord
from aenv.store.catalog import Catalog
from aenv.store.records import SnapshotRecord, TemplateUse

DEFAULT_TAG = "default"
TAG = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}\Z")
MOST_TAGS = 100


@dataclass(frozen=True, slots=True)
class BuiltTemplate:
    """With its builds and tags, the newest first."""

    record: TemplateRecord
    builds: list[BuildRecord]
    tags: list[TagRecord]
    uses: TemplateUse
    bytes: int = 0

    @property
    def newest(self) -> BuildRecord | None:
        """The newest that is ready; else the newest."""
        ready = [one for one in self.builds if one.status is BuildStatus.READY]
        return next(iter(ready or self.builds), None)


@dataclass(frozen=True, slots=True)
class Reference:
    team: str
    name: str
    tag: str | None = None


class Library:
    """``names``: of all built templates, by their ids."""

    def __init__(self, catalog: Catalog, images: Images, clock: Clock) -> None:
        self._catalog = catalog
        self._images = images
        self._clock = clock
        self.names: dict[str, str] = {}

    async def open(self) -> None:
        """Learn what templates are called."""
        self.names.update(await self._catalog.read(rows.names))

    async def find(self, team: str, reference: str) -> tuple[BuildRecord, SnapshotRecord] | None:
        """What a create by this reference starts from. NotFoundError when the template is there
        and has no such tag; None when there is no such template.
        """
        parsed = parse(team, reference)

        def look(db: Connection) -> tuple[BuildRecord, SnapshotRecord] | None:
            found = _template(db, team, parsed)
            if found is None:
                return None
            tag = parsed.tag if parsed and parsed.tag else DEFAULT_TAG
            build = rows.tagged(db, found.id, tag)
            kept = snapshots.get(db, build.snapshot_id or "") if build else None
            if build is None or kept is None:
                raise _no_tag(db, found, tag)
            return build, kept

        return await self._catalog.read(look)

    async def get(self, team: str, reference: str) -> BuiltTemplate | None:
        """ForbiddenError when it is another team's and not public."""
        parsed = parse(team, reference)

        def look(db: Connection) -> BuiltTemplate | None:
            found = _template(db, team, parsed, forbid=True)
            return _whole(db, found) if found else None

        return await self._catalog.read(look)

    async def own(self, team: str, reference: str) -> BuiltTemplate | None:
        """As :meth:`get`, of this team's only."""
        found = await self.get(team, reference)
        return found if found is not None and found.record.team == team else None

    async def all(self, team: str) -> list[BuiltTemplate]:
        return await self._catalog.read(
            lambda db: [_whole(db, one) for one in rows.all_templates(db, team)]
        )

    async def publish(self, team: str, reference: str, public: bool) -> TemplateRecord | None:
        if (found := await self.own(team, reference)) is None:
            return None
        now = self._clock.wall()
        await self._catalog.write(lambda db: rows.set_public(db, found.record.id, public, now))
        return found.record

    async def tag(self, team: str, target: str, names: Sequence[str]) -> BuildRecord:
        """Point tags at the build that ``target`` names. NotFoundError, InvalidRequestError."""
        check_tags(names)
        parsed = parse(team, target)
        now = self._clock.wall()

        def write(db: Connection) -> tuple[BuildRecord, list[str]]:
            found = _template(db, team, parsed)
            if found is None or found.team != team:
                raise NotFoundError(f"there is no template {target[:255]!r} to tag")
            wanted = parsed.tag if parsed and parsed.tag else DEFAULT_TAG
            build = rows.tagged(db, found.id, wanted)
            if build is None:
                raise _no_tag(db, found, wanted)
            if len({one.tag for one in rows.tags_of(db, found.id)} | set(names)) > MOST_TAGS:
                raise InvalidRequestError(f"tags: more than {MOST_TAGS} of one template")
            rows.tag(db, build, names, now)
            return build, _forgotten(db, found.id)

        build, loose = await self._catalog.write(write)
        self._drop(loose)
        return build

    async def untag(self, team: str, name: str, names: Sequence[str]) -> None:
        """Images that no tag names any more are freed. NotFoundError."""
        parsed = parse(team, name)

        def write(db: Connection) -> list[str]:
            found = _template(db, team, parsed)
            if found is None or found.team != team:
                raise NotFoundError(f"there is no template {name[:255]!r}")
            if not rows.untag(db, found.id, names):
                raise NotFoundError(f"template {found.name!r} has none of these tags")
            return _forgotten(db, found.id)

        self._drop(await self._catalog.write(write))

    async def remove(self, template_id: str) -> list[str]:
        """With its builds and images; the ids of the builds it had."""

        def write(db: Connection) -> tuple[list[str], list[str]]:
            builds = [one.id for one in rows.of_template(db, template_id)]
            loose = rows.remove_template(db, template_id)
            snapshots.remove(db, loose)
            return builds, loose

        builds, loose = await self._catalog.write(write)
        self.names.pop(template_id, None)
        self._drop(loose)
        return builds

    def _drop(self, loose: Sequence[str]) -> None:
        for snapshot_id in loose:
            self._images.drop(snapshot_id)


def parse(team: str, reference: str) -> Reference | None:
    """None for what can be no name of a template."""
    owner, slash, rest = reference.rpartition("/")
    name, colon, tag = rest.partition(":")
    if not TEMPLATE_NAME.match(name) or (colon and not TAG.match(tag)) or "/" in owner:
        return None
    return Reference(owner if slash else team, name, tag if colon else None)


def check_tags(names: Sequence[str]) -> None:
    if not names:
        raise InvalidRequestError("tags: name at least one")
    for name in names:
        if not TAG.match(name):
            raise InvalidRequestError(
                f"tags: {name[:255]!r} is no tag; it takes small letters, digits, '-', '.', '_'"
            )


def _template(
    db: Connection, team: str, parsed: Reference | None, *, forbid: bool = False
) -> TemplateRecord | None:
    if parsed is None:
        return None
    found = rows.template_named(db, parsed.team, parsed.name)
    if found is None and parsed.team == team:
        found = rows.template(db, parsed.name)
    if found is None or found.team == team or found.public:
        return found
    if forbid:
        raise ForbiddenError(f"template {parsed.name!r} belongs to another team")
    return None


def _whole(db: Connection, found: TemplateRecord) -> BuiltTemplate:
    builds = rows.of_template(db, found.id)
    kept = [snapshots.get(db, one.snapshot_id) for one in builds if one.snapshot_id]
    size = sum(one.disk_bytes + one.memory_bytes for one in kept if one)
    uses = sandboxes.uses(db).get(found.id, TemplateUse())
    return BuiltTemplate(found, builds, rows.tags_of(db, found.id), uses, size)


def _forgotten(db: Connection, template_id: str) -> list[str]:
    loose = rows.forget_untagged(db, template_id)
    snapshots.remove(db, loose)
    return loose


def _no_tag(db: Connection, found: TemplateRecord, tag: str) -> NotFoundError:
    builds = rows.of_template(db, found.id)
    tags = ", ".join(one.tag for one in rows.tags_of(db, found.id))
    if not tags:
        state = "it has no build"
        if builds:
            newest = builds[0]
            state = f"its newest build: {newest.status}"
            state += f", {newest.failure}" if newest.failure else ""
        return NotFoundError(f"template {found.name!r} is not ready ({state})")
    return NotFoundError(f"template {found.name!r} has no tag {tag!r}; it has {tags}")
