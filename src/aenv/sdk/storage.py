"""The blob store of a server, for its operator."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from typing import Any

from aenv.models.blobs import Collected, Damage, Progress, SpaceUse, StoreUsage, Verified
from aenv.models.errors import ServerUnreachableError
from aenv.sdk import faults
from aenv.sdk.client import Client

Report = Callable[[Progress], None]


async def usage(client: Client, report: Report) -> tuple[StoreUsage, list[SpaceUse]]:
    """Of the store, and of the folders of the server's host."""
    result = await _result(client, "GET", "usage", report)
    store = result["store"]
    parts = tuple(SpaceUse(**one) for one in store.pop("parts"))
    return StoreUsage(**store, parts=parts), [SpaceUse(**one) for one in result["host"]]


async def gc(client: Client, report: Report) -> Collected:
    return Collected(**await _result(client, "POST", "gc", report))


async def verify(client: Client, report: Report) -> Verified:
    result = await _result(client, "POST", "verify", report)
    damages = tuple(
        Damage(one["key"], one["reason"], tuple(one["blobs"]), tuple(one["holders"]))
        for one in result.pop("damages")
    )
    return Verified(**result, damages=damages)


async def _result(client: Client, method: str, what: str, report: Report) -> dict[str, Any]:
    """What the work came to. Called off, it ends at the server too."""
    async with aclosing(client.lines(method, f"/admin/store/{what}")) as lines:
        async for line in lines:
            if "progress" in line:
                report(Progress(**line["progress"]))
            elif "error" in line:
                raise faults.from_body(line["error"])
            else:
                result: dict[str, Any] = line["result"]
                return result
    raise ServerUnreachableError("the server ended before it was done; run it again")
