"""A sandbox's life through the SDK."""

from __future__ import annotations

import asyncio
from urllib.request import Request, urlopen

import pytest
from tests.fakes.control_plane import KEY, ControlPlane, free_port

from aenv import AsyncSandbox
from aenv.models.errors import (
    Culprit,
    NotFoundError,
    SandboxNotFoundError,
    ServerUnreachableError,
    TemplateNotReadyError,
    UnauthorizedError,
)
from aenv.models.sandboxes import NetworkPolicy, SandboxState
from aenv.sdk import servers
from aenv.sdk.forwards import Forward


async def make(plane: ControlPlane, template: str | None = "base", **options: object):  # type: ignore[no-untyped-def]
    return await AsyncSandbox.create(template, url=plane.url, api_key=KEY, **options)  # type: ignore[arg-type]


async def test_what_was_asked_for_is_what_is_sent(plane: ControlPlane) -> None:
    policy = NetworkPolicy(allow_internet=False, allow_out=("1.1.1.1/32",))
    async with await make(
        plane,
        timeout=60,
        env={"A": "1"},
        metadata={"k": "v"},
        cpu=1.5,
        memory_mb=512,
        disk_mb=2048,
        engine="process",
        network=policy,
    ) as sandbox:
        body = plane.guests[sandbox.id].body
        assert (await sandbox.exec("echo $A")).stdout == "1\n"
    assert body["timeout"] == 60
    assert (body["cpuCount"], body["memoryMB"], body["diskSizeMB"]) == (1.5, 512, 2048)
    assert body["engine"] == "process"
    assert body["allow_internet_access"] is False
    assert body["network"]["allowOut"] == ["1.1.1.1/32"]


async def test_leaving_the_context_kills_it(plane: ControlPlane) -> None:
    async with await make(plane) as sandbox:
        assert (await sandbox.info()).state is SandboxState.RUNNING
    assert plane.guests == {}
    assert await sandbox.kill() is False
    with pytest.raises(SandboxNotFoundError):
        await sandbox.info()


async def test_without_a_template_it_is_base(plane: ControlPlane) -> None:
    async with await make(plane, None) as sandbox:
        assert sandbox.template == "base"


async def test_while_base_is_not_built_it_is_host_with_a_warning(plane: ControlPlane) -> None:
    plane.templates["base"] = "building"
    with pytest.warns(UserWarning, match="aenv template build base"):
        sandbox = await make(plane, None)
    assert sandbox.template == "host"
    await sandbox.kill()


async def test_a_template_that_is_being_built_is_waited_for(plane: ControlPlane) -> None:
    plane.not_ready = 3
    async with await make(plane) as sandbox:
        assert (await sandbox.exec("echo up")).stdout == "up\n"
    plane.not_ready = 10**6
    with pytest.raises(TemplateNotReadyError, match="40%") as caught:
        await make(plane, wait=0.1)
    assert caught.value.culprit is Culprit.INFRASTRUCTURE


async def test_a_lost_answer_makes_no_second_sandbox(plane: ControlPlane) -> None:
    plane.drop_next_answer = True
    async with await make(plane):
        assert len(plane.guests) == 1


async def test_attach_leaves_the_time_alone_and_connect_extends_it(plane: ControlPlane) -> None:
    async with await make(plane) as sandbox:
        again = await AsyncSandbox.attach(sandbox.id, url=plane.url, api_key=KEY)
        assert (await again.exec("echo same")).stdout == "same\n"
        await again.close()
        assert plane.guests[sandbox.id].timeouts == []
        await AsyncSandbox.connect(sandbox.id, timeout=900, url=plane.url, api_key=KEY)
        await sandbox.set_timeout(5)
        await sandbox.extend(77)
        assert plane.guests[sandbox.id].timeouts == [
            ("connect", 900),
            ("timeout", 5),
            ("refreshes", 77),
        ]


async def test_listing_reads_every_page_and_filters(plane: ControlPlane) -> None:
    plane.page = 2
    odd = {"a b": "c&d=e%", "x": "ä"}
    made = [await make(plane, metadata=odd if i == 1 else {}) for i in range(3)]
    everything = await AsyncSandbox.list(url=plane.url, api_key=KEY)
    assert [info.id for info in everything] == [one.id for one in reversed(made)]
    found = await AsyncSandbox.list(metadata=odd, url=plane.url, api_key=KEY)
    assert [info.id for info in found] == [made[1].id]
    assert found[0].metadata == odd


