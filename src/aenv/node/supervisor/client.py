"""The server's side of the supervisor: one multiplexed connection, re-made when the daemon dies."""

from __future__ import annotations

import asyncio
import json
from asyncio import Future, StreamWriter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from aenv.models.errors import EngineError, HostSetupError
from aenv.node.supervisor import launch
from aenv.node.supervisor.outcomes import Ending, Record, RunResult, SupervisorLostError

__all__ = ["Ending", "Record", "RunResult", "SupervisorClient", "SupervisorLostError"]

PROTOCOL = 1
_REPLY_TIMEOUT = 15.0
_RETRY = 1.0
_READY_TIMEOUT = 30.0
_REPEATABLE = frozenset({"status", "records", "signal", "output", "forget", "drop", "retire"})


class SupervisorClient:
    """``start`` finds or starts the daemon of ``folder``; ``close`` leaves it and its processes
    running.

    The daemon ends by itself ``idle`` seconds after its last process and last client are gone.
    """

    def __init__(self, folder: Path, *, idle: float = 30.0) -> None:
        self._folder = folder
        self._idle = idle
        self._ids = count(1)
        self._replies: dict[int, Future[dict[str, Any]]] = {}
        self._endings: dict[str, Future[Ending]] = {}
        self._writer: StreamWriter | None = None
        self._connected = asyncio.Event()
        self._session: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self.pid: int | None = None

    async def start(self) -> None:
        if self._session is not None:
            return
        self._session = asyncio.create_task(self._keep_connected(), name="supervisor-client")
        await self._ready()

    async def close(self) -> None:
        if self._session is not None:
            self._session.cancel()
            await asyncio.wait({self._session})
            self._session = None

    async def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        cwd: Path | None = None,
        console: Path | None = None,
        capture: int = 65536,
    ) -> RunResult:
        """Run a command to its end; at ``timeout`` seconds its process group is killed
        (``timed_out``).

        With ``console`` both outputs go to that FIFO, which what it leaves running keeps (see
        :meth:`watch`).
        """
        reply = await self._ask(
            "run",
            timeout=timeout + _REPLY_TIMEOUT,
            arguments={
                "argv": list(argv),
                "timeout": timeout,
                "cwd": cwd and str(cwd),
                "console": console and str(console),
                "capture": capture,
            },
        )
        return RunResult(
            code=reply["code"],
            signal=reply["signal"],
            stdout=reply["stdout"].encode("latin-1"),
            stderr=reply["stderr"].encode("latin-1"),
            truncated=reply["truncated"],
            timed_out=reply["timed_out"],
        )

    async def spawn(
        self,
        key: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | None = None,
        console: Path,
    ) -> Record:
        """Start a long-lived process under ``key``, which must be free or have ended."""
        reply = await self._ask(
            "spawn",
            arguments={
                "key": key,
                "argv": list(argv),
                "env": dict(env),
                "cwd": cwd and str(cwd),
                "console": str(console),
            },
        )
        return self._record(reply["record"], fresh=True)

    async def watch(self, key: str, pid: int, *, console: Path | None = None) -> Record:
        """Follow a process that a run left behind; one that has just ended is found, too."""
        arguments = {"key": key, "pid": pid, "console": console and str(console)}
        return self._record((await self._ask("watch", arguments=arguments))["record"], fresh=True)

    async def status(self, key: str) -> Record | None:
        found = (await self._ask("status", arguments={"key": key}))["record"]
        return None if found is None else self._record(found)

    async def records(self) -> list[Record]:
        return [self._record(found) for found in (await self._ask("records"))["records"]]

    async def wait(self, key: str) -> Ending:
        """Return when the process of ``key`` has ended, also if it has already, also across daemon
        restarts.
        """
        future = self._ending(key)
        if not future.done() and await self.status(key) is None and not future.done():
            future.set_result(Ending())
        return await asyncio.shield(future)

    async def signal(self, key: str, number: int, *, group: bool = False) -> bool:
        """False: it has ended (or is unknown)."""
        arguments = {"key": key, "signal": int(number), "group": group}
        return bool((await self._ask("signal", arguments=arguments))["sent"])

    async def output(self, key: str) -> bytes:
        """The last 64 KiB that the process wrote to its console."""
        reply = await self._ask("output", arguments={"key": key})
        return str(reply["output"]).encode("latin-1")

    async def forget(self, key: str) -> None:
        """Drop an ended record and its console; EngineError while it runs."""
        await self._ask("forget", arguments={"key": key})
        self._endings.pop(key, None)

    async def drop_console(self, console: Path) -> None:
        """Remove the console of a run that left nothing to watch."""
        await self._ask("drop", arguments={"console": str(console)})

    async def retire(self) -> None:
        """Have the daemon end as soon as nothing runs and nobody is connected."""
        await self._ask("retire")

    async def shutdown(self) -> None:
        """End the daemon; processes it watches go on, their exit statuses are lost."""
        await self._ask("shutdown")
        await self.close()

    def _ending(self, key: str) -> Future[Ending]:
        if key not in self._endings:
            self._endings[key] = asyncio.get_running_loop().create_future()
        return self._endings[key]

    def _record(self, found: dict[str, Any], *, fresh: bool = False) -> Record:
        key, ending = found["key"], found["ending"]
        if fresh:
            self._endings.pop(key, None)
        if ending is None:
            return Record(key, found["pid"], None)
        ended = Ending(ending["code"], ending["signal"])
        future = self._ending(key)
        if not future.done():
            future.set_result(ended)
        return Record(key, found["pid"], ended)

    async def _ask(
        self,
        operation: str,
        *,
        timeout: float = _REPLY_TIMEOUT,
        arguments: Mapping[str, object] | None = None,
    ) -> dict[str, Any]:
        await self._ready()
        try:
            async with asyncio.timeout(timeout):
                reply = await self._exchange(operation, arguments or {})
        except SupervisorLostError:
            if operation not in _REPEATABLE:
                raise
            return await self._ask(operation, timeout=timeout, arguments=arguments)
        except TimeoutError:
            message = f"the supervisor did not answer {operation!r} within {timeout:g} s"
            raise EngineError(message) from None
        if "error" in reply:
            raise EngineError(f"supervisor: {reply['error']}")
        return reply

    async def _exchange(self, operation: str, arguments: Mapping[str, object]) -> dict[str, Any]:
        writer = self._writer
        assert writer is not None
        number = next(self._ids)
        future: Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._replies[number] = future
        try:
            line = json.dumps({"id": number, "op": operation, **arguments})
            writer.write(line.encode() + b"\n")
            await writer.drain()
            return await future
        except ConnectionError as error:
            if writer is self._writer:  # the reader has not noticed yet
                self._connected.clear()
                writer.close()
            raise SupervisorLostError(f"the supervisor is gone: {error}") from error
        finally:
            self._replies.pop(number, None)

    async def _ready(self) -> None:
        if self._session is None:
            raise EngineError("the supervisor client is not started")
        if self._connected.is_set():
            return
        connected = asyncio.create_task(self._connected.wait())
        try:
            await asyncio.wait(
                {connected, self._session},
                return_when=asyncio.FIRST_COMPLETED,
                timeout=_READY_TIMEOUT,
            )
        finally:
            connected.cancel()
        if not self._connected.is_set():
            raise self._failure or SupervisorLostError("the supervisor client is closed")

    async def _keep_connected(self) -> None:
        """Connect again and again; only the first attempt may fail for good."""
        while True:
            try:
                reader, self._writer = await launch.start_or_connect(self._folder, self._idle)
            except (HostSetupError, OSError) as error:
                self._failure = error
                if self.pid is None:
                    raise
                await asyncio.sleep(_RETRY)
                continue
            try:
                await self._converse(reader)
            finally:
                self._disconnected()

    async def _converse(self, reader: asyncio.StreamReader) -> None:
        """Serve one connection until it ends."""
        hello = asyncio.create_task(self._greet())
        try:
            while line := await reader.readline():
                message = json.loads(line)
                if message.get("event") == "exit":
                    self._record(message["record"])
                elif (future := self._replies.get(message.get("id"))) and not future.done():
                    future.set_result(message)
        except (ConnectionError, ValueError):
            pass
        finally:
            hello.cancel()
            with suppress(asyncio.CancelledError, EngineError):
                await hello

    async def _greet(self) -> None:
        """Agree on the protocol, then learn of exits that were missed while nobody was
        connected.
        """
        hello = await self._exchange("hello", {})
        if hello.get("protocol") != PROTOCOL:
            await self._exchange(
                "shutdown", {}
            )  # an older one; its processes go on and are watched by pidfd
            return
        self.pid = hello["pid"]
        for key in [key for key, future in self._endings.items() if not future.done()]:
            found = (await self._exchange("status", {"key": key}))["record"]
            if found is not None:
                self._record(found)
            elif not (future := self._ending(key)).done():
                future.set_result(Ending())
        self._connected.set()

    def _disconnected(self) -> None:
        self._connected.clear()
        if self._writer is not None:
            self._writer.close()
        for future in self._replies.values():
            if not future.done():
                lost = "the supervisor ended before it answered"
                future.set_exception(SupervisorLostError(lost))
