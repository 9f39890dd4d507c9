"""As much of a DNS message (RFC 1035 §4) as a forwarder needs: what is asked, how to refuse."""

from __future__ import annotations

import struct
from enum import IntEnum

_HEADER = struct.Struct("!HHHHHH")
_RESPONSE, _OPCODE, _RECURSION_DESIRED, _RECURSION_AVAILABLE = 0x8000, 0x7800, 0x0100, 0x0080
_LABEL_LIMIT, _NAME_LIMIT, _TYPE_AND_CLASS = 63, 255, 4


class Rcode(IntEnum):
    FORMAT_ERROR = 1
    SERVER_FAILURE = 2
    NOT_IMPLEMENTED = 4
    REFUSED = 5


def identity(message: bytes) -> int:
    return int.from_bytes(message[:2], "big")


def with_identity(message: bytes, identity: int) -> bytes:
    return identity.to_bytes(2, "big") + message[2:]


def is_query(message: bytes) -> bool:
    """Whether it deserves an answer at all; the rest is dropped, lest two forwarders talk."""
    return len(message) >= _HEADER.size and not _flags(message) & _RESPONSE


def fault(query: bytes) -> Rcode | None:
    """What is wrong with a query; None when it can be forwarded."""
    if _flags(query) & _OPCODE:
        return Rcode.NOT_IMPLEMENTED
    if _HEADER.unpack_from(query)[2] != 1 or not question(query):
        return Rcode.FORMAT_ERROR
    return None


def question(message: bytes) -> bytes:
    """The first question as sent (name, type, class); empty when malformed."""
    offset = _HEADER.size
    while offset < len(message) and message[offset]:
        if message[offset] > _LABEL_LIMIT or offset - _HEADER.size > _NAME_LIMIT:
            return b""
        offset += 1 + message[offset]
    end = offset + 1 + _TYPE_AND_CLASS
    return message[_HEADER.size : end] if end <= len(message) else b""


def answers(reply: bytes, query: bytes) -> bool:
    """Whether ``reply`` belongs to ``query``: same id, same question (case may differ)."""
    if len(reply) < _HEADER.size or not _flags(reply) & _RESPONSE:
        return False
    if identity(reply) != identity(query):
        return False
    echoed = _HEADER.unpack_from(reply)[2]
    return not echoed or question(reply).lower() == question(query).lower()


def refusal(query: bytes, rcode: Rcode) -> bytes:
    asked = question(query)
    flags = _flags(query) & (_OPCODE | _RECURSION_DESIRED)
    flags |= _RESPONSE | _RECURSION_AVAILABLE | rcode
    return _HEADER.pack(identity(query), flags, 1 if asked else 0, 0, 0, 0) + asked


def _flags(message: bytes) -> int:
    return int.from_bytes(message[2:4], "big")
