"""A small control plane in memory: sandboxes are real guest agents in folders of their own.

Speaks enough of the control API for the SDK and CLI, and forwards data-plane requests to the agent
or to a port of this machine. Faults are switched on by attributes.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from aenv.models.ids import new_sandbox_id, new_token
from aenv.models.sandboxes import AGENT_PORT

KEY = "e2b_" + "0" * 40


@dataclass
class Guest:
    """One sandbox."""

    id: str
    template: str
    token: str
    port: int
    home: Path
    process: asyncio.subprocess.Process
    metadata: dict[str, str]
    body: dict[str, Any]
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    timeout: int = 300
    logs: list[dict[str, Any]] = field(default_factory=list)
    timeouts: list[tuple[str, int]] = field(default_factory=list)

    def listed(self) -> dict[str, Any]:
        return {
            "sandboxID": self.id,
            "templateID": "t" + self.template,
            "alias": self.template,
            "clientID": "fake",
            "envdVersion": "0.6.13",
            "startedAt": wire(self.started),
            "endAt": wire(self.started + timedelta(seconds=self.timeout)),
            "cpuCount": 2,
            "memoryMB": 1024,
            "diskSizeMB": 10240,
            "state": "running",
            "metadata": self.metadata,
        }


@dataclass
class Answer:
    status: int
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)


class ControlPlane:
    """``templates``: name → build status. ``not_ready``: so many creates answer 503 first."""

    def __init__(self, agent: Path, folder: Path) -> None:
        self._agent = agent
        self._folder = folder
        self._server: asyncio.Server | None = None
        self.guests: dict[str, Guest] = {}
        self.templates = {"base": "ready", "host": "ready"}
        self.not_ready = 0
        self.drop_next_answer = False
        self.creates: dict[str, tuple[str, str]] = {}
        self.requests: list[tuple[str, str]] = []
        self.page = 100

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", 0)

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for sandbox_id in list(self.guests):
            await self.kill(sandbox_id)

    async def kill(self, sandbox_id: str) -> bool:
        guest = self.guests.pop(sandbox_id, None)
        if guest is None:
            return False
        for pid in [guest.process.pid, *descendants(guest.process.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await guest.process.wait()
        return True

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._request(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head[:-4].decode("latin-1").split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
        if "e2b-sandbox-id" in headers:
            await self._forward(head, headers, reader, writer)
            return False
        method, target, _ = first.split(" ")
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.requests.append((method, target))
        answer = await self._answer(method, target, headers, body)
        if self.drop_next_answer:
            self.drop_next_answer = False
            return False
        await _send(writer, answer)
        return True

    async def _answer(
        self, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> Answer:
        parts = urlsplit(target)
        if parts.path == "/health":
            return Answer(204)
        if headers.get("x-api-key") != KEY:
            return failure(401, "unauthorized", "the API key is wrong or missing")
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        content = json.loads(body) if body else {}
        steps = unquote(parts.path).removeprefix("/v2").strip("/").split("/")
        handlers: dict[tuple[str, str], Callable[..., Any]] = {
            ("POST", "sandboxes"): lambda: self._create(content, headers),
            ("GET", "sandboxes"): lambda: self._list(query),
            ("GET", "templates"): self._templates,
            ("GET", "nodes"): lambda: Answer(200, [{"id": "n1", "memory": _memory()}]),
            ("GET", "sandboxes/metrics"): lambda: self._metrics(query["sandbox_ids"].split(",")),
        }
        handler = handlers.get((method, "/".join(steps)))
        if handler is not None:
            found = handler()
            return await found if asyncio.iscoroutine(found) else found
        if steps[0] == "sandboxes":
            return await self._on_sandbox(method, steps[1], "/".join(steps[2:]), query, content)
        return failure(501, "not_implemented", f"{method} {target} is not faked")

    async def _create(self, content: dict[str, Any], headers: dict[str, str]) -> Answer:
        name = content["templateID"]
        if self.not_ready > 0:
            self.not_ready -= 1
            message = f"template '{name}' is being built: 40% (packages); ask again"
            answer = failure(503, "template_building", message, culprit="infrastructure")
            answer.headers["Retry-After"] = "0.01"
            return answer
        if self.templates.get(name) != "ready":
            return failure(404, "not_found", f"there is no template {name!r}")
        key = headers.get("idempotency-key", "")
        if key in self.creates:
            return Answer(201, self._created(self.guests[self.creates[key][1]]))
        guest = await self._boot(name, content)
        self.guests[guest.id] = guest
        self.creates[key] = (json.dumps(content, sort_keys=True), guest.id)
        return Answer(201, self._created(guest))

    async def _boot(self, template: str, content: dict[str, Any]) -> Guest:
        sandbox_id, token, secret = new_sandbox_id(), new_token(), new_token()
        home = self._folder / sandbox_id
        home.mkdir(parents=True)
        port = free_port()
        process = await asyncio.create_subprocess_exec(
            *(str(self._agent), "--listen", f"127.0.0.1:{port}", "--single-user"),
            *("--home", str(home)),
            env={
                "PATH": "/usr/local/bin:/usr/bin:/bin",
                "AENV_HOST_VERIFIER": hashlib.sha256(secret.encode()).hexdigest(),
            },
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        init = {
            "sandboxId": sandbox_id,
            "accessToken": token,
            "envVars": content.get("envVars", {}),
        }
        await _initialise(port, secret, init)
        metadata = content.get("metadata", {})
        return Guest(sandbox_id, template, token, port, home, process, metadata, content)

    def _created(self, guest: Guest) -> dict[str, Any]:
        return {
            **guest.listed(),
            "envdAccessToken": guest.token,
            "trafficAccessToken": None,
            "domain": f"localhost:{urlsplit(self.url).port}",
        }

    def _list(self, query: dict[str, str]) -> Answer:
        found = sorted(self.guests.values(), key=lambda guest: guest.started, reverse=True)
        if "metadata" in query:
            wanted = {unquote(k): unquote(v[0]) for k, v in parse_qs(query["metadata"]).items()}
            found = [guest for guest in found if wanted.items() <= guest.metadata.items()]
        begin = int(query.get("nextToken", 0))
        end = begin + self.page
        headers = {"X-Next-Token": str(end)} if end < len(found) else {}
        return Answer(200, [guest.listed() for guest in found[begin:end]], headers)

    def _templates(self) -> Answer:
        return Answer(
            200,
            [
                {
                    "templateID": "t" + name,
                    "names": [name],
                    "aliases": [name],
                    "buildStatus": status,
                    "cpuCount": 2,
                    "memoryMB": 1024,
                }
                for name, status in self.templates.items()
            ],
        )

    def _metrics(self, ids: list[str]) -> Answer:
        known = {one: _metric(self.guests[one]) for one in ids if one in self.guests}
        return Answer(200, {"sandboxes": known})

    async def _on_sandbox(
        self, method: str, sandbox_id: str, action: str, query: dict[str, str], content: Any
    ) -> Answer:
        guest = self.guests.get(sandbox_id)
        if guest is None:
            return failure(404, "sandbox_not_found", f"there is no sandbox {sandbox_id!r}")
        if (method, action) == ("DELETE", ""):
            await self.kill(sandbox_id)
            return Answer(204)
        if (method, action) == ("GET", ""):
            return Answer(200, self._created(guest))
        if (method, action) == ("POST", "connect"):
            guest.timeouts.append(("connect", content["timeout"]))
            return Answer(200, self._created(guest))
        if (method, action) in (("POST", "timeout"), ("POST", "refreshes")):
            guest.timeouts.append((action, content.get("timeout", content.get("duration"))))
            return Answer(204)
        if (method, action) == ("PUT", "network"):
            guest.body["network"] = content
            return Answer(204)
        if (method, action) == ("GET", "metrics"):
            return Answer(200, [_metric(guest)])
        if (method, action) == ("GET", "logs"):
            return Answer(200, {"logs": _page(guest.logs, query)})
        return failure(501, "not_implemented", f"{method} {action} is not faked")

    async def _forward(
        self,
        head: bytes,
        headers: dict[str, str],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Splice one request; ``Connection: close`` ends it there."""
        sandbox_id = headers["e2b-sandbox-id"]
        port = int(headers.get("e2b-sandbox-port", AGENT_PORT))
        guest = self.guests.get(sandbox_id)
        if guest is None:
            body = {"sandboxId": sandbox_id, "message": "The sandbox was not found", "code": 502}
            await _send(writer, Answer(502, body))
            return
        try:
            target = guest.port if port == AGENT_PORT else port
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", target)
        except OSError:
            message = "The sandbox is running but port is not open"
            body = {"sandboxId": sandbox_id, "message": message, "port": port, "code": 502}
            await _send(writer, Answer(502, body))
            return
        upgrade = b"" if "upgrade" in headers else b"\r\nConnection: close"
        up_writer.write(head[:-4] + upgrade + b"\r\n\r\n")
        request = asyncio.create_task(_pump(reader, up_writer))
        try:
            await _pump(up_reader, writer)
        finally:
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)
            up_writer.close()


