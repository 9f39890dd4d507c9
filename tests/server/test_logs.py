"""Log lines: structured, and without secrets."""

from __future__ import annotations

import io
import json
import logging
import sys

import pytest
import structlog
from tests.server.apis import Api

from aenv.server import logs


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    buffer = io.StringIO()
    monkeypatch.setattr(sys, "stderr", buffer)
    before = logging.getLogger().handlers[:]
    logs.configure(pretty=False)
    yield buffer
    logging.getLogger().handlers[:] = before
    structlog.reset_defaults()


def test_names_and_shapes_of_secrets_are_masked() -> None:
    event = {
        "event": "calling http://user:pw@host/?signature=v1_abc with Bearer abcdefghijkl",
        "access_token": "t0k3n",
        "nested": {"apiKey": "k3y", "list": ["e2b_" + "a" * 40, 5]},
        "env_vars": {"A": "b"},
        "template": "base",
    }

    shown = json.dumps(logs.masked(None, "", event))

    for secret in ("pw@", "v1_abc", "abcdefghijkl", "t0k3n", "k3y", "e2b_aaaa", '"b"'):
        assert secret not in shown
    assert "base" in shown


async def test_requests_are_logged_with_their_ids_and_no_secret(
    written: io.StringIO, api: Api
) -> None:
    sandbox_id = await api.new(envVars={"PASSWORD": "hunter2"}, metadata={"m": "private"})
    await api.client.get(f"/sandboxes/{sandbox_id}?token=s3cr3t", headers={"X-Request-Id": "r1"})

    lines = [json.loads(line) for line in written.getvalue().splitlines()]

    mine = [line for line in lines if line.get("request_id") == "r1"]
    assert mine[-1]["route"] == "/sandboxes/{sandbox_id}"
    assert (mine[-1]["sandbox_id"], mine[-1]["status"]) == (sandbox_id, 200)
    assert any(line.get("template") == "base" for line in lines)
    route = api.system.routes.get(sandbox_id)
    assert route is not None
    for secret in ("hunter2", "private", "s3cr3t", route.access_token, api.system.keys.local):
        assert secret not in written.getvalue()


def test_the_standard_loggers_go_the_same_way(written: io.StringIO) -> None:
    logging.getLogger("aenv.node").warning("lost %s", "it", extra={})
    line = json.loads(written.getvalue())
    assert (line["event"], line["level"], line["logger"]) == ("lost it", "warning", "aenv.node")
