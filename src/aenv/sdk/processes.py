"""A process in a sandbox as its starter holds it.

A foreground handle is read by whoever iterates ``events()``: a slow reader slows the process,
nothing is dropped. A background handle is read by a task of ours, keeps the newest output, and
never makes the process wait.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import Any

from aenv.models.errors import (
    AenvError,
    CommandTimeoutError,
    InfrastructureError,
    InvalidRequestError,
    NotFoundError,
)
from aenv.sdk import codecs
from aenv.sdk.client import Agent
from aenv.sdk.events import Exited, Output, OutputCallback, ProcessEvent, Started, exited
from aenv.sdk.launches import Launch, SignalName
from aenv.sdk.outputs import Listeners, Tail
from aenv.sdk.results import CommandResult

STDIN_CHUNK = 256 << 10


class AsyncProcess:
    """It outlives this handle; only :meth:`kill`, its timeout or the sandbox's end stop it."""

    def __init__(
        self,
        agent: Agent,
        replies: AsyncGenerator[dict[str, Any], None],
        pid: int,
        launch: Launch,
    ) -> None:
        self._agent = agent
        self._replies = replies
        self._pid = pid
        self._launch = launch
        self._began = time.monotonic()
        self._kept = Tail()
        self._reader: asyncio.Task[Exited] | None = None

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def stdout(self) -> str:
        """What a background process wrote so far (the newest 8 MiB)."""
        return self._kept.stdout.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        return self._kept.stderr.decode("utf-8", "replace")

    async def events(self) -> AsyncGenerator[ProcessEvent, None]:
        """Output as it comes, then one ``Exited``."""
        if self._reader is not None:
            raise InvalidRequestError(
                "a background process is read already; use .stdout, on_stdout, or stream()"
            )
        with _deadline_named(self._launch):
            async with aclosing(_events(self._replies)) as events:
                async for event in events:
                    yield event

    async def wait(self, timeout: float | None = None) -> CommandResult:
        """Wait for the end. ``timeout`` ends only the waiting: the process runs on."""
        reader = self._reader or self._read_in_background(Listeners())
        try:
            async with asyncio.timeout(timeout):
                end = await asyncio.shield(reader)
        except TimeoutError:
            raise CommandTimeoutError(
                f"process {self._pid} still runs after {timeout} s of waiting"
            ) from None
        return CommandResult(
            stdout_bytes=self._kept.stdout,
            stderr_bytes=self._kept.stderr,
            exit_code=end.exit_code,
            duration=time.monotonic() - self._began,
            error=end.error,
            truncated=self._kept.truncated,
        )

    async def send_stdin(self, data: str | bytes) -> None:
        """Write to its stdin or terminal. NotFoundError when it has ended."""
        raw = data.encode() if isinstance(data, str) else data
        name = "pty" if self._launch.size else "stdin"
        for start in range(0, len(raw), STDIN_CHUNK):
            piece = base64.b64encode(raw[start : start + STDIN_CHUNK]).decode()
            await self._call("SendInput", input={name: piece})

    async def close_stdin(self) -> None:
        await self._call("CloseStdin")

    async def resize(self, cols: int, rows: int) -> None:
        await self._call("Update", pty={"size": {"cols": cols, "rows": rows}})

    async def kill(self, signal: SignalName = "KILL") -> bool:
        """Signal it and its children; False when it had ended already."""
        try:
            await self._call("SendSignal", signal=f"SIGNAL_SIG{signal}")
        except NotFoundError:
            return False
        return True

    async def disconnect(self) -> None:
        """Stop reading; the process runs on."""
        if self._reader is not None:
            self._reader.cancel()
            with suppress(asyncio.CancelledError, AenvError):
                await self._reader
        await self._replies.aclose()

    def _read_in_background(self, listeners: Listeners) -> asyncio.Task[Exited]:
        self._reader = asyncio.create_task(self._read(listeners))
        self._reader.add_done_callback(_retrieve)
        return self._reader

    async def _read(self, listeners: Listeners) -> Exited:
        end: Exited | None = None
        with _deadline_named(self._launch):
            async with aclosing(_events(self._replies)) as events:
                async for event in events:
                    if isinstance(event, Output):
                        self._kept.add(event)
                        await listeners.hear(event)
                    elif isinstance(event, Exited):
                        end = event
        await listeners.finish()
        assert end is not None
        return end

    async def _call(self, method: str, **fields: Any) -> None:
        message = {"process": {"pid": self._pid}, **fields}
        await self._agent.rpc(f"process.Process/{method}", message)


