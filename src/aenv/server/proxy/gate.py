"""The gate in front of each sandbox: while it is held (a checkpoint runs), new requests wait, few
and not for long."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field


class GateFullError(Exception):
    """Too many requests wait already, or one has waited too long."""


@dataclass(slots=True)
class _Hold:
    depth: int = 1
    waiting: int = 0
    released: asyncio.Event = field(default_factory=asyncio.Event)


class Gate:
    """Holds may be nested; requests in flight are not touched, those that come later are parked."""

    def __init__(self, *, max_waiting: int, timeout: float) -> None:
        self._max_waiting = max_waiting
        self._timeout = timeout
        self._holds: dict[str, _Hold] = {}

    def __contains__(self, sandbox_id: str) -> bool:
        return sandbox_id in self._holds

    async def hold(self, sandbox_id: str) -> None:
        """From now on new requests wait; each hold needs its release (``try … finally``)."""
        found = self._holds.get(sandbox_id)
        if found is None:
            self._holds[sandbox_id] = _Hold()
        else:
            found.depth += 1

    async def release(self, sandbox_id: str) -> None:
        """Let the waiting requests go on, once the last hold is released. Without a hold nothing
        happens."""
        found = self._holds.get(sandbox_id)
        if found is None:
            return
        found.depth -= 1
        if not found.depth:
            del self._holds[sandbox_id]
            found.released.set()

    async def passage(self, sandbox_id: str) -> None:
        """Return as soon as the sandbox is not held. Raises GateFullError."""
        try:
            async with asyncio.timeout(self._timeout):
                while (found := self._holds.get(sandbox_id)) is not None:
                    await self._wait(found)
        except TimeoutError:
            raise GateFullError("waited too long") from None

    async def _wait(self, found: _Hold) -> None:
        if found.waiting >= self._max_waiting:
            raise GateFullError("too many requests wait")
        found.waiting += 1
        try:
            await found.released.wait()
        finally:
            found.waiting -= 1
