"""Pausing: by request, and instead of the end when a sandbox's time passes.

``pausing`` is recorded first, with the id its image will have; ``paused`` once the image is whole,
together with the image. What a crash interrupts between the two is decided by what is there at the
next start: the machine (it runs on) or the image (it is paused).
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import structlog
from sqlalchemy import Connection

from aenv.control.clocks import SECOND
from aenv.control.deadlines import deadline, typed
from aenv.control.images import Images
from aenv.control.lookups import living
from aenv.control.services import Services
from aenv.control.specs import route, spec
from aenv.control.states import StaleError, transition
from aenv.models.errors import (
    AenvError,
    ConflictError,
    DiskFullError,
    GuestUnresponsiveError,
    SandboxNotFoundError,
)
from aenv.models.ids import new_snapshot_id
from aenv.models.sandboxes import SandboxState
from aenv.models.snapshots import PauseMode, SnapshotImage, SnapshotKind
from aenv.store import sandboxes as rows
from aenv.store import snapshots
from aenv.store.records import SandboxRecord

log = structlog.get_logger()
PAUSE_TIMEOUT = 600.0
THAW_TIMEOUT = 120.0
HEALTH_TIMEOUT = 15.0
ATTEMPTS = 20
RETRY_AFTER = 30 * SECOND
"""How long a sandbox runs on when its pause at its end has failed."""


@dataclass(frozen=True, slots=True)
class Wish:
    """``healthy``: refuse when the guest agent does not answer. ``expired``: its time has passed,
    so it does not run on when the disk is full.
    """

    memory: bool = True
    healthy: bool = False
    expired: bool = False


class Pauses:
    def __init__(self, services: Services, images: Images) -> None:
        self._s = services
        self._images = images
        self._expiring: set[str] = set()

    async def pause(self, team: str, sandbox_id: str, wish: Wish) -> None:
        """Return once its image is on disk.

        ConflictError when it is paused, GuestUnresponsiveError, DiskFullError (it runs on).
        """
        await living(self._s.catalog, self._s.clock, team, sandbox_id)
        await self._s.turns.take(sandbox_id, lambda: self._pause(team, sandbox_id, wish))

    async def expire(self, seen: SandboxRecord) -> None:
        """Pause a sandbox whose time has passed, unless it was given more since. What goes wrong is
        noted in its log; it is never killed.
        """
        if seen.id in self._expiring:
            return
        self._expiring.add(seen.id)
        try:
            await self._s.turns.take(seen.id, lambda: self._expire(seen.id))
        except SandboxNotFoundError:
            pass
        finally:
            self._expiring.discard(seen.id)

    async def _pause(self, team: str, sandbox_id: str, wish: Wish) -> None:
        for _ in range(ATTEMPTS):
            record = await living(self._s.catalog, self._s.clock, team, sandbox_id)
            if record.state is not SandboxState.RUNNING:
                raise ConflictError(f"sandbox {sandbox_id} is paused already")
            try:
                await self._freeze(record, wish)
            except StaleError:
                continue
            return
        raise ConflictError(f"sandbox {sandbox_id} is being changed by others; try again")

    async def _expire(self, sandbox_id: str) -> None:
        record = await self._s.catalog.read(lambda db: rows.get(db, sandbox_id))
        over = record is not None and record.end_at <= self._s.clock.wall()
        if record is None or record.state is not SandboxState.RUNNING or not over:
            return
        try:
            await self._freeze(record, Wish(record.auto_pause_memory, expired=True))
        except StaleError:
            return
        except AenvError as error:
            text = f"it could not be paused at the end of its time and runs on: {error}"
            await self._s.events.note(sandbox_id, text, level="error")
            await self._postpone(record)

    async def _freeze(self, record: SandboxRecord, wish: Wish) -> None:
        """StaleError when it changed since ``record`` was read."""
        responsive = await self._responsive(record)
        if not responsive and (wish.healthy or not wish.memory):
            raise GuestUnresponsiveError(
                f"the agent of sandbox {record.id} does not answer, so it was not paused; try "
                "again, or pause it with its memory and without requireHealthyGuest"
            )
        started = time.monotonic()
        pausing = await self._s.catalog.write(
            lambda db: transition(
                db, record, SandboxState.PAUSING, snapshot_id=new_snapshot_id(), restored=None
            )
        )
        if responsive:
            await self._settle(record.id)
        async with self._s.doors.shut(record.id):
            await self._keep(pausing, wish, responsive)
        self._s.telemetry.paused(time.monotonic() - started)
        log.info("sandbox paused", sandbox_id=record.id, memory=wish.memory)

    async def _keep(self, pausing: SandboxRecord, wish: Wish, responsive: bool) -> None:
        assert pausing.snapshot_id is not None
        try:
            async with deadline(PAUSE_TIMEOUT, "pausing the sandbox"):
                image = await self._s.node.pause(
                    pausing.id,
                    pausing.snapshot_id,
                    memory=wish.memory,
                    parent=pausing.parent_snapshot,
                )
        except DiskFullError as error:
            if not wish.expired:
                await self._run_on(pausing, thaw=True)
                raise
            await self._record_frozen(pausing, error)
        except Exception as error:
            unclear = not isinstance(error, AenvError) or isinstance(error.__cause__, TimeoutError)
            await self._run_on(pausing, thaw=unclear)
            raise typed(error, "the sandbox could not be paused") from error
        else:
            await self._record_paused(pausing, image, responsive)

    async def _record_paused(
        self, pausing: SandboxRecord, image: SnapshotImage, responsive: bool
    ) -> None:
        kept = self._images.record(image, pausing, SnapshotKind.PAUSE)

        def record_it(db: Connection) -> None:
            transition(
                db,
                pausing,
                SandboxState.PAUSED,
                pause_mode=PauseMode.FULL if image.has_memory else PauseMode.FILESYSTEM,
                unresponsive_at_pause=not responsive,
                note=None,
            )
            snapshots.add(db, kept)

        await self._s.turns.insist_lasting(record_it)
        self._s.routes.withdraw(pausing.id)

    async def _record_frozen(self, pausing: SandboxRecord, error: DiskFullError) -> None:
        """There was no room for its image: it stays in memory, and nothing is lost while the host
        runs.
        """
        note = f"paused in memory only, the disk is full: {error}"
        await self._s.turns.insist(
            lambda db: transition(
                db,
                pausing,
                SandboxState.PAUSED,
                snapshot_id=None,
                pause_mode=PauseMode.FULL,
                note=note,
            )
        )
        self._s.routes.withdraw(pausing.id)
        await self._s.events.note(pausing.id, note, level="error")

    async def _run_on(self, pausing: SandboxRecord, *, thaw: bool) -> None:
        """It was not paused. ``thaw``: it may be frozen; when even that fails it is left so."""
        state, note = SandboxState.RUNNING, None
        if thaw:
            try:
                async with deadline(THAW_TIMEOUT, "thawing the sandbox"):
                    running = await self._s.node.resume(spec(pausing))
                self._s.routes.publish(route(pausing, running))
            except AenvError as error:
                state, note = SandboxState.PAUSED, f"paused in memory only: {error}"
        mode = PauseMode.FULL if state is SandboxState.PAUSED else None
        await self._s.turns.insist(
            lambda db: transition(db, pausing, state, snapshot_id=None, pause_mode=mode, note=note)
        )
        self._images.drop(pausing.snapshot_id)
        if note is not None:
            self._s.routes.withdraw(pausing.id)
            await self._s.events.note(pausing.id, note, level="error")

    async def _postpone(self, record: SandboxRecord) -> None:
        end = self._s.clock.wall() + RETRY_AFTER

        def postpone(db: Connection) -> None:
            now = rows.get(db, record.id)
            if now is not None and now.state is SandboxState.RUNNING and now.end_at < end:
                transition(db, now, SandboxState.RUNNING, end_at=end)

        await self._s.turns.insist(postpone)
        self._s.deadline(end)

    async def _responsive(self, record: SandboxRecord) -> bool:
        async with deadline(HEALTH_TIMEOUT, "asking for the agent's health"):
            return await self._s.node.healthy(record.id)

    async def _settle(self, sandbox_id: str) -> None:
        """Only for speed: what is not written yet, the freeze writes."""
        try:
            async with deadline(PAUSE_TIMEOUT, "writing back the guest's data"):
                await self._s.node.settle(sandbox_id)
        except AenvError as error:
            log.warning("not settled", sandbox_id=sandbox_id, error=str(error))
