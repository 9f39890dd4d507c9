"""One client: newline-JSON requests in, replies and events out, both bounded."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable

from .loop import Loop

MAX_LINE = 1 << 20
MAX_BACKLOG = 8 << 20


class Connection:
    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        on_request: Callable[[Connection, dict[str, object]], None],
        on_close: Callable[[Connection], None],
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._on_request = on_request
        self._on_close = on_close
        self._in = bytearray()
        self._out = bytearray()
        self.closed = False
        sock.setblocking(False)
        loop.watch(sock.fileno(), self._readable)

    def send(self, message: dict[str, object]) -> None:
        if self.closed:
            return
        self._out += json.dumps(message).encode() + b"\n"
        if len(self._out) > MAX_BACKLOG:
            self.close()
            return
        self._writable()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._loop.unwatch(self._sock.fileno())
        self._sock.close()
        self._on_close(self)

    def _readable(self) -> None:
        try:
            data = self._sock.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self._in += data
        while not self.closed and (end := self._in.find(b"\n")) >= 0:
            line = bytes(self._in[:end])
            del self._in[: end + 1]
            self._line(line)
        if len(self._in) > MAX_LINE:
            self.close()

    def _line(self, line: bytes) -> None:
        try:
            request = json.loads(line)
        except ValueError:
            request = None
        if isinstance(request, dict):
            self._on_request(self, request)
        else:
            self.close()

    def _writable(self) -> None:
        try:
            while self._out:
                del self._out[: self._sock.send(self._out)]
        except BlockingIOError:
            self._loop.watch(self._sock.fileno(), self._readable, self._writable)
            return
        except OSError:
            self.close()
            return
        self._loop.watch(self._sock.fileno(), self._readable)
