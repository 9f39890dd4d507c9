"""A live server (uvicorn, the proxy, a small control application) before scripted guests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from aenv.control.routes import Route, RouteTable
from aenv.models.ids import new_sandbox_id, new_token
from aenv.server.proxy import ProxySettings, make_protocol

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def eventually(check: Callable[[], object], *, within: float = 5) -> None:
    """Poll until ``check`` is true."""
    async with asyncio.timeout(within):
        while not check():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@dataclass
class Answer:
    status: int
    reason: str
    headers: dict[str, str]
    body: bytes
    trailers: bytes = b""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Wire:
    """A raw client connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes | str) -> None:
        self.writer.write(data.encode("latin-1") if isinstance(data, str) else data)
        async with asyncio.timeout(10):
            await self.writer.drain()

    async def head(self) -> tuple[int, str, dict[str, str]]:
        async with asyncio.timeout(10):
            raw = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = raw.decode("latin-1").split("\r\n")[:-2]
        _, status, reason = first.split(" ", 2)
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        return int(status), reason, headers

    async def answer(self, method: str = "GET") -> Answer:
        status, reason, headers = await self.head()
        found = Answer(status, reason, headers, b"")
        if method == "HEAD" or status in (204, 304) or status < 200:
            return found
        async with asyncio.timeout(10):
            if headers.get("transfer-encoding") == "chunked":
                found.body, found.trailers = await self.chunks()
            elif "content-length" in headers:
                found.body = await self.reader.readexactly(int(headers["content-length"]))
            else:
                found.body = await self.reader.read()
        return found

    async def chunks(self) -> tuple[bytes, bytes]:
        pieces = []
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            pieces.append(await self.reader.readexactly(size))
            assert await self.reader.readexactly(2) == b"\r\n"
        trailers = b""
        while (line := await self.reader.readuntil(b"\r\n")) != b"\r\n":
            trailers += line
        return b"".join(pieces), trailers

    async def rest(self) -> bytes:
        """Everything until the server closes; a reset counts as closing."""
        data = b""
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionResetError):
                while piece := await self.reader.read(65536):
                    data += piece
        return data

    def half_close(self) -> None:
        self.writer.write_eof()

    def close(self) -> None:
        self.writer.close()


@dataclass
class GuestRequest:
    line: str
    headers: list[tuple[str, str]]
    body: bytes

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name]


@dataclass
class Guest:
    """A program in a sandbox: counts connections, remembers requests, answers by ``handler``."""

    handler: Handler
    port: int = 0
    connections: int = 0
    open: int = 0
    requests: list[GuestRequest] = field(default_factory=list)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        self.writers.append(writer)
        try:
            await self.handler(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open -= 1
            writer.close()


async def read_request(reader: asyncio.StreamReader) -> GuestRequest:
    raw = await reader.readuntil(b"\r\n\r\n")
    line, *lines = raw.decode("latin-1").split("\r\n")[:-2]
    headers = [(key, value.strip()) for key, _, value in (one.partition(":") for one in lines)]
    found = GuestRequest(line, headers, b"")
    if found.all("transfer-encoding"):
        found.body, _ = await Wire(reader, None).chunks()  # type: ignore[arg-type]
    elif length := found.all("content-length"):
        found.body = await reader.readexactly(int(length[0]))
    return found


def echo(guest: Guest, name: str) -> Handler:
    """Answer every request with what came, and with ``name``."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            request = await read_request(reader)
            guest.requests.append(request)
            body = json.dumps(
                {
                    "guest": name,
                    "line": request.line,
                    "headers": request.headers,
                    "body": request.body.decode("latin-1"),
                }
            ).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
            writer.write(b"Content-Length: %d\r\n\r\n" % len(body))
            if not request.line.startswith("HEAD "):
                writer.write(body)
            await writer.drain()

    return handler


async def control_app(scope: Any, receive: Any, send: Any) -> None:
    """Echoes requests; ``/early`` answers 401 before it reads; ``/ws`` echoes messages."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": "control:" + message["text"]})
        return
    if scope["path"] == "/early":
        await reply(send, 401, b'{"code":401,"message":"no key"}')
        return
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    found = {
        "guest": "control",
        "method": scope["method"],
        "path": scope["path"],
        "headers": [(k.decode(), v.decode("latin-1")) for k, v in scope["headers"]],
        "body": body.decode("latin-1"),
    }
    await reply(send, 200, json.dumps(found).encode())


async def reply(send: Any, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class QuietServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass
class Stage:
    """The live server and its guests."""

    table: RouteTable = field(default_factory=RouteTable)
    settings: ProxySettings = field(default_factory=ProxySettings)
    resolve: Any = None
    credentials: set[str] = field(default_factory=set)
    port: int = 0
    protocol: Any = None
    server: QuietServer | None = None
    stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    async def start(self) -> None:
        self.protocol = make_protocol(
            self.table,
            self.settings,
            resolve=self.resolve,
            is_credential=self.credentials.__contains__,
        )
        config = uvicorn.Config(
            control_app,
            http=self.protocol,
            lifespan="off",
            log_level="warning",
            ws="websockets-sansio",
            timeout_keep_alive=0,
        )
        self.server = QuietServer(config)
        sock = socket.create_server(("127.0.0.1", 0))
        self.port = sock.getsockname()[1]
        task = asyncio.create_task(self.server.serve(sockets=[sock]))
        await eventually(lambda: self.server.started or task.done())
        self.stack.push_async_callback(self._stop, task)

    async def _stop(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        for listener in self.server.servers:
            listener.close()
        for client in list(self.protocol.proxy.clients):
            client.transport.abort()
        self.protocol.proxy.close()

    @property
    def stats(self) -> Any:
        return self.protocol.proxy.stats

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def wire(self) -> Wire:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        wire = Wire(reader, writer)
        self.stack.callback(writer.close)
        return wire

    async def guest(
        self,
        handler: Handler | None = None,
        *,
        name: str = "guest",
        at: tuple[str, int] = ("127.0.0.1", 0),
    ) -> Guest:
        guest = Guest(handler or (lambda r, w: asyncio.sleep(0)))
        if handler is None:
            guest.handler = echo(guest, name)
        server = await asyncio.start_server(guest.serve, *at)
        guest.port = server.sockets[0].getsockname()[1]
        self.stack.callback(server.close)
        return guest

    def sandbox(self, agent: Guest, **changes: Any) -> Route:
        """Publish a sandbox whose agent is ``agent``; other guest ports are this host's."""
        route = Route(
            sandbox_id=changes.pop("sandbox_id", None) or new_sandbox_id(),
            agent=("127.0.0.1", agent.port),
            guest_host="127.0.0.1",
            access_token=new_token(),
            **changes,
        )
        self.table.publish(route)
        return route


def to(route: Route, port: int | None = None) -> str:
    """The routing headers of E2B's SDKs, with the Host header."""
    lines = f"Host: 127.0.0.1\r\nE2b-Sandbox-Id: {route.sandbox_id}\r\n"
    return lines + (f"E2b-Sandbox-Port: {port}\r\n" if port else "")
