"""Snapshots of running sandboxes: taken, listed, found by what callers name them, deleted.

A snapshot is a template of its own: ``{templateID}:default``, or ``{team}/{name}:{tag}`` when it
was named. The same name again is a new build of the same template; it takes the place of the old.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

import structlog
from sqlalchemy import Connection

from aenv.control import listing, lookups
from aenv.control.deadlines import deadline
from aenv.control.images import Images, Naming
from aenv.control.services import Services
from aenv.models.errors import (
    AenvError,
    ConflictError,
    GuestUnresponsiveError,
    InvalidRequestError,
    NotFoundError,
)
from aenv.models.ids import TEMPLATE_NAME, new_object_id, new_snapshot_id
from aenv.models.sandboxes import SandboxState
from aenv.models.snapshots import SnapshotKind, SnapshotPlace
from aenv.store import builds
from aenv.store import snapshots as rows
from aenv.store.records import SandboxRecord
from aenv.store.records import SnapshotRecord as SnapshotRecord
from aenv.store.snapshots import SnapshotPage

log = structlog.get_logger()
SNAPSHOT_TIMEOUT = 600.0
SIZES_TIMEOUT = 20.0
VERIFY_TIMEOUT = 3600.0
DEFAULT_TAG = "default"
_TAG = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}\Z")


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """A list as asked for. ``name``: a name or an id, with a tag or without."""

    sandbox_id: str | None = None
    name: str | None = None
    limit: int = listing.MAX_LIMIT
    token: str | None = None


class Snapshots:
    def __init__(self, services: Services, images: Images) -> None:
        self._s = services
        self._images = images

    async def create(
        self, team: str, sandbox_id: str, *, name: str | None = None, memory: bool = True
    ) -> SnapshotRecord:
        """Keep the sandbox as it is now; it runs on."""
        await lookups.living(self._s.catalog, self._s.clock, team, sandbox_id)
        naming = await self._naming(team, name)
        return await self.take(team, sandbox_id, SnapshotKind.NAMED, naming, memory=memory)

    async def take(
        self,
        team: str,
        sandbox_id: str,
        kind: SnapshotKind,
        naming: Naming | None = None,
        *,
        memory: bool = True,
    ) -> SnapshotRecord:
        """ConflictError when it is paused, DiskFullError, CapabilityError; it runs on in any case.
        SandboxNotFoundError when it ends before the image is whole.
        """
        return await self._s.turns.take(
            sandbox_id, lambda: self._take(team, sandbox_id, kind, naming, memory)
        )

    async def page(self, team: str, request: SnapshotRequest) -> tuple[list[SnapshotRecord], str]:
        """The newest first, and the token of the next page ("" at the end)."""
        name, tag = _split(team, request.name) if request.name else (None, None)
        after = listing.decoded(request.token) if request.token else None
        wanted = SnapshotPage(team, request.sandbox_id, name, tag, after, request.limit + 1)
        await self._look_at_sizes()
        found = await self._s.catalog.read(lambda db: rows.page(db, wanted))
        if len(found) <= request.limit:
            return found, ""
        found = found[: request.limit]
        return found, listing.token(found[-1].created_at, found[-1].id)

    async def get(self, team: str, reference: str) -> SnapshotRecord:
        """NotFoundError. By ``snapshotID``, name or template id."""
        await self._look_at_sizes()
        if (found := await self.find(team, reference)) is None:
            raise _not_found(reference)
        return found

    async def find(self, team: str, reference: str) -> SnapshotRecord | None:
        """What a create by this reference starts from; the default tag unless one is named."""
        name, tag = _split(team, reference)
        if name is None:
            return None
        found = await self._s.catalog.read(lambda db: rows.named(db, team, name, tag))
        tagged = [one for one in found if one.tag == (tag or DEFAULT_TAG)]
        return tagged[0] if tagged else None

    async def other_tags(self, team: str, reference: str) -> list[str]:
        """The tags of the name in it, when another one is asked for."""
        name, tag = _split(team, reference)
        if name is None or tag is None:
            return []
        found = await self._s.catalog.read(lambda db: rows.named(db, team, name))
        return sorted({one.tag for one in found} - {tag})

    async def delete(self, team: str, reference: str) -> bool:
        """Free what the reference names; False when there is none. A name means its default tag,
        as everywhere; a template id means every tag of it.

        Sandboxes that were started from it run on.
        """
        name, tag = _split(team, reference)
        if name is None:
            return False
        found = await self._s.catalog.read(lambda db: rows.named(db, team, name, tag))
        ids = [one.id for one in found if tag or name == one.template_id or one.tag == DEFAULT_TAG]
        if not ids:
            return False
        await self._s.catalog.write(lambda db: rows.remove(db, ids))
        for snapshot_id in ids:
            try:
                await self._images.delete(snapshot_id)
            except (AenvError, TimeoutError):
                self._images.drop(snapshot_id)
        return True

    async def places(self, found: Collection[SnapshotRecord]) -> dict[str, SnapshotPlace]:
        """Where they are, by id."""
        return await self._s.cold.places([one.id for one in found])

    async def evict(self, team: str, reference: str) -> None:
        """Have a snapshot, or the image of a paused sandbox, in the blob store alone.

        NotFoundError, ConflictError while something starts from it, and what putting it there
        fails with.
        """
        found = await self.find(team, reference)
        snapshot_id = found.id if found else await self._paused_as(team, reference)
        if not await self._s.cold.evict(snapshot_id):
            raise ConflictError(f"{reference[:255]!r} is in use; try again")

    async def _paused_as(self, team: str, reference: str) -> str:
        try:
            sandbox = await lookups.living(self._s.catalog, self._s.clock, team, reference)
        except NotFoundError:
            raise _not_found(reference) from None
        if sandbox.state is not SandboxState.PAUSED or sandbox.snapshot_id is None:
            raise ConflictError(f"sandbox {reference} is not paused, or in memory only")
        return sandbox.snapshot_id

    async def verify(self, team: str, reference: str) -> None:
        """Read all of it and compare. NotFoundError, SnapshotDamagedError."""
        if (found := await self.find(team, reference)) is None:
            raise _not_found(reference)
        async with deadline(VERIFY_TIMEOUT, "reading the snapshot"):
            await self._s.node.verify_snapshot(found.id)

    def discard(self, record: SnapshotRecord) -> None:
        """Forget an image of our own, in the background."""
        self._s.background.start(self._discard(record.id), f"discard {record.id}")

    async def _discard(self, snapshot_id: str) -> None:
        await self._s.turns.insist(lambda db: rows.remove(db, [snapshot_id]))
        self._images.drop(snapshot_id)

    async def _take(
        self, team: str, sandbox_id: str, kind: SnapshotKind, naming: Naming | None, memory: bool
    ) -> SnapshotRecord:
        sandbox = await lookups.living(self._s.catalog, self._s.clock, team, sandbox_id)
        if sandbox.state is not SandboxState.RUNNING:
            raise ConflictError(f"sandbox {sandbox_id} is paused; resume it first")
        snapshot_id = new_snapshot_id()
        try:
            kept = await self._keep(sandbox, snapshot_id, kind, naming, memory)
            replaced = await self._s.turns.insist_lasting(lambda db: _record(db, kept))
        except BaseException:
            self._images.drop_unrecorded(snapshot_id)
            raise
        for old in replaced:
            self._images.drop(old)
        log.info("snapshot taken", sandbox_id=sandbox_id, snapshot_id=snapshot_id, kind=kind)
        return kept

    async def _keep(
        self,
        sandbox: SandboxRecord,
        snapshot_id: str,
        kind: SnapshotKind,
        naming: Naming | None,
        memory: bool,
    ) -> SnapshotRecord:
        async with deadline(SNAPSHOT_TIMEOUT, "taking the snapshot"):
            if not await self._s.node.healthy(sandbox.id):
                raise GuestUnresponsiveError(
                    f"the agent of sandbox {sandbox.id} does not answer; no snapshot was taken"
                )
            await self._s.node.settle(sandbox.id)
            async with self._s.doors.shut(sandbox.id) as open_again:
                image = await self._s.node.snapshot(
                    sandbox.id,
                    snapshot_id,
                    memory=memory,
                    parent=sandbox.parent_snapshot,
                    thawed=open_again,
                )
        return self._images.record(image, sandbox, kind, naming)

    async def _naming(self, team: str, name: str | None) -> Naming:
        if not name:
            return Naming(new_object_id("t"))
        own, tag = _split(team, name)
        if own is None or not TEMPLATE_NAME.match(own):
            raise InvalidRequestError(
                f"name: {name[:255]!r} is not a name, name:tag or {team}/name:tag of small "
                "letters, digits, dashes and underscores"
            )
        built = await self._s.catalog.read(lambda db: builds.template_named(db, team, own))
        if built is not None or await self._s.templates.exists(own):
            raise ConflictError(f"name: {own!r} is the name of a template; choose another")
        found = await self._s.catalog.read(lambda db: rows.named(db, team, own))
        template_id = found[0].template_id if found else None
        return Naming(template_id or new_object_id("t"), own, tag or DEFAULT_TAG)

    async def _look_at_sizes(self) -> None:
        """Sizes change as others are deleted; without the node's figures the last ones serve."""
        try:
            async with deadline(SIZES_TIMEOUT, "asking the node for its snapshots"):
                images = await self._s.node.snapshots()
        except AenvError as error:
            log.warning("sizes of snapshots not read", error=str(error))
            return
        sizes = {one.id: (one.disk_bytes, one.memory_bytes, one.own_bytes) for one in images}
        await self._s.catalog.write(lambda db: rows.resize(db, sizes))


def _record(db: Connection, kept: SnapshotRecord) -> list[str]:
    """Write the row in place of an older build of that name and tag; return what it replaces."""
    old: list[str] = []
    if kept.name is not None:
        old = [one.id for one in rows.named(db, kept.team, kept.name, kept.tag)]
        rows.remove(db, old)
    rows.add(db, kept)
    return old


def _not_found(reference: str) -> NotFoundError:
    return NotFoundError(f"there is no snapshot {reference[:255]!r}")


def _split(team: str, reference: str) -> tuple[str | None, str | None]:
    """``[team/]name[:tag]`` → name and tag; no name when it is not one of this team's."""
    owner, slash, rest = reference.rpartition("/")
    name, colon, tag = rest.partition(":")
    if (slash and owner != team) or not name or (colon and not _TAG.match(tag)):
        return None, None
    return name, tag if colon else None
