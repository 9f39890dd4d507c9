"""A guest's response on its way to the client: read strictly, framed by us.

The client's connection outlives the sandbox's answer, so a guest must not be able to write past it:
lengths are counted, chunks decoded and encoded anew, a body that ends with the connection becomes a
chunked one.
"""

from __future__ import annotations

import asyncio
from enum import IntEnum

from aenv.server.proxy.bodies import ChunkDecoder, encode_chunk, encode_end
from aenv.server.proxy.heads import (
    MalformedHeadError,
    RequestHead,
    ResponseHead,
    has_empty_line,
    parse_response,
)
from aenv.server.proxy.rewriting import client_head, has_no_body
from aenv.server.proxy.settings import ProxyStats

_MAX_INTERIM = 32


class Phase(IntEnum):
    """What the guest's next byte belongs to."""

    HEAD = 0
    LENGTH = 1
    CHUNKED = 2
    UNTIL_CLOSE = 3
    RAW = 4
    DONE = 5


# Enum members looked up by attribute would cost a tenth of a request.
HEAD, LENGTH, CHUNKED, UNTIL_CLOSE, RAW, DONE = Phase


class Response:
    """Feed it what the guest sends; it writes to the client and tells by ``phase`` how far it is.

    ``close``: set it before the head comes to announce that the client's connection ends with this
    response. ``leftover``: the guest sent more than its response.
    """

    __slots__ = (
        "_decoder",
        "_interim",
        "_left",
        "_max_head",
        "_partial",
        "_reencode",
        "_request",
        "_stats",
        "_transport",
        "_upgrade",
        "close",
        "keep_alive",
        "leftover",
        "phase",
    )

    def __init__(
        self,
        request: RequestHead,
        transport: asyncio.Transport,
        stats: ProxyStats,
        *,
        max_head: int,
        upgrade: bool,
        close: bool,
    ) -> None:
        self._request = request
        self._transport = transport
        self._stats = stats
        self._max_head = max_head
        self._upgrade = upgrade
        self._decoder: ChunkDecoder | None = None
        self._interim = 0
        self._left = 0
        self._partial = bytearray()
        self._reencode = False
        self.phase = HEAD
        self.close = close
        self.keep_alive = False
        self.leftover = False

    @property
    def untouched(self) -> bool:
        """Whether the guest has not sent a single byte."""
        return self.phase is HEAD and not self._partial and not self._interim

    @property
    def needs_reset(self) -> bool:
        """Whether the client could take an early end of the connection for the end of the body."""
        return self.phase in (CHUNKED, UNTIL_CLOSE) and not self._reencode

    def feed(self, data: bytes) -> None:
        """Raises MalformedHeadError."""
        phase = self.phase
        if phase is LENGTH:
            self._take_length(data)
        elif phase is HEAD:
            self._take_head(data)
        elif phase is CHUNKED:
            self._take_chunks(data)
        elif phase is DONE:
            self.leftover = True
        elif phase is UNTIL_CLOSE and self._reencode:
            self._write_all(encode_chunk([data]))
        else:
            self._write(data)

    def end(self) -> bool:
        """The guest closed its side in order: whether that completes the response."""
        if self.phase is not UNTIL_CLOSE:
            return False
        if self._reencode:
            self._write(encode_end(b""))
        self.phase = DONE
        return True

    def _take_head(self, data: bytes) -> None:
        if self._partial:
            may_end = has_empty_line(self._partial[-3:] + data)
            self._partial += data
            if not may_end and len(self._partial) <= self._max_head:
                return
            data = bytes(self._partial)
            self._partial.clear()
        found = parse_response(data)
        if (found[1] if found else len(data)) > self._max_head:
            raise MalformedHeadError("The response head is too long")
        if found is None:
            self._partial += data
            return
        head, end = found
        if head.status >= 600 or (head.status == 101 and not self._upgrade):
            raise MalformedHeadError("The response has a status that was not asked for")
        if head.status < 200 and head.status != 101:
            self._pass_interim(head)
        else:
            self._start(head)
        if end < len(data):
            self.feed(data[end:])

    def _pass_interim(self, head: ResponseHead) -> None:
        self._interim += 1
        if self._interim > _MAX_INTERIM:
            raise MalformedHeadError("The response has too many interim heads")
        if self._request.minor == 1:
            self._write(client_head(head, chunked=False, close=False, bodiless=True))

    def _start(self, head: ResponseHead) -> None:
        bodiless = has_no_body(self._request.method, head.status)
        self.phase = _phase(head, bodiless=bodiless)
        self.keep_alive = head.keep_alive and self.phase in (LENGTH, CHUNKED)
        until_close = self.phase is UNTIL_CLOSE
        self._reencode = self._request.minor == 1 and (until_close or self.phase is CHUNKED)
        self.close = self.close or (until_close and not self._reencode)
        self._write(client_head(head, chunked=self._reencode, close=self.close, bodiless=bodiless))
        if self.phase is CHUNKED:
            self._decoder = ChunkDecoder()
        elif self.phase is LENGTH:
            self._left = 0 if bodiless else head.length or 0
            if not self._left:
                self.phase = DONE

    def _take_length(self, data: bytes) -> None:
        size, left = len(data), self._left
        if size < left:
            self._left = left - size
            self._write(data)
            return
        self._write(data if size == left else data[:left])
        self.leftover = size > left
        self.phase = DONE

    def _take_chunks(self, data: bytes) -> None:
        decoder = self._decoder
        assert decoder is not None
        payload: list[bytes] = []
        used = decoder.feed(data, payload)
        if decoder.done:
            self.leftover = used < len(data)
            self.phase = DONE
        if not self._reencode:
            self._write_all(payload)
            return
        pieces = encode_chunk(payload)
        if decoder.done:
            pieces.append(encode_end(decoder.trailers))
        self._write_all(pieces)

    def _write_all(self, pieces: list[bytes]) -> None:
        if pieces:
            self._stats.bytes_to_clients += sum(map(len, pieces))
            self._transport.writelines(pieces)

    def _write(self, data: bytes) -> None:
        self._stats.bytes_to_clients += len(data)
        self._transport.write(data)


def _phase(head: ResponseHead, *, bodiless: bool) -> Phase:
    if head.status == 101:
        return RAW
    if bodiless:
        return LENGTH
    if head.chunked:
        return CHUNKED
    return UNTIL_CLOSE if head.length is None else LENGTH