async def start(agent: Agent, launch: Launch) -> AsyncProcess:
    """A foreground handle. InvalidRequestError for an unknown user, folder or program."""
    replies = agent.stream(
        "process.Process/Start",
        launch.message(),
        user=launch.user,
        timeout=launch.timeout,
        quiet=launch.quiet,
        codec=codecs.START,
    )
    return AsyncProcess(agent, replies, await _first(replies, launch), launch)


async def attach(agent: Agent, pid: int) -> AsyncProcess:
    """A foreground handle on a running process, or one that ended within the last half minute."""
    launch = Launch(command=f"process {pid}")
    replies = agent.stream(
        "process.Process/Connect", {"process": {"pid": pid}}, codec=codecs.CONNECT
    )
    return AsyncProcess(agent, replies, await _first(replies, launch), launch)


async def feed(agent: Agent, pid: int, pieces: AsyncIterator[bytes]) -> None:
    """Write all pieces to a process's stdin in one request, as fast as it reads them; stdin stays
    open. NotFoundError when it has ended.
    """

    async def messages() -> AsyncIterator[dict[str, Any]]:
        yield {"start": {"process": {"pid": pid}}}
        async for piece in pieces:
            yield {"data": {"input": {"stdin": piece}}}

    await agent.send("process.Process/StreamInput", messages(), codecs.STREAM_INPUT)


def in_background(
    process: AsyncProcess,
    on_stdout: OutputCallback | None = None,
    on_stderr: OutputCallback | None = None,
) -> AsyncProcess:
    process._read_in_background(Listeners(on_stdout, on_stderr))
    return process


async def _first(replies: AsyncGenerator[dict[str, Any], None], launch: Launch) -> int:
    try:
        with _deadline_named(launch):
            async for reply in replies:
                event = _event(reply)
                if isinstance(event, Started):
                    return event.pid
                if event is not None:
                    break
        raise InfrastructureError(f"the agent did not say that {launch} started")
    except BaseException:
        await replies.aclose()
        raise


async def _events(
    replies: AsyncGenerator[dict[str, Any], None],
) -> AsyncGenerator[Output | Exited, None]:
    """Read to the very end of the stream, so that its connection can be used again."""
    ended = False
    try:
        async for reply in replies:
            event = _event(reply)
            if ended or event is None or isinstance(event, Started):
                continue
            ended = isinstance(event, Exited)
            yield event
    except AenvError:
        if not ended:
            raise
    if not ended:
        raise InfrastructureError("the agent ended a process's stream without its exit")


def _event(reply: dict[str, Any]) -> ProcessEvent | None:
    """None for a keepalive and for what a newer agent may add."""
    event = reply.get("event") or {}
    if "start" in event:
        return Started(int(event["start"].get("pid", 0)))
    if "end" in event:
        return exited(event["end"])
    data = event.get("data") or {}
    for name in ("stdout", "stderr", "pty"):
        if name in data:
            return Output(name, data[name])
    return None


@contextmanager
def _deadline_named(launch: Launch) -> Iterator[None]:
    try:
        yield
    except CommandTimeoutError as error:
        if launch.timeout is None:
            raise
        raise CommandTimeoutError(
            f"`{launch}` ran past its timeout of {launch.timeout:g} s and was killed"
        ) from error


def _retrieve(task: asyncio.Task[Exited]) -> None:
    """Mark the outcome as seen: nobody has to wait for a background process."""
    if not task.cancelled():
        task.exception()
