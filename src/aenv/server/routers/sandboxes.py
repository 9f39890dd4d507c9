"""``/sandboxes`` and ``/v2/sandboxes``: make, see, end, extend."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from aenv.control.listing import STATES, ListRequest, metadata_filter, nanoseconds
from aenv.server import bodies, cold_bodies, replies
from aenv.server.bodies import IdempotencyKey, listed
from aenv.server.callers import unless_hung_up
from aenv.server.openapi import fails
from aenv.server.routing import Caller, System

router = APIRouter(tags=["sandboxes"])
CREATE_FAILS = fails(404, 409, 429, 501, 503, 507)


@router.post("/v2/sandboxes", status_code=201, responses=CREATE_FAILS)
async def create_v2(
    body: bodies.NewSandbox,
    system: System,
    caller: Caller,
    asked: Request,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> replies.Sandbox:
    request = body.request(bodies.V2_TIMEOUT, idempotency_key)
    record = await unless_hung_up(asked, system.sandboxes.create(caller, request))
    response.headers["x-agentenv-sandbox-id"] = record.id
    return replies.Sandbox.of(record, system)


@router.post("/sandboxes", status_code=201, responses=CREATE_FAILS)
async def create_v1(
    body: bodies.NewSandbox,
    system: System,
    caller: Caller,
    asked: Request,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> replies.Sandbox:
    request = body.request(bodies.V1_TIMEOUT, idempotency_key)
    record = await unless_hung_up(asked, system.sandboxes.create(caller, request))
    response.headers["x-agentenv-sandbox-id"] = record.id
    return replies.Sandbox.of(record, system)


@router.post("/sandboxes-cold", status_code=201, responses=CREATE_FAILS)
async def create_cold(
    body: cold_bodies.ColdSandbox,
    system: System,
    caller: Caller,
    asked: Request,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> replies.Sandbox:
    """From an image, with volumes as its drives. 503 with Retry-After while the image is pulled."""
    request = body.request(idempotency_key)
    record = await unless_hung_up(asked, system.sandboxes.create(caller, request))
    response.headers["x-agentenv-sandbox-id"] = record.id
    return replies.Sandbox.of(record, system)


@router.get("/v2/sandboxes", responses=fails())
async def list_v2(
    system: System,
    caller: Caller,
    response: Response,
    metadata: str | None = None,
    state: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 100,
    next_token: Annotated[str | None, Query(alias="nextToken", max_length=512)] = None,
    order: Literal["asc", "desc"] = "desc",
    started_after: Annotated[str | None, Query(alias="startedAfter")] = None,
    template: Annotated[str | None, Query(max_length=255)] = None,
) -> list[replies.ListedSandbox]:
    after = nanoseconds(started_after, "startedAfter") if started_after else None
    page = await system.sandboxes.page(
        caller,
        ListRequest(
            states=listed(state, "state") if state else tuple(STATES),
            labels=metadata_filter(metadata) if metadata else {},
            template=template or None,
            started_after=after,
            ascending=order == "asc",
            limit=limit,
            token=next_token or None,
        ),
    )
    response.headers["x-total-running"] = str(page.running)
    if page.next_token:
        response.headers["x-next-token"] = page.next_token
    return [replies.ListedSandbox.of(record, system) for record in page.sandboxes]


@router.get("/sandboxes", responses=fails())
async def list_v1(
    system: System, caller: Caller, metadata: str | None = None
) -> list[replies.ListedSandbox]:
    labels = metadata_filter(metadata) if metadata else {}
    page = await system.sandboxes.page(caller, ListRequest(("running",), labels, limit=None))
    return [replies.ListedSandbox.of(record, system) for record in page.sandboxes]


@router.get("/sandboxes/metrics", responses=fails())
async def metrics_of_many(
    system: System,
    caller: Caller,
    sandbox_ids: Annotated[list[str], Query(max_length=100)],
) -> replies.MetricsOfMany:
    ids = [name for text in sandbox_ids for name in listed(text, "sandbox_ids")]
    latest = await system.observations.latest(caller, ids)
    return replies.MetricsOfMany(
        sandboxes={name: replies.Metric.of(sample) for name, sample in latest.items()}
    )


@router.get("/sandboxes/{sandbox_id}", response_model_exclude_unset=True, responses=fails(404))
async def get(sandbox_id: str, system: System, caller: Caller) -> replies.SandboxDetail:
    return replies.SandboxDetail.of(await system.sandboxes.get(caller, sandbox_id), system)


@router.delete("/sandboxes/{sandbox_id}", status_code=204, responses=fails(404, 409))
async def delete(sandbox_id: str, system: System, caller: Caller) -> None:
    await system.sandboxes.kill(caller, sandbox_id)


@router.post("/sandboxes/{sandbox_id}/timeout", status_code=204, responses=fails(404, 409))
async def set_timeout(
    sandbox_id: str, body: bodies.Timeout, system: System, caller: Caller
) -> None:
    await system.sandboxes.set_timeout(caller, sandbox_id, body.timeout)


@router.post("/sandboxes/{sandbox_id}/refreshes", status_code=204, responses=fails(404, 409))
async def refresh(
    sandbox_id: str, system: System, caller: Caller, body: bodies.Refresh | None = None
) -> None:
    seconds = (body or bodies.Refresh()).duration
    await system.sandboxes.extend(caller, sandbox_id, seconds)


@router.put("/sandboxes/{sandbox_id}/network", status_code=204, responses=fails(404, 409, 501))
async def set_network(
    sandbox_id: str, body: bodies.NetworkUpdate, system: System, caller: Caller
) -> None:
    await system.sandboxes.set_network(caller, sandbox_id, body.request())
