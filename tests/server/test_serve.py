"""The server as a process: it starts quickly, ends cleanly, and shares nothing with another."""

from __future__ import annotations

import json
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.fakes.running import Running
from tests.server.apis import Api

from aenv.control.instances import DataLock
from aenv.models.errors import ConflictError, HostSetupError
from aenv.models.folders import Folders
from aenv.models.settings import Settings
from aenv.server.listeners import bind, url_of
from aenv.server.serve import announced, serve
from aenv.store import credentials


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path)
    yield running
    if running.process.poll() is None:
        running.process.kill()
        running.process.communicate()


def test_it_serves_with_the_stored_key_and_names_its_port(server: Running) -> None:
    with server.client() as client:
        assert client.get("/health").status_code == 204
        body = client.post("/v2/sandboxes", json={"templateID": "base"}).json()

    assert body["domain"] == f"localhost:{httpx.URL(server.url).port}"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it_cleanly(server: Running, number: int) -> None:
    with server.client() as client:
        client.get("/health")
        status, errors = server.end(number)

    assert status == 0
    assert "Traceback" not in errors


def test_it_ends_though_a_client_keeps_a_connection_open(server: Running) -> None:
    with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port or 0)) as idle:
        idle.sendall(b"POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n")
        assert server.end()[0] == 0


def test_a_request_ends_it(server: Running) -> None:
    with server.client() as client:
        client.post("/v2/sandboxes", json={"templateID": "base"})
        reply = client.post("/admin/shutdown", json={"kill": True})

    assert reply.json() == {"killed": 1, "failed": []}
    assert server.end(None)[0] == 0


def test_no_key_is_in_its_log(server: Running) -> None:
    with server.client() as client:
        token = client.post("/v2/sandboxes", json={"templateID": "base"}).json()["envdAccessToken"]
    _, errors = server.end()

    lines = [json.loads(line) for line in errors.splitlines()]
    assert any(line.get("request_id") for line in lines)
    assert server.key not in errors
    assert token not in errors


def test_the_data_folder_has_one_server(server: Running) -> None:
    folders = Folders(server.root / "data", server.root, server.root / "config", server.root)

    with pytest.raises(ConflictError, match=f"process {server.process.pid} at {server.url}"):
        serve(Settings(folders, port=0))


def test_after_kill_9_it_starts_again_with_the_same_key(server: Running) -> None:
    server.end(signal.SIGKILL)

    again = Running(server.root)
    try:
        assert again.key == server.key
        with again.client() as client:
            assert client.get("/sandboxes").status_code == 200
    finally:
        again.end()


def test_two_servers_run_side_by_side(tmp_path: Path) -> None:
    first, second = Running(tmp_path / "a"), Running(tmp_path / "b")
    try:
        assert first.url != second.url
        with httpx.Client(base_url=second.url, headers={"X-API-Key": first.key}) as client:
            assert client.get("/sandboxes").status_code == 401
    finally:
        first.end()
        second.end()


def test_started_on_demand_it_ends_when_idle(tmp_path: Path) -> None:
    assert Running(tmp_path, idle_exit=0.2).end(None)[0] == 0


def test_a_taken_port_is_said_so(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        folders = Folders(tmp_path / "d", tmp_path / "c", tmp_path / "f", tmp_path / "r")

        with pytest.raises(HostSetupError, match=f"port {port} .* --port"):
            serve(Settings(folders, port=port))


def test_a_strange_host_is_said_so() -> None:
    with pytest.raises(HostSetupError, match="cannot listen"):
        bind("no.such.host.invalid", 0)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:1"),
        ("::", "http://127.0.0.1:1"),
        ("::1", "http://[::1]:1"),
        ("10.0.0.1", "http://10.0.0.1:1"),
    ],
)
def test_the_url_is_one_that_a_local_client_can_use(host: str, url: str) -> None:
    assert url_of(host, 1) == url


def test_tls_has_a_certificate_for_the_wildcard_domain(tmp_path: Path) -> None:
    server = Running(tmp_path, **{"tls.port": 0, "domain": "sbx.test"})
    try:
        with server.client() as client:
            body = client.post("/v2/sandboxes", json={"templateID": "base"}).json()
        name, _, port = body["domain"].partition(":")
        assert name == "sbx.test"

        trust = ssl.create_default_context(cafile=str(tmp_path / "data" / "tls" / "ca.pem"))
        with (
            socket.create_connection(("127.0.0.1", int(port))) as plain,
            trust.wrap_socket(plain, server_hostname="8080-abc.sbx.test") as secure,
        ):
            secure.sendall(b"GET /health HTTP/1.1\r\nHost: sbx.test\r\nConnection: close\r\n\r\n")
            assert secure.recv(100).startswith(b"HTTP/1.1 204")
        key = tmp_path / "data" / "tls" / "ca.key"
        assert key.stat().st_mode & 0o077 == 0
    finally:
        server.end()


async def test_who_finds_the_server_finds_its_key(api: Api) -> None:
    """Programs that start a server look for the URL in the lock, then for the key."""
    seen: list[str | None] = []

    class Lock(DataLock):
        def describe(self, url: str | None) -> None:
            assert url
            seen.append(credentials.local_key(api.settings.folders))

    await announced(api.system, Lock(-1), None)()
    assert seen == [api.system.keys.local]


@pytest.mark.parametrize("files", [(64, 4096), (256, 256)])
def test_many_connections_leave_it_files_to_work_with(
    tmp_path: Path, files: tuple[int, int]
) -> None:
    """The limit is raised as far as the host lets us; what is given up then is connections."""
    running = Running(tmp_path, files=files)
    address = ("127.0.0.1", httpx.URL(running.url).port or 0)
    idle: list[socket.socket] = []
    try:
        idle.extend(socket.create_connection(address, timeout=10) for _ in range(400))
        with running.client() as client:
            reply = client.post("/v2/sandboxes", json={"templateID": "base"})
        assert reply.status_code == 201
    finally:
        for connection in idle:
            connection.close()
        _, errors = running.end()
    assert "Too many open files" not in errors
