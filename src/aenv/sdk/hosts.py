"""The hosts of a server, as its operators see them."""

from __future__ import annotations

from typing import Any

from aenv.models.memory import MemoryReport, MemoryShare
from aenv.sdk.client import Client


async def memory(client: Client) -> dict[str, MemoryReport]:
    """What memory is promised to and used for, by host."""
    found = (await client.call("GET", "/nodes")).json()
    return {node["id"]: _report(node["memory"]) for node in found if node.get("memory")}


def _report(wire: dict[str, Any]) -> MemoryReport:
    return MemoryReport(
        running=_share(wire["running"]),
        hot=_share(wire["hot"]),
        pooled=_share(wire["pooled"]),
        total=wire["totalBytes"],
        available=wire["availableBytes"],
        stalled=wire["stalled"],
        exhausted=wire["exhausted"],
        relieved=wire["demotions"],
        refusals=wire["refusals"],
    )


def _share(wire: dict[str, int]) -> MemoryShare:
    return MemoryShare(wire["sandboxCount"], wire["promisedBytes"], wire["usedBytes"])
