"""The workbench of a sandbox on this node, by its agent."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from aenv.models.errors import AgentUnreachableError, DiskFullError
from aenv.models.templates import GuestFacts
from aenv.node.agentwire import MAX_ANSWER, envelope, exit_code_of, process_messages
from aenv.node.http1 import Connection, Reply
from aenv.node.memos import Memos
from aenv.node.residents import Resident
from aenv.node.workbench import CopyTarget, Ended, GuestCommand, Output, StepError, Workbench

CONNECT_TIMEOUT = 5.0
CALL_TIMEOUT = 60.0
UNPACK_TIMEOUT = 1800.0
_KEEPALIVE = 30
_SILENCE = 4.0 * _KEEPALIVE
"""Seconds without a sign of life after which a guest is given up."""
_UNBOUNDED = 1 << 50
"""Bytes of output of one command: they are passed on, not kept."""


class AgentWorkbench(Workbench):
    def __init__(self, resident: Resident, memos: Memos) -> None:
        self._resident = resident
        self._agent = resident.agent
        self._memos = memos

    def run(self, command: GuestCommand) -> AsyncGenerator[Output | Ended, None]:
        return self._start(command, {"x-aenv-stdout": "unlogged"})

    def spawn(self, command: GuestCommand) -> AsyncGenerator[Output | Ended, None]:
        return self._start(replace(command, timeout=0), {})

    async def unpack(self, archive: AsyncIterator[bytes], size: int, target: CopyTarget) -> int:
        query = {
            "source": target.source,
            "path": target.path,
            "user": target.user,
            "owner": target.owner,
            "mode": target.mode,
        }
        path = f"/aenv/build/unpack?{urlencode(query)}"
        async with self._connection("unpacking", UNPACK_TIMEOUT) as connection:
            reply = await connection.upload(path, self._host_headers, archive, size)
        return int(_answer(reply).get("entries", 0))

    async def pack(self, path: str) -> AsyncGenerator[bytes, None]:
        what = f"/aenv/build/pack?{urlencode({'path': path})}"
        async with self._connection("packing", None) as connection:
            parsed = await connection.begin(
                "GET", what, headers=self._host_headers, limit=_UNBOUNDED
            )
            chunks = connection.chunks(parsed)
            if parsed.status != 200:
                _check(Reply(parsed.status, b"".join([chunk async for chunk in chunks])))
            while True:
                async with asyncio.timeout(_SILENCE):
                    chunk = await anext(chunks, None)
                if chunk is None:
                    return
                yield chunk

    async def cover(self, path: str, user: str) -> None:
        await self._post(f"/aenv/build/cover?{urlencode({'path': path, 'user': user})}")

    async def uncover(self, path: str) -> None:
        await self._post(f"/aenv/build/uncover?{urlencode({'path': path})}")

    async def make_folder(self, path: str, user: str, *, keep: bool = False) -> None:
        query = {"path": path, "user": user, "keep": "1" if keep else ""}
        await self._post(f"/aenv/build/folder?{urlencode(query)}")

    async def make_user(self, name: str) -> None:
        await self._post(f"/aenv/build/user?{urlencode({'name': name})}")

    async def write_file(self, path: str, content: bytes) -> None:
        headers = {
            "x-access-token": self._agent.access_token,
            "content-type": "application/octet-stream",
        }
        query = urlencode({"path": path, "username": "root"})
        async with self._connection("/files", CALL_TIMEOUT) as connection:
            reply = await connection.request(
                "POST", f"/files?{query}", headers=headers, body=content, limit=MAX_ANSWER
            )
        _check(reply)

    async def declare(self, facts: GuestFacts) -> None:
        memo = self._resident.memo
        assert memo is not None
        self._resident.memo = replace(memo, facts=facts)
        await asyncio.to_thread(self._memos.write, self._resident.sandbox_id, self._resident.memo)

    @property
    def _host_headers(self) -> dict[str, str]:
        return {"x-aenv-host-secret": self._agent.host_secret}

    async def _post(self, path: str) -> None:
        async with self._connection(path.partition("?")[0], CALL_TIMEOUT) as connection:
            reply = await connection.request(
                "POST", path, headers=self._host_headers, limit=MAX_ANSWER
            )
        _check(reply)

    async def _start(
        self, command: GuestCommand, extra: Mapping[str, str]
    ) -> AsyncGenerator[Output | Ended, None]:
        cmd, *args = command.argv
        process: dict[str, Any] = {"cmd": cmd, "args": args, "envs": dict(command.env)}
        if command.cwd:
            process["cwd"] = command.cwd
        body = envelope(json.dumps({"process": process, "stdin": False}).encode())
        headers = {
            "content-type": "application/connect+json",
            "connect-protocol-version": "1",
            "x-access-token": self._agent.access_token,
            "authorization": "Basic " + b64encode(f"{command.user}:".encode()).decode(),
            "keepalive-ping-interval": str(_KEEPALIVE),
            **extra,
        }
        if command.timeout:
            headers["connect-timeout-ms"] = str(int(command.timeout * 1000))
        async with self._connection("process.Process/Start", None) as connection:
            parsed = await connection.begin(
                "POST", "/process.Process/Start", headers=headers, body=body, limit=_UNBOUNDED
            )
            messages = process_messages(connection.chunks(parsed))
            while (message := await _next(messages)) is not None:
                if (error := message.get("error")) is not None:
                    raise _refusal(error, command)
                event = message.get("event")
                for found in _read(event) if isinstance(event, dict) else ():
                    yield found
                    if isinstance(found, Ended):
                        return
        raise AgentUnreachableError("the guest agent lost a command")

    @asynccontextmanager
    async def _connection(self, what: str, timeout: float | None) -> AsyncIterator[Connection]:
        try:
            async with asyncio.timeout(timeout):
                address = self._agent.address
                async with await Connection.open(address, timeout=CONNECT_TIMEOUT) as connection:
                    yield connection
        except (OSError, TimeoutError) as error:
            ended = self._resident.end
            why = f"the sandbox ended: {ended.reason}" if ended else str(error) or "no answer"
            raise AgentUnreachableError(f"the guest agent did not serve {what}: {why}") from error


async def _next(messages: AsyncIterator[dict[str, Any]]) -> dict[str, Any] | None:
    async with asyncio.timeout(_SILENCE):
        return await anext(messages, None)


def _read(event: Mapping[str, Any]) -> list[Output | Ended]:
    found: list[Output | Ended] = []
    data = event.get("data")
    for stream, text in data.items() if isinstance(data, dict) else ():
        try:
            found.append(Output("stderr" if stream == "stderr" else "stdout", b64decode(text)))
        except (TypeError, ValueError) as error:
            raise AgentUnreachableError("the guest agent wrote nonsense") from error
    if (code := exit_code_of(event)) is not None:
        end = event["end"]
        said = end.get("status") if isinstance(end, dict) else None
        found.append(Ended(code, str(said or f"exit status {code}")[:200]))
    return found


def _refusal(error: Any, command: GuestCommand) -> StepError:
    """As E2B words it: the code, then the reason."""
    found = error if isinstance(error, dict) else {}
    code, message = str(found.get("code", "unknown"))[:64], str(found.get("message", ""))[:2000]
    if code == "deadline_exceeded":
        return StepError(f"it did not end within {command.timeout:g} s and was killed")
    return StepError(f"{code}: {message}")


def _answer(reply: Reply) -> dict[str, Any]:
    _check(reply)
    try:
        found = json.loads(reply.body)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {}


def _check(reply: Reply) -> None:
    if reply.status in (200, 204):
        return
    try:
        said = str(json.loads(reply.body)["message"])[:2000]
    except (ValueError, RecursionError, KeyError, TypeError):
        said = f"the guest agent answered with HTTP {reply.status}"
    if reply.status == 507:
        raise DiskFullError(f"the disk of the build is full: {said}; ask for more disk")
    if 400 <= reply.status < 500:
        raise StepError(said)
    raise AgentUnreachableError(said)
