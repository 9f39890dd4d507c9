"""Running commands in a sandbox: the part of :class:`AsyncSandbox` that speaks to the agent."""

from __future__ import annotations

import builtins
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from aenv.sdk import commands, processes
from aenv.sdk.client import Agent
from aenv.sdk.events import OutputCallback, ProcessEvent
from aenv.sdk.launches import LOGIN_SHELL, Command, Launch
from aenv.sdk.outputs import Listeners
from aenv.sdk.processes import AsyncProcess
from aenv.sdk.results import CommandResult, ProcessInfo


class Commands:
    """Run and collect, stream, leave in the background, or on a terminal."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    async def exec(
        self,
        command: Command,
        *,
        user: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        stdin: str | bytes | None = None,
        on_stdout: OutputCallback | None = None,
        on_stderr: OutputCallback | None = None,
        check: bool = False,
    ) -> CommandResult:
        """Run a command and wait for it. A string goes to ``bash -l -c``, a sequence runs as it is.

        CommandTimeoutError when it runs past ``timeout`` seconds (it is killed and its output
        is in the error); with ``check`` CommandFailedError for a status other than 0.
        Cancelling kills it.
        """
        launch = Launch(command, user, cwd, env, timeout, stdin=stdin is not None)
        return await commands.execute(
            self._agent,
            launch,
            stdin=stdin.encode() if isinstance(stdin, str) else stdin,
            listeners=Listeners(on_stdout, on_stderr),
            check=check,
        )

    async def stream(
        self,
        command: Command,
        *,
        user: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        stdin: str | bytes | None = None,
    ) -> AsyncGenerator[ProcessEvent, None]:
        """Run a command and yield ``Started``, ``Output``…, ``Exited``. Leaving early kills it."""
        launch = Launch(command, user, cwd, env, timeout, stdin=stdin is not None)
        raw = stdin.encode() if isinstance(stdin, str) else stdin
        async with aclosing(commands.stream(self._agent, launch, stdin=raw)) as events:
            async for event in events:
                yield event

    async def spawn(
        self,
        command: Command,
        *,
        user: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        stdin: bool = False,
        on_stdout: OutputCallback | None = None,
        on_stderr: OutputCallback | None = None,
    ) -> AsyncProcess:
        """Start a command in the background. ``stdin``: keep it open for ``send_stdin``."""
        launch = Launch(command, user, cwd, env, timeout, stdin=stdin)
        process = await processes.start(self._agent, launch)
        return processes.in_background(process, on_stdout, on_stderr)

    async def open(
        self,
        command: Command,
        *,
        user: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        stdin: bool = False,
    ) -> AsyncProcess:
        """Start a command whose output you read from ``events()``; a slow reader slows it.

        ``stdin``: keep it open for ``send_stdin``.
        """
        launch = Launch(command, user, cwd, env, timeout, stdin=stdin)
        return await processes.start(self._agent, launch)

    async def pty(
        self,
        command: Command = LOGIN_SHELL,
        *,
        cols: int = 80,
        rows: int = 24,
        user: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> AsyncProcess:
        """Start a command on a terminal. Iterate ``events()`` for its output."""
        variables = {
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
            "LC_ALL": "C.UTF-8",
            **(env or {}),
        }
        launch = Launch(command, user, cwd, variables, timeout, stdin=True, size=(cols, rows))
        return await processes.start(self._agent, launch)

    async def processes(self) -> builtins.list[ProcessInfo]:
        """What was started through the API and still runs."""
        reply = await self._agent.rpc("process.Process/List", {})
        return [ProcessInfo.from_wire(entry) for entry in reply.get("processes", ())]

    async def process(self, pid: int) -> AsyncProcess:
        """A foreground handle on a running process, or on one that ended a moment ago."""
        return await processes.attach(self._agent, pid)
