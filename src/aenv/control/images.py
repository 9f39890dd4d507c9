"""Kept images as the catalog records them, and giving their bytes back."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import structlog

from aenv.control.background import Background
from aenv.control.clocks import Clock
from aenv.models.errors import AenvError
from aenv.models.snapshots import SnapshotImage, SnapshotKind
from aenv.models.volumes import VolumeMount
from aenv.node.port import Node
from aenv.store import snapshots
from aenv.store.catalog import Catalog
from aenv.store.records import SandboxRecord, SnapshotRecord

log = structlog.get_logger()
DELETE_TIMEOUT = 120.0
ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Naming:
    """What callers know a snapshot by."""

    template_id: str
    name: str | None = None
    tag: str = "default"


class Images:
    """``pause``: seconds before the second attempt at deleting; it doubles from there."""

    def __init__(
        self,
        node: Node,
        catalog: Catalog,
        clock: Clock,
        background: Background,
        *,
        pause: float = 1.0,
    ) -> None:
        self._node = node
        self._catalog = catalog
        self._clock = clock
        self._background = background
        self._pause = pause

    def record(
        self,
        image: SnapshotImage,
        sandbox: SandboxRecord,
        kind: SnapshotKind,
        naming: Naming | None = None,
    ) -> SnapshotRecord:
        return record_of(image, sandbox, kind, naming, now=self._clock.wall())

    def drop(self, snapshot_id: str | None) -> None:
        """Free an image that has no row (any more), in the background. One that cannot be freed now
        is dropped at the next start.
        """
        if snapshot_id is not None:
            self._background.start(self._delete(snapshot_id), f"drop {snapshot_id}")

    def drop_unrecorded(self, snapshot_id: str) -> None:
        """Free an image whose recording failed or was called off, unless its row was written all
        the same: that is asked in the line of writers, behind the attempt.
        """
        self._background.start(self._delete_unrecorded(snapshot_id), f"drop {snapshot_id}")

    async def delete(self, snapshot_id: str) -> None:
        """Free it now, once no loss of power can bring back a row that names it."""
        async with asyncio.timeout(DELETE_TIMEOUT):
            await self._catalog.sync()
            await self._node.delete_snapshot(snapshot_id)

    async def _delete_unrecorded(self, snapshot_id: str) -> None:
        if await self._catalog.write(lambda db: snapshots.get(db, snapshot_id)) is None:
            await self._delete(snapshot_id)

    async def _delete(self, snapshot_id: str) -> None:
        pause = self._pause
        for _ in range(ATTEMPTS):
            try:
                await self.delete(snapshot_id)
            except (AenvError, TimeoutError) as error:
                log.warning("image not freed yet", snapshot_id=snapshot_id, error=repr(error))
                await asyncio.sleep(pause)
                pause *= 2
            else:
                return


def record_of(
    image: SnapshotImage,
    sandbox: SandboxRecord,
    kind: SnapshotKind,
    naming: Naming | None = None,
    *,
    now: int,
) -> SnapshotRecord:
    return SnapshotRecord(
        id=image.id,
        kind=kind,
        team=sandbox.team,
        sandbox_id=sandbox.id,
        base_id=sandbox.template_id,
        base=sandbox.template,
        engine=sandbox.engine,
        resources=sandbox.resources,
        has_memory=image.has_memory,
        disk_bytes=image.disk_bytes,
        memory_bytes=image.memory_bytes,
        own_bytes=image.own_bytes,
        created_at=now,
        updated_at=now,
        template_id=naming.template_id if naming else None,
        name=naming.name if naming else None,
        tag=naming.tag if naming else "default",
        parent=sandbox.parent_snapshot,
        env_vars=sandbox.public_env if kind is not SnapshotKind.PAUSE else {},
        volumes=_copied(sandbox.volumes) if kind is not SnapshotKind.PAUSE else (),
    )


def _copied(volumes: tuple[VolumeMount, ...]) -> tuple[VolumeMount, ...]:
    """What a sandbox could write to, another one from its snapshot has a copy of."""
    return tuple(replace(one, own=not one.read_only) for one in volumes)
