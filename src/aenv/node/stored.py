"""The snapshots a node holds, each of a folder in its store and a disk image of its engine."""

from __future__ import annotations

import logging

from aenv.models.errors import AenvError, NotFoundError, SnapshotDamagedError
from aenv.models.snapshots import SnapshotImage
from aenv.node.captures import describe
from aenv.node.engine import DiskImage
from aenv.node.engine_set import EngineSet
from aenv.node.pauses import Pauses
from aenv.node.snapshots.store import SnapshotStore

logger = logging.getLogger(__name__)


class StoredSnapshots:
    def __init__(self, engines: EngineSet, store: SnapshotStore, pauses: Pauses) -> None:
        self._engines = engines
        self._store = store
        self._pauses = pauses

    async def reap(self, keep: frozenset[str]) -> None:
        """Drop the disk images of snapshots that are not in ``keep``: of engines that run."""
        for engine in self._engines.started():
            for image in await engine.disk_images():
                if image.name not in keep:
                    await engine.drop_disk(image.name)

    async def all(self) -> list[SnapshotImage]:
        disks: dict[str, DiskImage] = {}
        for name in {stored.manifest.engine for stored in self._store.all()}:
            try:
                engine = await self._engines.get(name)
                disks.update({image.name: image for image in await engine.disk_images()})
            except AenvError as error:
                logger.warning("the sizes of some snapshots are not known: %s", error)
        return [describe(one, disks.get(one.manifest.id)) for one in self._store.all()]

    async def delete(self, snapshot_id: str) -> None:
        """Free its bytes. Idempotent."""
        self._pauses.forget_snapshot(snapshot_id)
        await self._store.delete(snapshot_id, lambda: self._engines.drop_disk(snapshot_id))

    async def verify(self, snapshot_id: str) -> None:
        """Raises NotFoundError, SnapshotDamagedError naming what is damaged."""
        await self._store.verify(snapshot_id)
        engine = await self._engines.get(self._store.get(snapshot_id).manifest.engine)
        try:
            await engine.verify_disk(snapshot_id)
        except NotFoundError as error:
            raise SnapshotDamagedError(
                f"the disk of snapshot {snapshot_id} is gone: nothing can start from it; delete it"
            ) from error