def failure(status: int, code: str, message: str, culprit: str = "caller") -> Answer:
    body = {"code": status, "message": message, "error_code": code, "culprit": culprit}
    return Answer(status, body)


def wire(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def descendants(pid: int) -> list[int]:
    """Every process below ``pid``; nothing else ends what a killed agent has started."""
    found: list[int] = []
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, listing.read_text().split()):
                found += [child, *descendants(child)]
    return found


def _metric(guest: Guest) -> dict[str, Any]:
    usage = shutil.disk_usage(guest.home)
    return {
        "timestamp": wire(datetime.now(UTC)),
        "timestampUnix": int(datetime.now(UTC).timestamp()),
        "cpuCount": 2,
        "cpuUsedPct": 12.5,
        "memUsed": 64 << 20,
        "memTotal": 1 << 30,
        "memCache": 0,
        "diskUsed": usage.used,
        "diskTotal": usage.total,
    }


def _page(logs: list[dict[str, Any]], query: dict[str, str]) -> list[dict[str, Any]]:
    limit = int(query.get("limit", 1000))
    wanted = [e for e in logs if query.get("search", "") in e["message"]]
    if query.get("direction") == "backward":
        return list(reversed(wanted))[:limit]
    return [entry for entry in wanted if entry["seq"] > int(query.get("after", 0))][:limit]


