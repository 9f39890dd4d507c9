"""Our stdin, stdout and stderr, joined to a process in a sandbox: bytes in, bytes out."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aenv.sdk.processes import AsyncProcess

_CHUNK = 64 << 10
_DESCRIPTORS = {"stdout": 1, "pty": 1, "stderr": 2}


class ClosedOutputError(Exception):
    """Whoever read our output went away (``| head``)."""


async def join(process: AsyncProcess, *, stdin: bool, close_stdin: bool = True) -> int:
    """Pass everything through until the process ends; its exit code.

    ``close_stdin``: the end of our stdin is the end of its stdin (a terminal has no such end).
    """
    from aenv.sdk.events import Exited, Output

    feeder = asyncio.create_task(_feed(process, close=close_stdin)) if stdin else None
    try:
        async for event in process.events():
            if isinstance(event, Output):
                await _write(_DESCRIPTORS[event.stream], event.data)
            elif isinstance(event, Exited):
                code = event.exit_code
    finally:
        if feeder is not None:
            feeder.cancel()
            await asyncio.gather(feeder, return_exceptions=True)
    return code


async def _feed(process: AsyncProcess, *, close: bool) -> None:
    from aenv.models.errors import NotFoundError

    with suppress(NotFoundError):  # it ended without reading everything
        async for data in _stdin():
            await process.send_stdin(data)
        if close:
            await process.close_stdin()


async def _stdin() -> AsyncIterator[bytes]:
    """Read by a daemon thread, one piece ahead: stdin may be a file, a pipe or a terminal, and a
    read of it cannot be cancelled.
    """
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[bytes] = asyncio.Queue(1)

    def read() -> None:
        with suppress(RuntimeError, CancelledError):  # the loop ended while we waited
            while True:
                try:
                    data = os.read(0, _CHUNK)
                except OSError:
                    data = b""
                asyncio.run_coroutine_threadsafe(pieces.put(data), loop).result()
                if not data:
                    return

    threading.Thread(target=read, name="stdin", daemon=True).start()
    while data := await pieces.get():
        yield data


async def _write(descriptor: int, data: bytes) -> None:
    try:
        await asyncio.to_thread(_write_all, descriptor, data)
    except BrokenPipeError as error:
        raise ClosedOutputError from error


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
