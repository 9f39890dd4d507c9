"""Requests and answers come through whole, in order, over few connections."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from tests.server.proxy.stage import Stage, Wire, eventually, read_request, to

from aenv.models.ids import new_sandbox_id


def answering(response: bytes, *, close: bool = False) -> object:
    """A guest program that answers every request with the same bytes."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(response)
            await writer.drain()
            if close:
                return

    return handler


async def test_control_and_data_requests_alternate_on_one_connection(stage: Stage) -> None:
    route = stage.sandbox(await stage.guest(name="agent"))
    wire = await stage.wire()
    for _ in range(3):
        await wire.send("POST /sandboxes HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}")
        answer = await wire.answer()
        assert (answer.json["guest"], answer.json["body"]) == ("control", "{}")
        await wire.send(f"GET /health HTTP/1.1\r\n{to(route)}\r\n")
        assert (await wire.answer()).json["guest"] == "agent"
    assert stage.stats.connections == 1


async def test_pipelined_requests_are_answered_in_order(stage: Stage) -> None:
    slow = await stage.guest()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            request = await read_request(reader)
            await asyncio.sleep(0.05)
            body = request.line.encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    slow.handler = handler
    route = stage.sandbox(slow)
    wire = await stage.wire()
    requests = ""
    for number in range(4):
        requests += f"POST /d{number} HTTP/1.1\r\n{to(route)}Content-Length: 3\r\n\r\nabc"
        requests += (
            f"POST /c{number} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n"
            f"\r\n1\r\nx\r\n0\r\n\r\n"
        )
    await wire.send(requests)
    for number in range(4):
        assert f"/d{number} " in (await wire.answer()).body.decode()
        assert (await wire.answer()).json["path"] == f"/c{number}"


async def test_connections_to_a_guest_are_reused(stage: Stage) -> None:
    agent = await stage.guest()
    route = stage.sandbox(agent)
    for _ in range(3):
        wire = await stage.wire()
        await wire.send(f"GET /health HTTP/1.1\r\n{to(route)}Connection: close\r\n\r\n")
        answer = await wire.answer()
        assert answer.headers["connection"] == "close"
        assert await wire.rest() == b""
    assert agent.connections == 1


async def test_guests_with_the_same_port_never_share_a_connection(stage: Stage) -> None:
    agent = await stage.guest()
    one, other = stage.sandbox(agent), stage.sandbox(agent)
    wire = await stage.wire()
    for route in (one, other, one, other):
        await wire.send(f"GET /health HTTP/1.1\r\n{to(route)}\r\n")
        await wire.answer()
    assert agent.connections == 2


@pytest.mark.parametrize(
    "method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PURGE"]
)
async def test_any_method_passes(stage: Stage, method: str) -> None:
    agent = await stage.guest()
    route = stage.sandbox(agent)
    wire = await stage.wire()
    await wire.send(f"{method} /x HTTP/1.1\r\n{to(route)}\r\n" * 2)
    for _ in range(2):
        answer = await wire.answer(method)
        assert answer.status == 200
        assert int(answer.headers["content-length"]) > 0
    assert agent.requests[1].line == f"{method} /x HTTP/1.1"


async def test_a_failed_upload_is_drained_and_the_connection_goes_on(stage: Stage) -> None:
    wire = await stage.wire()
    unknown = new_sandbox_id()
    await wire.send(
        f"POST /files HTTP/1.1\r\nHost: h\r\nE2b-Sandbox-Id: {unknown}\r\n"
        f"Content-Length: 100000\r\n\r\n"
    )
    assert (await wire.answer()).status == 502
    await wire.send(b"x" * 100_000 + b"GET /c HTTP/1.1\r\nHost: h\r\n\r\n")
    assert (await wire.answer()).json["guest"] == "control"


async def test_httpx_uploads_and_downloads_megabytes(stage: Stage) -> None:
    big = bytes(range(256)) * 20_000

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            request = await read_request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(request.body))
            writer.write(request.body)
            await writer.drain()

    route = stage.sandbox(await stage.guest(handler))
    headers = {"E2b-Sandbox-Id": route.sandbox_id, "E2b-Sandbox-Port": "49983"}

    async def stream() -> object:
        for start in range(0, len(big), 70_001):
            yield big[start : start + 70_001]

    async with httpx.AsyncClient(base_url=stage.url, headers=headers) as client:
        assert (await client.post("/files", content=big)).content == big
        assert (await client.post("/files", content=stream())).content == big


async def test_answers_without_a_length(stage: Stage) -> None:
    """A body that ends with the connection becomes a chunked one, and the client's connection lives
    on."""
    raw = b"HTTP/1.1 200 OK\r\nX-A: b\r\n\r\nhello"
    route = stage.sandbox(await stage.guest(answering(raw, close=True)))
    wire = await stage.wire()
    for _ in range(2):
        await wire.send(f"GET / HTTP/1.1\r\n{to(route)}\r\n")
        answer = await wire.answer()
        assert (answer.body, answer.headers["transfer-encoding"]) == (b"hello", "chunked")


