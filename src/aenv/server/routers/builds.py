"""Builds of templates: asked for, given their files and steps, followed, cancelled."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from starlette.requests import Request

from aenv.control.builds.archives import Ticket
from aenv.server import build_replies as replies
from aenv.server.build_bodies import Level, NewTemplate, StartBuild
from aenv.server.openapi import fails
from aenv.server.routing import Caller, System

router = APIRouter(tags=["builds"])
PAGE = 100

Limit = Annotated[int, Query(ge=0, le=PAGE)]


@router.post("/v3/templates", status_code=202, responses=fails(409))
async def request_build(body: NewTemplate, system: System, caller: Caller) -> replies.Requested:
    new = body.request(system.settings.defaults)
    return replies.Requested.of(*await system.building.builds.request(caller.team, new))


@router.post("/v2/templates", status_code=202, responses=fails(409))
async def request_build_v2(body: NewTemplate, system: System, caller: Caller) -> replies.Requested:
    return await request_build(body, system, caller)


@router.get("/templates/{template_id}/files/{files_hash}", status_code=201, responses=fails(404))
async def files_link(
    template_id: str, files_hash: str, request: Request, system: System, caller: Caller
) -> replies.FilesLink:
    """Where to upload the files of a COPY, for an hour."""
    archives = system.building.archives
    ticket = archives.ticket(caller.team, files_hash)
    query = urlencode(
        {"team": ticket.team, "expires": ticket.expires, "signature": ticket.signature}
    )
    here = (system.settings.public_url or str(request.base_url)).rstrip("/")
    url = f"{here}/templates/{template_id}/files/{files_hash}?{query}"
    return replies.FilesLink(present=archives.has(caller.team, files_hash), url=url)


@router.put("/templates/{template_id}/files/{files_hash}", responses=fails(403, 413, 507))
async def upload_files(
    template_id: str,
    files_hash: str,
    request: Request,
    system: System,
    team: Annotated[str, Query(max_length=64)],
    expires: int,
    signature: Annotated[str, Query(max_length=128)],
) -> None:
    """A tar, gzipped or not. The link is the right to it; no key is needed."""
    announced = request.headers.get("content-length", "")
    size = int(announced) if announced.isdecimal() else None
    ticket = Ticket(team, files_hash, expires, signature)
    await system.building.archives.receive(ticket, size, request.stream())


@router.post(
    "/v2/templates/{template_id}/builds/{build_id}", status_code=202, responses=fails(404, 409)
)
async def start_build(
    template_id: str, build_id: str, body: StartBuild, system: System, caller: Caller
) -> None:
    await system.building.builds.start(caller.team, template_id, build_id, body.plan())


@router.get(
    "/templates/{template_id}/builds/{build_id}/status",
    responses=fails(404),
    response_model_exclude_none=True,
)
async def build_status(
    template_id: str,
    build_id: str,
    system: System,
    caller: Caller,
    logs_offset: Annotated[int, Query(alias="logsOffset", ge=0)] = 0,
    limit: Limit = PAGE,
    level: Level | None = None,
) -> replies.BuildState:
    builds = system.building.builds
    _, build = await builds.get(caller.team, template_id, build_id)
    log = await builds.log(build_id, level=level)
    return replies.BuildState.of(build, log[logs_offset : logs_offset + limit], log)


@router.get(
    "/templates/{template_id}/builds/{build_id}/logs",
    responses=fails(404),
    response_model_exclude_none=True,
)
async def build_logs(
    template_id: str,
    build_id: str,
    system: System,
    caller: Caller,
    cursor: Annotated[int | None, Query(ge=0)] = None,
    limit: Limit = PAGE,
    direction: Literal["forward", "backward"] = "forward",
    level: Level | None = None,
) -> replies.BuildLogs:
    """``cursor`` in Unix milliseconds: from it on, or before it."""
    builds = system.building.builds
    await builds.get(caller.team, template_id, build_id)
    log = await builds.log(build_id, level=level)
    moment = None if cursor is None else cursor * 1_000_000
    if direction == "forward":
        found = [one for one in log if moment is None or one.timestamp >= moment][:limit]
    else:
        found = [one for one in reversed(log) if moment is None or one.timestamp < moment][:limit]
    return replies.BuildLogs(logs=[replies.LogEntry.of(one) for one in found])


@router.post(
    "/aenv/templates/{template_id}/builds/{build_id}/cancel",
    status_code=204,
    responses=fails(404),
)
async def cancel_build(template_id: str, build_id: str, system: System, caller: Caller) -> None:
    """End a build that is not over."""
    await system.building.builds.cancel(caller.team, template_id, build_id)
