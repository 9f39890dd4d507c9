"""A registry on loopback: the distribution protocol with tokens, ranges, and faults on order."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.fakes.layers import Image

_PATH = re.compile(r"/v2/(?P<name>.+)/(?P<kind>manifests|blobs)/(?P<what>[^/]+)")


@dataclass
class Faults:
    """What goes wrong, and how often. ``cut``: bytes after which a blob's transfer breaks."""

    statuses: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)
    stall: threading.Event | None = None
    ignore_ranges: bool = False
    redirect: str | None = None


@dataclass
class Registry:
    """``tags`` by ``name:tag``; ``login``: user and password that tokens are given for."""

    port: int = 0
    tags: dict[str, Image] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    login: tuple[str, str] | None = None
    basic: bool = False
    tokens: bool = False
    faults: Faults = field(default_factory=Faults)
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    token: str = "t0"

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def push(self, name: str, image: Image) -> str:
        """The image's name for a client."""
        self.tags[name] = image
        self.blobs |= {**image.blobs, image.digest: image.manifest}
        return f"{self.host}/{name}"

    def asked(self, part: str) -> list[dict[str, str]]:
        """The headers of requests whose path has this part."""
        return [headers for path, headers in self.requests if part in path]


@contextmanager
def serve(registry: Registry | None = None) -> Iterator[Registry]:
    found = registry or Registry()

    class Handler(_Handler):
        registry = found

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    registry: Registry

    def log_message(self, *_: Any) -> None: ...

    def do_GET(self) -> None:
        own = self.registry
        headers = {name.lower(): value for name, value in self.headers.items()}
        own.requests.append((self.path, headers))
        if self.path.startswith("/token"):
            self._give_token(headers)
        elif own.faults.statuses:
            status, more = own.faults.statuses.pop(0)
            self._reply(status, b"", **more)
        elif not self._is_known(headers):
            scheme = (
                'Basic realm="registry"'
                if own.basic
                else f'Bearer realm="http://{own.host}/token",service="registry"'
            )
            self._reply(401, b"", **{"WWW-Authenticate": scheme})
        elif match := _PATH.fullmatch(self.path):
            self._serve(match["name"], match["kind"], match["what"], headers)
        else:
            self._reply(404, b"{}")

    do_HEAD = do_GET  # noqa: N815

    def _is_known(self, headers: dict[str, str]) -> bool:
        own = self.registry
        given = headers.get("authorization", "")
        if own.basic:
            return given == _basic(own.login)
        return given == f"Bearer {own.token}" if own.tokens or own.login else True

    def _give_token(self, headers: dict[str, str]) -> None:
        own = self.registry
        if own.login and headers.get("authorization") != _basic(own.login):
            self._reply(401, b"{}")
            return
        self._reply(200, json.dumps({"token": own.token}).encode())

    def _serve(self, name: str, kind: str, what: str, headers: dict[str, str]) -> None:
        own = self.registry
        if kind == "manifests" and f"{name}:{what}" in own.tags:
            image = own.tags[f"{name}:{what}"]
            self._reply(200, image.manifest, **{"Content-Type": image.kind})
        elif what not in own.blobs:
            self._reply(404, b"{}")
        elif kind == "blobs" and own.faults.redirect:
            self._reply(307, b"", Location=f"{own.faults.redirect}{self.path}")
        else:
            self._blob(own.blobs[what], headers.get("range", ""))

    def _blob(self, content: bytes, wanted: str) -> None:
        faults = self.registry.faults
        start = int(wanted.removeprefix("bytes=").removesuffix("-") or 0)
        status = 200
        more = {}
        if start and not faults.ignore_ranges:
            if start >= len(content):
                self._reply(416, b"")
                return
            more = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}
            content, status = content[start:], 206
        if faults.stall is not None:
            stall, faults.stall = faults.stall, None
            self._reply(status, content, upto=len(content) // 2, **more)
            stall.wait(60)
            self.close_connection = True
        elif faults.cut:
            self._reply(status, content, upto=faults.cut.pop(0), **more)
            self.close_connection = True
        else:
            self._reply(status, content, **more)

    def _reply(self, status: int, body: bytes, *, upto: int | None = None, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:upto])
            self.wfile.flush()


def _basic(login: tuple[str, str] | None) -> str:
    return "Basic " + base64.b64encode(":".join(login or ("", "")).encode()).decode()
