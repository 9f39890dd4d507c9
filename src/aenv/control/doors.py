"""The doors of sandboxes: while a machine is frozen, what forwards traffic must hold its requests.

Control shuts a door, the data plane's gate does the holding; without a gate nothing is held.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol

Open = Callable[[], Awaitable[None]]


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
    async def shut(self, sandbox_id: str) -> AsyncIterator[Open]:
        """Requests to the sandbox wait, and go on wherever the route then leads: after the block,
        or from when what is yielded is called.
        """
        async with AsyncExitStack() as opening:
            if (gate := self._gate) is not None:
                await gate.hold(sandbox_id)
                opening.push_async_callback(gate.release, sandbox_id)
            yield opening.aclose
