"""The Connect protocol's framing and errors."""

from __future__ import annotations

import json

import pytest

from aenv.models.errors import (
    AgentUnreachableError,
    CommandTimeoutError,
    ConflictError,
    Culprit,
    DiskFullError,
    InfrastructureError,
    InvalidRequestError,
    NotFoundError,
    QuotaExceededError,
    SandboxNotFoundError,
    TemplateNotReadyError,
    UnauthorizedError,
)
from aenv.sdk import faults
from aenv.sdk.connect import EnvelopeReader, envelope
from aenv.sdk.events import exited


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 7, 1000])
def test_messages_are_found_wherever_the_stream_is_cut(cut: int) -> None:
    data = envelope({"a": 1}) + envelope({}) + envelope({"b": "é" * 50}) + envelope({}, flags=2)
    reader = EnvelopeReader()
    found = []
    for start in range(0, len(data), cut):
        found += reader.feed(data[start : start + cut])
    assert found == [{"a": 1}, {}, {"b": "é" * 50}]
    reader.check_end()


def test_the_last_frame_may_carry_an_error() -> None:
    reader = EnvelopeReader()
    error = {"error": {"code": "deadline_exceeded", "message": "too late"}}
    assert reader.feed(envelope({"a": 1}) + envelope(error, flags=2)) == [{"a": 1}]
    with pytest.raises(CommandTimeoutError, match="too late"):
        reader.check_end()


def test_a_stream_without_a_last_frame_was_cut() -> None:
    reader = EnvelopeReader()
    reader.feed(envelope({"a": 1})[:-1])
    with pytest.raises(AgentUnreachableError, match="cut"):
        reader.check_end()


@pytest.mark.parametrize(
    "frame", [b"\x01\x00\x00\x00\x02{}", b"\x00\xff\xff\xff\xff", b"\x00\x00\x00\x00\x02[]",
              b"\x00\x00\x00\x00\x01{"]
)  # fmt: skip
def test_what_no_agent_sends_is_an_error_and_no_crash(frame: bytes) -> None:
    with pytest.raises(InfrastructureError):
        EnvelopeReader().feed(frame)


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (401, {"code": 401, "message": "no key"}, UnauthorizedError),
        (401, {"code": "unauthenticated", "message": "invalid username: 'x'"}, InvalidRequestError),
        (400, {"code": 400, "message": "m", "error_code": "invalid_request"}, InvalidRequestError),
        (404, {"code": 404, "message": "m", "error_code": "not_found"}, NotFoundError),
        (404, {"code": "not_found", "message": "m"}, NotFoundError),
        (409, {"code": "already_exists", "message": "m"}, ConflictError),
        (429, {"code": 429, "message": "m", "error_code": "quota_exceeded"}, QuotaExceededError),
        (500, {"code": "internal", "message": "m"}, InfrastructureError),
        (502, {"sandboxId": "i1", "message": "The sandbox was not found", "code": 502},
         SandboxNotFoundError),
        (502, {"sandboxId": "i1", "message": "The sandbox is running but port is not open",
               "port": 80, "code": 502}, NotFoundError),
        (503, {"code": 503, "message": "m", "error_code": "template_building"},
         TemplateNotReadyError),
        (507, {"code": 507, "message": "m"}, DiskFullError),
        (418, {}, InvalidRequestError.__mro__[1]),
    ],
)  # fmt: skip
def test_each_answer_becomes_its_error(status: int, body: dict[str, object], kind: type) -> None:
    error = faults.from_response(status, json.dumps(body).encode())
    assert type(error) is kind
    assert str(error)


def test_the_servers_culprit_and_patience_are_kept() -> None:
    body = {"message": "m", "error_code": "engine", "culprit": "policy"}
    error = faults.from_response(500, json.dumps(body).encode(), retry_after="7")
    assert (error.culprit, error.retry_after) == (Culprit.POLICY, 7.0)
    assert faults.from_response(503, b"<html>", retry_after="soon").retry_after is None


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ({"exited": True, "status": "exit status 0"}, 0),
        ({"exitCode": 3, "exited": True, "status": "exit status 3"}, 3),
        ({"exitCode": -1, "status": "signal: killed"}, 137),
        ({"exitCode": -1, "status": "signal: segmentation fault (core dumped)"}, 139),
        ({"exitCode": 152, "status": "signal: something new"}, 152),
        ({"exitCode": -1, "status": "signal: something new"}, 128),
    ],
)
def test_exit_codes_are_what_a_shell_would_say(end: dict[str, object], code: int) -> None:
    assert exited(end).exit_code == code
