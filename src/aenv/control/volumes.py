"""Volumes: made, found, mounted, sealed, deleted; and their files for whoever has their token.

A sandbox claims its volumes in the transaction that writes its first row, and holds them until its
machine is gone: running or paused, whatever becomes of the server meanwhile.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection
from dataclasses import dataclass, replace

import structlog
from sqlalchemy import Connection

from aenv.control.clocks import Clock
from aenv.control.deadlines import deadline
from aenv.models.errors import (
    AenvError,
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    UnauthorizedError,
)
from aenv.models.ids import new_object_id, new_token
from aenv.models.sandboxes import SandboxState
from aenv.models.volumes import (
    DEFAULT_SIZE_MB,
    MAX_MOUNTS,
    VolumeMode,
    VolumeMount,
    VolumeUse,
    check_mount_path,
    check_name,
    check_paths,
)
from aenv.node.port import Node
from aenv.node.volumes.content import VolumeContent as VolumeContent
from aenv.store import sandboxes
from aenv.store import volumes as rows
from aenv.store.catalog import Catalog
from aenv.store.records import SandboxRecord
from aenv.store.volumes import Claim
from aenv.store.volumes import VolumeRecord as VolumeRecord

log = structlog.get_logger()
TIMEOUT = 60.0
DIGEST_TIMEOUT = 3600.0
MOST_SIZE_MB = 1 << 30
LIVING = tuple(state for state in SandboxState if state not in sandboxes.ENDED)


@dataclass(frozen=True, slots=True)
class MountRequest:
    """``name``: of a volume, or ``name@sha256:…`` for a sealed one of that content. ``read_only``:
    also where the volume's mode would let it write.
    """

    name: str
    path: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class VolumeState:
    """A volume with who holds it now, and how full it is."""

    record: VolumeRecord
    claims: tuple[Claim, ...]
    use: VolumeUse | None


class Volumes:
    def __init__(self, catalog: Catalog, node: Node, clock: Clock) -> None:
        self._catalog = catalog
        self._node = node
        self._clock = clock

    async def create(self, team: str, name: str, size_mb: int = DEFAULT_SIZE_MB) -> VolumeRecord:
        """ConflictError when the team has one of that name, DiskFullError, CapabilityError."""
        check_name(name)
        if not 1 <= size_mb <= MOST_SIZE_MB:
            raise InvalidRequestError(f"sizeMB: 1 to {MOST_SIZE_MB}, not {size_mb}")
        record = VolumeRecord(
            id=new_object_id("v"),
            team=team,
            name=name,
            size_mb=size_mb,
            mode=VolumeMode.EXCLUSIVE,
            token=new_token(),
            created_at=self._clock.wall(),
        )
        await self._catalog.read(lambda db: _require_free(db, team, name))
        try:
            async with deadline(TIMEOUT, "making the volume"):
                await self._node.make_volume(record.id, size_mb)
            await self._catalog.write(lambda db: _add(db, record))
        except BaseException:
            await self._drop(record.id)
            raise
        log.info("volume made", volume_id=record.id)
        return record

    async def of_team(self, team: str) -> list[VolumeRecord]:
        """By name."""
        return await self._catalog.read(lambda db: rows.of_team(db, team))

    async def get(self, team: str, volume_id: str) -> VolumeRecord:
        """NotFoundError."""
        record = await self._catalog.read(lambda db: rows.get(db, volume_id))
        if record is None or record.team != team:
            raise _not_found(volume_id)
        return record

    async def states(self, records: Collection[VolumeRecord]) -> list[VolumeState]:
        ids = [record.id for record in records]
        held = await self._catalog.read(lambda db: rows.holders(db, ids))
        found = []
        for record in records:
            claims = tuple(one for one in held if one.volume_id == record.id)
            found.append(VolumeState(record, claims, await self._use(record.id)))
        return found

    async def delete(self, team: str, volume_id: str) -> None:
        """NotFoundError; ConflictError with the holders while sandboxes have it."""
        record = await self.get(team, volume_id)

        def remove(db: Connection) -> None:
            _require_unheld(db, record, "be deleted")
            rows.remove(db, record.id)

        await self._catalog.write(remove)
        await self._drop(record.id)
        log.info("volume deleted", volume_id=record.id)

    async def seal(self, team: str, volume_id: str) -> VolumeRecord:
        """Make it read-only for good, and record the digest of its tree: once more for one that is
        sealed. ConflictError while somebody may write to it.
        """
        record = await self.get(team, volume_id)

        def close(db: Connection) -> None:
            _require_unheld(db, record, "be sealed")
            rows.seal(db, record.id, None)

        if record.mode is VolumeMode.EXCLUSIVE:
            await self._catalog.write(close)
        async with deadline(DIGEST_TIMEOUT, "reading the volume"):
            digest = await (await self._node.volume_content(volume_id)).digest()
        await self._catalog.write(lambda db: rows.seal(db, record.id, digest))
        log.info("volume sealed", volume_id=record.id, digest=digest)
        return replace(record, mode=VolumeMode.READ_ONLY, digest=digest)

    async def content(self, volume_id: str, token: str, *, write: bool = False) -> VolumeContent:
        """The files, for who has the token. UnauthorizedError, which tells nobody whether there is
        such a volume; ConflictError for a change of one that is read-only.
        """
        record = await self._catalog.read(lambda db: rows.get(db, volume_id))
        known = record.token if record else new_token()
        if not hmac.compare_digest(known.encode(), token.encode()) or record is None:
            raise UnauthorizedError("the token does not open this volume")
        if write and record.mode is VolumeMode.READ_ONLY:
            raise ConflictError(f"the volume {record.name!r} is read-only: nobody changes it")
        async with deadline(TIMEOUT, "opening the volume"):
            return await self._node.volume_content(volume_id)

    async def mounts(
        self, team: str, asked: Collection[MountRequest], inherited: tuple[VolumeMount, ...]
    ) -> tuple[VolumeMount, ...]:
        """What a new sandbox has: what came with its snapshot, and what is asked for.
        NotFoundError, InvalidRequestError, ConflictError (it is not what its digest says).
        """
        if not asked:
            return inherited
        if len(asked) + len(inherited) > MAX_MOUNTS:
            raise InvalidRequestError(f"volumeMounts: more than {MAX_MOUNTS}")

        def read(db: Connection) -> tuple[VolumeMount, ...]:
            return tuple(_mount(db, team, one) for one in asked)

        found = (*inherited, *await self._catalog.read(read))
        check_paths([one.path for one in found])
        ids = [one.volume_id for one in found]
        if len(set(ids)) < len(ids):
            raise InvalidRequestError("volumeMounts: a sandbox has a volume at one path only")
        return found

    async def reap(self) -> None:
        """At the start: what a crash left of volumes that are in no row, and of sandboxes that are
        gone.
        """
        keep = await self._catalog.read(rows.ids)
        living = await self._catalog.read(lambda db: sandboxes.in_states(db, LIVING))
        keep |= {record.id for record in living}
        try:
            reaped = await self._node.reap_volumes(keep)
        except (AenvError, OSError) as error:
            log.warning("volumes of nobody not deleted", error=str(error))
            return
        if reaped:
            log.info("volumes of nobody deleted", count=len(reaped))

    async def _use(self, volume_id: str) -> VolumeUse | None:
        """None while the node does not tell."""
        try:
            async with deadline(TIMEOUT, "asking for the size of the volume"):
                return await self._node.volume_use(volume_id)
        except AenvError as error:
            log.warning("size of a volume not known", volume_id=volume_id, error=str(error))
            return None

    async def _drop(self, volume_id: str) -> None:
        """What cannot be deleted now is at the next start."""
        try:
            async with deadline(TIMEOUT, "deleting the volume"):
                await self._node.drop_volume(volume_id)
        except AenvError as error:
            log.warning("volume not deleted yet", volume_id=volume_id, error=str(error))


def claim(db: Connection, sandbox: SandboxRecord) -> None:
    """Have ``sandbox`` hold its volumes, in the transaction that adds it. ConflictError names who
    has one; NotFoundError when one is gone.
    """
    for mount in sandbox.volumes:
        if mount.own:
            continue
        record = rows.get(db, mount.volume_id)
        if record is None or record.team != sandbox.team:
            raise _not_found(mount.name)
        if not mount.read_only:
            if record.mode is VolumeMode.READ_ONLY:
                raise ConflictError(f"the volume {record.name!r} has just become read-only")
            _require_unheld(db, record, "be written to by another")
        elif any(not one.read_only for one in rows.holders(db, [record.id])):
            _require_unheld(db, record, "be read by another")
        rows.claim(db, Claim(mount.volume_id, sandbox.id, mount.read_only))


def _mount(db: Connection, team: str, asked: MountRequest) -> VolumeMount:
    name, _, digest = asked.name.partition("@")
    record = rows.named(db, team, name)
    if record is None:
        raise _not_found(name)
    if digest and record.digest != digest:
        raise ConflictError(
            f"the volume {name!r} is not {digest[:80]!r}: it is {record.digest or 'not sealed'}"
        )
    read_only = asked.read_only or record.mode is VolumeMode.READ_ONLY
    return VolumeMount(record.id, record.name, check_mount_path(asked.path), read_only)


def _add(db: Connection, record: VolumeRecord) -> None:
    _require_free(db, record.team, record.name)
    rows.add(db, record)


def _require_free(db: Connection, team: str, name: str) -> None:
    if rows.named(db, team, name) is not None:
        raise ConflictError(f"name: there is a volume {name!r} already; choose another")


def _require_unheld(db: Connection, record: VolumeRecord, wish: str) -> None:
    held = rows.holders(db, [record.id])
    if held:
        holders = ", ".join(one.sandbox_id for one in held[:10])
        raise ConflictError(
            f"the volume {record.name!r} cannot {wish}: sandbox {holders} has it; end it first"
        )


def _not_found(name: str) -> NotFoundError:
    return NotFoundError(f"there is no volume {name[:128]!r}")
