"""Steps that must not be torn by a cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def finish(step: Coroutine[Any, Any, T]) -> T:
    """Run ``step`` to its end even if we are cancelled meanwhile; the cancellation is raised
    then.
    """
    task = asyncio.ensure_future(step)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
        except Exception:  # noqa: BLE001  raised by task.result() below
            break
    if cancelled is not None:
        task.exception()
        raise cancelled
    return task.result()
