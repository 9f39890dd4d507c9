"""The control plane's HTTP face in process: a house with a client at its door."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import httpx
from tests.control.houses import House

from aenv.server.app import create_app


@dataclass
class Api(House):
    client: httpx.AsyncClient = field(init=False)

    async def open(self) -> Api:
        await super().open()
        self.client = self.client_from("127.0.0.1", {"X-API-Key": self.system.keys.local})
        return self

    def client_from(self, address: str, headers: dict[str, str]) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(
            create_app(self.system), raise_app_exceptions=False, client=(address, 5000)
        )
        return httpx.AsyncClient(transport=transport, base_url="http://api", headers=headers)

    async def close(self) -> None:
        self.node.knobs.create_gate = self.node.knobs.destroy_gate = None
        await self.client.aclose()
        await self.system.close()

    async def new(self, **body: Any) -> str:
        """The id of a new sandbox."""
        reply = await self.client.post("/v2/sandboxes", json={"templateID": "base", **body})
        assert reply.status_code == 201, reply.text
        return str(reply.json()["sandboxID"])

    async def ids(self, path: str = "/v2/sandboxes", **query: Any) -> list[str]:
        reply = await self.client.get(path, params=query)
        assert reply.status_code == 200, reply.text
        return [one["sandboxID"] for one in reply.json()]


def error_of(reply: httpx.Response) -> tuple[int, str]:
    """Status and ``error_code``, after checking the shape of an error body."""
    body = reply.json()
    assert reply.headers["content-type"] == "application/json"
    assert body["code"] == reply.status_code
    assert isinstance(body["message"], str)
    assert body["message"]
    return reply.status_code, str(body["error_code"])
