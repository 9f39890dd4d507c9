"""What can be seen of sandboxes: metrics and logs, bounded."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from aenv.control.deadlines import deadline
from aenv.control.keys import Caller
from aenv.control.sandboxes import Sandboxes
from aenv.models.errors import AenvError, InvalidRequestError, SandboxNotFoundError
from aenv.models.sandboxes import LogEntry, SandboxMetrics
from aenv.node.port import Node

TIMEOUT = 20.0
MAX_IDS = 100
MAX_LINES = 1000
MAX_PAGES = 200
LEVELS = ("debug", "info", "warn", "error")


@dataclass(frozen=True, slots=True)
class LogRequest:
    """``cursor``: milliseconds since the epoch, where to begin (going backward: where to end).
    ``after``: our own exact cursor, the ``seq`` of the last entry seen; it beats ``cursor``.
    """

    cursor: int | None = None
    after: int | None = None
    limit: int = MAX_LINES
    backward: bool = False
    level: str | None = None
    search: str | None = None


class Observations:
    def __init__(self, sandboxes: Sandboxes, node: Node) -> None:
        self._sandboxes = sandboxes
        self._node = node

    async def metrics(
        self, caller: Caller, sandbox_id: str, start: float | None, end: float | None
    ) -> list[SandboxMetrics]:
        await self._sandboxes.get(caller, sandbox_id)
        if start is not None and end is not None and start > end:
            raise InvalidRequestError("start: it is later than end")
        async with deadline(TIMEOUT, "reading metrics"):
            return await self._node.metrics(sandbox_id, start=start, end=end)

    async def latest(self, caller: Caller, ids: list[str]) -> dict[str, SandboxMetrics]:
        """The newest sample of each; ids that are not known (any more) are left out."""
        if not 1 <= len(ids) <= MAX_IDS:
            raise InvalidRequestError(f"sandbox_ids: 1 to {MAX_IDS} ids, not {len(ids)}")

        async def newest(sandbox_id: str) -> SandboxMetrics | None:
            try:
                samples = await self.metrics(caller, sandbox_id, None, None)
            except (SandboxNotFoundError, AenvError):
                return None
            return samples[-1] if samples else None

        found = await asyncio.gather(*(newest(sandbox_id) for sandbox_id in ids))
        return {name: sample for name, sample in zip(ids, found, strict=True) if sample}

    async def logs(self, caller: Caller, sandbox_id: str, request: LogRequest) -> list[LogEntry]:
        """Also of sandboxes that have ended, until they are forgotten."""
        if not 0 <= request.limit <= MAX_LINES:
            raise InvalidRequestError(f"limit: 0 to {MAX_LINES}, not {request.limit}")
        if request.level is not None and request.level not in LEVELS:
            raise InvalidRequestError(f"level: one of {', '.join(LEVELS)}")
        await self._sandboxes.find(caller, sandbox_id)
        if request.limit == 0:
            return []
        async with deadline(TIMEOUT, "reading logs"):
            if request.backward and request.cursor is not None and request.after is None:
                return await self._before(sandbox_id, request, request.cursor / 1000)
            return await self._page(sandbox_id, request, request.after or 0)

    async def _page(self, sandbox_id: str, request: LogRequest, after: int) -> list[LogEntry]:
        forward_from = request.cursor if request.after is None and not request.backward else None
        return await self._node.logs(
            sandbox_id,
            after=after,
            limit=request.limit,
            descending=request.backward,
            level=request.level,
            search=request.search,
            start=None if forward_from is None else forward_from / 1000,
        )

    async def _before(self, sandbox_id: str, request: LogRequest, until: float) -> list[LogEntry]:
        """The newest entries not later than ``until``; a node only knows where to begin."""
        found: list[LogEntry] = []
        after = 0
        for _ in range(MAX_PAGES):
            page = await self._page(sandbox_id, request, after)
            found.extend(entry for entry in page if entry.timestamp <= until)
            if len(found) >= request.limit or len(page) < request.limit:
                break
            after = page[-1].seq
        return found[: request.limit]
