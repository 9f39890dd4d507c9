"""``/snapshots``: list, look at, verify. They are deleted as templates are."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from aenv.control.snapshots import SnapshotRequest
from aenv.server import snapshot_replies as replies
from aenv.server.openapi import fails
from aenv.server.routing import Caller, System

router = APIRouter(tags=["snapshots"])


@router.get("/snapshots", responses=fails())
async def list_snapshots(
    system: System,
    caller: Caller,
    response: Response,
    sandbox_id: Annotated[str | None, Query(alias="sandboxID", max_length=64)] = None,
    name: Annotated[str | None, Query(max_length=512)] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 100,
    next_token: Annotated[str | None, Query(alias="nextToken", max_length=512)] = None,
) -> list[replies.SnapshotInfo]:
    """The newest first."""
    request = SnapshotRequest(sandbox_id or None, name or None, limit, next_token or None)
    found, token = await system.snapshots.page(caller.team, request)
    if token:
        response.headers["x-next-token"] = token
    places = await system.snapshots.places(found)
    return [replies.SnapshotInfo.of(record, places[record.id]) for record in found]


@router.get("/snapshots/{snapshot_id:path}", responses=fails(404))
async def get_snapshot(snapshot_id: str, system: System, caller: Caller) -> replies.SnapshotDetail:
    found = await system.snapshots.get(caller.team, snapshot_id)
    places = await system.snapshots.places([found])
    return replies.SnapshotDetail.of(found, places[found.id])


@router.post("/aenv/snapshots/{snapshot_id:path}/verify", status_code=204, responses=fails(404))
async def verify_snapshot(snapshot_id: str, system: System, caller: Caller) -> None:
    """Read all of its memory and disk. 500 ``snapshot_damaged`` names what is damaged, and what can
    still be done.
    """
    await system.snapshots.verify(caller.team, snapshot_id)


@router.post(
    "/aenv/snapshots/{snapshot_id:path}/evict", status_code=204, responses=fails(404, 409, 503)
)
async def evict_snapshot(snapshot_id: str, system: System, caller: Caller) -> None:
    """Have it in the blob store alone, put there first if need be; it is fetched by what starts
    from it. Also the id of a paused sandbox.
    """
    await system.snapshots.evict(caller.team, snapshot_id)
