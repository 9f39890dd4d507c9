"""Reading a sandbox's log: what its processes and its agent wrote.

It stays readable for a while after the sandbox's end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

from aenv.models.errors import NotFoundError
from aenv.models.sandboxes import ENDED
from aenv.sdk.client import Client
from aenv.sdk.results import LogLine

PAGE = 1000
_POLL = 0.3
END_GRACE = 5.0
"""Seconds the log's last line, which tells the end, may come after the end."""


async def newest(
    client: Client, sandbox_id: str, *, limit: int = PAGE, search: str | None = None
) -> list[LogLine]:
    """The newest ``limit`` (at most 1000) lines, oldest first."""
    params: dict[str, str | int] = {"direction": "backward", "limit": min(limit, PAGE)}
    if search:
        params["search"] = search
    return list(reversed(await _fetch(client, sandbox_id, params)))


async def follow(
    client: Client, sandbox_id: str, *, limit: int = PAGE, search: str | None = None
) -> AsyncGenerator[LogLine, None]:
    """The newest ``limit`` lines, then each new one, until the sandbox ends."""
    lines = await newest(client, sandbox_id, limit=max(limit, 1), search=search)
    last = lines[-1].seq if lines else 0
    for line in lines if limit else ():
        yield line
    told = any(line.message.startswith(ENDED) for line in lines)
    over_at: float | None = None
    while True:
        if over_at is None and not await _lives(client, sandbox_id):
            over_at = time.monotonic()
        params: dict[str, str | int] = {"after": last, "limit": PAGE}
        if search:
            params["search"] = search
        lines = await _fetch(client, sandbox_id, params)
        for line in lines:
            yield line
            last = line.seq
            told = told or line.message.startswith(ENDED)
        if over_at is not None and not lines and (told or time.monotonic() > over_at + END_GRACE):
            return
        if len(lines) < PAGE:
            await asyncio.sleep(_POLL)


async def _lives(client: Client, sandbox_id: str) -> bool:
    try:
        await client.call("GET", f"/sandboxes/{sandbox_id}")
    except NotFoundError:
        return False
    return True


async def _fetch(client: Client, sandbox_id: str, params: dict[str, str | int]) -> list[LogLine]:
    answer = await client.call("GET", f"/v2/sandboxes/{sandbox_id}/logs", params=params)
    return [LogLine.from_wire(entry) for entry in answer.json().get("logs", ())]
