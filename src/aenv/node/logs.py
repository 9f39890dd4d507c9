"""What sandboxes wrote: pulled from each agent's ring by a task per sandbox, kept within a budget.

A log is followed from the moment its agent answers; after a restart of the server pulling goes on
where the files end. What a sandbox writes faster than ``PACE`` is dropped by its own ring, and the
gap is noted in the log.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from aenv.models.errors import AgentUnreachableError
from aenv.models.sandboxes import LogEntry
from aenv.node.agents import AgentClient
from aenv.node.agentwire import AgentLines
from aenv.node.logfiles import LogFiles, LogLine, LogQuery

logger = logging.getLogger(__name__)

MIB = 1024 * 1024
BATCH = 1000
POLL_WAIT = 25.0
PACE = 1 * MIB
DRAIN_TIMEOUT = 0.5
_RETRY, _LONGEST_RETRY = 1.0, 8.0
_IDLE_TURN = 0.02
_ORPHAN_AGE = 7 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class LogBudget:
    """Bytes: per sandbox, for all, per segment; below ``min_free`` nothing is written."""

    sandbox: int = 16 * MIB
    total: int = 1024 * MIB
    segment: int = 1 * MIB
    min_free: int = 256 * MIB


@dataclass(slots=True)
class _Log:
    files: LogFiles
    lock: asyncio.Lock
    follower: asyncio.Task[None] | None = None
    agent: AgentClient | None = None
    unwritten: int = 0


class LogKeeper:
    """All logs of one node, under ``folder``."""

    def __init__(
        self,
        folder: Path,
        budget: LogBudget | None = None,
        *,
        free_bytes: Callable[[Path], int] | None = None,
    ) -> None:
        self._folder = folder
        self._budget = budget or LogBudget()
        self._free_bytes = free_bytes or (lambda path: shutil.disk_usage(path).free)
        self._logs: dict[str, _Log] = {}

    async def open(self, keep: Iterable[str]) -> None:
        """Read what is on disk; logs not in ``keep`` that are a week old are dropped."""
        self._logs = await asyncio.to_thread(self._scan, frozenset(keep))

    async def close(self) -> None:
        await asyncio.gather(*(self.unfollow(sandbox_id) for sandbox_id in list(self._logs)))

    def follow(self, sandbox_id: str, agent: AgentClient) -> None:
        log = self._log(sandbox_id)
        if log.follower is None:
            log.agent = agent
            log.follower = asyncio.create_task(
                self._follow(sandbox_id, log, agent), name=f"logs-{sandbox_id}"
            )

    def seen(self, sandbox_id: str) -> int:
        """How far the agent's ring has been fetched, by the agent's count."""
        return self._log(sandbox_id).files.last_agent_seq

    def rewind(self, sandbox_id: str, agent_seq: int) -> None:
        """The guest was set back: its ring goes on after ``agent_seq``."""
        self._log(sandbox_id).files.last_agent_seq = agent_seq

    async def unfollow(self, sandbox_id: str, *, drain: bool = False) -> None:
        """Stop pulling; ``drain``: first fetch what the agent still holds, if it answers."""
        log = self._logs.get(sandbox_id)
        if log is None or log.follower is None:
            return
        follower, log.follower = log.follower, None
        follower.cancel()
        await asyncio.gather(follower, return_exceptions=True)
        if drain and log.agent is not None:
            try:
                async with asyncio.timeout(DRAIN_TIMEOUT):
                    await self._pull(sandbox_id, log, log.agent, wait=0)
            except (AgentUnreachableError, TimeoutError):
                pass

    async def note(self, sandbox_id: str, message: str, *, level: str = "info") -> None:
        """Add a line of the node's own to the sandbox's log."""
        line = LogLine(time.time(), "system", level, message, {})
        await self._append(sandbox_id, self._log(sandbox_id), [line])

    async def query(self, sandbox_id: str, query: LogQuery) -> list[LogEntry]:
        log = self._logs.get(sandbox_id)
        if log is None:
            return []
        return await asyncio.to_thread(log.files.query, query)

    async def forget(self, sandbox_id: str) -> None:
        await self.unfollow(sandbox_id)
        if log := self._logs.pop(sandbox_id, None):
            async with log.lock:
                await asyncio.to_thread(log.files.remove)

    async def _follow(self, sandbox_id: str, log: _Log, agent: AgentClient) -> None:
        retry = _RETRY
        while True:
            try:
                asked = time.monotonic()
                batch = await self._pull(sandbox_id, log, agent, wait=POLL_WAIT)
                early = not batch.lines and time.monotonic() - asked < _RETRY
                turn = _RETRY if early else _IDLE_TURN
                await asyncio.sleep(max(turn, _IDLE_TURN + batch.size / PACE))
                retry = _RETRY
            except AgentUnreachableError:
                await asyncio.sleep(retry)
                retry = min(2 * retry, _LONGEST_RETRY)

    async def _pull(
        self, sandbox_id: str, log: _Log, agent: AgentClient, *, wait: float
    ) -> AgentLines:
        batch = await agent.logs(after=log.files.last_agent_seq, limit=BATCH, wait=wait)
        lines = [
            LogLine(line.timestamp, line.stream, line.level, line.message, line.fields, line.seq)
            for line in batch.lines
        ]
        if batch.dropped and lines:
            lost = f"{batch.dropped} lines were dropped: they came faster than they can be kept"
            lines.insert(0, LogLine(lines[0].timestamp, "system", "warn", lost, {}))
        if lines:
            await asyncio.shield(self._append(sandbox_id, log, lines))
        elif batch.next < log.files.last_agent_seq:
            log.files.last_agent_seq = batch.next
        return batch

    async def _append(self, sandbox_id: str, log: _Log, lines: list[LogLine]) -> None:
        async with log.lock:
            told = []
            if log.unwritten:
                lost = f"{log.unwritten} lines were lost: the host's disk was full"
                told = [LogLine(lines[0].timestamp, "system", "warn", lost, {})]
            try:
                await asyncio.to_thread(self._write, log.files, told + lines)
                log.unwritten = 0
            except OSError as error:
                if not log.unwritten:
                    logger.warning(
                        "log lines of a sandbox are lost: %s",
                        error,
                        extra={"sandbox_id": sandbox_id},
                    )
                log.unwritten += len(lines)
                log.files.skip(lines)

    def _write(self, files: LogFiles, lines: list[LogLine]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._free_bytes(self._folder) < self._budget.min_free:
            raise OSError(28, "less free space than the reserve for logs", str(self._folder))
        files.append(lines)
        self._reclaim()

    def _reclaim(self) -> None:
        """Drop the oldest segments, those of ended sandboxes first, down to the budget."""
        logs = list(self._logs.values())
        excess = sum(log.files.size for log in logs) - self._budget.total
        if excess <= 0:
            return
        logs.sort(key=lambda log: (log.follower is not None, log.files.written_at))
        for log in logs:
            while excess > 0 and (freed := log.files.drop_oldest()):
                excess -= freed

    def _log(self, sandbox_id: str) -> _Log:
        log = self._logs.get(sandbox_id)
        if log is None:
            log = self._logs[sandbox_id] = _Log(self._files(sandbox_id), asyncio.Lock())
        return log

    def _files(self, sandbox_id: str) -> LogFiles:
        return LogFiles(
            self._folder / sandbox_id,
            budget=self._budget.sandbox,
            segment_bytes=self._budget.segment,
        )

    def _scan(self, keep: frozenset[str]) -> dict[str, _Log]:
        found: dict[str, _Log] = {}
        if not self._folder.is_dir():
            return found
        for folder in self._folder.iterdir():
            if not folder.is_dir():
                continue
            log = _Log(self._files(folder.name), asyncio.Lock())
            if folder.name not in keep and log.files.written_at < time.time() - _ORPHAN_AGE:
                log.files.remove()
                continue
            found[folder.name] = log
        return found
