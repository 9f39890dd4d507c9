"""Blocking code in a worker thread that reads from, or writes to, the event loop piece by piece.

Neither end runs ahead of the other: there is no queue, the thread waits for each piece.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")


class Pulled(io.RawIOBase):
    """A readable whose bytes come from ``pull``, which returns b"" at the end."""

    def __init__(self, pull: Callable[[], Awaitable[bytes]]) -> None:
        self._pull = pull
        self._loop = asyncio.get_running_loop()
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        if not self._rest:
            self._rest = memoryview(_on(self._loop, self._pull()))
        target = memoryview(buffer)
        size = min(len(target), len(self._rest))
        target[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


class Pushed:
    """A writable that hands its bytes to ``push``. It has no buffer that would want flushing."""

    def __init__(self, push: Callable[[bytes], Awaitable[None]]) -> None:
        self._push = push
        self._loop = asyncio.get_running_loop()

    def write(self, data: bytes) -> int:
        _on(self._loop, self._push(data))
        return len(data)


async def in_thread(work: Callable[[], T], *, abort: Callable[[], Awaitable[object]]) -> T:
    """Run ``work``; if it fails or we are cancelled, ``abort`` must make its next piece fail."""
    task = asyncio.create_task(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except BaseException:
        await abort()
        with suppress(Exception):
            await task
        raise


def _on(loop: asyncio.AbstractEventLoop, awaitable: Awaitable[T]) -> T:
    async def run() -> T:
        return await awaitable

    return asyncio.run_coroutine_threadsafe(run(), loop).result()
