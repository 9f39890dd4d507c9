"""The event loop behind the sync face: one daemon thread per process, started on first use."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator
from typing import Any, TypeVar

from aenv.models.errors import InvalidRequestError
from aenv.sdk.events import OutputCallback

T = TypeVar("T")

_CLEAN_UP = 5.0
_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run on the loop thread and wait. When interrupted (Ctrl-C) the work is cancelled, and has
    cleaned up before the caller goes on.
    """
    if threading.current_thread() is _thread:
        work.close()
        raise InvalidRequestError("the sync SDK was called from its own event loop; use Async…")
    ended = threading.Event()

    async def followed() -> T:
        try:
            return await work
        finally:
            ended.set()

    future = asyncio.run_coroutine_threadsafe(followed(), _running_loop())
    try:
        return future.result()
    except BaseException:
        if future.cancel():
            ended.wait(_CLEAN_UP)
        raise


def iterate(source: AsyncGenerator[T, None]) -> Generator[T, None, None]:
    """Pull an async iterator item by item; closing the iterator closes the source."""
    try:
        while True:
            found = run(_next(source))
            if found is None:
                return
            yield found[0]
    finally:
        run(_close(source))


def threaded(callback: OutputCallback | None) -> OutputCallback | None:
    """A callback that may block and may use the sync SDK: it runs in a worker thread, in order."""
    if callback is None:
        return None

    async def call(text: str) -> None:
        answer = await asyncio.to_thread(callback, text)
        if inspect.isawaitable(answer):
            await answer

    return call


async def _close(source: AsyncGenerator[T, None]) -> None:
    await source.aclose()


async def _next(source: AsyncGenerator[T, None]) -> tuple[T] | None:
    """None at the end: a future cannot carry StopAsyncIteration."""
    try:
        return (await anext(source),)
    except StopAsyncIteration:
        return None


def _running_loop() -> asyncio.AbstractEventLoop:
    global _loop, _thread
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            _thread = threading.Thread(target=_loop.run_forever, name="aenv", daemon=True)
            _thread.start()
        return _loop


def _forget() -> None:
    """A forked child has no loop thread; it starts its own."""
    global _loop, _thread, _lock
    _loop, _thread, _lock = None, None, threading.Lock()


os.register_at_fork(after_in_child=_forget)