async def test_a_wrong_key_and_an_absent_server_are_named(plane: ControlPlane) -> None:
    with pytest.raises(UnauthorizedError, match="key"):
        await AsyncSandbox.create("base", url=plane.url, api_key="wrong")
    with pytest.raises(NotFoundError, match="nonesuch"):
        await make(plane, "nonesuch")
    with pytest.raises(ServerUnreachableError, match="aenv up"):
        await AsyncSandbox.attach("i" * 20, url=f"http://127.0.0.1:{free_port()}", api_key=KEY)


async def test_metrics_and_network_rules(plane: ControlPlane) -> None:
    async with await make(plane) as sandbox:
        newest = (await sandbox.metrics())[-1]
        assert 0 < newest.disk_used <= newest.disk_total
        await sandbox.set_network(NetworkPolicy(deny_out=("10.0.0.0/8",)))
        assert plane.guests[sandbox.id].body["network"]["denyOut"] == ["10.0.0.0/8"]


async def test_logs_are_followed_to_the_end_without_gaps_or_doubles(plane: ControlPlane) -> None:
    async with await make(plane) as sandbox:
        logs = plane.guests[sandbox.id].logs

        def say(text: str) -> None:
            stamp = "2026-01-01T00:00:00.000001Z"
            logs.append({"seq": len(logs) + 1, "timestamp": stamp, "message": text})

        say("one")
        say("two")
        assert [line.message for line in await sandbox.logs(limit=1)] == ["two"]
        heard: list[str] = []
        lines = sandbox.follow_logs()
        async for line in lines:
            heard.append(line.message)
            if len(heard) == 2:
                say("two")
                say("three")
            if len(heard) == 4:
                break
        await lines.aclose()
        assert heard == ["one", "two", "two", "three"]


async def test_a_port_has_a_host_name_and_a_url(plane: ControlPlane) -> None:
    async with await make(plane) as sandbox:
        port = plane.url.rpartition(":")[2]
        assert sandbox.host(8080) == f"8080-{sandbox.id}.localhost:{port}"
        assert sandbox.url(8080) == f"http://8080-{sandbox.id}.localhost:{port}"


async def test_a_forwarded_port_serves_any_http_client(plane: ControlPlane) -> None:
    async with await make(plane) as sandbox:
        port = free_port()
        await sandbox.files.write("index.html", "served from inside")
        await sandbox.spawn(["python3", "-m", "http.server", str(port), "--bind", "127.0.0.1"])
        async with Forward(sandbox, port, "127.0.0.1", 0) as forward:
            text = await asyncio.to_thread(_fetch_when_up, f"{forward.url}/index.html")
    assert text == "served from inside"


def test_a_forwarded_head_gets_our_routing_and_loses_the_clients() -> None:
    forward = Forward.__new__(Forward)
    forward._headers = b"e2b-sandbox-id: i1\r\n"
    head = b"GET / HTTP/1.1\r\nHost: x\r\nE2B-Sandbox-Id: evil\r\nConnection: keep-alive\r\n\r\n"
    assert forward.routed(head) == (
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\ne2b-sandbox-id: i1\r\n\r\n"
    )
    upgrade = b"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    assert b"Connection: Upgrade\r\nUpgrade: websocket\r\n" in forward.routed(upgrade)
    with pytest.raises(ValueError, match="HTTP"):
        forward.routed(b"SSH-2.0-x\r\n\r\n")


async def test_newest_metrics_of_many(plane: ControlPlane) -> None:
    async with await make(plane) as sandbox:
        client = await servers.connect(plane.url, KEY)
        found = await servers.newest_metrics(client, [sandbox.id, "i" * 20])
        await client.aclose()
        assert set(found) == {sandbox.id}


def _fetch_when_up(url: str) -> str:
    """The guest's server needs a moment; until then the proxy answers 502."""
    import time
    from urllib.error import HTTPError

    assert url.startswith("http://127.0.0.1:")
    deadline = time.monotonic() + 20
    while True:
        try:
            with urlopen(Request(url), timeout=5) as answer:
                return str(answer.read().decode())
        except HTTPError as error:
            if error.code != 502 or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def test_a_sandbox_made_without_await_says_how_it_is_made() -> None:
    for make in (AsyncSandbox, lambda: AsyncSandbox("base", timeout=5)):
        with pytest.raises(TypeError, match=r"await AsyncSandbox\.create"):
            make()
