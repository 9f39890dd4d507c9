"""Protobuf's wire format for the few messages of ours that carry bytes, where JSON would have to
carry base64.

Encoding: https://protobuf.dev/programming-guides/encoding. A message is a dict by the names of its
JSON form; ``bytes`` stay bytes, what is absent is left out, and unknown fields are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from aenv.models.errors import InfrastructureError

Kind = Literal["uint32", "sint32", "bool", "string", "bytes", "message", "strings", "map"]

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}
_MOST_BITS = 63


@dataclass(frozen=True, slots=True)
class Field:
    """``strings``: repeated; ``map``: of strings to strings; ``fields``: those of a message."""

    number: int
    name: str
    kind: Kind
    fields: Fields = ()


Fields = tuple[Field, ...]
_PAIR: Fields = (Field(1, "key", "string"), Field(2, "value", "string"))


def encode(message: Mapping[str, Any], fields: Fields) -> bytes:
    """KeyError for a name that is none of ``fields``."""
    known = {field.name: field for field in fields}
    return b"".join(_encoded(known[name], value) for name, value in message.items())


def decode(data: bytes, fields: Fields) -> dict[str, Any]:
    """Only fields of one value are read. InfrastructureError for what is no such message."""
    known = {field.number: field for field in fields}
    message: dict[str, Any] = {}
    for number, value in _values(data):
        field = known.get(number)
        if field is not None:
            message[field.name] = _decoded(field, value)
    return message


def _encoded(field: Field, value: Any) -> bytes:
    if field.kind == "strings":
        return b"".join(_with_length(field, one.encode()) for one in value)
    if field.kind == "map":
        pairs = ({"key": key, "value": one} for key, one in value.items())
        return b"".join(_with_length(field, encode(pair, _PAIR)) for pair in pairs)
    if field.kind == "message":
        return _with_length(field, encode(value, field.fields))
    if field.kind in ("string", "bytes"):
        return _with_length(field, value.encode() if isinstance(value, str) else value)
    number = _zigzag(value) if field.kind == "sint32" else int(value)
    return _varint(field.number << 3 | _VARINT) + _varint(number)


def _decoded(field: Field, value: int | bytes) -> Any:
    if isinstance(value, int) != (field.kind in ("uint32", "sint32", "bool")):
        raise InfrastructureError(f"the agent sent {field.name!r} as something else")
    if isinstance(value, int):
        if field.kind == "sint32":
            return value >> 1 ^ -(value & 1)
        return bool(value) if field.kind == "bool" else value
    if field.kind == "message":
        return decode(value, field.fields)
    return value if field.kind == "bytes" else value.decode("utf-8", "replace")


def _values(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Each field's number and what it holds, as it is on the wire."""
    position = 0
    while position < len(data):
        key, position = _read_varint(data, position)
        wire = key & 7
        if wire == _VARINT:
            value, position = _read_varint(data, position)
            yield key >> 3, value
            continue
        if wire == _LENGTH:
            length, position = _read_varint(data, position)
        elif (length := _FIXED.get(wire, -1)) < 0:
            raise InfrastructureError(f"the agent sent a field of wire type {wire}")
        end = position + length
        if end > len(data):
            raise InfrastructureError("the agent sent a message that is cut off")
        yield key >> 3, data[position:end]
        position = end


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, _MOST_BITS + 1, 7):
        if position == len(data):
            raise InfrastructureError("the agent sent a message that is cut off")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise InfrastructureError("the agent sent a number that is too long")


def _with_length(field: Field, content: bytes) -> bytes:
    return _varint(field.number << 3 | _LENGTH) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else ~value << 1 | 1
