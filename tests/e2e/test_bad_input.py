"""What bad input and bad guests get: a clear answer, and nothing lost or left."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.e2e.servers import LiveServer, remains
from tests.e2e.wire import Box, Wire

MakeServer = Callable[..., LiveServer]


@pytest.fixture
def box(wire: Wire) -> Iterator[Box]:
    box = wire.create()
    yield box
    wire.delete(box)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"", 400),
        (b"[]", 400),
        (b"\xff\xfe", 400),
        (b'{"templateID": 5}', 400),
        (b'{"templateID": "base", "timeout": "soon"}', 400),
        (b'{"templateID": "base", "timeout": -1}', 400),
        (b'{"templateID": "base", "metadata": {"a": 1}}', 400),
        (b'{"templateID": "base", "envVars": {"A=B": "x"}}', 400),
        (b'{"templateID": "base", "network": {"denyOut": ["no address"]}}', 400),
        (b'{"templateID": "base", "network": {"allowOut": ["example.com"]}}', 400),
        (b'{"templateID": "../../etc/passwd"}', 404),
        (b'{"templateID": "no-such-template"}', 404),
        (
            b'{"templateID": "base", "autoPause": true, "autoPauseMemory": false, '
            b'"autoResume": {"enabled": true}}',
            400,
        ),
        (b'{"templateID": "base", "network": {"allowOut": ["10.0.0.0/8"]}}', 400),
        (b'{"templateID": "base", "unknownField": 1, "metadata": {"deep": {"a": "b"}}}', 400),
    ],
)
def test_a_create_that_cannot_be_is_refused_and_leaves_nothing(
    wire: Wire, body: bytes, status: int
):
    before = wire.ids()
    headers = {"Content-Type": "application/json"}
    reply = wire.http.post("/v2/sandboxes", content=body, headers=headers)
    assert reply.status_code == status, reply.text
    error = reply.json()
    assert error["code"] == status
    assert error["message"]
    assert wire.ids() == before


@pytest.mark.parametrize("key", [None, "", "wrong", "e2b_" + "0" * 40])
def test_without_a_valid_key_nothing_is_served(server: LiveServer, key: str | None):
    headers = {} if key is None else {"X-API-Key": key}
    for method, path in (("GET", "/v2/sandboxes"), ("POST", "/v2/sandboxes"), ("GET", "/metrics")):
        reply = httpx.request(
            method, server.url + path, headers=headers | {"X-Forwarded-For": "8.8.8.8"}
        )
        assert reply.status_code == 401, path
        assert reply.json()["code"] == 401
    assert httpx.get(server.url + "/health").status_code == 204


@pytest.mark.parametrize("name", ["nope", "i" + "0" * 19, "..%2f..%2fetc", "%00", "a" * 5000])
def test_ids_that_are_none_are_not_found(wire: Wire, name: str):
    assert wire.http.get(f"/sandboxes/{name}").status_code == 404
    assert wire.http.delete(f"/sandboxes/{name}").status_code == 404
    reply = wire.http.post(f"/sandboxes/{name}/timeout", json={"timeout": 5})
    assert reply.status_code == 404


def test_duplicate_idempotency_keys(wire: Wire):
    body = {"templateID": "base", "timeout": 60}
    with ThreadPoolExecutor(4) as pool:
        headers = {"Idempotency-Key": "the-same-key"}
        replies = list(
            pool.map(
                lambda _: wire.http.post("/v2/sandboxes", json=body, headers=headers), range(4)
            )
        )
    assert {reply.status_code for reply in replies} == {201}
    (sandbox_id,) = {reply.json()["sandboxID"] for reply in replies}
    other = wire.http.post("/v2/sandboxes", json=body | {"timeout": 61}, headers=headers)
    assert other.status_code in (400, 409, 422)
    assert other.json()["error_code"] == "idempotency_request_mismatch"
    assert wire.http.delete(f"/sandboxes/{sandbox_id}").status_code == 204


def test_a_guest_that_ends_its_init_ends_alone(server: LiveServer, wire: Wire, box: Box):
    other = wire.create()
    killed = lose_answer(wire, box, "kill -9 1")
    assert killed
    until(lambda: box.id not in wire.ids())
    assert wire.detail(box).status_code == 404
    health = wire.http.get("/health", headers=_agent(box))
    assert health.status_code == 502
    assert wire.run(other, "echo fine").stdout == "fine\n"
    wire.delete(other)
    until(lambda: not [one for one in remains(server) if box.id in one])


def test_an_agent_that_hangs_is_told_in_its_log_and_can_be_killed(wire: Wire, box: Box):
    lose_answer(wire, box, "kill -STOP 1; sleep 1")
    until(
        lambda: any("does not answer" in entry["message"] for entry in wire.logs(box)), timeout=60
    )
    assert box.id in wire.ids()
    assert wire.delete(box) == 204


def test_a_full_disk_costs_only_the_one_who_filled_it(make_server: MakeServer):
    server = make_server(AENV_DEFAULTS_DISK_MB="512")
    server.start()
    wire = Wire(server)
    full, other = wire.create(), wire.create()

    def endless() -> Iterator[bytes]:
        for _ in range(5 * 1024):
            yield b"\0" * (1 << 20)

    reply = wire.http.post(
        "/files",
        params={"path": "/home/user/big", "username": "user"},
        content=endless(),
        headers=_agent(full) | {"Content-Type": "application/octet-stream"},
    )
    assert reply.status_code == 507, reply.text
    assert wire.run(full, "ls /home/user").stdout == ""
    assert wire.run(full, "dd if=/dev/zero of=fill bs=1M count=2000").exit_code != 0
    assert wire.run(other, "dd if=/dev/zero of=fill bs=1M count=100").exit_code == 0
    assert wire.run(full, "rm fill; echo usable").stdout == "usable\n"


@pytest.mark.timeout(600)
def test_fifty_creates_at_once(server: LiveServer, wire: Wire):
    started = time.monotonic()
    with ThreadPoolExecutor(50) as pool:
        replies = list(pool.map(lambda _: _create(server), range(50)))
    made = [reply for reply in replies if reply.status_code == 201]
    refused = [reply for reply in replies if reply.status_code != 201]
    assert all(reply.status_code in (429, 503) and reply.json()["message"] for reply in refused)
    assert made
    ids = {reply.json()["sandboxID"] for reply in made}
    assert ids <= wire.ids()
    print(f"{len(made)} of 50 in {time.monotonic() - started:.1f} s")
    with ThreadPoolExecutor(16) as pool:
        ended = list(pool.map(lambda one: wire.http.delete(f"/sandboxes/{one}").status_code, ids))
    assert set(ended) == {204}


def _create(server: LiveServer) -> httpx.Response:
    with httpx.Client(timeout=120) as http:
        return http.post(
            server.url + "/v2/sandboxes",
            json={"templateID": "base", "timeout": 300},
            headers={"X-API-Key": server.api_key},
        )


def test_quotas_answer_429_with_the_figures(make_server: MakeServer):
    server = make_server(AENV_QUOTAS_SANDBOXES="1")
    server.start()
    wire = Wire(server)
    wire.create()
    reply = wire.http.post("/v2/sandboxes", json={"templateID": "base"})
    assert reply.status_code == 429
    assert "1" in reply.json()["message"]


@pytest.mark.parametrize(
    ("setting", "what"),
    [("AENV_MEMORY_RESERVE_MB", "memory"), ("AENV_DISK_RESERVE_MB", "disk")],
)
def test_a_host_that_is_short_refuses_with_figures(
    make_server: MakeServer, setting: str, what: str
):
    server = make_server(**{setting: str(1 << 30)})
    server.start()
    reply = Wire(server).http.post("/v2/sandboxes", json={"templateID": "base"})
    assert reply.status_code == 503
    assert f"short of {what}" in reply.json()["message"]
    assert int(reply.headers["retry-after"]) > 0


@pytest.mark.parametrize(
    ("path", "content", "expected"),
    [
        ("/process.Process/Start", b"", {400, 415}),
        ("/process.Process/List", b"{", {400}),
        ("/process.Process/SendInput", b'{"process": {"pid": 999999}, "input": {}}', {400, 404}),
        ("/filesystem.Filesystem/Stat", b'{"path": "/\\u0000"}', {400, 404}),
        ("/filesystem.Filesystem/Nothing", b"{}", {404}),
        ("/filesystem.Filesystem/ListDir", b'{"path": 5}', {400}),
    ],
)
def test_malformed_calls_do_not_hurt_the_agent(
    wire: Wire, box: Box, path: str, content: bytes, expected: set[int]
):
    assert wire.rpc(box, path, content).status_code in expected
    assert wire.run(box, "echo fine").stdout == "fine\n"


def test_logs_are_paged_filtered_and_searched(wire: Wire, box: Box):
    wire.run(box, "for n in 1 2 3 4 5; do echo line-$n; done; echo oops >&2")
    until(lambda: {"line-5", "oops"} <= {entry["message"] for entry in wire.logs(box)})
    everything = [entry["message"] for entry in wire.logs(box)]
    assert everything.index("line-1") < everything.index("line-5")
    backward = [entry["message"] for entry in wire.logs(box, direction="backward", limit=3)]
    assert backward == everything[::-1][:3]
    assert [entry["message"] for entry in wire.logs(box, search="line-3")] == ["line-3"]
    old = wire.http.get(f"/sandboxes/{box.id}/logs", params={"limit": 2})
    assert old.status_code == 200
    assert len(old.json()["logEntries"]) == 2
    assert all(json.dumps(entry) for entry in old.json()["logs"])


def test_files_copied_out_stay_out_of_the_log(
    server: LiveServer, wire: Wire, box: Box, tmp_path: Path
):
    wire.run(box, "mkdir kept && printf private > kept/file")
    server.aenv("cp", "-r", f"{box.id}:kept", str(tmp_path / "copy"))
    assert (tmp_path / "copy" / "file").read_text() == "private"
    wire.run(box, "echo afterwards")
    until(lambda: "afterwards" in [entry["message"] for entry in wire.logs(box)])
    assert not [entry for entry in wire.logs(box) if "private" in entry["message"]]


def lose_answer(wire: Wire, box: Box, command: str) -> bool:
    """Run what takes the agent down as root; whether its answer was lost."""
    patience, wire.http.timeout = wire.http.timeout, 5
    try:
        return wire.run(box, command, user="root").exit_code is None
    except httpx.TransportError:
        return True
    finally:
        wire.http.timeout = patience


def _agent(box: Box) -> dict[str, Any]:
    return {
        "E2b-Sandbox-Id": box.id,
        "E2b-Sandbox-Port": "49983",
        "X-Access-Token": box.token,
    }


def until(condition: Callable[[], object], *, timeout: float = 20) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
