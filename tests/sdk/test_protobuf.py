"""Protobuf as our agent speaks it: there and back, and what no agent sends."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aenv.models.errors import InfrastructureError
from aenv.sdk import codecs
from aenv.sdk.protobuf import Field, decode, encode

_INNER = (Field(1, "pid", "uint32"), Field(3, "data", "bytes"))
_FIELDS = (
    Field(1, "code", "sint32"),
    Field(2, "word", "string"),
    Field(200, "inner", "message", _INNER),
    Field(5, "yes", "bool"),
)
_messages = st.fixed_dictionaries(
    {},
    optional={
        "code": st.integers(-(2**31), 2**31 - 1),
        "word": st.text(),
        "yes": st.booleans(),
        "inner": st.fixed_dictionaries(
            {}, optional={"pid": st.integers(0, 2**32 - 1), "data": st.binary()}
        ),
    },
)


@given(_messages)
def test_what_is_written_is_read(message: dict[str, Any]) -> None:
    assert decode(encode(message, _FIELDS), _FIELDS) == message


@given(_messages)
def test_fields_of_a_newer_agent_are_skipped(message: dict[str, Any]) -> None:
    newer = b"\x50\x96\x01" + b"\x5a\x02ab" + b"\x61" + b"x" * 8 + b"\x6d" + b"y" * 4
    assert decode(newer + encode(message, _FIELDS), _FIELDS) == message


@given(st.binary())
def test_any_bytes_are_a_message_or_a_named_error(data: bytes) -> None:
    with suppress(InfrastructureError):
        assert isinstance(decode(data, _FIELDS), dict)


@pytest.mark.parametrize(
    "data", [b"\x0a\x05ab", b"\x08", b"\x08" + b"\xff" * 11, b"\x0b", b"\x0a\x01a", b"\x10\x01"]
)
def test_what_is_cut_off_or_of_another_type_is_refused(data: bytes) -> None:
    with pytest.raises(InfrastructureError):
        decode(data, _FIELDS)


def test_the_published_encoding_is_met() -> None:
    """The example of protobuf's own documentation, and a start as protoc writes it."""
    assert encode({"a": 150}, (Field(1, "a", "uint32"),)) == b"\x08\x96\x01"
    launch = {"process": {"cmd": "ls", "args": ["-l", ""], "envs": {"A": "1"}}, "stdin": False}
    assert codecs.START.encode(launch) == (
        b"\x0a\x12\x0a\x02ls\x12\x02-l\x12\x00\x1a\x06\x0a\x01A\x12\x011" + b"\x20\x00"
    )
    with pytest.raises(KeyError):
        codecs.START.encode({"unknown": 1})
