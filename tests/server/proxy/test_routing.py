"""Requests reach the sandbox they name, without our credentials, or are refused as agreed."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.server.proxy.stage import Guest, Stage, to

from aenv.control.visitors import Signed, Visitor
from aenv.models.ids import new_sandbox_id
from aenv.models.sandboxes import AGENT_PORT, INTERPRETER_PORT
from aenv.server.proxy import ProxySettings, Refusal


async def test_the_agent_is_reached_by_header(stage: Stage) -> None:
    route = stage.sandbox(await stage.guest())
    wire = await stage.wire()
    await wire.send(f"GET /health?x=1 HTTP/1.1\r\n{to(route)}\r\n")
    answer = await wire.answer()
    assert answer.status == 200
    assert answer.json["line"] == "GET /health?x=1 HTTP/1.1"


async def test_other_ports_are_reached_by_header_and_by_host(stage: Stage) -> None:
    route = stage.sandbox(await stage.guest(name="agent"))
    app = await stage.guest(name="app")
    wire = await stage.wire()
    await wire.send(f"GET / HTTP/1.1\r\n{to(route, app.port)}\r\n")
    assert (await wire.answer()).json["guest"] == "app"
    await wire.send(
        f"GET / HTTP/1.1\r\nHost: {app.port}-{route.sandbox_id.upper()}.localhost\r\n\r\n"
    )
    assert (await wire.answer()).json["guest"] == "app"


async def test_agentenv_headers_and_the_proxy_prefix(stage: Stage) -> None:
    route = stage.sandbox(await stage.guest())
    app = await stage.guest(name="app")
    pair = f"x-agentenv-sandbox-id: {route.sandbox_id}\r\nx-agentenv-target-port: {app.port}\r\n"
    wire = await stage.wire()
    for path, seen in (
        ("/proxy/a/b?c", "/a/b?c"),
        ("/proxy", "/"),
        ("/proxy?q", "/?q"),
        ("/z", "/z"),
    ):
        await wire.send(f"GET {path} HTTP/1.1\r\nHost: h\r\n{pair}\r\n")
        answer = await wire.answer()
        assert answer.json["guest"] == "app"
        assert answer.json["line"] == f"GET {seen} HTTP/1.1"


async def test_proxy_without_routing_headers_is_400(stage: Stage) -> None:
    wire = await stage.wire()
    await wire.send("GET /proxy/x HTTP/1.1\r\nHost: h\r\n\r\n")
    answer = await wire.answer()
    assert answer.status == 400
    assert "E2b-Sandbox-Id" in answer.json["message"]


async def test_the_host_form_wins_over_headers(stage: Stage) -> None:
    """A page served by one sandbox must not reach another by sending headers."""
    one, other = stage.sandbox(await stage.guest()), stage.sandbox(await stage.guest())
    app = await stage.guest(name="app")
    wire = await stage.wire()
    await wire.send(
        f"GET / HTTP/1.1\r\nHost: {app.port}-{one.sandbox_id}.x\r\n"
        f"E2b-Sandbox-Id: {other.sandbox_id}\r\n\r\n"
    )
    assert (await wire.answer()).json["guest"] == "app"


async def test_what_a_guest_gets_to_see(stage: Stage) -> None:
    agent = await stage.guest()
    app = await stage.guest()
    route = stage.sandbox(agent)
    stage.credentials.add("ours")
    lines = (
        "X-API-Key: secret\r\nx-admin-token: secret\r\nX-Aenv-Host-Secret: secret\r\n"
        "Authorization: Bearer ours\r\nE2B-Traffic-Access-Token: secret\r\n"
        "X-Access-Token: token\r\n"
        "Connection: keep-alive, x-hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\n"
        "Proxy-Connection: x\r\n"
        "TE: trailers, gzip\r\nX-Custom: kept\r\nCookie: a=b\r\nAccept-Encoding: gzip\r\n"
    )
    wire = await stage.wire()
    for port in (None, app.port):
        await wire.send(f"GET /x HTTP/1.1\r\n{to(route, port)}{lines}\r\n")
        await wire.answer()
    seen, seen_by_app = agent.requests[0], app.requests[0]
    for request in (seen, seen_by_app):
        names = {name.lower() for name, _ in request.headers}
        assert names >= {"x-custom", "cookie", "accept-encoding", "e2b-sandbox-id"}
        assert not names & {
            "x-api-key", "x-admin-token", "x-aenv-host-secret", "authorization", "connection",
            "e2b-traffic-access-token", "x-hop", "keep-alive", "proxy-connection",
        }  # fmt: skip
        assert request.all("te") == ["trailers"]
        assert request.all("host") == ["127.0.0.1"]
    assert seen.all("x-access-token") == ["token"]
    assert seen_by_app.all("x-access-token") == []


async def test_a_code_interpreter_gets_the_access_token_it_asks_for(stage: Stage) -> None:
    interpreter = await stage.guest(at=("127.49.99.9", INTERPRETER_PORT))
    route = replace(stage.sandbox(await stage.guest()), guest_host="127.49.99.9")
    stage.table.publish(route)
    wire = await stage.wire()
    await wire.send(
        f"POST /execute HTTP/1.1\r\n{to(route, INTERPRETER_PORT)}X-Access-Token: token\r\n"
        "X-API-Key: secret\r\nContent-Length: 0\r\n\r\n"
    )
    await wire.answer()
    (seen,) = interpreter.requests
    assert seen.all("x-access-token") == ["token"]
    assert seen.all("x-api-key") == []


async def test_authorization_that_is_not_ours_passes(stage: Stage) -> None:
    agent = await stage.guest()
    route = stage.sandbox(agent)
    stage.credentials.add("ours")
    wire = await stage.wire()
    for value in ("Basic dXNlcjo=", "Bearer theirs"):
        await wire.send(f"GET /x HTTP/1.1\r\n{to(route)}Authorization: {value}\r\n\r\n")
        await wire.answer()
    assert [request.all("authorization") for request in agent.requests] == [
        ["Basic dXNlcjo="],
        ["Bearer theirs"],
    ]


async def test_the_host_header_is_masked_on_request(stage: Stage) -> None:
    app = await stage.guest()
    route = stage.sandbox(app, mask_request_host="localhost:${PORT}")
    wire = await stage.wire()
    await wire.send(f"GET /x HTTP/1.1\r\n{to(route, app.port)}\r\n")
    await wire.answer()
    assert app.requests[0].all("host") == [f"localhost:{app.port}"]


@pytest.mark.parametrize(
    "path",
    [
        "/init", "/init?x=1", "/freeze", "/aenv/logs", "/%69nit", "//init", "/./init", "/x/../init",
        "/INIT", "/%2569nit", "/files/%2e%2e/init", "/\\init", "/init/", "/init;a",
        "/proxy/init", "http://127.0.0.1/init", "/init%00", "/aenv",
    ],
)  # fmt: skip
async def test_host_only_paths_of_the_agent_do_not_exist(stage: Stage, path: str) -> None:
    agent = await stage.guest()
    route = stage.sandbox(agent)
    app = await stage.guest()
    wire = await stage.wire()
    await wire.send(f"POST {path} HTTP/1.1\r\n{to(route)}Content-Length: 2\r\n\r\n{{}}")
    assert (await wire.answer()).status == 404
    await wire.send(f"POST {path} HTTP/1.1\r\n{to(route, agent.port)}Content-Length: 2\r\n\r\n{{}}")
    assert (await wire.answer()).status == 404
    assert agent.requests == []
    await wire.send(f"POST {path} HTTP/1.1\r\n{to(route, app.port)}Content-Length: 2\r\n\r\n{{}}")
    assert (await wire.answer()).status == 200


async def test_paths_that_merely_look_alike_pass(stage: Stage) -> None:
    route = stage.sandbox(await stage.guest())
    wire = await stage.wire()
    for path in ("/initial", "/files?path=/init", "/files/init", "/aenvironment"):
        await wire.send(f"GET {path} HTTP/1.1\r\n{to(route)}\r\n")
        assert (await wire.answer()).status == 200


async def test_an_unknown_sandbox_in_each_dialect(stage: Stage) -> None:
    unknown = new_sandbox_id()
    wire = await stage.wire()
    await wire.send(f"GET /health HTTP/1.1\r\nHost: h\r\nE2b-Sandbox-Id: {unknown}\r\n\r\n")
    answer = await wire.answer()
    assert answer.status == 502
    assert answer.headers["content-type"] == "application/json"
    assert answer.json == {
        "sandboxId": unknown,
        "message": "The sandbox was not found",
        "code": 502,
    }
    await wire.send(
        f"GET / HTTP/1.1\r\nHost: h\r\nx-agentenv-sandbox-id: {unknown}\r\n"
        f"x-agentenv-target-port: 80\r\n\r\n"
    )
    assert (await wire.answer()).status == 404
    await wire.send(
        f"GET / HTTP/1.1\r\nHost: 80-{unknown}.localhost\r\nUser-Agent: Mozilla/5.0\r\n\r\n"
    )
    page = await wire.answer()
    assert page.status == 502
    assert page.headers["content-type"].startswith("text/html")
    assert unknown.encode() in page.body


async def test_hostile_ids_are_escaped(stage: Stage) -> None:
    wire = await stage.wire()
    await wire.send(
        'GET / HTTP/1.1\r\nHost: h\r\nE2b-Sandbox-Id: <b>"\\\r\nUser-Agent: Mozilla/5.0\r\n\r\n'
    )
    assert b"<b>" not in (await wire.answer()).body
    await wire.send('GET / HTTP/1.1\r\nHost: h\r\nE2b-Sandbox-Id: <b>"\\\r\n\r\n')
    assert (await wire.answer()).json["sandboxId"] == '<b>"\\'


async def test_a_port_nobody_listens_on(stage: Stage) -> None:
    route = stage.sandbox(await stage.guest())
    wire = await stage.wire()
    await wire.send(f"GET / HTTP/1.1\r\n{to(route, 1)}\r\n")
    answer = await wire.answer()
    assert answer.status == 502
    assert answer.json == {
        "sandboxId": route.sandbox_id,
        "message": "The sandbox is running but port is not open",
        "port": 1,
        "code": 502,
    }
    await wire.send(f"GET / HTTP/1.1\r\n{to(route)}\r\n")
    assert (await wire.answer()).status == 200


async def test_private_guest_ports_want_the_traffic_token(stage: Stage) -> None:
    agent, app = await stage.guest(name="agent"), await stage.guest(name="app")
    route = stage.sandbox(agent, allow_public_traffic=False, traffic_token="sesame")
    wire = await stage.wire()
    for token, status in (
        ("", 403),
        ("e2b-traffic-access-token: wrong\r\n", 403),
        ("E2B-Traffic-Access-Token: sesame\r\n", 200),
    ):
        await wire.send(f"GET / HTTP/1.1\r\n{to(route, app.port)}{token}\r\n")
        assert (await wire.answer()).status == status
    await wire.send(f"GET / HTTP/1.1\r\n{to(route)}\r\n")
    assert (await wire.answer()).json["guest"] == "agent"
    assert len(app.requests) == 1


async def test_signed_urls_find_their_sandbox(stage: Stage) -> None:
    from urllib.parse import quote

    from aenv.control.routes import sign

    first, second = await stage.guest(name="first"), await stage.guest(name="second")
    stage.sandbox(first)
    route = stage.sandbox(second)
    signature = quote(sign(f"/tmp/a b.txt:write:user:{route.access_token}:99"), safe="")
    target = (
        f"/files?path=%2Ftmp%2Fa%20b.txt&username=user&signature={signature}"
        f"&signature_expiration=99"
    )
    wire = await stage.wire()
    await wire.send(f"POST {target} HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx")
    answer = await wire.answer()
    assert answer.json["guest"] == "second"
    assert answer.json["line"] == f"POST {target} HTTP/1.1"
    await wire.send(f"GET {target} HTTP/1.1\r\nHost: h\r\n\r\n")
    answer = await wire.answer()
    assert (answer.status, answer.json["message"]) == (401, "invalid signature")


@pytest.mark.parametrize("stage", [ProxySettings(signature_failures_per_minute=3)], indirect=True)
async def test_guessing_signatures_is_slow_work(stage: Stage) -> None:
    stage.sandbox(await stage.guest())
    wire = await stage.wire()
    statuses = []
    for number in range(5):
        guess = f"v1_{number:043d}"
        await wire.send(f"GET /files?path=x&signature={guess} HTTP/1.1\r\nHost: h\r\n\r\n")
        statuses.append((await wire.answer()).status)
    assert statuses == [401, 401, 401, 429, 429]


async def test_resolve_is_asked_for_sandboxes_without_a_route() -> None:
    stage = Stage()
    asked: list[str] = []
    paused, private = new_sandbox_id(), new_sandbox_id()

    async def resolve(sandbox_id: str, visitor: Visitor) -> object:
        asked.append(sandbox_id)
        await asyncio.sleep(0)
        if sandbox_id == paused:
            return Refusal(paused=True)
        if sandbox_id == private and visitor != Visitor(agent.port, b"known"):
            return Refusal(barred=True)
        return stage.sandbox(agent, sandbox_id=sandbox_id)

    stage.resolve = resolve
    async with stage.stack:
        await stage.start()
        agent: Guest = await stage.guest()
        wire = await stage.wire()
        sleeping = new_sandbox_id()
        for _ in range(2):
            await wire.send(
                f"POST /x HTTP/1.1\r\nHost: h\r\nE2b-Sandbox-Id: {sleeping}\r\n"
                f"Content-Length: 2\r\n\r\nhi"
            )
            assert (await wire.answer()).json["body"] == "hi"
        await wire.send(f"GET /x HTTP/1.1\r\nHost: h\r\nE2b-Sandbox-Id: {paused}\r\n\r\n")
        assert (await wire.answer()).status == 502
        pair = f"x-agentenv-sandbox-id: {paused}\r\nx-agentenv-target-port: 80\r\n"
        await wire.send(f"GET /x HTTP/1.1\r\nHost: h\r\n{pair}\r\n")
        assert (await wire.answer()).status == 410
        assert asked == [sleeping, paused, paused]

        begin = f"GET /x HTTP/1.1\r\nHost: h\r\nE2b-Sandbox-Id: {private}\r\n"
        await wire.send(f"{begin}E2b-Sandbox-Port: {agent.port}\r\n\r\n")
        assert (await wire.answer()).status == 403
        token = "E2b-Traffic-Access-Token: known"
        await wire.send(f"{begin}E2b-Sandbox-Port: {agent.port}\r\n{token}\r\n\r\n")
        assert (await wire.answer()).status == 200


async def test_what_a_request_shows_is_read_from_it() -> None:
    stage, seen = Stage(), []

    async def resolve(sandbox_id: str, visitor: Visitor) -> Refusal:
        seen.append(visitor)
        return Refusal(barred=True)

    stage.resolve = resolve
    async with stage.stack:
        await stage.start()
        wire = await stage.wire()
        for request, headers in (
            ("GET /health", ""),
            ("POST /health", ""),
            ("POST /process.Process/List", "X-Access-Token: mine\r\nX-Access-Token: other\r\n"),
            ("GET /files?path=%2Ff&username=u&signature=v1_x&signature_expiration=7", ""),
            ("PUT /files?path=%2Ff&signature=v1_x", ""),
            ("GET /files/compose?signature=v1_x", ""),
        ):
            line = f"{request} HTTP/1.1\r\nHost: h\r\nE2b-Sandbox-Id: {new_sandbox_id()}\r\n"
            await wire.send(f"{line}{headers}Content-Length: 0\r\n\r\n")
            answer = await wire.answer()
            assert (answer.status, answer.json["code"]) == (401, 401)
    assert seen == [
        Visitor(AGENT_PORT, probe=True),
        Visitor(AGENT_PORT),
        Visitor(AGENT_PORT, access_token=b"mine"),
        Visitor(AGENT_PORT, signed=Signed("/f", "read", "u", "v1_x", "7")),
        Visitor(AGENT_PORT),
        Visitor(AGENT_PORT),
    ]
