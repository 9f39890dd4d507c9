"""The host's client of a guest agent, against a fake agent and against hostile peers."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from tests.fakes.agent import FakeAgent

from aenv.models.errors import AgentUnreachableError
from aenv.node.agents import AgentClient
from aenv.node.agentwire import AgentInit, exit_code_of, output_of, read_lines
from aenv.node.engine import Address
from aenv.node.http1 import Reply


@pytest.fixture
async def agent() -> AsyncIterator[FakeAgent]:
    agent = FakeAgent()
    yield agent
    await agent.stop()


def client(address: Address) -> AgentClient:
    return AgentClient(address, host_secret="secret", access_token="token")


async def test_an_agent_that_starts_late_is_noticed_within_milliseconds():
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        address = Address(*reserved.getsockname())
    agent = FakeAgent()
    waiting = asyncio.create_task(client(address).initialise(AgentInit("i1"), timeout=5))
    await asyncio.sleep(0.05)
    server = await asyncio.start_server(agent._accept, address.host, address.port)
    there = time.perf_counter()
    await waiting
    noticed = time.perf_counter() - there
    server.close()
    await agent.stop()
    assert agent.inits[0]["sandboxId"] == "i1"
    assert noticed < 0.1


async def test_init_sends_only_what_is_known(agent: FakeAgent):
    found = client(await agent.start())
    await found.init(AgentInit(dns_servers=("1.1.1.1",)))
    assert agent.inits[0].keys() == {"dnsServers", "timestamp"}
    await found.init(AgentInit(env_vars={}))
    assert agent.inits[1].keys() == {"envVars", "timestamp"}


async def test_init_tells_what_the_guest_could_not_do_after_a_restore(agent: FakeAgent):
    found = client(await agent.start())
    restored = AgentInit("i1", restored=True, life_id="life", away=2.5, secret_env=("KEY",))
    assert await found.init(restored) == ()
    told = {name: agent.inits[0][name] for name in ("restored", "lifeId", "away", "secretEnv")}
    assert told == {"restored": True, "lifeId": "life", "away": 2.5, "secretEnv": ["KEY"]}
    agent.behaviour.init_failures = ["a hook failed"]
    assert await found.init(restored) == ("a hook failed",)
    assert await found.initialise(restored, timeout=5) == ("a hook failed",)


async def test_nobody_listening_is_unreachable_not_a_hang():
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        address = Address(*reserved.getsockname())
    with pytest.raises(AgentUnreachableError, match=r"did not answer within 0\.05 s"):
        await client(address).initialise(AgentInit("i1"), timeout=0.05)
    with pytest.raises(AgentUnreachableError):
        await client(address).health()


async def test_logs_after_a_sequence_number(agent: FakeAgent):
    found = client(await agent.start())
    for word in ("one", "two", "three"):
        agent.say(word)
    batch = await found.logs(after=1, limit=10, wait=0)
    assert [(line.seq, line.message) for line in batch.lines] == [(2, "two"), (3, "three")]
    assert batch.lines[0].timestamp == 1767225600.5
    assert batch.lines[0].fields == {"pid": "7"}
    assert (await found.logs(after=3, limit=10, wait=0)).lines == ()


async def test_a_command_runs_to_its_exit_code(agent: FakeAgent):
    agent.behaviour.commands["false"] = 1
    found = client(await agent.start())
    assert (await found.run("false", user="user", timeout=5)).exit_code == 1
    assert (await found.run("true", user="user", timeout=5)).exit_code == 0
    await found.spawn("serve", user="user")
    assert agent.started == ["false", "true", "serve"]


Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


async def _garbage(writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x00\xff not http\r\n\r\n")


async def _hangs_up(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc")


async def _not_json(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n[1]")


async def _endless_body(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"1000\r\n" + b"x" * 0x1000 + b"\r\n")
        await writer.drain()


async def _endless_headers(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"x-more: and more\r\n")
        await writer.drain()


async def _endless_header(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nx-more: ")
    while True:
        writer.write(b"x" * 0x1000)
        await writer.drain()


async def _endless_extension(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1;")
    while True:
        writer.write(b"x" * 0x1000)
        await writer.drain()


async def _deep_json(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 50000\r\n\r\n" + b"[" * 50_000)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (_garbage, "not an HTTP reply"),
        (_hangs_up, "closed in the middle"),
        (_not_json, "something but JSON"),
        (_deep_json, "something but JSON"),
        (_endless_body, "too large"),
        (_endless_headers, "not an HTTP reply"),
        (_endless_header, "too large"),
        (_endless_extension, "too large"),
    ],
)
async def test_a_hostile_agent_is_unreachable(answer: Answer, why: str):

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await answer(writer)
            await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        found = client(Address(*server.sockets[0].getsockname()))
        with pytest.raises(AgentUnreachableError, match=why):
            await found.metrics()


async def test_entries_of_the_wrong_shape_are_dropped_or_tamed():
    entries = [
        "no object",
        {"seq": "2", "message": "no number"},
        {"seq": 3, "message": ["a"], "timestamp": 1e300, "fields": [1], "level": None},
        {"seq": 1, "message": "old"},
        {"seq": float("inf"), "message": "endless"},
    ]
    body = json.dumps({"entries": entries, "dropped": -5}).encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        found = client(Address(*server.sockets[0].getsockname()))
        batch = await found.logs(after=1, limit=100, wait=0)
    (line,) = batch.lines
    assert (line.seq, line.message, line.fields, line.timestamp) == (3, "['a']", {}, 0.0)
    assert batch.dropped == 0


async def test_a_line_that_no_client_could_be_sent_is_mended():
    body = b'{"entries": [{"seq": 1, "message": "half a pair: \\ud800", "fields": {"\\udfff": 1}}]}'
    line = read_lines(Reply(200, body), after=0, limit=10).lines[0]
    assert (line.message, line.fields) == ("half a pair: ?", {"?": "1"})


@pytest.mark.parametrize(
    "event",
    [
        {"data": {"stdout": 7}},
        {"data": {"stdout": "a"}},
    ],
)
def test_output_that_is_none_is_the_agents_fault(event: dict[str, Any]):
    with pytest.raises(AgentUnreachableError, match="nonsense"):
        output_of(event)


def test_an_end_without_a_sane_code_is_an_end():
    assert exit_code_of({"end": {"exitCode": "7"}}) == 0
    assert exit_code_of({"end": True}) == 0
    assert exit_code_of({"data": {}}) is None
