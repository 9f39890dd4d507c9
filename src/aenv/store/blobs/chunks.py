"""Cutting content into chunks where the content says so, at page boundaries.

Memory images and EROFS images are made of 4 KiB pages, and a child differs from its parent by
changed pages and by pages put in or left out. So a page decides by its checksum whether a chunk
ends after it: a change moves no boundary beyond the next one, as with FastCDC, at a hundredth of
the cost of looking at every byte. Long runs of zero pages are holes and not stored.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

PAGE = 4096
LEAST = 64 * PAGE
MOST = 1024 * PAGE
HOLE = 64 * PAGE
"""Shorter runs of zeros stay within their chunk, where they compress to nothing."""
LONGEST = MOST + HOLE
"""No chunk is longer: one that is full may still hold a run of zeros in its midst."""
_MASK = 0xFF
_ZEROS = bytes(PAGE)
_ZERO_SUM = zlib.crc32(_ZEROS)


@dataclass(frozen=True, slots=True)
class Piece:
    """``data`` None: ``length`` zeros."""

    offset: int
    length: int
    data: bytes | None


class Chunker:
    """Feed it all content in order, then :meth:`finish`. The same content gives the same pieces,
    however it was fed.
    """

    def __init__(self) -> None:
        self.length = 0
        self._offset = 0
        self._rest = b""
        self._chunk = bytearray()
        self._zeros = 0

    def feed(self, data: bytes) -> Iterator[Piece]:
        """The pieces that ``data`` completes."""
        self.length += len(data)
        if self._rest:
            data, self._rest = self._rest + data, b""
        whole = len(data) // PAGE * PAGE
        self._rest = data[whole:]
        yield from self._pages(memoryview(data)[:whole])

    def feed_zeros(self, length: int) -> Iterator[Piece]:
        """As :meth:`feed` with so many zeros, which need not exist anywhere."""
        if self._rest:
            lead = min(length, PAGE - len(self._rest))
            yield from self.feed(bytes(lead))
            length -= lead
        whole = length // PAGE * PAGE
        self.length += whole
        yield from self._zero(whole)
        if length > whole:
            yield from self.feed(bytes(length - whole))

    def finish(self) -> Iterator[Piece]:
        """The last pieces."""
        rest, self._rest = self._rest, b""
        if rest.strip(b"\0"):
            yield from self._pages(memoryview(rest))
        elif rest:
            yield from self._zero(len(rest))
        yield from self._end_chunk()
        yield from self._end_hole()

    def _pages(self, view: memoryview) -> Iterator[Piece]:
        start = 0
        for at, zero in _marks(view):
            yield from self._data(view[start:at])
            start = at + PAGE
            if zero:
                yield from self._zero(PAGE)
                continue
            yield from self._data(view[at:start])
            if len(self._chunk) >= LEAST:
                yield from self._end_chunk()
        yield from self._data(view[start:])

    def _data(self, view: memoryview) -> Iterator[Piece]:
        """Pages after none of which the content asks for an end."""
        if not view:
            return
        if self._chunk:
            self._chunk += bytes(self._zeros)
            self._zeros = 0
        else:
            yield from self._end_hole()
        while view:
            room = max(PAGE, MOST - len(self._chunk))
            self._chunk += view[:room]
            view = view[room:]
            if len(self._chunk) >= MOST:
                yield from self._end_chunk()

    def _zero(self, length: int) -> Iterator[Piece]:
        self._zeros += length
        if self._zeros >= HOLE:
            yield from self._end_chunk()

    def _end_chunk(self) -> Iterator[Piece]:
        if self._chunk:
            data = bytes(self._chunk)
            self._chunk.clear()
            yield self._piece(len(data), data)

    def _end_hole(self) -> Iterator[Piece]:
        if self._zeros:
            length, self._zeros = self._zeros, 0
            yield self._piece(length, None)

    def _piece(self, length: int, data: bytes | None) -> Piece:
        piece = Piece(self._offset, length, data)
        self._offset += length
        return piece


def _marks(view: memoryview) -> Iterator[tuple[int, bool]]:
    """Offsets of pages that may end a chunk (False), or are all zeros (True)."""
    sums = [zlib.crc32(view[at : at + PAGE]) for at in range(0, len(view), PAGE)]
    for index, checksum in enumerate(sums):
        if not checksum & _MASK or checksum == _ZERO_SUM:
            at = index * PAGE
            zero = checksum == _ZERO_SUM and view[at : at + PAGE] == _ZEROS
            if zero or not checksum & _MASK:
                yield at, zero
