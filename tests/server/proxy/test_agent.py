"""The proxy in front of the real agent (built with Go; skipped where there is none)."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from tests.server.proxy.stage import Stage

from aenv.control.routes import Route
from aenv.models.ids import new_sandbox_id

AGENT = Path(__file__).parents[3] / "agent"
pytestmark = pytest.mark.skipif(shutil.which("go") is None, reason="needs go")


@pytest.fixture(scope="session")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("agent") / "agent"
    subprocess.run(["go", "build", "-o", path, "."], cwd=AGENT, check=True)
    return path


@pytest_asyncio.fixture
async def client(
    stage: Stage, binary: Path, tmp_path: Path, unused_tcp_port: int
) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client that speaks to an agent through the proxy."""
    address = ("127.0.0.1", unused_tcp_port)
    process = await asyncio.create_subprocess_exec(
        binary, "--listen", f"127.0.0.1:{unused_tcp_port}", "--single-user", "--home", tmp_path
    )
    route = Route(new_sandbox_id(), agent=address, guest_host="127.0.0.1", access_token="")
    stage.table.publish(route)
    headers = {"E2b-Sandbox-Id": route.sandbox_id, "E2b-Sandbox-Port": "49983"}
    try:
        async with httpx.AsyncClient(base_url=stage.url, headers=headers) as client:
            async with asyncio.timeout(10):
                while (await client.get("/health")).status_code != 204:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            yield client
    finally:
        process.kill()
        await process.wait()


async def test_a_command_streams_its_output(client: httpx.AsyncClient) -> None:
    message = json.dumps(
        {"process": {"cmd": "/bin/sh", "args": ["-c", "echo hi; exit 3"]}}
    ).encode()
    async with client.stream(
        "POST",
        "/process.Process/Start",
        content=b"\0" + len(message).to_bytes(4, "big") + message,
        headers={"content-type": "application/connect+json", "connect-protocol-version": "1"},
    ) as answer:
        raw = await answer.aread()
    events = []
    while raw:
        size = int.from_bytes(raw[1:5], "big")
        events.append(json.loads(raw[5 : 5 + size]))
        raw = raw[5 + size :]
    assert "start" in events[0]["event"]
    assert base64.b64decode(events[1]["event"]["data"]["stdout"]) == b"hi\n"
    assert events[2]["event"]["end"]["exitCode"] == 3


async def test_files_go_there_and_back(client: httpx.AsyncClient) -> None:
    content = bytes(range(256)) * 8000
    where = {"path": "deep/file.bin"}
    octets = {"content-type": "application/octet-stream"}
    written = await client.post("/files", params=where, content=content, headers=octets)
    assert written.status_code == 200
    assert (await client.get("/files", params=where)).content == content
    part = await client.get("/files", params=where, headers={"Range": "bytes=256-511"})
    assert (part.status_code, part.content) == (206, bytes(range(256)))


async def test_the_host_only_side_stays_hidden(client: httpx.AsyncClient) -> None:
    for path in ("/init", "/aenv/health", "/aenv/logs"):
        answer = await client.post(path, json={}, headers={"X-Aenv-Host-Secret": "guess"})
        assert answer.status_code == 404
