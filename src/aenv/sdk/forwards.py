"""A local TCP port that leads to a port of a sandbox, for any HTTP or WebSocket client.

The server's proxy finds a sandbox by headers; each connection carries one request (or one upgrade),
whose head gets them. After the head, bytes pass through as they are.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from types import TracebackType
from urllib.parse import urlsplit

from aenv.models.errors import ConflictError
from aenv.sdk.sandboxes import AsyncSandbox

_MAX_HEAD = 64 << 10
_CHUNK = 64 << 10
_HEAD_TIMEOUT = 60.0
_CONNECT_TIMEOUT = 10.0
_ROUTING = (b"e2b-", b"x-agentenv-")
_BAD_GATEWAY = (
    b"HTTP/1.1 502 Bad Gateway\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n"
    b"the aenv server does not answer\n"
)
_BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Forward:
    """Listens while entered."""

    def __init__(self, sandbox: AsyncSandbox, port: int, host: str, local: int) -> None:
        parts = urlsplit(sandbox.server_url)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._server_host = parts.hostname or ""
        self._server_port = parts.port or (443 if self._tls else 80)
        headers = {**sandbox.traffic_headers, "e2b-sandbox-port": str(port)}
        self._headers = b"".join(f"{k}: {v}\r\n".encode() for k, v in headers.items())
        self._host, self._local = host, local
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    async def serve(self) -> None:
        """Until cancelled."""
        assert self._server is not None
        await self._server.serve_forever()

    async def __aenter__(self) -> Forward:
        try:
            self._server = await asyncio.start_server(
                self._serve, self._host, self._local, limit=_MAX_HEAD
            )
        except OSError as error:
            raise ConflictError(
                f"cannot listen on {self._host}:{self._local}: {error.strerror or error}; "
                "--local 0 takes a free port"
            ) from error
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HEAD_TIMEOUT):
                head = await reader.readuntil(b"\r\n\r\n")
            await self._exchange(self.routed(head), reader, writer)
        except (asyncio.IncompleteReadError, TimeoutError, ConnectionError):
            pass  # the client went away, or never asked
        except (asyncio.LimitOverrunError, ValueError):
            with suppress(ConnectionError):
                writer.write(_BAD_REQUEST)
                await writer.drain()
        finally:
            writer.close()

    def routed(self, head: bytes) -> bytes:
        """The request's head with our routing headers instead of the client's, for one request."""
        first, *lines = head[:-4].split(b"\r\n")
        if first.count(b" ") != 2:
            raise ValueError("not an HTTP request")
        kept = [line for line in lines if not _names(line, *_ROUTING)]
        if not any(_names(line, b"upgrade:") for line in kept):
            kept = [line for line in kept if not _names(line, b"connection:", b"keep-alive:")]
            kept.append(b"Connection: close")
        return b"\r\n".join([first, *kept]) + b"\r\n" + self._headers + b"\r\n"

    async def _exchange(
        self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT):
                upstream = await asyncio.open_connection(
                    self._server_host, self._server_port, ssl=self._tls
                )
        except (OSError, TimeoutError):
            writer.write(_BAD_GATEWAY)
            await writer.drain()
            return
        up_reader, up_writer = upstream
        up_writer.write(head)
        request = asyncio.create_task(_pump(reader, up_writer))
        try:
            await _pump(up_reader, writer)
        finally:
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)
            up_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The end of what is read becomes the end of what is written."""
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


def _names(line: bytes, *prefixes: bytes) -> bool:
    return line.lower().startswith(prefixes)
