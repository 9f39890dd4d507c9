"""Reading a sandbox's log: what its processes and its agent wrote."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator

from aenv.models.errors import NotFoundError
from aenv.sdk.client import Client
from aenv.sdk.results import LogLine

_PAGE = 1000
_POLL = 0.5


async def newest(
    client: Client, sandbox_id: str, *, limit: int = 1000, search: str | None = None
) -> list[LogLine]:
    """The newest ``limit`` lines, oldest first."""
    params: dict[str, str | int] = {"direction": "backward", "limit": min(limit, _PAGE)}
    if search:
        params["search"] = search
    return list(reversed(await _fetch(client, sandbox_id, params)))


async def follow(client: Client, sandbox_id: str, *, limit: int = 1000) -> AsyncIterator[LogLine]:
    """The newest lines, then each new one, until the sandbox ends."""
    seen = await newest(client, sandbox_id, limit=limit) if limit else []
    for line in seen:
        yield line
    while True:
        lines = await _since(client, sandbox_id, seen)
        if lines is None:
            return
        fresh = _after(lines, seen)
        for line in fresh:
            yield line
        seen = (seen + fresh)[-2 * _PAGE :]
        if len(lines) < _PAGE:
            await asyncio.sleep(_POLL)


async def _since(client: Client, sandbox_id: str, seen: list[LogLine]) -> list[LogLine] | None:
    """From the millisecond of the newest line on; the API's cursor knows no finer unit."""
    params: dict[str, str | int] = {"direction": "forward", "limit": _PAGE}
    if seen:
        params["cursor"] = math.floor(seen[-1].timestamp.timestamp() * 1000)
    try:
        return await _fetch(client, sandbox_id, params)
    except NotFoundError:
        return None


def _after(lines: list[LogLine], seen: list[LogLine]) -> list[LogLine]:
    """``lines`` without those already seen; equal lines are told apart by how often they came."""
    counts: dict[tuple[float, str], int] = {}
    for line in seen:
        key = (line.timestamp.timestamp(), line.message)
        counts[key] = counts.get(key, 0) + 1
    fresh = []
    for line in lines:
        key = (line.timestamp.timestamp(), line.message)
        if counts.get(key, 0) > 0:
            counts[key] -= 1
        else:
            fresh.append(line)
    return fresh


async def _fetch(client: Client, sandbox_id: str, params: dict[str, str | int]) -> list[LogLine]:
    answer = await client.call("GET", f"/v2/sandboxes/{sandbox_id}/logs", params=params)
    return [LogLine.from_wire(entry) for entry in answer.json().get("logs", ())]
