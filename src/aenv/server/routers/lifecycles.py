"""Pausing, resuming, forking and keeping copies of one sandbox."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from aenv.server import bodies, replies
from aenv.server import snapshot_replies as snapshots
from aenv.server.openapi import fails
from aenv.server.routing import Caller, System

router = APIRouter(tags=["lifecycles"])
RESUME_FAILS = fails(404, 409, 429, 503, 507)


@router.post("/sandboxes/{sandbox_id}/pause", status_code=204, responses=fails(404, 409, 503, 507))
async def pause(
    sandbox_id: str, system: System, caller: Caller, body: bodies.Pause | None = None
) -> None:
    """409: it is paused already. 503: its agent does not answer, where that was asked for or the
    memory is not kept; 507: the disk is full. In both cases it runs on.
    """
    wish = body or bodies.Pause()
    await system.sandboxes.pause(
        caller,
        sandbox_id,
        memory=wish.memory is not False,
        healthy=bool(wish.require_healthy_guest),
    )


@router.post(
    "/sandboxes/{sandbox_id}/connect",
    responses={201: {"model": replies.Sandbox}, **RESUME_FAILS},
)
async def connect_v1(
    sandbox_id: str, body: bodies.Connect, system: System, caller: Caller, response: Response
) -> replies.Sandbox:
    """200 when it was running, 201 when this resumed it."""
    return await _connect(sandbox_id, body, system, caller, response)


@router.post(
    "/v2/sandboxes/{sandbox_id}/connect",
    responses={201: {"model": replies.Sandbox}, **RESUME_FAILS},
)
async def connect_v2(
    sandbox_id: str,
    system: System,
    caller: Caller,
    response: Response,
    body: bodies.ConnectV2 | None = None,
) -> replies.Sandbox:
    """200 when it was running, 201 when this resumed it."""
    return await _connect(sandbox_id, body or bodies.ConnectV2(), system, caller, response)


@router.post("/sandboxes/{sandbox_id}/resume", status_code=201, responses=RESUME_FAILS)
async def resume(
    sandbox_id: str, system: System, caller: Caller, body: bodies.Resume | None = None
) -> replies.Sandbox:
    """409 when it runs already."""
    call = (body or bodies.Resume()).call()
    return replies.Sandbox.of(await system.sandboxes.resume(caller, sandbox_id, call), system)


@router.post(
    "/sandboxes/{sandbox_id}/snapshots", status_code=201, responses=fails(404, 409, 503, 507)
)
async def create_snapshot(
    sandbox_id: str, system: System, caller: Caller, body: bodies.NewSnapshot | None = None
) -> snapshots.SnapshotInfo:
    """The sandbox runs on."""
    wish = body or bodies.NewSnapshot()
    record = await system.snapshots.create(
        caller.team, sandbox_id, name=wish.name, memory=wish.memory is not False
    )
    places = await system.snapshots.places([record])
    return snapshots.SnapshotInfo.of(record, places[record.id])


@router.post(
    "/sandboxes/{sandbox_id}/fork",
    status_code=201,
    response_model_exclude_none=True,
    responses=fails(404, 409, 503, 507),
)
async def fork(
    sandbox_id: str, system: System, caller: Caller, body: bodies.Fork | None = None
) -> list[snapshots.ForkResult]:
    """One result per fork: a sandbox, or why it did not come to life."""
    outcomes = await system.forks.fork(caller, sandbox_id, (body or bodies.Fork()).request())
    return [snapshots.ForkResult.of(outcome, system) for outcome in outcomes]


async def _connect(
    sandbox_id: str, body: bodies.Connect, system: System, caller: Caller, response: Response
) -> replies.Sandbox:
    record, resumed = await system.sandboxes.connect(caller, sandbox_id, body.call())
    response.status_code = 201 if resumed else 200
    return replies.Sandbox.of(record, system)
