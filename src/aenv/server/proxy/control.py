"""The control plane's half of a client connection: uvicorn's own HTTP protocol, fed one request at
a time.

It gets each request's bytes exactly as they came, through a transport that is a view of the
client's. What it says about itself (response complete, closing, another protocol taking over for a
WebSocket) goes to the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Protocol

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState


class Connection(Protocol):
    """The client connection, as the control plane sees it."""

    transport: asyncio.Transport
    write_paused: bool

    def control_finished(self) -> None: ...

    def control_closes(self) -> None: ...

    def control_takes_over(self) -> None: ...

    def control_pauses(self, paused: bool) -> None: ...

    def is_closing(self) -> bool: ...


class ControlTransport(asyncio.Transport):
    """The client's transport as uvicorn may use it: closing and pausing are the connection's to
    do."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection
        self._transport = connection.transport
        self.protocol: asyncio.BaseProtocol | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self._transport.writelines(list_of_data)

    def close(self) -> None:
        self._connection.control_closes()

    def abort(self) -> None:
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._connection.is_closing()

    def pause_reading(self) -> None:
        self._connection.control_pauses(True)

    def resume_reading(self) -> None:
        self._connection.control_pauses(False)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol
        self._connection.control_takes_over()

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self.protocol is not None
        return self.protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def can_write_eof(self) -> bool:
        return self._transport.can_write_eof()

    def write_eof(self) -> None:
        self._transport.write_eof()

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._transport.get_write_buffer_limits()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)


class _Uvicorn(HttpToolsProtocol):
    connection: Connection

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unset_keepalive_if_required()
        self.connection.control_finished()


class ControlChannel:
    """Uvicorn's protocol for one client connection, or whatever protocol took its place."""

    def __init__(
        self,
        connection: Connection,
        *,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._http = _Uvicorn(config, server_state, app_state, loop)
        self._http.connection = connection
        self._transport = ControlTransport(connection)
        self._transport.protocol = self._http
        self._http.connection_made(self._transport)
        server_state.connections.discard(self._http)
        if connection.write_paused:
            self._http.pause_writing()

    @property
    def _protocol(self) -> Any:
        return self._transport.protocol

    @property
    def answering(self) -> bool:
        """Whether the head of the current response has been sent."""
        cycle = self._http.cycle
        return cycle is not None and cycle.response_started and not cycle.response_complete

    def feed(self, data: bytes) -> None:
        self._protocol.data_received(data)

    def eof(self) -> bool:
        return bool(self._protocol.eof_received())

    def lost(self, exc: Exception | None) -> None:
        self._protocol.connection_lost(exc)

    def paused(self, paused: bool) -> None:
        if paused:
            self._protocol.pause_writing()
        else:
            self._protocol.resume_writing()

    def shutdown(self) -> None:
        """Let the response under way be the last one."""
        if self._protocol is self._http:
            self._http.shutdown()
