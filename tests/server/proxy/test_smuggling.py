"""What two parsers could read in two ways is refused; no byte of one request reaches the guest of
another."""

from __future__ import annotations

import asyncio

import pytest
from tests.server.proxy.stage import Stage, eventually, to

HEAD = "POST / HTTP/1.1\r\n{to}"

MALFORMED = {
    "length and coding": HEAD + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "coding and length": HEAD + "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
    "two lengths": HEAD + "Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
    "list of lengths": HEAD + "Content-Length: 4, 5\r\n\r\nabcde",
    "signed length": HEAD + "Content-Length: +4\r\n\r\nabcd",
    "negative length": HEAD + "Content-Length: -1\r\n\r\n",
    "hexadecimal length": HEAD + "Content-Length: 0x4\r\n\r\nabcd",
    "empty length": HEAD + "Content-Length: \r\n\r\n",
    "huge length": HEAD + "Content-Length: 99999999999999999999\r\n\r\n",
    "two codings": HEAD + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n"
    "0\r\n\r\n",
    "coding list": HEAD + "Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n",
    "unknown coding": HEAD + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "coding with vertical tab": HEAD + "Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "space before colon": HEAD + "Content-Length : 4\r\n\r\nabcd",
    "tab before colon": HEAD + "Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n",
    "folded header": HEAD + "X-A: b\r\n c\r\n\r\n",
    "folded coding": HEAD + "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "bare LF": HEAD + "X-A: b\nContent-Length: 4\r\n\r\nabcd",
    "bare LF head": "GET / HTTP/1.1\n{lf}\n",
    "bare CR": HEAD + "X-A: b\rContent-Length: 4\r\n\r\nabcd",
    "NUL": HEAD + "X-A: \x00\r\n\r\n",
    "header without colon": HEAD + "X-A\r\n\r\n",
    "header without name": HEAD + ": x\r\n\r\n",
    "space in target": "GET / x HTTP/1.1\r\n{to}\r\n",
    "two spaces": "GET  / HTTP/1.1\r\n{to}\r\n",
    "tab in request line": "GET\t/ HTTP/1.1\r\n{to}\r\n",
    "HTTP/0.9": "GET /\r\n\r\n",
    "HTTP/2": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/1.2": "GET / HTTP/1.2\r\n{to}\r\n",
    "lower case version": "GET / http/1.1\r\n{to}\r\n",
    "coding on HTTP/1.0": "POST / HTTP/1.0\r\n{to}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "no host": "GET / HTTP/1.1\r\n\r\n",
    "two hosts": "GET / HTTP/1.1\r\n{to}Host: other\r\n\r\n",
    "absolute form of another host": "GET http://other/ HTTP/1.1\r\n{to}\r\n",
    "absolute form with a user": "GET http://x@127.0.0.1/ HTTP/1.1\r\n{to}\r\n",
    "other scheme": "GET ftp://127.0.0.1/ HTTP/1.1\r\n{to}\r\n",
    "fragment": "GET /#x HTTP/1.1\r\n{to}\r\n",
    "relative target": "GET x HTTP/1.1\r\n{to}\r\n",
    "asterisk": "GET * HTTP/1.1\r\n{to}\r\n",
    "connect": "CONNECT 127.0.0.1:80 HTTP/1.1\r\n{to}\r\n",
    "two ids": "GET / HTTP/1.1\r\n{to}E2b-Sandbox-Id: other\r\n\r\n",
    "two dialects": "GET / HTTP/1.1\r\n{to}x-agentenv-sandbox-id: other\r\n\r\n",
    "port out of range": "GET / HTTP/1.1\r\n{to}E2b-Sandbox-Port: 65536\r\n\r\n",
    "port that is no number": "GET / HTTP/1.1\r\n{to}E2b-Sandbox-Port: 80a\r\n\r\n",
    "agentenv id alone": "GET / HTTP/1.1\r\nHost: h\r\nx-agentenv-sandbox-id: abc\r\n\r\n",
    "TLS on the plain port": "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
}  # fmt: skip


