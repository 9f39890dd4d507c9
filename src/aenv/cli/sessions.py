"""From the command line to the SDK: which server, which sandbox."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from aenv.cli.apps import common
from aenv.models.errors import InvalidRequestError, SandboxNotFoundError
from aenv.models.ids import is_sandbox_id

if TYPE_CHECKING:
    from aenv.sdk.client import Client
    from aenv.sdk.sandboxes import AsyncSandbox

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end. SIGTERM and SIGHUP cancel like Ctrl-C does, so that clean-up runs."""

    async def guarded() -> T:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, _cancel, task, number)
        return await work

    _ended_by.clear()
    try:
        return asyncio.run(guarded())
    except asyncio.CancelledError:
        raise SystemExit(128 + _ended_by[0] if _ended_by else 1) from None


_ended_by: list[int] = []


def _cancel(task: asyncio.Task[Any], number: int) -> None:
    _ended_by.append(number)
    task.cancel()


@asynccontextmanager
async def client() -> AsyncIterator[Client]:
    """The server the options name, else the local one."""
    from aenv.sdk import servers

    found = await servers.connect(**common.server)
    try:
        yield found
    finally:
        await found.aclose()


@asynccontextmanager
async def sandbox(reference: str) -> AsyncIterator[AsyncSandbox]:
    """The sandbox of an id, or of an id's unambiguous beginning."""
    from aenv.sdk import AsyncSandbox

    found = await AsyncSandbox.attach(await full_id(reference), **common.server)
    try:
        yield found
    finally:
        await found.close()


async def full_id(reference: str) -> str:
    if is_sandbox_id(reference):
        return reference
    if not reference.isalnum():
        raise InvalidRequestError(f"{reference!r} is no sandbox id; aenv ls shows the ids")
    from aenv.sdk import AsyncSandbox

    ids = [info.id for info in await AsyncSandbox.list(**common.server)]
    matches = [found for found in ids if found.startswith(reference)]
    if len(matches) > 1:
        raise InvalidRequestError(
            f"{reference!r} is the beginning of {len(matches)} sandbox ids: write more of the one"
        )
    if not matches:
        raise SandboxNotFoundError(f"there is no sandbox {reference!r}; aenv ls shows what runs")
    return matches[0]
