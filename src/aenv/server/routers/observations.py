"""Metrics and logs of one sandbox."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query

from aenv.control.observations import LogRequest
from aenv.server import replies
from aenv.server.openapi import fails
from aenv.server.routing import Caller, System

router = APIRouter(tags=["observations"])
UnixSeconds = Annotated[float | None, Query(ge=0, le=253402300799, allow_inf_nan=False)]
UnixMilliseconds = Annotated[int | None, Query(ge=0, le=253402300799000)]
Limit = Annotated[int, Query(ge=0, le=1000)]


@router.get("/sandboxes/{sandbox_id}/metrics", responses=fails(404))
async def metrics(
    sandbox_id: str,
    system: System,
    caller: Caller,
    start: UnixSeconds = None,
    end: UnixSeconds = None,
) -> list[replies.Metric]:
    samples = await system.observations.metrics(caller, sandbox_id, start, end)
    return [replies.Metric.of(sample) for sample in samples]


@router.get("/sandboxes/{sandbox_id}/logs", responses=fails(404))
async def logs_v1(
    sandbox_id: str,
    system: System,
    caller: Caller,
    start: UnixMilliseconds = None,
    limit: Limit = 1000,
) -> replies.LogsV1:
    request = LogRequest(cursor=start, limit=limit)
    entries = await system.observations.logs(caller, sandbox_id, request)
    found = [replies.Log.of(entry) for entry in entries]
    lines = [replies.LogLine(timestamp=log.timestamp, line=log.message) for log in found]
    return replies.LogsV1(logs=lines, log_entries=found)


@router.get("/v2/sandboxes/{sandbox_id}/logs", responses=fails(404))
async def logs_v2(
    sandbox_id: str,
    system: System,
    caller: Caller,
    cursor: UnixMilliseconds = None,
    after: Annotated[int | None, Query(ge=0, le=2**62)] = None,
    limit: Limit = 1000,
    direction: Literal["forward", "backward"] = "forward",
    level: Literal["debug", "info", "warn", "error"] | None = None,
    search: Annotated[str | None, Query(max_length=256)] = None,
) -> replies.Logs:
    request = LogRequest(
        cursor=cursor,
        after=after,
        limit=limit,
        backward=direction == "backward",
        level=level,
        search=search,
    )
    entries = await system.observations.logs(caller, sandbox_id, request)
    return replies.Logs(logs=[replies.Log.of(entry) for entry in entries])