@pytest.mark.parametrize("name", MALFORMED)
async def test_malformed_requests_are_refused_and_the_connection_closed(
    stage: Stage, name: str
) -> None:
    agent = await stage.guest()
    route = stage.sandbox(agent)
    raw = MALFORMED[name].replace("{to}", to(route)).replace("{lf}", to(route).replace("\r", ""))
    wire = await stage.wire()
    await wire.send(raw + f"GET /smuggled HTTP/1.1\r\n{to(route)}\r\n")
    answer = await wire.answer()
    assert answer.status == 400
    assert answer.json["code"] == 400
    wire.half_close()
    assert await wire.rest() == b""
    assert agent.requests == []


@pytest.mark.parametrize("plane", ["data", "control"])
@pytest.mark.parametrize(
    "body",
    [
        "5\r\nabc\r\n0\r\n\r\n",
        "3\r\nabcX\r\n0\r\n\r\n",
        "3\nabc\r\n0\r\n\r\n",
        "3\r\nabc\n0\r\n\r\n",
        "0x3\r\nabc\r\n0\r\n\r\n",
        "+3\r\nabc\r\n0\r\n\r\n",
        " 3\r\nabc\r\n0\r\n\r\n",
        "3 \r\nabc\r\n0\r\n\r\n",
        "-1\r\nabc\r\n0\r\n\r\n",
        "\r\nabc\r\n0\r\n\r\n",
        "3;a\x00\r\nabc\r\n0\r\n\r\n",
        "3;a=\nx\r\nabc\r\n0\r\n\r\n",
        "1000000000000000\r\nabc\r\n0\r\n\r\n",
        "3\r\nabc\r\n0\r\nbad trailer\r\n\r\n",
        "3\r\nabc\r\n0\r\nA: b\n\r\n",
        "3;" + "x" * 2000 + "\r\nabc\r\n0\r\n\r\n",
    ],
)
async def test_bad_chunks_end_the_connection(stage: Stage, plane: str, body: str) -> None:
    agent = await stage.guest()
    route = stage.sandbox(agent)
    where = to(route) if plane == "data" else "Host: h\r\n"
    wire = await stage.wire()
    await wire.send(f"POST / HTTP/1.1\r\n{where}Transfer-Encoding: chunked\r\n\r\n{body}")
    await wire.send(f"GET /smuggled HTTP/1.1\r\n{to(route)}\r\n")
    answer = await wire.answer()
    assert (answer.status, answer.headers["connection"]) == (400, "close")
    wire.half_close()
    assert await wire.rest() == b""
    assert agent.requests == []


async def test_bad_chunks_in_mid_answer_cut_the_client_off(stage: Stage) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n")
        await reader.read()

    guest = await stage.guest(handler)
    wire = await stage.wire()
    await wire.send(
        f"POST / HTTP/1.1\r\n{to(stage.sandbox(guest))}Transfer-Encoding: chunked\r\n\r\n"
    )
    assert (await wire.head())[0] == 200
    await wire.send("xyz\r\n")
    assert await wire.rest() == b"2\r\nok\r\n"
    await eventually(lambda: guest.open == 0)


async def test_the_body_of_one_request_is_never_the_head_of_another(stage: Stage) -> None:
    """The classic attack, with honest framing: what looks like a request in a body stays a body."""
    mine, theirs = await stage.guest(name="mine"), await stage.guest(name="theirs")
    attacker, victim = stage.sandbox(mine), stage.sandbox(theirs)
    smuggled = f"GET /secret HTTP/1.1\r\n{to(victim)}\r\n"
    wire = await stage.wire()
    await wire.send(
        f"POST / HTTP/1.1\r\n{to(attacker)}Content-Length: {len(smuggled)}\r\n\r\n{smuggled}"
    )
    assert (await wire.answer()).json["body"] == smuggled
    chunk = f"{len(smuggled):x}\r\n{smuggled}\r\n0\r\n\r\n"
    await wire.send(f"POST / HTTP/1.1\r\n{to(attacker)}Transfer-Encoding: chunked\r\n\r\n{chunk}")
    assert (await wire.answer()).json["body"] == smuggled
    assert theirs.requests == []


