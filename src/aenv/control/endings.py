"""How sandboxes end: killed, expired, exited by themselves, or never come to life.

The order is always the same: ``killing`` and the reason are recorded (fenced: of two callers one
wins), the route is withdrawn, what is being done to it is called off, the machine is destroyed and
the image it was paused in freed, ``killed`` or ``failed`` is recorded.
Destroying is tried until it works; whatever a crash interrupts is finished at the next start.
"""

from __future__ import annotations

import asyncio

import structlog
from sqlalchemy import Connection

from aenv.control.background import Background
from aenv.control.boots import Boots
from aenv.control.clocks import Clock
from aenv.control.events import Events
from aenv.control.routes import RouteTable
from aenv.control.states import OVER, StaleError, final_state, transition
from aenv.control.telemetry import Telemetry
from aenv.control.turns import Turns
from aenv.models.errors import AenvError, ConflictError, Culprit, SandboxNotFoundError
from aenv.models.sandboxes import ENDED, EndKind, SandboxExit, SandboxState
from aenv.node.port import Node
from aenv.store import idempotency, snapshots, volumes
from aenv.store import sandboxes as rows
from aenv.store.catalog import Catalog
from aenv.store.records import SandboxRecord

log = structlog.get_logger()
DESTROY_TIMEOUT = 60.0
REPLY_TIMEOUT = 30.0
LONGEST_PAUSE = 60.0
ATTEMPTS = 20
OURS_TO_TELL = frozenset({EndKind.KILLED, EndKind.EXPIRED})
"""Ends that the node did not see coming, so it cannot tell them in the sandbox's log."""


