"""The sandboxes that live on this node: watched, logged, measured, and sent away once.

One that is paused and still in memory (hot) may end without a word if it can be restored.
Whoever wants one gone, its watcher or a caller, awaits one shared departure.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

from aenv.models.errors import AenvError, Culprit, EngineError
from aenv.models.sandboxes import AGENT_PORT, ENDED, Resources, SandboxExit
from aenv.models.snapshots import RestoreMode
from aenv.models.templates import TemplateInfo
from aenv.node.agents import AgentClient
from aenv.node.engine import Capabilities, Machine
from aenv.node.logs import LogKeeper
from aenv.node.memos import Memo, Memos
from aenv.node.metrics import MetricsSampler
from aenv.node.port import RunningSandbox

logger = logging.getLogger(__name__)

DESTROY_DEADLINE = 30.0


@dataclass(frozen=True, slots=True)
class HotPause:
    """A paused sandbox that is still in memory. ``snapshot_id``: what it can be restored from; None
    when there was no room for it, so that nothing but this machine is left. ``since`` orders them.
    """

    snapshot_id: str | None
    since: float


@dataclass(slots=True, eq=False)
class Resident:
    """``watcher`` waits for the machine's death, ``departure`` is set while it is being destroyed.

    ``nameservers``: what its guest was told; None when nobody remembers (adopted). ``hot``: it is
    paused and its machine is frozen. ``lock`` is held by whoever freezes, thaws or copies it.
    ``restored``, ``note``: how it came back; ``failures``: what its guest could not do then.
    ``image``: the size in bytes of the memory it came back from; ``since`` (monotonic): it is here.
    ``pooled``: it is made of a machine that waited.
    """

    sandbox_id: str
    machine: Machine
    capabilities: Capabilities
    agent: AgentClient
    template: TemplateInfo
    watcher: asyncio.Task[None] | None = None
    departure: asyncio.Task[None] | None = None
    end: SandboxExit | None = None
    nameservers: tuple[str, ...] | None = None
    network_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    memo: Memo | None = None
    hot: HotPause | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    restored: RestoreMode | None = None
    note: str | None = None
    failures: tuple[str, ...] = ()
    pooled: bool = False
    log_seq: int | None = None
    image: int = 0
    since: float = field(default_factory=time.monotonic)

    @property
    def gone(self) -> bool:
        """It has ended, or is being destroyed."""
        return self.end is not None or self.departure is not None

    def describe(self) -> RunningSandbox:
        return RunningSandbox(
            sandbox_id=self.sandbox_id,
            agent=self.agent.address,
            guest_host=self.machine.address(AGENT_PORT + 1).host,
            template=self.template,
            engine=self.capabilities.engine,
            restored=self.restored,
            note=self.note,
            pooled=self.pooled,
        )


class Residents:
    """The table of residents; a resident is in it until nothing of it is left."""

    def __init__(self, logs: LogKeeper, sampler: MetricsSampler, memos: Memos) -> None:
        self._logs = logs
        self._sampler = sampler
        self._memos = memos
        self._table: dict[str, Resident] = {}
        self._exits: asyncio.Queue[SandboxExit] = asyncio.Queue()

    def get(self, sandbox_id: str) -> Resident | None:
        return self._table.get(sandbox_id)

    def __iter__(self) -> Iterator[Resident]:
        return iter(list(self._table.values()))

    async def exits(self) -> AsyncIterator[SandboxExit]:
        """Ends that nobody asked for. At most one per resident waits here."""
        while True:
            yield await self._exits.get()

    async def close(self) -> None:
        """Stop watching; the machines stay."""
        watchers = [found.watcher for found in self if found.watcher is not None]
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)

    def settle(self, resident: Resident, resources: Resources | None) -> None:
        """From here on it is watched and, unless it is paused, logged and measured. Never
        suspends.
        """
        self._table[resident.sandbox_id] = resident
        if resident.log_seq is not None:
            self._logs.rewind(resident.sandbox_id, resident.log_seq)
        if resident.hot is None:
            self.wake(resident, resources)
        resident.watcher = asyncio.create_task(
            self._watch(resident), name=f"watch-{resident.sandbox_id}"
        )

    def wake(self, resident: Resident, resources: Resources | None) -> None:
        """Log and measure it (again)."""
        self._logs.follow(resident.sandbox_id, resident.agent)
        self._sampler.track(resident.sandbox_id, resident.machine, resident.agent, resources)

    async def note(self, sandbox_id: str, text: str) -> None:
        """Add to its log. Never fails: it is for information."""
        try:
            await self._logs.note(sandbox_id, text)
        except (AenvError, OSError) as error:
            logger.info("not noted: %s", error, extra={"sandbox_id": sandbox_id})

    async def rest(self, resident: Resident) -> None:
        """Ask nothing of its guest any more, which is about to be frozen."""
        self._sampler.untrack(resident.sandbox_id)
        await self._logs.unfollow(resident.sandbox_id, drain=True)

    async def _watch(self, resident: Resident) -> None:
        try:
            end = await resident.machine.wait()
        except AenvError as error:
            end = SandboxExit(resident.sandbox_id, None, Culprit.INFRASTRUCTURE, str(error))
        async with resident.lock:  # a pause whose image is whole by now is one
            await self._ended(resident, end)

    async def _ended(self, resident: Resident, end: SandboxExit) -> None:
        if resident.departure is not None:
            return
        if resident.hot is None or resident.hot.snapshot_id is None:
            resident.end = end
            self._exits.put_nowait(end)
        try:
            await self.leave(resident)
        except AenvError as error:
            about = {"sandbox_id": resident.sandbox_id}
            logger.warning("an ended sandbox could not be removed: %s", error, extra=about)

    async def leave(self, resident: Resident) -> None:
        """Destroy it; all who want that await one task, which no caller's cancellation ends."""
        if resident.departure is None:
            resident.departure = asyncio.create_task(
                self._depart(resident), name=f"depart-{resident.sandbox_id}"
            )
        await asyncio.shield(resident.departure)

    async def _depart(self, resident: Resident) -> None:
        try:
            self._sampler.untrack(resident.sandbox_id)
            speaks = resident.end is None and resident.hot is None
            await self._logs.unfollow(resident.sandbox_id, drain=speaks)
            if resident.end is not None:
                said = f"{ENDED}: {resident.end.reason}"
                await self._logs.note(resident.sandbox_id, said, level="error")
            async with asyncio.timeout(DESTROY_DEADLINE):
                await resident.machine.destroy()
        except BaseException as error:
            resident.departure = None
            if isinstance(error, TimeoutError):
                raise EngineError(
                    f"sandbox {resident.sandbox_id} could not be removed within "
                    f"{DESTROY_DEADLINE:g} s; kill it again, or restart the server"
                ) from None
            raise
        self._table.pop(resident.sandbox_id, None)
        self._memos.remove(resident.sandbox_id)
        if resident.watcher is not None and resident.end is None:
            resident.watcher.cancel()
