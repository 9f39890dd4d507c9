"""Blocking code in a worker thread that reads from, or writes to, the event loop piece by piece.

Neither end runs ahead of the other: there is no queue, the thread waits for each piece.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable
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


class Pipe:
    """A writable whose bytes are what :meth:`pieces` yields, to one reader. It has no buffer that
    would want flushing.
    """

    def __init__(self) -> None:
        self._next: asyncio.Queue[bytes] = asyncio.Queue(1)
        self._loop = asyncio.get_running_loop()
        self._closed = False

    def write(self, data: bytes) -> int:
        """BrokenPipeError once nobody reads."""
        _on(self._loop, self._put(data))
        return len(data)

    async def end(self) -> None:
        """Nothing more comes."""
        await self._put(b"")

    async def pieces(self) -> AsyncIterator[bytes]:
        while piece := await self._next.get():
            yield piece

    def close(self) -> None:
        """Nobody reads any more."""
        self._closed = True
        while not self._next.empty():
            self._next.get_nowait()

    async def _put(self, data: bytes) -> None:
        if self._closed:
            raise BrokenPipeError
        await self._next.put(data)


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