class Endings:
    """``retry_pause``: seconds before the second attempt at destroying; it doubles from there."""

    def __init__(
        self,
        catalog: Catalog,
        node: Node,
        routes: RouteTable,
        clock: Clock,
        boots: Boots,
        telemetry: Telemetry,
        background: Background,
        turns: Turns,
        *,
        retry_pause: float = 1.0,
    ) -> None:
        self._catalog = catalog
        self._node = node
        self._events = Events(node)
        self._routes = routes
        self._clock = clock
        self._boots = boots
        self._telemetry = telemetry
        self._background = background
        self._turns = turns
        self._retry_pause = retry_pause
        self._finishing: set[str] = set()

    async def end(
        self, sandbox_id: str, kind: EndKind, reason: str, *, team: str | None = None
    ) -> None:
        """End a sandbox in whatever state it lives. SandboxNotFoundError when it does not live (any
        more).

        Returns when it is destroyed, or after 30 s while that goes on in the background.
        """
        record = await self._begin(sandbox_id, kind, reason, team=team)
        await self._finished(record)

    async def expire(self, seen: SandboxRecord) -> None:
        """End a sandbox whose time has passed, unless it was given more since it was ``seen``."""
        try:
            record = await self._record_killing(seen, EndKind.EXPIRED, "its time was over", None)
        except ConflictError:
            return
        await self._finished(record)

    async def exited(self, exit_: SandboxExit) -> None:
        """Record a machine that ended by itself, and clear away what is left of it.

        A paused sandbox has not ended with it: its image is on disk.
        """
        await self._turns.idle(exit_.sandbox_id)
        record = await self._catalog.read(lambda db: rows.get(db, exit_.sandbox_id))
        if record is None or (record.state is SandboxState.PAUSED and record.snapshot_id):
            return
        kind = (
            EndKind.INFRASTRUCTURE
            if exit_.culprit is Culprit.INFRASTRUCTURE
            else EndKind.GUEST_EXITED
        )
        try:
            record = await self._begin(exit_.sandbox_id, kind, exit_.reason, exit_code=exit_.code)
        except SandboxNotFoundError:
            return
        await self._finished(record)

    async def abandon(self, record: SandboxRecord, error: BaseException) -> None:
        """End a creation that failed; called by the creation itself. The idempotency key is free
        again.
        """
        code = error.code if isinstance(error, AenvError) else type(error).__name__
        try:
            killing = await self._begin(record.id, EndKind.CREATE_FAILED, f"{code}: {error}")
        except SandboxNotFoundError:
            return
        except AenvError as failure:
            log.error("end not recorded, the sweep will", sandbox_id=record.id, error=str(failure))
            await self._clear_away(record.id)
            return
        self._boots.making.pop(record.id, None)
        await self._finished(killing)

    async def _clear_away(self, sandbox_id: str) -> None:
        """Free a machine whose end cannot be written down (the catalog's disk is full)."""
        try:
            async with asyncio.timeout(DESTROY_TIMEOUT):
                await self._node.destroy(sandbox_id)
        except (AenvError, TimeoutError) as error:
            log.error("sandbox not destroyed", sandbox_id=sandbox_id, error=repr(error))

    async def resume(self, record: SandboxRecord) -> None:
        """Finish what was found in ``killing``; in the background."""
        if record.id not in self._finishing:
            self._start(record)

    async def _begin(
        self,
        sandbox_id: str,
        kind: EndKind,
        reason: str,
        *,
        team: str | None = None,
        exit_code: int | None = None,
    ) -> SandboxRecord:
        for _ in range(ATTEMPTS):
            record = await self._catalog.read(lambda db: rows.get(db, sandbox_id))
            if record is None or record.state in OVER or team not in (None, record.team):
                raise SandboxNotFoundError(f"sandbox {sandbox_id!r} was not found")
            try:
                return await self._record_killing(record, kind, reason, exit_code)
            except StaleError:
                continue
        raise ConflictError(f"sandbox {sandbox_id} is being changed by others; try again")

    async def _record_killing(
        self, record: SandboxRecord, kind: EndKind, reason: str, exit_code: int | None
    ) -> SandboxRecord:
        def record_it(db: Connection) -> SandboxRecord:
            if record.state is SandboxState.CREATING:
                idempotency.release(db, record.id)
            return transition(
                db,
                record,
                SandboxState.KILLING,
                ended_at=self._clock.wall(),
                end_kind=kind,
                end_reason=reason[:2000],
                exit_code=exit_code,
            )

        killing = await self._catalog.write(record_it)
        self._routes.withdraw(record.id)
        self._telemetry.ended(kind)
        return killing

    async def _finished(self, record: SandboxRecord) -> None:
        tried = self._start(record)
        await asyncio.wait({tried}, timeout=REPLY_TIMEOUT)

    def _start(self, record: SandboxRecord) -> asyncio.Future[None]:
        """Begin to finish ``record``; the future is done after the first attempt to destroy it."""
        tried: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._finishing.add(record.id)
        task = self._background.start(self._finish(record, tried), f"end {record.id}")
        task.add_done_callback(lambda _: _settle(tried))
        return tried

    async def _finish(self, record: SandboxRecord, tried: asyncio.Future[None]) -> None:
        pause = self._retry_pause
        try:
            await self._boots.cancel(record.id)
            await self._turns.cancel(record.id)
            self._routes.withdraw(record.id)
            while not await self._destroyed(record):
                _settle(tried)
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            log.info("sandbox ended", sandbox_id=record.id, kind=record.end_kind)
            if record.end_kind in OURS_TO_TELL:
                await self._events.note(record.id, f"{ENDED}: {record.end_reason}")
        finally:
            self._finishing.discard(record.id)

    async def _destroyed(self, record: SandboxRecord) -> bool:
        try:
            async with asyncio.timeout(DESTROY_TIMEOUT):
                await self._node.destroy(record.id)
                if record.snapshot_id is not None:
                    await self._node.delete_snapshot(record.snapshot_id)
            await self._catalog.write(lambda db: _record_end(db, record))
        except ConflictError:
            return True
        except Exception as error:  # noqa: BLE001 - tried again until it works
            log.warning("sandbox not destroyed yet", sandbox_id=record.id, error=repr(error))
            return False
        return True


def _record_end(db: Connection, record: SandboxRecord) -> None:
    """Nothing of what was private to it is kept."""
    transition(
        db, record, final_state(record.end_kind), snapshot_id=None, env_vars={}, secret_env=()
    )
    volumes.release(db, record.id)
    if record.snapshot_id is not None:
        snapshots.remove(db, [record.snapshot_id])


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
