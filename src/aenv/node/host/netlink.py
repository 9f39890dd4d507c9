"""Netlink (netlink(7)): messages, attributes, and one exchange with the kernel.

The handful of requests that slots need is written out in ``rtnetlink`` and ``conntrack``: pyroute2
would do, but costs 0.3 s of import, which a server's start and its first sandbox would pay.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from enum import IntEnum, IntFlag

_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_TYPE_MASK = 0x3FFF  # without the flags "nested" and "network byte order"
_NESTED = 0x8000
_TIMEOUT = 5.0
_BUFFER = 1 << 18
_FEW_ATTRIBUTES = 1024


class Family(IntEnum):
    ROUTE = 0
    NETFILTER = 12


class Flag(IntFlag):
    REQUEST = 0x1
    ACK = 0x4
    REPLACE = 0x100
    DUMP = 0x300
    EXCL = 0x200
    CREATE = 0x400


class _Kind(IntEnum):
    ERROR = 2
    DONE = 3


def message(kind: int, flags: Flag, body: bytes) -> bytes:
    """One request; several in a row make a batch."""
    flags |= Flag.REQUEST if flags & Flag.DUMP == Flag.DUMP else Flag.REQUEST | Flag.ACK
    return _padded(_HEADER.pack(_HEADER.size + len(body), kind, flags, 0, 0) + body)


def attribute(kind: int, value: bytes) -> bytes:
    return _padded(_ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value)


def nested(kind: int, *attributes: bytes) -> bytes:
    return attribute(kind | _NESTED, b"".join(attributes))


def attributes(data: bytes) -> dict[int, bytes]:
    """The values by kind, as far as the data is well-formed."""
    found: dict[int, bytes] = {}
    offset = 0
    while offset + _ATTRIBUTE.size <= len(data) and len(found) < _FEW_ATTRIBUTES:
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < _ATTRIBUTE.size:
            break
        found[kind & _TYPE_MASK] = data[offset + _ATTRIBUTE.size : offset + length]
        offset += _aligned(length)
    return found


def exchange(family: Family, batch: bytes) -> None:
    """Send requests in one datagram, wait for every acknowledgement; OSError if one is refused."""
    with _open(family) as link:
        link.send(batch)
        waiting = sum(1 for _ in _split(batch))
        while waiting:
            for kind, body in _split(link.recv(_BUFFER)):
                if kind == _Kind.ERROR:
                    waiting -= 1
                    _raise(body)


def dump(family: Family, request: bytes) -> Iterator[bytes]:
    """The bodies of all that a request for a listing is answered with."""
    with _open(family) as link:
        link.send(request)
        while True:
            for kind, body in _split(link.recv(_BUFFER)):
                if kind == _Kind.DONE:
                    return
                if kind == _Kind.ERROR:
                    _raise(body)
                else:
                    yield body


def _open(family: Family) -> socket.socket:
    link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, family)
    link.settimeout(_TIMEOUT)
    link.bind((0, 0))
    return link


def _raise(body: bytes) -> None:
    code = -struct.unpack_from("=i", body)[0]
    if code:
        raise OSError(code, f"netlink: {os.strerror(code)}")


def _split(messages: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while offset + _HEADER.size <= len(messages):
        length, kind, *_ = _HEADER.unpack_from(messages, offset)
        if length < _HEADER.size:
            raise OSError(errno.EBADMSG, "netlink: a malformed message")
        yield kind, messages[offset + _HEADER.size : offset + length]
        offset += _aligned(length)


def _padded(data: bytes) -> bytes:
    return data.ljust(_aligned(len(data)), b"\0")


def _aligned(length: int) -> int:
    return (length + 3) & ~3
