"""Resuming: by connecting, and by traffic where the sandbox was made so.

Of many that want it at once one resumes, the others find it running. A resume that fails leaves the
sandbox paused with its image; the image goes once ``running`` is recorded.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from enum import Enum, auto

import structlog
from sqlalchemy import Connection

from aenv.control import lookups, quotas, requests
from aenv.control.clocks import SECOND
from aenv.control.deadlines import deadline, typed
from aenv.control.images import Images
from aenv.control.routes import Route
from aenv.control.services import Services
from aenv.control.specs import route, spec
from aenv.control.states import StaleError, transition
from aenv.control.visitors import Visitor, may_enter
from aenv.models.errors import ConflictError, SandboxNotFoundError, UnresponsiveAtPauseError
from aenv.models.sandboxes import SandboxState
from aenv.models.settings import Quotas
from aenv.models.snapshots import PauseMode
from aenv.node.port import RunningSandbox
from aenv.store import sandboxes as rows
from aenv.store import snapshots
from aenv.store.records import SandboxRecord

log = structlog.get_logger()
RESUME_TIMEOUT = 180.0
ATTEMPTS = 20
LEAST_WAKE = 300
"""Seconds that a sandbox lives at least after traffic has resumed it."""


@dataclass(frozen=True, slots=True)
class Call:
    """How to resume. ``seconds`` to live from then; ``reboot``: from its disk, without its memory;
    ``auto_pause``: changes what happens at its end.
    """

    seconds: int
    reboot: bool = False
    auto_pause: bool | None = None


class Unwoken(Enum):
    """Why traffic resumes a sandbox not: it is not made so, or the visitor may not reach it."""

    ASLEEP = auto()
    BARRED = auto()


class Resumes:
    def __init__(self, services: Services, images: Images) -> None:
        self._s = services
        self._images = images
        self._waking: dict[tuple[str, Visitor], asyncio.Task[Route | Unwoken | None]] = {}

    async def connect(self, team: str, sandbox_id: str, call: Call) -> tuple[SandboxRecord, bool]:
        """A running sandbox that lives at least ``call.seconds``, and whether this resumed it."""
        requests.check_timeout(call.seconds, "timeout")
        for _ in range(ATTEMPTS):
            record = await self._living(team, sandbox_id)
            try:
                if record.state is SandboxState.RUNNING:
                    return await self._extend(record, call), False
                return await self._s.turns.take(
                    sandbox_id, lambda: self._connect(team, sandbox_id, call)
                )
            except StaleError:
                continue
        raise ConflictError(f"sandbox {sandbox_id} is being changed by others; try again")

    async def resume(self, team: str, sandbox_id: str, call: Call) -> SandboxRecord:
        """As :meth:`connect`; ConflictError when it runs already."""
        record = await self._living(team, sandbox_id)
        if record.state is SandboxState.RUNNING:
            raise ConflictError(f"sandbox {sandbox_id} is running already")
        record, resumed = await self.connect(team, sandbox_id, call)
        if not resumed:
            raise ConflictError(f"sandbox {sandbox_id} is running already")
        return record

    async def wake(self, sandbox_id: str, visitor: Visitor) -> Route | Unwoken | None:
        """For traffic to a sandbox without a route: resumed if it was made so. Visitors
        alike that come meanwhile wait for the same attempt, and share its failure.
        """
        key = sandbox_id, visitor
        task = self._waking.get(key)
        if task is None:
            task = self._s.background.start(self._wake(*key), f"wake {sandbox_id}")
            self._waking[key] = task
            task.add_done_callback(lambda _: self._waking.pop(key, None))
        await asyncio.wait({task})
        return None if task.cancelled() else task.result()

    async def _wake(self, sandbox_id: str, visitor: Visitor) -> Route | Unwoken | None:
        record = await lookups.read(self._s.catalog, sandbox_id)
        if record is None or not lookups.lives(record, self._s.clock.wall()):
            return None
        if not may_enter(record, visitor, self._s.clock.wall()):
            return Unwoken.BARRED
        try:
            return await self._s.turns.take(sandbox_id, lambda: self._wake_now(sandbox_id, visitor))
        except (SandboxNotFoundError, StaleError):
            return None

    async def _wake_now(self, sandbox_id: str, visitor: Visitor) -> Route | Unwoken | None:
        record = await lookups.read(self._s.catalog, sandbox_id)
        if record is not None and record.state is SandboxState.PAUSED:
            whole = record.pause_mode is PauseMode.FULL and not record.unresponsive_at_pause
            if visitor.probe or not (record.auto_resume and whole):
                return Unwoken.ASLEEP
            await self._resume(record, Call(max(record.timeout, LEAST_WAKE)))
        return self._s.routes.get(sandbox_id)

    async def _connect(self, team: str, sandbox_id: str, call: Call) -> tuple[SandboxRecord, bool]:
        record = await self._living(team, sandbox_id)
        if record.state is SandboxState.RUNNING:
            return await self._extend(record, call), False
        return await self._resume(record, call), True

    async def _extend(self, record: SandboxRecord, call: Call) -> SandboxRecord:
        end = max(record.end_at, self._s.clock.wall() + call.seconds * SECOND)
        return await self._s.catalog.write(
            lambda db: transition(
                db, record, SandboxState.RUNNING, end_at=end, timeout=call.seconds
            )
        )

    async def _resume(self, paused: SandboxRecord, call: Call) -> SandboxRecord:
        if paused.unresponsive_at_pause and not call.reboot:
            raise UnresponsiveAtPauseError(
                f"the agent of sandbox {paused.id} did not answer when it was paused, and would "
                "not after a resume from that memory; resume it without (memory: false)"
            )
        started = time.monotonic()
        resuming = await self._s.catalog.write(lambda db: self._reserve(db, paused, call))
        try:
            async with (
                self._s.cold.here(paused.snapshot_id),
                deadline(RESUME_TIMEOUT, "resuming the sandbox"),
            ):
                running = await self._s.node.resume(
                    spec(resuming, snapshot=paused.snapshot_id, reboot=call.reboot)
                )
        except Exception as error:
            await self._s.turns.insist(lambda db: transition(db, resuming, SandboxState.PAUSED))
            raise typed(error, "the sandbox could not be resumed") from error
        record = await self._record_running(resuming, running, call)
        self._s.telemetry.resumed(running.restored, time.monotonic() - started)
        log.info("sandbox resumed", sandbox_id=record.id, how=running.restored)
        return record

    def _reserve(self, db: Connection, paused: SandboxRecord, call: Call) -> SandboxRecord:
        """It counts again: within the quota of the key that made it."""
        now = self._s.clock.wall()
        if self._s.settings.quotas != Quotas():
            used = rows.usage_of_key(db, paused.key_id, quotas.COUNTED, now)
            quotas.check(self._s.settings.quotas, used, paused.resources)
        return transition(db, paused, SandboxState.RESUMING, end_at=now + call.seconds * SECOND)

    async def _record_running(
        self, resuming: SandboxRecord, running: RunningSandbox, call: Call
    ) -> SandboxRecord:
        end = self._s.clock.wall() + call.seconds * SECOND
        image = resuming.snapshot_id

        def record_it(db: Connection) -> SandboxRecord:
            record = transition(
                db,
                resuming,
                SandboxState.RUNNING,
                end_at=end,
                timeout=call.seconds,
                auto_pause=resuming.auto_pause if call.auto_pause is None else call.auto_pause,
                snapshot_id=None,
                pause_mode=None,
                unresponsive_at_pause=False,
                restored=running.restored,
                note=running.note,
            )
            snapshots.remove(db, [image] if image else [])
            return record

        record = await self._s.turns.insist(record_it)
        self._s.routes.publish(route(record, running))
        self._s.deadline(end)
        self._images.drop(image)
        if running.note is not None:
            await self._s.events.note(record.id, running.note, level="warn")
        return record

    async def _living(self, team: str, sandbox_id: str) -> SandboxRecord:
        return await lookups.living(self._s.catalog, self._s.clock, team, sandbox_id)