HOSTILE_ANSWERS = {
    "more than its length": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
        b"okHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
    ),
    "more than its chunks": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n"
        b"ok\r\n0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
    ),
    "a body for 204": b"HTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\nevil",
    "a body for 304": b"HTTP/1.1 304 Not Modified\r\n\r\nevil",
    "length and coding": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nevil"
    ),
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Length: 4\r\n\r\nevil",
    "upgrade unasked": (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n"
        b"Connection: upgrade\r\n\r\nevil"
    ),
    "no HTTP": b"SSH-2.0-OpenSSH_9.2\r\n\r\nevil",
    "a status of four digits": b"HTTP/1.1 2000 OK\r\nContent-Length: 4\r\n\r\nevil",
    "a status beyond 599": b"HTTP/1.1 999 OK\r\nContent-Length: 4\r\n\r\nevil",
    "endless interims": (
        b"HTTP/1.1 100 Continue\r\n\r\n" * 50 + b"HTTP/1.1 200 OK\r\n"
        b"Content-Length: 4\r\n\r\nevil"
    ),
    "an endless head": b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 20_000 + b"evil",
    "a split header": b"HTTP/1.1 200 OK\r\nX-A: b\rContent-Length: 4\r\n\r\nevil",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE_ANSWERS)
async def test_a_guest_cannot_answer_for_the_next_request(stage: Stage, name: str) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HOSTILE_ANSWERS[name])
        await writer.drain()
        await reader.read()

    route = stage.sandbox(await stage.guest(handler))
    wire = await stage.wire()
    await wire.send(f"GET / HTTP/1.1\r\n{to(route)}\r\nGET /control HTTP/1.1\r\nHost: h\r\n\r\n")
    wire.half_close()
    data = await wire.rest()
    assert b"evil" not in data
    final = data.rpartition(b"HTTP/1.1 ")[2]
    assert b'"guest": "control"' in final or final.startswith(b"502 ")


@pytest.mark.parametrize("name", ["more than its length", "more than its chunks"])
async def test_a_connection_with_bytes_left_over_is_not_used_again(stage: Stage, name: str) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(HOSTILE_ANSWERS[name])

    guest = await stage.guest(handler)
    route = stage.sandbox(guest)
    wire = await stage.wire()
    for _ in range(2):
        await wire.send(f"GET / HTTP/1.1\r\n{to(route)}\r\n")
        assert (await wire.answer()).body == b"ok"
    assert guest.connections == 2


async def test_a_guest_that_speaks_unasked_is_hung_up_on(stage: Stage) -> None:
    agent = await stage.guest()
    route = stage.sandbox(agent)
    wire = await stage.wire()
    await wire.send(f"GET / HTTP/1.1\r\n{to(route)}\r\n")
    await wire.answer()
    agent.writers[0].write(b"unasked")
    await eventually(lambda: agent.open == 0)
    await wire.send(f"GET / HTTP/1.1\r\n{to(route)}\r\n")
    await wire.answer()
    agent.writers[1].write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
    await wire.send(f"GET / HTTP/1.1\r\n{to(route)}\r\n")
    answer = await wire.answer()
    assert answer.body == b"evil" or answer.json["guest"] == "guest"
    await wire.send("GET /c HTTP/1.1\r\nHost: h\r\n\r\n")
    assert (await wire.answer()).json["guest"] == "control"
    await wire.send(f"GET / HTTP/1.1\r\n{to(route)}\r\n")
    assert (await wire.answer()).json["guest"] == "guest"


async def test_h2c_does_not_tunnel_to_the_agent(stage: Stage) -> None:
    agent = await stage.guest()
    route = stage.sandbox(agent)
    wire = await stage.wire()
    upgrade = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    await wire.send(f"GET /health HTTP/1.1\r\n{to(route)}{upgrade}\r\n")
    assert (await wire.answer()).status == 200
    assert not agent.requests[0].all("upgrade") + agent.requests[0].all("connection")


@pytest.mark.parametrize("size", [1, 2, 3, 7])
async def test_requests_in_small_pieces(stage: Stage, size: int) -> None:
    route = stage.sandbox(await stage.guest())
    raw = (
        f"POST /a HTTP/1.1\r\n{to(route)}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
        f"A;x\r\n0123456789\r\n0\r\n\r\n"
    )
    raw += "POST /c HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello"
    wire = await stage.wire()
    for start in range(0, len(raw), size):
        await wire.send(raw[start : start + size])
        await asyncio.sleep(0)
    assert (await wire.answer()).json["body"] == "abc0123456789"
    assert (await wire.answer()).json["body"] == "hello"
