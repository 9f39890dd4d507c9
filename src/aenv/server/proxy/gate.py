"""The gate in front of each sandbox: while it is held (a checkpoint runs), new requests and new
connections wait, few and not for long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

DRAIN = 0.5
"""Seconds a hold waits for connections that are just being made."""


class GateFullError(Exception):
    """Too many requests wait already, or one has waited too long."""


@dataclass(slots=True)
class _Passing:
    count: int = 0
    none: asyncio.Event = field(default_factory=asyncio.Event)


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
        self._passing: dict[str, _Passing] = {}

    def __contains__(self, sandbox_id: str) -> bool:
        return sandbox_id in self._holds

    async def hold(self, sandbox_id: str) -> None:
        """From now on new requests wait; each hold needs its release (``try … finally``).

        Returns once the connections that were being made are made.
        """
        found = self._holds.get(sandbox_id)
        if found is None:
            self._holds[sandbox_id] = _Hold()
        else:
            found.depth += 1
        passing = self._passing.get(sandbox_id)
        if passing is None:
            return
        try:
            async with asyncio.timeout(DRAIN):
                await passing.none.wait()
        except TimeoutError:
            return
        except asyncio.CancelledError:
            await self.release(sandbox_id)
            raise

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

    @asynccontextmanager
    async def passing(self, sandbox_id: str) -> AsyncIterator[None]:
        """Around the making of a connection: it waits for holds, and holds for it."""
        await self.passage(sandbox_id)
        found = self._passing.setdefault(sandbox_id, _Passing())
        found.count += 1
        try:
            yield
        finally:
            found.count -= 1
            if not found.count:
                del self._passing[sandbox_id]
                found.none.set()

    async def _wait(self, found: _Hold) -> None:
        if found.waiting >= self._max_waiting:
            raise GateFullError("too many requests wait")
        found.waiting += 1
        try:
            await found.released.wait()
        finally:
            found.waiting -= 1
