"""This terminal, lent to a process in a sandbox and given back as it was."""

from __future__ import annotations

import asyncio
import os
import signal
import termios
import tty
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING

from aenv.cli import streams

if TYPE_CHECKING:
    from aenv.sdk.processes import AsyncProcess

_FALLBACK = (80, 24)


def size() -> tuple[int, int]:
    """Columns and rows."""
    for descriptor in (1, 0, 2):
        with suppress(OSError):
            found = os.get_terminal_size(descriptor)
            if found.columns and found.lines:
                return found.columns, found.lines
    return _FALLBACK


async def join(process: AsyncProcess) -> int:
    """Keys go there raw (Ctrl-C too), output comes here, resizes follow; its exit code."""
    with _raw(0):
        async with _resizing(process):
            return await streams.join(process, stdin=True, close_stdin=False)


@contextmanager
def _raw(descriptor: int) -> Iterator[None]:
    before = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor, termios.TCSADRAIN)  # what was typed ahead is for the guest
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@asynccontextmanager
async def _resizing(process: AsyncProcess) -> AsyncIterator[None]:
    """Tell the newest size only, however many changes come at once."""
    changed = asyncio.Event()
    changed.set()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGWINCH, changed.set)
    follower = asyncio.create_task(_follow(process, changed))
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
        follower.cancel()
        await asyncio.gather(follower, return_exceptions=True)


async def _follow(process: AsyncProcess, changed: asyncio.Event) -> None:
    from aenv.models.errors import AenvError

    while True:
        await changed.wait()
        changed.clear()
        with suppress(AenvError):  # it has just ended, or the next resize comes through
            await process.resize(*size())
