"""The kernel's table of tracked connections (ctnetlink): list those of one source, drop some."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from aenv.node.host.netlink import (
    Family,
    Flag,
    attribute,
    attributes,
    dump,
    exchange,
    message,
    nested,
)

_HEADER = struct.Struct("!BBH")
_GET, _DELETE = 0x101, 0x102
_TUPLE_ORIGIN, _FILTER, _ZONE = 1, 25, 18
_TUPLE_IP, _TUPLE_PROTOCOL = 1, 2
_SOURCE, _DESTINATION = 1, 2
_DESTINATION_PORT = 3
_FILTER_ORIGIN, _FILTER_BY_SOURCE = 1, 1


@dataclass(frozen=True, slots=True)
class Tracked:
    """A connection as its opener sees it; ``port`` is 0 for protocols without ports."""

    source: str
    peer: str
    port: int
    origin: bytes
    zone: bytes | None


def opened_by(source: str) -> Iterator[Tracked]:
    """IPv4 connections that ``source`` opened. The kernel filters from 5.8 on, we always do."""
    address = attribute(_SOURCE, socket.inet_aton(source))
    wanted = nested(_TUPLE_ORIGIN, nested(_TUPLE_IP, address))
    flags = nested(_FILTER, attribute(_FILTER_ORIGIN, struct.pack("=I", _FILTER_BY_SOURCE)))
    request = message(_GET, Flag.DUMP, _header() + wanted + flags)
    for body in dump(Family.NETFILTER, request):
        found = _read(attributes(body[_HEADER.size :]))
        if found is not None and found.source == source:
            yield found


def drop(connection: Tracked) -> None:
    """OSError (ENOENT) when it has ended meanwhile."""
    body = _header() + nested(_TUPLE_ORIGIN, connection.origin)
    if connection.zone is not None:
        body += attribute(_ZONE, connection.zone)
    exchange(Family.NETFILTER, message(_DELETE, Flag(0), body))


def _header() -> bytes:
    return _HEADER.pack(socket.AF_INET, 0, 0)


def _read(entry: dict[int, bytes]) -> Tracked | None:
    origin = entry.get(_TUPLE_ORIGIN, b"")
    parts = attributes(origin)
    ends = attributes(parts.get(_TUPLE_IP, b""))
    if len(ends.get(_SOURCE, b"")) != 4 or len(ends.get(_DESTINATION, b"")) != 4:
        return None
    port = attributes(parts.get(_TUPLE_PROTOCOL, b"")).get(_DESTINATION_PORT, b"\0\0")
    return Tracked(
        source=socket.inet_ntoa(ends[_SOURCE]),
        peer=socket.inet_ntoa(ends[_DESTINATION]),
        port=int.from_bytes(port, "big"),
        origin=origin,
        zone=entry.get(_ZONE),
    )
