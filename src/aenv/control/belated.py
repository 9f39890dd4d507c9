"""Images of what was paused in memory alone, as the disk was full: made once there is room."""

from __future__ import annotations

import asyncio
from functools import partial

import structlog
from sqlalchemy import Connection

from aenv.control.deadlines import deadline
from aenv.control.images import Images
from aenv.control.pauses import PAUSE_TIMEOUT
from aenv.control.services import Services
from aenv.control.states import StaleError, transition
from aenv.models.errors import DiskFullError, SandboxNotFoundError
from aenv.models.ids import new_snapshot_id
from aenv.models.sandboxes import SandboxState
from aenv.models.snapshots import SnapshotImage, SnapshotKind
from aenv.store import sandboxes as rows
from aenv.store import snapshots
from aenv.store.records import SandboxRecord

log = structlog.get_logger()
EVERY = 30.0
KEPT = "it is on disk now: there is room again"


class Belated:
    """``every``: seconds between attempts."""

    def __init__(self, services: Services, images: Images, *, every: float = EVERY) -> None:
        self._s = services
        self._images = images
        self._every = every

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._every)
            try:
                await self.keep_all()
            except Exception as error:  # noqa: BLE001 - the loop must go on
                log.error("paused sandboxes not kept, tried again", error=repr(error))

    async def keep_all(self) -> None:
        """The longest paused first, until the disk is full."""
        for record in await self._s.catalog.read(rows.paused_unkept):
            try:
                await self._s.turns.take(record.id, partial(self._keep, record.id))
            except (SandboxNotFoundError, StaleError):
                continue
            except DiskFullError:
                return
            except Exception as error:  # noqa: BLE001 - the others can be kept all the same
                log.warning("not kept yet", sandbox_id=record.id, error=repr(error))

    async def _keep(self, sandbox_id: str) -> None:
        record = await self._s.catalog.read(lambda db: rows.get(db, sandbox_id))
        if record is None or record.state is not SandboxState.PAUSED or record.snapshot_id:
            return
        snapshot_id = new_snapshot_id()
        try:
            async with deadline(PAUSE_TIMEOUT, "keeping the paused sandbox"):
                image = await self._s.node.keep(
                    sandbox_id, snapshot_id, parent=record.parent_snapshot
                )
            await self._s.turns.insist_lasting(lambda db: self._record(db, record, image))
        except BaseException:
            self._images.drop_unrecorded(snapshot_id)
            raise
        await self._s.events.note(sandbox_id, KEPT)

    def _record(self, db: Connection, record: SandboxRecord, image: SnapshotImage) -> None:
        transition(db, record, SandboxState.PAUSED, snapshot_id=image.id, note=None)
        snapshots.add(db, self._images.record(image, record, SnapshotKind.PAUSE))