async def test_clients_of_http_1_0_get_no_chunks(stage: Stage) -> None:
    raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    route = stage.sandbox(await stage.guest(answering(raw)))
    wire = await stage.wire()
    await wire.send(f"GET / HTTP/1.0\r\n{to(route)}Connection: keep-alive\r\n\r\n")
    head, _, body = (await wire.rest()).partition(b"\r\n\r\n")
    assert body == b"abcde"
    assert b"chunked" not in head
    assert b"Connection: close" in head


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
async def test_answers_that_have_no_body(stage: Stage, status: str) -> None:
    raw = f"HTTP/1.1 {status}\r\nETag: x\r\n\r\n".encode()
    route = stage.sandbox(await stage.guest(answering(raw)))
    wire = await stage.wire()
    for _ in range(2):
        await wire.send(f"GET / HTTP/1.1\r\n{to(route)}\r\n")
        answer = await wire.answer()
        assert answer.headers == {"etag": "x"}


async def test_a_guest_of_http_1_0_with_bare_line_feeds(stage: Stage) -> None:
    raw = b"HTTP/1.0 200 Fine\nX-Folded: a\n  b\nContent-Length: 2\n\nok"
    guest = await stage.guest(answering(raw, close=True))
    route = stage.sandbox(guest)
    wire = await stage.wire()
    for _ in range(2):
        await wire.send(f"GET / HTTP/1.1\r\n{to(route)}\r\n")
        answer = await wire.answer()
        assert (answer.reason, answer.body, answer.headers["x-folded"]) == ("Fine", b"ok", "a b")
    assert guest.connections == 2


async def test_trailers_pass_both_ways(stage: Stage) -> None:
    got: list[bytes] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        got.extend(await Wire(reader, writer).chunks())
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n")
        writer.write(b"2\r\nok\r\n0\r\nX-Sum: 1\r\nConnection: x\r\n\r\n")

    route = stage.sandbox(await stage.guest(handler))
    wire = await stage.wire()
    await wire.send(f"POST / HTTP/1.1\r\n{to(route)}Transfer-Encoding: chunked\r\n\r\n")
    await wire.send(
        "3;ext=1\r\nabc\r\n0\r\nX-Check: 2\r\nContent-Length: 9\r\nX-API-Key: k\r\n\r\n"
    )
    answer = await wire.answer()
    assert got == [b"abc", b"X-Check: 2\r\n"]
    assert (answer.body, answer.trailers) == (b"ok", b"X-Sum: 1\r\n")


async def test_interim_answers_pass(stage: Stage) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert await reader.readexactly(4) == b"body"
        writer.write(
            b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\n"
            b"Content-Length: 0\r\n\r\n"
        )

    route = stage.sandbox(await stage.guest(handler))
    wire = await stage.wire()
    await wire.send(
        f"POST / HTTP/1.1\r\n{to(route)}Content-Length: 4\r\nExpect: 100-continue\r\n\r\n"
    )
    assert (await wire.head())[0] == 100
    await wire.send("body")
    status, _, headers = await wire.head()
    assert (status, headers) == (103, {"link": "x"})
    assert (await wire.answer()).status == 200


async def test_a_final_answer_instead_of_continue_ends_the_connection(stage: Stage) -> None:
    """Whether the body still comes would be anyone's guess."""
    raw = b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n"

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(raw)
        await reader.read()

    route = stage.sandbox(await stage.guest(handler))
    wire = await stage.wire()
    await wire.send(
        f"POST / HTTP/1.1\r\n{to(route)}Content-Length: 4\r\nExpect: 100-continue\r\n\r\n"
    )
    answer = await wire.answer()
    assert (answer.status, answer.headers["connection"]) == (413, "close")
    assert await wire.rest() == b""


async def test_a_refusal_instead_of_continue_ends_the_connection(stage: Stage) -> None:
    wire = await stage.wire()
    await wire.send(
        f"POST / HTTP/1.1\r\nHost: h\r\nE2b-Sandbox-Id: {new_sandbox_id()}\r\n"
        "Content-Length: 4\r\nExpect: 100-continue\r\n\r\n"
    )
    answer = await wire.answer()
    assert (answer.status, answer.headers["connection"]) == (502, "close")
    wire.half_close()
    assert await wire.rest() == b""


async def test_a_guest_that_answers_early_stops_the_upload(stage: Stage) -> None:
    """A full disk: 507 while gigabytes are still to come; what comes of them is dropped."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 507 Insufficient Storage\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
        )
        await writer.drain()

    route = stage.sandbox(await stage.guest(handler))
    wire = await stage.wire()
    await wire.send(f"POST /files HTTP/1.1\r\n{to(route)}Content-Length: 5000000\r\n\r\n")
    assert (await wire.answer()).status == 507
    await wire.send(b"x" * 5_000_000)
    await wire.send("GET /c HTTP/1.1\r\nHost: h\r\n\r\n")
    assert (await wire.answer()).json["guest"] == "control"


async def test_a_reused_connection_that_died_is_replaced_for_harmless_requests(
    stage: Stage,
) -> None:
    async def one_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers once, and hangs up on the second request."""
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1")
        await read_request(reader)

    guest = await stage.guest(one_answer)
    route = stage.sandbox(guest)
    wire = await stage.wire()
    for _ in range(2):
        await wire.send(f"GET / HTTP/1.1\r\n{to(route)}\r\n")
        assert (await wire.answer()).body == b"1"
    assert stage.stats.upstream_retries == 1
    await wire.send(f"POST / HTTP/1.1\r\n{to(route)}Content-Length: 1\r\n\r\nx")
    answer = await wire.answer()
    assert (answer.status, answer.json["port"]) == (502, 49983)
    assert guest.connections == 2
    await eventually(lambda: guest.open == 0)
