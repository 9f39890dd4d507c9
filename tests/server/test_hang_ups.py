"""Clients that close their connection before they are answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import uvicorn
from tests.fakes.waiting import until, until_equal
from tests.server.apis import Api

from aenv.server.app import create_app
from aenv.server.listeners import bind
from aenv.server.proxy import make_protocol


@pytest.fixture
async def port(api: Api) -> AsyncIterator[int]:
    """Where the API listens on real connections."""
    config = uvicorn.Config(
        create_app(api.system),
        http=make_protocol(api.system.routes),
        lifespan="off",
        log_config=None,
        timeout_graceful_shutdown=5,
    )
    server = uvicorn.Server(config)
    with bind("127.0.0.1", 0) as listener:
        serving = asyncio.create_task(server._serve([listener]))
        yield listener.getsockname()[1]
        server.should_exit = True
        await serving


async def _asked(
    api: Api, port: int, path: str, **headers: str
) -> tuple[str, asyncio.StreamWriter, asyncio.StreamReader]:
    """A create that boots until the gate opens; its sandbox and its connection."""
    api.node.knobs.create_gate = asyncio.Event()
    before = api.node.count("create")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"templateID": "base"})
    lines = {
        "Host": "api",
        "X-API-Key": api.system.keys.local,
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    writer.write(f"POST {path} HTTP/1.1\r\n{head}\r\n{body}".encode())
    await until(lambda: api.node.count("create") > before)
    return api.node.calls[-1][1], writer, reader


@pytest.mark.parametrize("path", ["/sandboxes", "/v2/sandboxes"])
@pytest.mark.parametrize("reset", [False, True])
async def test_the_sandbox_nobody_heard_of_is_ended(
    api: Api, port: int, path: str, reset: bool
) -> None:
    sandbox_id, writer, _ = await _asked(api, port, path)
    if reset:
        writer.transport.abort()
    else:
        writer.close()

    await until_equal(lambda: api.state(sandbox_id), "killed")
    await until(lambda: api.node.running == {})
    assert await api.ids() == []


async def test_with_an_idempotency_key_a_retry_finds_it(api: Api, port: int) -> None:
    sandbox_id, writer, _ = await _asked(api, port, "/v2/sandboxes", Idempotency_Key="k")
    writer.close()
    await writer.wait_closed()
    assert api.node.knobs.create_gate is not None
    api.node.knobs.create_gate.set()

    again = await api.client.post(
        "/v2/sandboxes", json={"templateID": "base"}, headers={"Idempotency-Key": "k"}
    )

    assert again.json()["sandboxID"] == sandbox_id
    assert await api.state(sandbox_id) == "running"


async def test_who_waits_is_answered(api: Api, port: int) -> None:
    sandbox_id, writer, reader = await _asked(api, port, "/v2/sandboxes", Connection="close")
    assert api.node.knobs.create_gate is not None
    api.node.knobs.create_gate.set()

    answer = await reader.read()

    assert answer.startswith(b"HTTP/1.1 201")
    assert sandbox_id.encode() in answer
    assert await api.state(sandbox_id) == "running"
    writer.close()
