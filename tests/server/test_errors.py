"""Bad input: always a JSON error with the right status, and the server lives on."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.server.apis import Api, error_of

from aenv.server.middleware import MAX_BODY
from aenv.server.unbuilt import ROUTES

JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"{}",
        b"\xff\xfe",
        b"[" * 200_000,
        b'{"templateID": "\\ud800"}',
        b'{"templateID": "base", "metadata": {"a": "\\ud800"}}',
        b'{"templateID": "base", "metadata": {"\\udfff": "a"}}',
        b'{"templateID": "base", "envVars": {"A": "\\ud800"}}',
        b'{"templateID": "base", "network": {"allowOut": ["\\ud800"]}}',
        b'{"templateID": "base", "network": {"rules": {"a": ' + b"[" * 700 + b"]" * 700 + b"}}}",
        b'{"templateID": "base", "timeout": NaN}',
        b'{"templateID": "base", "timeout": 1e999}',
        b'{"templateID": "base", "cpuCount": Infinity}',
        b'{"templateID": "base", "timeout": ' + b"9" * 5000 + b"}",
    ],
)
async def test_malformed_bodies_are_400(api: Api, content: bytes) -> None:
    reply = await api.client.post("/v2/sandboxes", content=content, headers=JSON)
    assert error_of(reply) == (400, "invalid_request")


async def test_another_content_type_is_400_and_says_which_is_wanted(api: Api) -> None:
    reply = await api.client.post("/v2/sandboxes", content=b'{"templateID": "base"}')
    assert error_of(reply)[0] == 400
    assert "application/json" in reply.json()["message"]


async def test_input_is_not_echoed(api: Api) -> None:
    body = {"templateID": "base", "envVars": {"TOKEN": ["s3cr3t"]}}
    reply = await api.client.post("/v2/sandboxes", json=body)
    assert error_of(reply)[0] == 400
    assert "s3cr3t" not in reply.text


async def test_an_unknown_route_is_404(api: Api) -> None:
    assert error_of(await api.client.get("/nope")) == (404, "not_found")


async def test_a_wrong_method_is_405_with_allow(api: Api) -> None:
    reply = await api.client.put("/v2/sandboxes")
    assert error_of(reply)[0] == 405
    assert reply.headers["allow"]


async def test_bodies_above_the_limit_are_413_announced_or_not(api: Api) -> None:
    async def stream() -> AsyncIterator[bytes]:
        for _ in range(MAX_BODY // 65536 + 1):
            yield b" " * 65536

    announced = await api.client.post("/v2/sandboxes", content=b" " * (MAX_BODY + 1), headers=JSON)
    chunked = await api.client.post("/v2/sandboxes", content=stream(), headers=JSON)

    assert error_of(announced) == error_of(chunked) == (413, "body_too_large")


async def test_a_surprise_is_500_without_its_details(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def surprise(*_: object) -> None:
        raise ZeroDivisionError("internal detail")

    monkeypatch.setattr(api.system.sandboxes, "get", surprise)

    reply = await api.client.get("/sandboxes/" + "i" * 20)

    assert error_of(reply) == (500, "internal")
    assert "internal detail" not in reply.text
    assert reply.headers["x-request-id"]


async def test_a_chunked_request_is_served(api: Api) -> None:
    async def stream() -> AsyncIterator[bytes]:
        yield b'{"templateID"'
        yield b': "base"}'

    reply = await api.client.post("/v2/sandboxes", content=stream(), headers=JSON)
    assert reply.status_code == 201


@pytest.mark.parametrize(("method", "path", "missing"), ROUTES)
async def test_known_routes_that_are_not_built_are_501(
    api: Api, method: str, path: str, missing: str
) -> None:
    plain = path.replace("{", "").replace("}", "")
    reply = await api.client.request(method, plain, json={})
    assert error_of(reply) == (501, "not_implemented")
    assert reply.json()["message"] == missing


@pytest.mark.parametrize("given", ["abc-123", "bad id!", "x" * 65, ""])
async def test_replies_carry_a_request_id(api: Api, given: str) -> None:
    reply = await api.client.get("/sandboxes", headers={"X-Request-Id": given})
    assert (reply.headers["x-request-id"] == given) == (given == "abc-123")
    assert reply.headers["x-request-id"]
