"""Chunked bodies: a strict decoder, and our own encoding of what it found (RFC 9112 §7.1)."""

from __future__ import annotations

import re
from enum import IntEnum

from aenv.server.proxy.heads import MalformedHeadError, parse_trailers

_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[\t\x20-\x7e\x80-\xff]*)?")
_MAX_SIZE_LINE = 1024
_MAX_TRAILERS = 16384

LAST_CHUNK = b"0\r\n\r\n"


class _State(IntEnum):
    SIZE = 0
    DATA = 1
    DATA_END = 2
    TRAILERS = 3
    DONE = 4


_SIZE, _DATA, _DATA_END, _TRAILER, _DONE = _State


class ChunkDecoder:
    """Takes the bytes of one chunked body as they come. Extensions are dropped, trailers kept once
    it is ``done``."""

    __slots__ = ("_left", "_partial", "_state", "trailers")

    def __init__(self) -> None:
        self._state = _SIZE
        self._left = 0
        self._partial = b""
        self.trailers = b""

    @property
    def done(self) -> bool:
        return self._state is _DONE

    def feed(self, data: bytes, payload: list[bytes]) -> int:
        """Append the payload found in ``data`` and return how many bytes of it belong to this body.

        Raises MalformedHeadError.
        """
        at, end = 0, len(data)
        while at < end:
            state = self._state
            if state is _DATA:
                at = self._take_data(data, at, payload)
            elif state is _DONE:
                break
            else:
                at = self._take_line(data, at)
        return at

    def _take_data(self, data: bytes, at: int, payload: list[bytes]) -> int:
        left = self._left
        available = len(data) - at
        if available < left:
            payload.append(data[at:] if at else data)
            self._left = left - available
            return len(data)
        payload.append(data[at : at + left])
        self._left = 0
        self._state = _DATA_END
        return at + left

    def _take_line(self, data: bytes, at: int) -> int:
        newline = data.find(b"\n", at)
        if newline < 0:
            self._partial += data[at:]
            self._check_partial()
            return len(data)
        line = data[at : newline + 1]
        if self._partial:
            line = self._partial + line
            self._partial = b""
        if not line.endswith(b"\r\n"):
            raise MalformedHeadError("A line of the chunked body does not end with CRLF")
        self._line(line[:-2])
        return newline + 1

    def _line(self, line: bytes) -> None:
        if self._state is _SIZE:
            self._size(line)
        elif self._state is _DATA_END:
            if line:
                raise MalformedHeadError("A chunk is longer than its size")
            self._state = _SIZE
        elif line:
            self.trailers += line + b"\r\n"
            if len(self.trailers) > _MAX_TRAILERS:
                raise MalformedHeadError("The trailers are too long")
        else:
            self.trailers = parse_trailers(self.trailers)
            self._state = _DONE

    def _size(self, line: bytes) -> None:
        match = _SIZE_LINE.fullmatch(line)
        if match is None or len(line) > _MAX_SIZE_LINE:
            raise MalformedHeadError("A chunk size is malformed")
        self._left = int(match[1], 16)
        self._state = _DATA if self._left else _TRAILER

    def _check_partial(self) -> None:
        limit = {_SIZE: _MAX_SIZE_LINE, _DATA_END: 1}.get(self._state, _MAX_TRAILERS)
        if len(self._partial) > limit:
            raise MalformedHeadError("A line of the chunked body is too long")


def encode_chunk(payload: list[bytes]) -> list[bytes]:
    """One chunk out of the pieces of a read; nothing for no payload (an empty chunk would end the
    body)."""
    size = len(payload[0]) if len(payload) == 1 else sum(map(len, payload))
    return [b"%x\r\n" % size, *payload, b"\r\n"] if size else []


def encode_end(trailers: bytes) -> bytes:
    return b"0\r\n" + trailers + b"\r\n" if trailers else LAST_CHUNK
