"""The doors of sandboxes: while a machine is frozen, what forwards traffic must hold its requests.

Control shuts a door, the data plane's gate does the holding; without a gate nothing is held.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol


class Gate(Protocol):
    """Holds may be nested; each needs its release."""

    async def hold(self, sandbox_id: str) -> None: ...

    async def release(self, sandbox_id: str) -> None: ...


class Doors:
    def __init__(self) -> None:
        self._gate: Gate | None = None

    def attach(self, gate: Gate) -> None:
        """From now on ``gate`` is told."""
        self._gate = gate

    @asynccontextmanager
    async def shut(self, sandbox_id: str) -> AsyncIterator[None]:
        """Requests to the sandbox wait, and go on after the block wherever the route then leads."""
        gate = self._gate
        if gate is None:
            yield
            return
        await gate.hold(sandbox_id)
        try:
            yield
        finally:
            await gate.release(sandbox_id)
