"""A minimal HTTP/1.1 client over one asyncio connection: the transport to a guest agent.

The other side is inside a sandbox and may be hostile: every reply is bounded in size, and callers
bound it in time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import httptools

from aenv.node.engine import Address

MAX_REPLY = 16 * 1024 * 1024
MAX_HEAD = 64 * 1024
MAX_HEADERS = 100
_CHUNK = 64 * 1024


class ProtocolError(OSError):
    """The peer does not speak HTTP, sent too much, or hung up in the middle of a reply."""


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes


class Connection:
    """One keep-alive connection; requests go one after the other."""

    def __init__(
        self, address: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._host = f"{address.host}:{address.port}"
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, address: Address, *, timeout: float) -> Self:
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection(address.host, address.port)
        return cls(address, reader, writer)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._writer.transport.abort()

    async def request(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        body: bytes = b"",
        limit: int | None = None,
    ) -> Reply:
        """Send one request and read its whole reply: ``limit`` bytes at most, else MAX_REPLY."""
        parsed = await self.begin(method, path, headers=headers, body=body, limit=limit)
        chunks = [chunk async for chunk in self.chunks(parsed)]
        return Reply(parsed.status, b"".join(chunks))

    async def upload(
        self, path: str, headers: Mapping[str, str], content: AsyncIterator[bytes], size: int
    ) -> Reply:
        """POST ``size`` bytes as they come, and read the reply, also one that comes early."""
        self._writer.write(self._head("POST", path, headers, size))
        try:
            async for chunk in content:
                self._writer.write(chunk)
                await self._writer.drain()
        except ConnectionError:
            pass  # the peer has answered already, or is gone: reading tells
        parsed = ReplyParser(limit=MAX_HEAD)
        while not parsed.head_complete:
            await self._feed(parsed)
        return Reply(parsed.status, b"".join([chunk async for chunk in self.chunks(parsed)]))

    async def begin(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        body: bytes = b"",
        limit: int | None = None,
    ) -> ReplyParser:
        """Send one request, return at the reply's head; :meth:`chunks` reads on."""
        self._writer.write(self._head(method, path, headers, len(body)) + body)
        await self._writer.drain()
        parsed = ReplyParser(limit=MAX_REPLY if limit is None else limit)
        while not parsed.head_complete:
            await self._feed(parsed)
        return parsed

    def _head(self, method: str, path: str, headers: Mapping[str, str], size: int) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", f"host: {self._host}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += [f"content-length: {size}", "", ""]
        return "\r\n".join(lines).encode()

    async def chunks(self, parsed: ReplyParser) -> AsyncIterator[bytes]:
        while True:
            while parsed.pending:
                yield parsed.pending.popleft()
            if parsed.complete:
                return
            await self._feed(parsed)

    async def _feed(self, parsed: ReplyParser) -> None:
        data = await self._reader.read(_CHUNK)
        if not data:
            raise ProtocolError("the connection was closed in the middle of a reply")
        parsed.count(len(data))
        try:
            parsed.parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise ProtocolError(f"not an HTTP reply: {error}") from None


@dataclass(slots=True)
class ReplyParser:
    """What httptools has found so far.

    The bytes are counted as they come: the parser would collect a header without end, or skip
    chunk extensions for ever.
    """

    limit: int
    parser: httptools.HttpResponseParser = field(init=False)
    status: int = 0
    head_complete: bool = False
    complete: bool = False
    pending: deque[bytes] = field(default_factory=deque)
    _headers: int = 0
    _received: int = 0

    def __post_init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)

    def count(self, size: int) -> None:
        """Raises ProtocolError when the reply has grown too large."""
        self._received += size
        if self._received > (self.limit if self.head_complete else min(self.limit, MAX_HEAD)):
            raise ProtocolError("the reply is too large")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers += 1
        if self._headers > MAX_HEADERS:
            raise ProtocolError("too many headers")

    def on_headers_complete(self) -> None:
        self.status = self.parser.get_status_code()
        self.head_complete = True

    def on_body(self, chunk: bytes) -> None:
        self.pending.append(chunk)

    def on_message_complete(self) -> None:
        self.complete = True
