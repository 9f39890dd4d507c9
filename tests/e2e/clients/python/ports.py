"""Guest ports through the proxy: header route, host route, traffic tokens, WebSockets, aborts."""

import base64
import os
import socket
from urllib.parse import urlsplit

import httpx
from e2b import Sandbox
from scenarios import scenario, until

SERVER = """
import base64, hashlib, http.server, time

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.headers.get("Upgrade", "").lower() == "websocket":
            return self.websocket()
        if self.path == "/stream":
            return self.stream()
        body = (self.command + " " + self.path + " " + self.headers.get("Host", "") + " "
                + ",".join(sorted(name.lower() for name in self.headers))).encode()
        length = int(self.headers.get("Content-Length", 0))
        body += b" " + self.rfile.read(length)
        self.send_response(418)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Mine", "yes")
        self.end_headers()
        self.wfile.write(body)

    do_PUT = do_POST = do_DELETE = do_PATCH = do_OPTIONS = do_GET

    def stream(self):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(3):
            self.wfile.write(b"2\\r\\n%d\\n\\r\\n" % number)
            self.wfile.flush()
            time.sleep(0.5)
        self.wfile.write(b"0\\r\\n\\r\\n")

    def websocket(self):
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", accept)
        self.end_headers()
        self.wfile.flush()
        head = self.rfile.read(2)
        mask = self.rfile.read(4)
        data = bytes(b ^ mask[i % 4] for i, b in enumerate(self.rfile.read(head[1] & 127)))
        self.wfile.write(bytes([0x81, len(data)]) + data)
        self.wfile.flush()
        self.close_connection = True

http.server.ThreadingHTTPServer(("0.0.0.0", 8080), Handler).serve_forever()
"""


def _serve(sandbox: Sandbox) -> None:
    sandbox.files.write("server.py", SERVER)
    sandbox.commands.run("python3 server.py", background=True, timeout=0)
    until(lambda: _get(sandbox).status_code == 418, timeout=20)


def _url() -> str:
    return os.environ["E2B_SANDBOX_URL"]


def _get(sandbox: Sandbox, path: str = "/", **headers: str) -> httpx.Response:
    """Through the header route."""
    route = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "8080"}
    return httpx.get(_url() + path, headers=route | headers, timeout=20)


def _by_host(sandbox: Sandbox, path: str = "/") -> httpx.Response:
    host = sandbox.get_host(8080)
    return httpx.get(_url() + path, headers={"Host": host}, timeout=20)


@scenario
def a_closed_port_is_told_apart_from_a_dead_sandbox(sandbox: Sandbox):
    reply = _get(sandbox)
    assert reply.status_code == 502
    assert reply.json()["message"] == "The sandbox is running but port is not open"
    assert reply.json()["port"] == 8080
    headers = {"E2b-Sandbox-Id": "i" + "0" * 19, "E2b-Sandbox-Port": "8080"}
    reply = httpx.get(_url(), headers=headers)
    assert reply.status_code == 502
    assert "was not found" in reply.json()["message"]


@scenario
def both_routes_reach_a_guest_port(sandbox: Sandbox):
    _serve(sandbox)
    reply = _get(sandbox, "/a/b?c=d")
    assert (reply.status_code, reply.headers["x-mine"]) == (418, "yes")
    assert reply.text.startswith("GET /a/b?c=d ")
    reply = _by_host(sandbox, "/by/host")
    assert reply.text.startswith("GET /by/host ")
    assert sandbox.get_host(8080).startswith(f"8080-{sandbox.sandbox_id}.")


@scenario
def our_credentials_do_not_reach_the_guest(sandbox: Sandbox):
    headers = {"X-API-Key": os.environ["E2B_API_KEY"], "X-Access-Token": "t", "X-Own": "o"}
    seen = _get(sandbox, "/", **headers).text.split(" ")[3].split(",")
    assert "x-own" in seen
    assert "x-api-key" not in seen
    assert "x-access-token" not in seen


@scenario
def every_method_and_body_passes(sandbox: Sandbox):
    headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "8080"}
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        reply = httpx.request(method, _url() + "/x", headers=headers, content=b"payload")
        assert reply.text.startswith(method)
        assert reply.text.endswith("payload")


@scenario
def replies_are_streamed(sandbox: Sandbox):
    headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "8080"}
    with httpx.stream("GET", _url() + "/stream", headers=headers, timeout=20) as reply:
        parts = list(reply.iter_raw())
    assert len(parts) == 3
    assert b"".join(parts) == b"0\n1\n2\n"


@scenario
def websockets_pass_through(sandbox: Sandbox):
    parts = urlsplit(_url())
    with socket.create_connection((parts.hostname, parts.port), timeout=20) as client:
        key = base64.b64encode(os.urandom(16)).decode()
        client.sendall(
            (
                "GET /ws HTTP/1.1\r\n"
                f"Host: {sandbox.get_host(8080)}\r\n"
                "Upgrade: websocket\r\nConnection: Upgrade\r\n"
                f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
            ).encode()
        )
        stream = client.makefile("rb")
        assert b"101" in stream.readline()
        while stream.readline().strip():
            pass
        mask = b"abcd"
        masked = bytes(byte ^ mask[i % 4] for i, byte in enumerate(b"hello"))
        client.sendall(bytes([0x81, 0x80 | 5]) + mask + masked)
        assert stream.read(7) == b"\x81\x05hello"


@scenario
def the_agents_host_endpoints_are_not_public(sandbox: Sandbox):
    headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "49983"}
    for path in ("/init", "/aenv/logs", "/aenv/sync", "/freeze", "/aenv/../init"):
        assert httpx.post(_url() + path, headers=headers).status_code == 404, path
    assert httpx.get(_url() + "/health", headers=headers).status_code == 204


@scenario
def the_host_name_can_be_masked():
    with Sandbox.create(timeout=60, network={"mask_request_host": "localhost:${PORT}"}) as sandbox:
        _serve(sandbox)
        assert _by_host(sandbox).text.split(" ")[2] == "localhost:8080"


@scenario
def a_private_port_needs_the_traffic_token():
    with Sandbox.create(timeout=60, network={"allow_public_traffic": False}) as sandbox:
        token = sandbox.traffic_access_token
        assert token
        sandbox.files.write("server.py", SERVER)
        sandbox.commands.run("python3 server.py", background=True, timeout=0)
        good = {"e2b-traffic-access-token": token}
        until(lambda: _get(sandbox, **good).status_code == 418, timeout=20)
        assert _get(sandbox).status_code == 403
        assert _get(sandbox, **{"e2b-traffic-access-token": "wrong"}).status_code == 403
        assert "e2b-traffic-access-token" not in _get(sandbox, **good).text
        assert sandbox.commands.run("echo still fine").stdout == "still fine\n"
