"""The E2B protocol by hand: for what the published clients never send, and for the crash tests."""

from __future__ import annotations

import json
import struct
from base64 import b64decode
from dataclasses import dataclass
from typing import Any

import httpx
from tests.e2e.servers import LiveServer


@dataclass(frozen=True)
class Box:
    """One sandbox as its creator knows it."""

    id: str
    token: str


@dataclass(frozen=True)
class Said:
    exit_code: int | None
    stdout: str
    stderr: str
    error: dict[str, Any] | None


class Wire:
    """One server, one key."""

    def __init__(self, server: LiveServer, *, api_key: str | None = None) -> None:
        self._url = server.url
        headers = {"X-API-Key": api_key or server.api_key}
        self.http = httpx.Client(base_url=server.url, headers=headers, timeout=90)

    def create(self, **fields: Any) -> Box:
        reply = self.http.post(
            "/v2/sandboxes", json={"templateID": "base", "timeout": 600} | fields
        )
        assert reply.status_code == 201, reply.text
        found = reply.json()
        return Box(found["sandboxID"], found["envdAccessToken"])

    def delete(self, box: Box) -> int:
        return self.http.delete(f"/sandboxes/{box.id}").status_code

    def ids(self) -> set[str]:
        reply = self.http.get("/v2/sandboxes")
        assert reply.status_code == 200, reply.text
        return {one["sandboxID"] for one in reply.json()}

    def detail(self, box: Box) -> httpx.Response:
        return self.http.get(f"/sandboxes/{box.id}")

    def logs(self, box: Box, **query: Any) -> list[dict[str, Any]]:
        reply = self.http.get(f"/v2/sandboxes/{box.id}/logs", params=query)
        assert reply.status_code == 200, reply.text
        found: list[dict[str, Any]] = reply.json()["logs"]
        return found

    def rpc(self, box: Box, path: str, content: bytes, **headers: str) -> httpx.Response:
        given = {
            "E2b-Sandbox-Id": box.id,
            "E2b-Sandbox-Port": "49983",
            "X-Access-Token": box.token,
            "Connect-Protocol-Version": "1",
            "Content-Type": "application/json",
        }
        return self.http.post(path, content=content, headers=given | headers)

    def run(self, box: Box, command: str, *, user: str | None = None, timeout: int = 60) -> Said:
        """One command through ``process.Process/Start``, to its end."""
        process = {"cmd": "/bin/bash", "args": ["-l", "-c", command]}
        message = json.dumps({"process": process}).encode()
        headers = {
            "Content-Type": "application/connect+json",
            "Connect-Timeout-Ms": str(timeout * 1000),
        }
        if user:
            headers["Authorization"] = "Basic " + httpx.BasicAuth(user, "")._auth_header[6:]
        reply = self.rpc(
            box, "/process.Process/Start", struct.pack(">BI", 0, len(message)) + message, **headers
        )
        assert reply.status_code == 200, f"{reply.status_code} {reply.text}"
        return _collect(reply.content)


def _collect(content: bytes) -> Said:
    stdout, stderr = bytearray(), bytearray()
    exit_code, error = None, None
    while content:
        flags, length = struct.unpack_from(">BI", content)
        message = json.loads(content[5 : 5 + length])
        content = content[5 + length :]
        if flags & 2:
            error = message.get("error")
        event = message.get("event", {})
        stdout += b64decode(event.get("data", {}).get("stdout", ""))
        stderr += b64decode(event.get("data", {}).get("stderr", ""))
        if "end" in event:
            exit_code = event["end"].get("exitCode", 0)
    return Said(exit_code, stdout.decode(errors="replace"), stderr.decode(errors="replace"), error)
