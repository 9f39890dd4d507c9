"""Templates: list, get, aliases, delete; building the built-in ones. The catch-all ``{id}`` stands
last: ids of snapshots hold colons and slashes.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from aenv.models.templates import TemplateProgress
from aenv.server import template_replies as replies
from aenv.server.openapi import fails
from aenv.server.routing import Caller, System

router = APIRouter(tags=["templates"])


@router.get("/templates", responses=fails())
async def list_templates(system: System, caller: Caller) -> list[replies.TemplateReply]:
    return await _all(system, caller)


@router.get("/v2/templates", responses=fails())
async def list_templates_v2(
    system: System,
    caller: Caller,
    response: Response,
    limit: Annotated[int, Query(ge=1, le=100)] = 100,
    next_token: Annotated[str | None, Query(alias="nextToken", max_length=128)] = None,
) -> list[replies.TemplateReply]:
    """Ordered by name; the token is the last name of the page before."""
    every = await _all(system, caller)
    found = [one for one in every if not next_token or one.names[0] > next_token]
    found.sort(key=lambda one: one.names[0])
    if len(found) > limit:
        response.headers["x-next-token"] = found[limit - 1].names[0]
    return found[:limit]


@router.get("/default-templates", responses=fails())
async def default_templates(system: System, caller: Caller) -> list[replies.TemplateReply]:
    return [replies.TemplateReply.of(one, system) for one in await system.templates.all()]


@router.get("/templates/aliases/{alias:path}", responses=fails(403, 404))
async def get_alias(alias: str, system: System, caller: Caller) -> replies.Alias:
    built = await system.building.library.get(caller.team, alias)
    if built is not None:
        return replies.Alias(template_id=built.record.id, public=built.record.public)
    template = await system.templates.get(alias)
    return replies.Alias(template_id=template.id, public=True)


@router.get("/aenv/templates/{name:path}/build", responses=fails(404))
async def build_progress(name: str, system: System, caller: Caller) -> replies.BuildProgress:
    """How far the build of a built-in template or the pull of an image is."""
    return _progress(await system.templates.progress(name))


@router.post("/aenv/images/{image:path}/pull", status_code=202, responses=fails(400))
async def pull(
    image: str,
    system: System,
    caller: Caller,
    wait: Annotated[float, Query(ge=0, le=60, allow_inf_nan=False)] = 0,
) -> replies.BuildProgress:
    """Ask the registry what the name means now, fetch it, and wait up to ``wait`` seconds."""
    return _progress(await system.templates.pull(image, wait=wait))


@router.post("/aenv/templates/{name}/build", status_code=202, responses=fails(404))
async def build(
    name: str,
    system: System,
    caller: Caller,
    wait: Annotated[float, Query(ge=0, le=60, allow_inf_nan=False)] = 0,
) -> replies.BuildProgress:
    """Start or join the build of a built-in template, and wait up to ``wait`` seconds."""
    return _progress(await system.templates.ensure(name, wait=wait))


@router.get("/templates/{template_id:path}", responses=fails(403, 404))
async def get_template(
    template_id: str, system: System, caller: Caller
) -> replies.TemplateWithBuilds:
    built = await system.building.library.get(caller.team, template_id)
    if built is not None:
        return replies.TemplateWithBuilds.of_built(built)
    return replies.TemplateWithBuilds.of(await system.templates.get(template_id), system)


@router.delete("/templates/{template_id:path}", status_code=204, responses=fails(404, 409))
async def delete_template(template_id: str, system: System, caller: Caller) -> None:
    """A snapshot, a template that was built, or one of the node's."""
    if await system.snapshots.delete(caller.team, template_id):
        return
    if not await system.building.builds.delete(caller.team, template_id):
        template = await system.templates.get(template_id)
        await system.building.layers.forget(template.name)
        await system.templates.delete(template.name)


async def _all(system: System, caller: Caller) -> list[replies.TemplateReply]:
    """The node's, and those the team has built."""
    built = await system.building.library.all(caller.team)
    found = [replies.TemplateReply.of(one, system) for one in await system.templates.all()]
    return found + [replies.TemplateReply.of_built(one) for one in built if one.newest]


def _progress(progress: TemplateProgress) -> replies.BuildProgress:
    return replies.BuildProgress(
        name=progress.name,
        status=progress.status.value,
        fraction=progress.fraction,
        step=progress.step,
        error=progress.error,
        parts=[
            replies.PartProgress(name=one.name, state=one.state, done=one.done, total=one.total)
            for one in progress.parts
        ],
    )
