"""The client's bytes, cut into requests: heads, bodies by length or chunks, what comes too early.

One request at a time: what follows it waits (a little of it; then the client is not read from)
until the response is complete, so that pipelined requests are answered in order, whoever does it.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from aenv.server.proxy.bodies import ChunkDecoder
from aenv.server.proxy.connections import (
    BODY,
    CONTROL_RAW,
    HEAD,
    LINGER,
    NEXT,
    RAW,
    Connection,
    Pause,
)
from aenv.server.proxy.heads import MalformedHeadError, RequestHead, parse_request
from aenv.server.proxy.replies import Reply


class RequestReader(Connection):
    """A connection that knows where requests begin and end; subclasses know whom they are for."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._pumping = False
        self._answered = False
        self._eof = False
        self._left = 0
        self._decoder: ChunkDecoder | None = None

    @abstractmethod
    def _begin(self, head: RequestHead, *, last: bool) -> None:
        """A request begins; ``last``: no byte beyond its head has come yet."""

    @abstractmethod
    def _pass_body(self, data: bytes, *, done: bool) -> None: ...

    @abstractmethod
    def _pass_chunks(self, raw: bytes, payload: list[bytes], decoder: ChunkDecoder) -> None: ...

    @abstractmethod
    def _pass_raw(self, data: bytes) -> None: ...

    def check(self, now: float) -> None:
        """As above; a body that its reader does not take is not the client's lateness."""
        if self._deadline and self._mode is BODY and self._pauses and not self.closing:
            self._set_deadline(self.proxy.settings.body_timeout)
        super().check(now)

    def data_received(self, data: bytes) -> None:
        self._pumping = True
        try:
            while data:
                mode = self._mode
                if mode is HEAD:
                    data = self._take_head(data)
                elif mode is BODY:
                    data = self._take_body(data)
                else:
                    self._take_other(data)
                    break
        finally:
            self._pumping = False
        if self._eof and self._mode is HEAD:
            self.transport.close()

    def _take_other(self, data: bytes) -> None:
        if self._mode is RAW or self._mode is CONTROL_RAW:
            self._pass_raw(data)
        elif self._mode is NEXT:
            self._buffer += data
            if len(self._buffer) > self.proxy.settings.buffer_bytes:
                self._pause(Pause.BUFFER, True)

    def _take_head(self, data: bytes) -> bytes:
        """Begin the next request; return what follows its head."""
        buffer, searched = self._buffer, 0
        if buffer:
            searched = max(0, len(buffer) - 3)
            buffer += data
            end = buffer.find(b"\r\n\r\n", searched)
        else:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                buffer += data
                self._set_deadline(self.proxy.settings.head_timeout)
        if end < 0:
            self._await_head(searched)
            return b""
        if buffer:
            data = bytes(buffer)
            buffer.clear()
        end += 4
        if end > self.proxy.settings.max_head_bytes:
            self._refuse(Reply(431, "The request head is too long"))
            return b""
        raw, rest = (data, b"") if end == len(data) else (data[:end], data[end:])
        try:
            self._open(raw.removeprefix(b"\r\n"), last=not rest)
        except MalformedHeadError as error:
            self._refuse(Reply(error.status, error.message))
        return rest

    def _await_head(self, searched: int) -> None:
        if len(self._buffer) > self.proxy.settings.max_head_bytes:
            self._refuse(Reply(431, "The request head is too long"))
        elif self._buffer.find(b"\n\n", searched) >= 0:
            self._refuse(Reply(400, "The request head is not valid HTTP/1.1"))

    def _open(self, raw: bytes, *, last: bool) -> None:
        head = parse_request(raw, max_headers=self.proxy.settings.max_headers)
        self._deadline = 0.0
        self._answered = False
        if not head.keep_alive:
            self.closing = True
        if head.chunked:
            self._decoder = ChunkDecoder()
            self._mode = BODY
        else:
            self._decoder = None
            self._left = head.length or 0
            self._mode = BODY if self._left else NEXT
        self._begin(head, last=last)

    def _take_body(self, data: bytes) -> bytes:
        """Pass a piece of the request's body on; return what follows the body."""
        decoder = self._decoder
        try:
            used = self._take_chunks(data, decoder) if decoder else self._take_length(data)
        except MalformedHeadError as error:
            self._refuse(Reply(error.status, error.message))
            return b""
        if self._mode is NEXT and self._answered:
            self._next()
        return data[used:]

    def _take_length(self, data: bytes) -> int:
        size, left = len(data), self._left
        if size > left:
            data, size = data[:left], left
        self._left = left - size
        done = size == left
        if done:
            self._mode = NEXT
        self._pass_body(data, done=done)
        return size

    def _take_chunks(self, data: bytes, decoder: ChunkDecoder) -> int:
        payload: list[bytes] = []
        used = decoder.feed(data, payload)
        if decoder.done:
            self._mode = NEXT
        self._pass_chunks(data if used == len(data) else data[:used], payload, decoder)
        return used

    def _finished(self) -> None:
        """The response is complete. What is left of the request is dropped, for a while."""
        self._answered = True
        if self._mode is NEXT:
            self._next()
        elif self._mode is BODY and self.closing:
            self._linger()
        elif self._mode is BODY:
            self._resume()
            self._set_deadline(self.proxy.settings.linger_timeout)

    def _next(self) -> None:
        """Both the request and its response are complete."""
        if self.closing or (self._eof and not self._buffer and not self._pumping):
            self._mode = LINGER
            self.transport.close()
            return
        self._mode = HEAD
        self._set_deadline(self.proxy.settings.keep_alive_timeout)
        self._resume()
        if self._buffer and not self._pumping:
            data = bytes(self._buffer)
            self._buffer.clear()
            self.data_received(data)
