"""Callers that may hang up before they have their answer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request

from aenv.models.errors import CallerError

T = TypeVar("T")


class HungUpError(CallerError):
    """Answers nobody; it is what the log and the counters say."""

    code = "hung_up"
    status = 499


async def unless_hung_up(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The outcome of ``work``, which is cancelled when the client closes its connection. The body
    must have been read.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.create_task(_left(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise HungUpError("the caller hung up before the answer")
        return await working
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
