"""How the messages of a stream are written: JSON, or protobuf for those that carry bytes
(agent/proto/process.proto).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from aenv.models.errors import InfrastructureError
from aenv.sdk.protobuf import Field, Fields, decode, encode


@dataclass(frozen=True, slots=True)
class Codec:
    """``name`` is Connect's: a part of the content type."""

    name: str
    encode: Callable[[dict[str, Any]], bytes]
    decode: Callable[[bytes], dict[str, Any]]


def from_json(payload: bytes) -> dict[str, Any]:
    """InfrastructureError for what is no JSON object."""
    try:
        message = json.loads(payload or b"{}")
    except ValueError as error:
        raise InfrastructureError(f"the agent sent a malformed message: {error}") from error
    if not isinstance(message, dict):
        raise InfrastructureError("the agent sent a message that is no object")
    return message


def to_json(message: dict[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()


def protobuf(sent: Fields, received: Fields) -> Codec:
    return Codec("proto", partial(encode, fields=sent), partial(decode, fields=received))


_SELECTOR: Fields = (Field(1, "pid", "uint32"), Field(2, "tag", "string"))
_CONFIG: Fields = (
    Field(1, "cmd", "string"),
    Field(2, "args", "strings"),
    Field(3, "envs", "map"),
    Field(4, "cwd", "string"),
)
_SIZE: Fields = (Field(1, "cols", "uint32"), Field(2, "rows", "uint32"))
_START: Fields = (
    Field(1, "process", "message", _CONFIG),
    Field(2, "pty", "message", (Field(1, "size", "message", _SIZE),)),
    Field(3, "tag", "string"),
    Field(4, "stdin", "bool"),
)
_CONNECT: Fields = (Field(1, "process", "message", _SELECTOR),)
_DATA: Fields = (Field(1, "stdout", "bytes"), Field(2, "stderr", "bytes"), Field(3, "pty", "bytes"))
_END: Fields = (
    Field(1, "exitCode", "sint32"),
    Field(2, "exited", "bool"),
    Field(3, "status", "string"),
    Field(4, "error", "string"),
)
_EVENT: Fields = (
    Field(1, "start", "message", (Field(1, "pid", "uint32"),)),
    Field(2, "data", "message", _DATA),
    Field(3, "end", "message", _END),
)
_EVENTS: Fields = (Field(1, "event", "message", _EVENT),)
_INPUT: Fields = (Field(1, "stdin", "bytes"), Field(2, "pty", "bytes"))
_INPUTS: Fields = (
    Field(1, "start", "message", _CONNECT),
    Field(2, "data", "message", (Field(2, "input", "message", _INPUT),)),
)

JSON = Codec("json", to_json, from_json)
START = protobuf(_START, _EVENTS)
CONNECT = protobuf(_CONNECT, _EVENTS)
STREAM_INPUT = protobuf(_INPUTS, ())
