"""The server itself: finding it, and listing what it has."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Any

from aenv.models.errors import NotFoundError
from aenv.models.folders import Folders
from aenv.models.sandboxes import SandboxMetrics
from aenv.sdk import endpoints, local_servers, wire
from aenv.sdk.client import Client
from aenv.sdk.results import SandboxInfo, metrics_from_wire

PAGE = 100


async def connect(
    url: str | None = None,
    api_key: str | None = None,
    profile: str | None = None,
    *,
    engine: str | None = None,
) -> Client:
    """A client of the server that was named, or of the local one, started when none runs."""
    named = await asyncio.to_thread(endpoints.resolve, url, api_key, profile)
    if named is not None:
        return Client(named)
    key = api_key or os.environ.get("AENV_API_KEY")
    launch = local_servers.Launch(Folders.resolve(), engine=engine, api_key=key)
    return Client(await asyncio.to_thread(local_servers.find_or_start, launch))


async def list_sandboxes(
    client: Client, *, metadata: Mapping[str, str] | None = None, state: str | None = None
) -> list[SandboxInfo]:
    """Every page, newest first."""
    params: dict[str, str | int] = {"limit": PAGE}
    if state:
        params["state"] = state
    if metadata:
        params["metadata"] = wire.metadata_filter(metadata)
    found: list[SandboxInfo] = []
    while True:
        answer = await client.call("GET", "/v2/sandboxes", params=params)
        found += [SandboxInfo.from_wire(entry) for entry in answer.json()]
        token = answer.headers.get("x-next-token")
        if not token:
            return found
        params["nextToken"] = token


async def newest_metrics(client: Client, ids: Sequence[str]) -> dict[str, SandboxMetrics]:
    """The newest sample of each sandbox that has one."""
    found: dict[str, SandboxMetrics] = {}
    for start in range(0, len(ids), PAGE):
        wanted = ",".join(ids[start : start + PAGE])
        answer = await client.call("GET", "/sandboxes/metrics", params={"sandbox_ids": wanted})
        samples = answer.json().get("sandboxes") or {}
        found |= {one: metrics_from_wire(sample) for one, sample in samples.items()}
    return found


async def kill(client: Client, sandbox_id: str) -> bool:
    """False when there is no such sandbox (any more)."""
    try:
        await client.call("DELETE", f"/sandboxes/{sandbox_id}")
    except NotFoundError:
        return False
    return True


async def fetch(client: Client, method: str, path: str, body: Any = None) -> dict[str, Any]:
    """One object; the client is closed when there is none."""
    try:
        return dict((await client.call(method, path, json=body)).json())
    except BaseException:
        await client.aclose()
        raise
