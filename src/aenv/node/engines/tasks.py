"""Steps that a cancellation must not tear, and the failure that speaks for a group."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from aenv.models.errors import AenvError

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


def first_failure(group: ExceptionGroup) -> BaseException:
    """The failure of ours that a task group wraps, if there is one; else any."""
    found = group.subgroup(AenvError) or group
    error: BaseException = found
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
