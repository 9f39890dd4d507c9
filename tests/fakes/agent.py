"""A guest agent in this process: the endpoints a node needs, with knobs for each way to fail."""

from __future__ import annotations

import asyncio
import json
import struct
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from aenv.node.engine import Address


@dataclass
class AgentBehaviour:
    """``silent``: accepts and never answers. ``commands``: the exit code of each command."""

    silent: bool = False
    health_status: int = 204
    init_status: int = 204
    init_failures: list[str] = field(default_factory=list)
    metrics_status: int = 200
    commands: dict[str, int] = field(default_factory=dict)


class FakeAgent:
    """Serves on a loopback port; ``inits``, ``started`` and ``ring`` are there to be looked at."""

    def __init__(self, behaviour: AgentBehaviour | None = None) -> None:
        self.behaviour = behaviour or AgentBehaviour()
        self.inits: list[dict[str, Any]] = []
        self.secrets: list[str] = []
        self.started: list[str] = []
        self.programs: list[list[str]] = []
        self.ring: list[dict[str, Any]] = []
        self.dropped = 0
        self._news = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> Address:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return Address(host, port)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def _last(self) -> int:
        return int(self.ring[-1]["seq"]) if self.ring else 0

    def say(self, message: str, *, stream: str = "stdout", level: str = "info") -> None:
        entry = {
            "seq": self._last + 1,
            "timestamp": "2026-01-01T00:00:00.5Z",
            "stream": stream,
            "level": level,
            "message": message,
            "fields": {"pid": "7"},
        }
        self.ring.append(entry)
        self._news.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while await self._serve(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # cancelled by stop(); asyncio.start_server would report it as a failure
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        method, target, _ = first.split(" ")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        if self.behaviour.silent:
            await asyncio.Event().wait()
        status, reply = await self._answer(method, target, headers, body)
        writer.write(
            f"HTTP/1.1 {status} X\r\ncontent-length: {len(reply)}\r\n\r\n".encode() + reply
        )
        await writer.drain()
        return True

    async def _answer(
        self, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, bytes]:
        path = urlsplit(target).path
        match method, path:
            case "GET", "/health":
                return self.behaviour.health_status, b""
            case "POST", "/init":
                return self._init(headers, body)
            case "GET", "/metrics":
                found = {"cpu_count": 2, "mem_used": 1000, "mem_total": 4000}
                return self.behaviour.metrics_status, json.dumps(found).encode()
            case "GET", "/aenv/logs":
                return await self._logs(parse_qs(urlsplit(target).query))
            case "POST", "/process.Process/Start":
                return 200, self._start(body)
        return 404, b""

    def _init(self, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        if self.behaviour.init_status == 204:
            self.inits.append(json.loads(body))
            self.secrets.append(headers["x-aenv-host-secret"])
            if self.behaviour.init_failures:
                return 200, json.dumps({"failures": self.behaviour.init_failures}).encode()
        return self.behaviour.init_status, b""

    async def _logs(self, query: dict[str, list[str]]) -> tuple[int, bytes]:
        after, limit = int(query["after"][0]), int(query["limit"][0])
        wait = float(query["wait"][0])
        try:
            async with asyncio.timeout(wait or 0.0001):
                while not (found := [one for one in self.ring if one["seq"] > after]):
                    if after > self._last:
                        break
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            found = []
        page = {
            "entries": found[:limit],
            "next": found[:limit][-1]["seq"] if found else min(after, self._last),
            "dropped": self.dropped,
        }
        return 200, json.dumps(page).encode()

    def _start(self, body: bytes) -> bytes:
        process = json.loads(body[5:])["process"]
        self.programs.append([process["cmd"], *process["args"]])
        command = process["args"][-1]
        self.started.append(command)
        code = self.behaviour.commands.get(command, 0)
        events = [{"start": {"pid": 7}}, {"end": {"exitCode": code, "exited": True}}]
        frames = [(0, {"event": event}) for event in events] + [(2, {})]
        return b"".join(
            struct.pack(">BI", flags, len(text)) + text
            for flags, text in ((flags, json.dumps(found).encode()) for flags, found in frames)
        )
