"""Foreground commands: run and collect, or stream. Leaving early (error, cancellation, break) kills
the command.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from aenv.models.errors import AenvError, CommandError, CommandFailedError, NotFoundError
from aenv.sdk import processes
from aenv.sdk.client import Agent
from aenv.sdk.events import Exited, Output, ProcessEvent, Started
from aenv.sdk.launches import Launch
from aenv.sdk.outputs import Collected, Listeners
from aenv.sdk.processes import AsyncProcess
from aenv.sdk.results import CommandResult

_KILL_TIMEOUT = 5.0


async def execute(
    agent: Agent,
    launch: Launch,
    *,
    stdin: bytes | None = None,
    listeners: Listeners,
    check: bool = False,
) -> CommandResult:
    """Run to the end and collect. CommandTimeoutError carries the output until then."""
    began = time.monotonic()
    collected = Collected()
    end: Exited | None = None
    try:
        async with aclosing(stream(agent, launch, stdin=stdin)) as events:
            async for event in events:
                if isinstance(event, Output):
                    collected.add(event)
                    await listeners.hear(event)
                elif isinstance(event, Exited):
                    end = event
    except CommandError as error:
        error.stdout, error.stderr = collected.stdout, collected.stderr
        raise
    await listeners.finish()
    assert end is not None
    result = CommandResult(
        stdout_bytes=collected.stdout,
        stderr_bytes=collected.stderr,
        exit_code=end.exit_code,
        duration=time.monotonic() - began,
        error=end.error,
    )
    if check and not result.ok:
        raise _failed(launch, result)
    return result


async def stream(
    agent: Agent, launch: Launch, *, stdin: bytes | None = None
) -> AsyncGenerator[ProcessEvent, None]:
    """``Started``, ``Output``…, ``Exited``."""
    process = await processes.start(agent, launch)
    ended = False
    feeder = asyncio.create_task(_feed(process, stdin)) if stdin is not None else None
    try:
        yield Started(process.pid)
        async with aclosing(process.events()) as events:
            async for event in events:
                ended = isinstance(event, Exited)
                yield event
    finally:
        if feeder is not None:
            feeder.cancel()
            await asyncio.gather(feeder, return_exceptions=True)
        if not ended:
            await _stop(process)


async def _feed(process: AsyncProcess, stdin: bytes) -> None:
    """Concurrently with reading: a command may answer before it has read everything, or end without
    reading.
    """
    with suppress(NotFoundError):
        await process.send_stdin(stdin)
        await process.close_stdin()


async def _stop(process: AsyncProcess) -> None:
    """Kill and let go, even while being cancelled; the failure that led here matters more than
    ours.
    """
    with suppress(AenvError, TimeoutError):
        await asyncio.shield(asyncio.wait_for(process.kill(), _KILL_TIMEOUT))
    with suppress(AenvError):
        await process.disconnect()


def _failed(launch: Launch, result: CommandResult) -> CommandFailedError:
    tail = result.stderr.strip().splitlines()[-1:] or [result.error or ""]
    error = CommandFailedError(f"`{launch}` ended with status {result.exit_code}: {tail[0]}")
    error.stdout, error.stderr = result.stdout_bytes, result.stderr_bytes
    error.exit_code = result.exit_code
    return error
