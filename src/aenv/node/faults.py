"""Named points at which a test makes this process fail: off, and next to free, unless armed.

A point is named after the operation and what has just been done (``pause.frozen``). What a test
arms may raise, wait, or kill a process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

Fault = Callable[[str], Awaitable[None]]

_armed: dict[str, Fault] = {}


async def reach(point: str) -> None:
    """Called by the code under test: ``point`` has been reached."""
    if _armed and (fault := _armed.get(point)):
        await fault(point)


@contextmanager
def armed(point: str, fault: Fault) -> Iterator[None]:
    """Run ``fault`` whenever ``point`` is reached, for as long as the block lasts."""
    _armed[point] = fault
    try:
        yield
    finally:
        del _armed[point]
