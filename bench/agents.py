"""The floor of all that goes to a guest: raw Connect-JSON on one socket to the agent, no proxy."""

from __future__ import annotations

import http.client
import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aenv.models.folders import Folders
from aenv.models.sandboxes import AGENT_PORT
from aenv.models.settings import Settings
from aenv.node.network.slot import Layout
from bench.harness import Server


@dataclass(slots=True)
class RawAgent:
    """One connection to one guest's agent."""

    connection: http.client.HTTPConnection
    token: str

    def run(self, cmd: str, *args: str) -> int:
        """Start a process and read its stream to the end; the exit code."""
        message = json.dumps({"process": {"cmd": cmd, "args": list(args)}, "stdin": False}).encode()
        headers = {
            "content-type": "application/connect+json",
            "connect-protocol-version": "1",
            "X-Access-Token": self.token,
        }
        body = struct.pack(">BI", 0, len(message)) + message
        self.connection.request("POST", "/process.Process/Start", body, headers)
        payload = self.connection.getresponse().read()
        return _exit_code(payload)

    def get(self, path: str) -> bytes:
        self.connection.request("GET", path, headers={"X-Access-Token": self.token})
        return self.connection.getresponse().read()

    def close(self) -> None:
        self.connection.close()


def connect(server: Server, sandbox_id: str, token: str) -> RawAgent:
    """Dial the guest's own address, found in the host-wide slot registry."""
    return RawAgent(http.client.HTTPConnection(guest_ip(server, sandbox_id), AGENT_PORT), token)


def guest_ip(server: Server, sandbox_id: str) -> str:
    folders = Folders.resolve(server.env)
    layout = Layout.of(folders.instance, Settings(folders=folders).subnet)
    for entry in (folders.run / "slots").iterdir():
        if entry.name.isdigit() and sandbox_id in entry.read_text():
            return layout.slot(int(entry.name), Path("/run/netns")).guest_ip
    raise LookupError(f"no network slot is leased to {sandbox_id}")


def _exit_code(payload: bytes) -> int:
    position, code = 0, -1
    while position < len(payload):
        _, length = struct.unpack_from(">BI", payload, position)
        event: dict[str, Any] = json.loads(payload[position + 5 : position + 5 + length])
        position += 5 + length
        if "end" in event.get("event", {}):
            code = int(event["event"]["end"].get("exitCode", 0))
    return code