async def _send(writer: asyncio.StreamWriter, answer: Answer) -> None:
    body = b"" if answer.body is None else json.dumps(answer.body).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body))}
    lines = [f"{key}: {value}" for key, value in (headers | answer.headers).items()]
    head = f"HTTP/1.1 {answer.status} X\r\n" + "\r\n".join(lines) + "\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()


async def _initialise(port: int, secret: str, init: dict[str, Any]) -> None:
    """Poll until the agent listens, then hand it its identity."""
    body = json.dumps(init).encode()
    head = (
        f"POST /init HTTP/1.1\r\nhost: agent\r\nx-aenv-host-secret: {secret}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        "connection: close\r\n\r\n"
    )
    async with asyncio.timeout(10):
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                break
            except OSError:
                await asyncio.sleep(0.01)
        writer.write(head.encode() + body)
        answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 204"), answer


def _memory() -> dict[str, Any]:
    shares = {"running": (1, 1 << 30, 20 << 20), "hot": (2, 2 << 30, 12 << 20), "pooled": (0, 0, 0)}
    return {
        **{
            kind: {"sandboxCount": count, "promisedBytes": promised, "usedBytes": used}
            for kind, (count, promised, used) in shares.items()
        },
        "promisedToUsed": 32.0,
        "totalBytes": 4 << 30,
        "availableBytes": 3 << 30,
        "stalled": None,
        "exhausted": False,
        "demotions": {"hot": 3},
        "refusals": {"memory": 1, "disk": 2},
    }
