"""The host's client of one guest agent: readiness, /init, logs, metrics, the template's commands.

The protocol is that of ``agent/README.md`` and envd.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aenv.models.errors import AgentUnreachableError
from aenv.node.agentwire import (
    MAX_ANSWER,
    MAX_LINES,
    AgentInit,
    AgentLines,
    AgentMetrics,
    CommandResult,
    envelope,
    exit_code_of,
    expect,
    output_of,
    process_events,
    read_failures,
    read_lines,
    read_metrics,
)
from aenv.node.engine import Address
from aenv.node.http1 import Connection, Reply
from aenv.node.workbench import GuestCommand

CONNECT_TIMEOUT = 2.0
REPLY_TIMEOUT = 10.0
# A SYN lost while the guest's network comes up is resent by the kernel after a second: redial.
_PROBE_CONNECT_TIMEOUT = 0.1
_FIRST_BACKOFF = 0.0005
_LAST_BACKOFF = 0.005
_MAX_OUTPUT = 64 * 1024


class AgentClient:
    """Speaks to one agent at a fixed address. Raises AgentUnreachableError, whatever went wrong."""

    def __init__(self, address: Address, *, host_secret: str, access_token: str) -> None:
        self.address = address
        self._host_headers = {"x-aenv-host-secret": host_secret}
        self._access_token = access_token

    @property
    def access_token(self) -> str:
        return self._access_token

    @property
    def host_secret(self) -> str:
        return self._host_headers["x-aenv-host-secret"]

    async def initialise(self, init: AgentInit, *, timeout: float) -> tuple[str, ...]:
        """Wait until the agent answers, then ``POST /init``, over one connection. Returns what the
        guest could not do after a restore: failing hooks, for example.
        """
        try:
            async with asyncio.timeout(timeout):
                async with await self._ready_connection() as connection:
                    reply = await self._post_init(connection, init)
        except TimeoutError:
            raise self._silent(timeout) from None
        except OSError as error:
            raise self._unreachable("/init", error) from error
        return read_failures(reply)

    async def ready(self, *, timeout: float) -> None:
        """Return as soon as the agent answers."""
        try:
            async with asyncio.timeout(timeout):
                (await self._ready_connection()).close()
        except TimeoutError:
            raise self._silent(timeout) from None

    async def init(self, init: AgentInit) -> tuple[str, ...]:
        """``POST /init`` to an agent that answers; returns as :meth:`initialise` does."""
        async with self._connection("/init", REPLY_TIMEOUT) as connection:
            return read_failures(await self._post_init(connection, init))

    async def sync(self, *, timeout: float) -> None:
        """Have the guest write its dirty files."""
        async with self._connection("/aenv/sync", timeout) as connection:
            reply = await connection.request("POST", "/aenv/sync", headers=self._host_headers)
        expect(reply, 204, "/aenv/sync")

    async def health(self, *, timeout: float = 2.0) -> None:
        """Return if the agent answers."""
        async with self._connection("/health", timeout) as connection:
            reply = await connection.request("GET", "/health", headers={}, limit=MAX_ANSWER)
        expect(reply, 204, "/health")

    async def metrics(self, *, timeout: float = 2.0) -> AgentMetrics:
        async with self._connection("/metrics", timeout) as connection:
            headers = {"x-access-token": self._access_token}
            reply = await connection.request("GET", "/metrics", headers=headers, limit=MAX_ANSWER)
        return read_metrics(reply)

    async def logs(self, *, after: int, limit: int, wait: float) -> AgentLines:
        """Entries with ``seq > after``; waits up to ``wait`` seconds for the first."""
        path = f"/aenv/logs?after={after}&limit={limit}&wait={wait:g}"
        async with self._connection("/aenv/logs", wait + REPLY_TIMEOUT) as connection:
            reply = await connection.request(
                "GET", path, headers=self._host_headers, limit=MAX_LINES
            )
        return read_lines(reply, after=after, limit=limit)

    async def spawn(
        self, command: str | tuple[str, ...], *, user: str, cwd: str | None = None
    ) -> None:
        """Start ``bash -l -c command``, or the words of a program, and leave it running."""
        async with self._process(command, user, cwd, timeout=REPLY_TIMEOUT) as events:
            async for event in events:
                if "start" in event:
                    return
        raise AgentUnreachableError("the guest agent did not start the template's command")

    async def run(
        self, command: str, *, user: str, cwd: str | None = None, timeout: float
    ) -> CommandResult:
        """Run ``bash -l -c command`` to its end; the output is cut at 64 KiB."""
        output = bytearray()
        async with self._process(command, user, cwd, timeout=timeout) as events:
            async for event in events:
                output += output_of(event)[: max(0, _MAX_OUTPUT - len(output))]
                if (code := exit_code_of(event)) is not None:
                    return CommandResult(code, output.decode(errors="replace"))
        raise AgentUnreachableError("the guest agent lost a command")

    async def _ready_connection(self) -> Connection:
        backoff = _FIRST_BACKOFF
        while True:
            try:
                connection = await Connection.open(self.address, timeout=_PROBE_CONNECT_TIMEOUT)
            except OSError:
                await asyncio.sleep(backoff)
                backoff = min(backoff * 1.5, _LAST_BACKOFF)
                continue
            try:
                reply = await connection.request("GET", "/health", headers={}, limit=MAX_ANSWER)
                if reply.status == 204:
                    return connection
            except OSError:
                pass
            except BaseException:
                connection.close()
                raise
            connection.close()
            await asyncio.sleep(_LAST_BACKOFF)

    async def _post_init(self, connection: Connection, init: AgentInit) -> Reply:
        headers = {"content-type": "application/json", **self._host_headers}
        return await connection.request(
            "POST", "/init", headers=headers, body=init.body(), limit=MAX_ANSWER
        )

    @asynccontextmanager
    async def _connection(self, what: str, timeout: float) -> AsyncIterator[Connection]:
        try:
            async with asyncio.timeout(timeout):
                connect = min(timeout, CONNECT_TIMEOUT)
                async with await Connection.open(self.address, timeout=connect) as connection:
                    yield connection
        except TimeoutError as error:
            raise self._unreachable(what, error) from error
        except OSError as error:
            raise self._unreachable(what, error) from error

    @asynccontextmanager
    async def _process(
        self, command: str | tuple[str, ...], user: str, cwd: str | None, *, timeout: float
    ) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        name, *args = GuestCommand(command, user).argv
        process: dict[str, Any] = {"cmd": name, "args": args}
        if cwd:
            process["cwd"] = cwd
        message = json.dumps({"process": process, "stdin": False}).encode()
        headers = {
            "content-type": "application/connect+json",
            "connect-protocol-version": "1",
            "x-access-token": self._access_token,
            "authorization": "Basic " + b64encode(f"{user}:".encode()).decode(),
        }
        async with self._connection("process.Process/Start", timeout) as connection:
            parsed = await connection.begin(
                "POST", "/process.Process/Start", headers=headers, body=envelope(message)
            )
            if parsed.status != 200:
                raise AgentUnreachableError(
                    f"the guest agent refused a command: HTTP {parsed.status}"
                )
            yield process_events(connection.chunks(parsed))

    def _silent(self, timeout: float) -> AgentUnreachableError:
        return AgentUnreachableError(
            f"the guest agent at {_name(self.address)} did not answer within {timeout:g} s; "
            "the host may be overloaded, or the template's root file system broken"
        )

    def _unreachable(self, what: str, error: OSError) -> AgentUnreachableError:
        cause = "no answer in time" if isinstance(error, TimeoutError) else str(error)
        return AgentUnreachableError(
            f"the guest agent at {_name(self.address)} did not serve {what}: {cause}"
        )


def _name(address: Address) -> str:
    return f"{address.host}:{address.port}"
