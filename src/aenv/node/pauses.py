"""Pausing and resuming sandboxes in place: a paused one stays frozen in memory while there is room.

A machine is demoted by destroying it: its snapshot is on disk since the pause was acknowledged. The
longest paused goes first, when paused machines together exceed their budget or a create needs room.
One without a snapshot (its pause met a full disk) is never demoted, and comes back by thawing it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from aenv.models.errors import AenvError, ConflictError, DiskFullError
from aenv.models.snapshots import RestoreMode, SnapshotImage
from aenv.node import faults
from aenv.node.captures import Capturer, Order
from aenv.node.engine import Engine
from aenv.node.engines.tasks import finish
from aenv.node.memos import Memos
from aenv.node.residents import HotPause, Resident, Residents
from aenv.node.starting import alive
from aenv.node.usage import measure

logger = logging.getLogger(__name__)

GIVEN_BACK = "the host took its memory back; a resume restores it from its image"

Refresh = Callable[[Resident], Awaitable[None]]


class Pauses:
    """``budget``: bytes of memory that paused machines may keep, or their number when one of them
    does not tell.
    """

    def __init__(self, residents: Residents, capturer: Capturer, memos: Memos, budget: int) -> None:
        self._residents = residents
        self._capturer = capturer
        self._memos = memos
        self._budget = budget
        self._squeezing: asyncio.Task[None] | None = None

    async def close(self) -> None:
        if self._squeezing is not None:
            self._squeezing.cancel()
            await asyncio.gather(self._squeezing, return_exceptions=True)

    async def snapshot(self, resident: Resident, engine: Engine, order: Order) -> SnapshotImage:
        async with resident.lock:
            _require_running(resident)
            return await self._capturer.capture(resident, engine, order, stay_frozen=False)

    async def pause(self, resident: Resident, engine: Engine, order: Order) -> SnapshotImage:
        """On failure it runs on; after DiskFullError it is paused, in memory alone."""
        async with resident.lock:
            _require_running(resident)
            await self._residents.rest(resident)
            try:
                image = await self._capturer.capture(resident, engine, order, stay_frozen=True)
                self._mark(resident, order.snapshot_id)
            except DiskFullError:
                if not resident.gone:
                    await resident.machine.freeze()
                    self._mark(resident, None)
                raise
            except BaseException:
                await finish(self._run_on(resident))
                raise
            if resident.gone:
                await finish(self._capturer.discard(engine, order.snapshot_id))
                raise ConflictError(f"sandbox {resident.sandbox_id} was killed while it was paused")
            await faults.reach("pause.marked")
        if order.memory:
            self.squeeze()
        else:
            await self._residents.leave(resident)
        return image

    async def keep(self, resident: Resident, engine: Engine, order: Order) -> SnapshotImage:
        """Write the image that its pause found no room for; it stays frozen, and may be demoted
        from then on.
        """
        async with resident.lock:
            hot = resident.hot
            if resident.gone or hot is None or hot.snapshot_id is not None:
                raise ConflictError(f"sandbox {resident.sandbox_id} is not paused in memory alone")
            image = await self._capturer.capture(resident, engine, order, stay_frozen=True)
            if resident.gone:
                await finish(self._capturer.discard(engine, order.snapshot_id))
                raise ConflictError(f"sandbox {resident.sandbox_id} was killed meanwhile")
            self._mark(resident, order.snapshot_id, since=hot.since)
            await faults.reach("keep.marked")
        self.squeeze()
        return image

    async def thaw(self, resident: Resident, refresh: Refresh) -> bool:
        """Let a hot sandbox run on. False: it is not in memory any more, restore it.

        ``refresh`` tells its guest. Raises ConflictError when it runs.
        """
        async with resident.lock:
            hot = resident.hot
            if resident.gone:
                return await self._dismiss(resident)
            if hot is None:
                raise ConflictError(f"sandbox {resident.sandbox_id} is not paused; it runs")
            try:
                await resident.machine.thaw()
                await faults.reach("resume.thawed")
                await alive(resident.machine, refresh(resident))
                await faults.reach("resume.told")
            except AenvError as error:
                if hot.snapshot_id is None:
                    await self._freeze_again(resident)
                    raise
                logger.warning("a paused sandbox did not thaw, restoring it: %s", error)
                return await self._dismiss(resident)
            except BaseException:
                await finish(self._freeze_again(resident))
                raise
            self._mark_running(resident)
        return True

    async def demote(self, sandbox_id: str) -> bool:
        """Give back the memory of a paused sandbox. False if there was none to give."""
        resident = self._residents.get(sandbox_id)
        if resident is None:
            return False
        async with resident.lock:
            if resident.hot is None or resident.hot.snapshot_id is None or resident.gone:
                return False
            await self._dismiss(resident)
            return True

    async def demote_those_of(self, snapshot_id: str, *, only_look: bool = False) -> bool:
        """Whether nobody is frozen in memory by that snapshot, now or any more."""
        found = [one for one in self._residents if one.hot and one.hot.snapshot_id == snapshot_id]
        if only_look:
            return not found
        return all([await self.demote(one.sandbox_id) for one in found])

    def forget_snapshot(self, snapshot_id: str) -> None:
        """It is being deleted: whoever is paused by it has nothing but memory left."""
        for resident in self._residents:
            if resident.hot and resident.hot.snapshot_id == snapshot_id:
                resident.hot = replace(resident.hot, snapshot_id=None)

    async def relieve(self) -> bool:
        """Demote the one that was paused first. False if there is none, or none can be."""
        for resident in self._demotable():
            try:
                if await self.demote(resident.sandbox_id):
                    await self._residents.note(resident.sandbox_id, GIVEN_BACK)
                    return True
            except AenvError as error:
                about = {"sandbox_id": resident.sandbox_id}
                logger.warning("a paused sandbox keeps its memory: %s", error, extra=about)
        return False

    def squeeze(self) -> None:
        """Come back to the budget, in the background."""
        if self._squeezing is None or self._squeezing.done():
            self._squeezing = asyncio.create_task(self._squeeze(), name="hot-budget")

    async def settled(self) -> None:
        """Return when what :meth:`squeeze` began has ended."""
        if self._squeezing is not None:
            await asyncio.wait({self._squeezing})

    async def _squeeze(self) -> None:
        while await self._excess() > 0 and await self.relieve():
            pass

    async def _excess(self) -> int:
        hot = [resident for resident in self._residents if resident.hot]
        return sum((await measure(hot)).values()) - self._budget

    def _demotable(self) -> list[Resident]:
        found = [one for one in self._residents if one.hot and one.hot.snapshot_id and not one.gone]
        return sorted(found, key=lambda one: one.hot.since if one.hot else 0)

    def _mark(
        self, resident: Resident, snapshot_id: str | None, *, since: float | None = None
    ) -> None:
        assert resident.memo is not None
        memo = replace(resident.memo, paused_as=snapshot_id)
        with contextlib.suppress(OSError):  # a restart restores it from disk, then
            self._memos.write(resident.sandbox_id, memo)
        resident.memo = memo
        resident.hot = HotPause(snapshot_id, time.monotonic() if since is None else since)

    def _mark_running(self, resident: Resident) -> None:
        assert resident.memo is not None
        resident.hot, resident.restored, resident.note = None, RestoreMode.HOT, None
        resident.memo = replace(resident.memo, paused_as=None)
        with contextlib.suppress(OSError):
            self._memos.write(resident.sandbox_id, resident.memo)
        self._residents.wake(resident, resident.memo.resources)

    async def _run_on(self, resident: Resident) -> None:
        """Undo a pause that failed."""
        if resident.gone:
            return
        try:
            await resident.machine.thaw()
        except AenvError as error:
            logger.warning("a sandbox that was not paused cannot be thawed: %s", error)
        if not resident.gone:
            assert resident.memo is not None
            self._residents.wake(resident, resident.memo.resources)

    async def _freeze_again(self, resident: Resident) -> None:
        with contextlib.suppress(AenvError):  # dead: its watcher tells
            await resident.machine.freeze()

    async def _dismiss(self, resident: Resident) -> bool:
        await self._residents.leave(resident)
        return False


def _require_running(resident: Resident) -> None:
    if resident.gone:
        raise ConflictError(f"sandbox {resident.sandbox_id} has ended")
    if resident.hot is not None:
        raise ConflictError(f"sandbox {resident.sandbox_id} is paused already")
