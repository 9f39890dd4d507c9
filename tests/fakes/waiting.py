"""Wait for what other tasks bring about, with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def until(condition: Callable[[], object], *, timeout: float = 10) -> None:
    """Return once ``condition()`` is true; TimeoutError otherwise."""
    async with asyncio.timeout(timeout):
        while not condition():  # noqa: ASYNC110  what is waited for has no event
            await asyncio.sleep(0.001)


async def until_equal(
    observe: Callable[[], Awaitable[T]], expected: T, *, timeout: float = 10
) -> None:
    """Return once ``await observe()`` is ``expected``; else AssertionError."""
    seen = await observe()
    try:
        async with asyncio.timeout(timeout):
            while seen != expected:
                await asyncio.sleep(0.002)
                seen = await observe()
    except TimeoutError:
        raise AssertionError(f"{seen!r} never became {expected!r}") from None
