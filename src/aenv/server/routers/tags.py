"""Tags of built templates, and whom templates are shared with."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from aenv.control.builds.library import BuiltTemplate
from aenv.models.errors import InvalidRequestError, NotFoundError
from aenv.server import build_replies as replies
from aenv.server.build_bodies import AssignTags, RemoveTags, TemplateUpdate
from aenv.server.openapi import fails
from aenv.server.routing import Caller, System

router = APIRouter(tags=["tags"])


@router.post("/templates/tags", status_code=201, responses=fails(404))
async def assign_tags(body: AssignTags, system: System, caller: Caller) -> replies.Tagged:
    build = await system.building.library.tag(caller.team, body.target, body.tags)
    return replies.Tagged(tags=body.tags, build_id=build.id)


@router.delete("/templates/tags", status_code=204, responses=fails(404))
async def remove_tags(body: RemoveTags, system: System, caller: Caller) -> None:
    await system.building.library.untag(caller.team, body.name, body.tags)


@router.patch("/v2/templates/{template_id:path}", responses=fails(404))
async def update_template(
    template_id: str, body: TemplateUpdate, system: System, caller: Caller
) -> replies.Updated:
    if body.public is None:
        raise InvalidRequestError("public: true or false")
    found = await system.building.library.publish(caller.team, template_id, body.public)
    if found is None:
        raise NotFoundError(f"there is no built template {template_id[:255]!r}")
    return replies.Updated(names=[found.name])


@router.patch("/templates/{template_id:path}", responses=fails(404))
async def update_template_v1(
    template_id: str, body: TemplateUpdate, system: System, caller: Caller
) -> replies.Updated:
    return await update_template(template_id, body, system, caller)


@router.get("/templates/{template_id}/tags", responses=fails(404))
async def list_tags(template_id: str, system: System, caller: Caller) -> list[replies.Tag]:
    return replies.tags_of(await _own(system, caller, template_id))


@router.get("/templates/{template_id}/tags/count", responses=fails(404))
async def count_tags(template_id: str, system: System, caller: Caller) -> replies.TagCount:
    return replies.TagCount(total=len((await _own(system, caller, template_id)).tags))


@router.get("/templates/{template_id}/tags/exists", responses=fails(404))
async def tag_exists(
    template_id: str, system: System, caller: Caller, tag: Annotated[str, Query(max_length=255)]
) -> replies.TagExists:
    found, name = await _own(system, caller, template_id), tag.strip().lower()
    return replies.TagExists(exists=name in [t.tag for t in found.tags], normalized_tag=name)


@router.get("/templates/{template_id}/tags/groups", responses=fails(404))
async def tag_groups(
    template_id: str,
    system: System,
    caller: Caller,
    search: Annotated[str | None, Query(max_length=255)] = None,
) -> replies.TagGroups:
    """All in one page: a template has a hundred tags at most."""
    found = await _own(system, caller, template_id)
    names = sorted({one.tag for one in found.tags if not search or search in one.tag})
    return replies.TagGroups(
        tags=[
            replies.TagGroup(tag=name, assignments=replies.assignments_of(found, name))
            for name in names
        ]
    )


@router.get("/templates/{template_id}/tags/{tag}/assignments", responses=fails(404))
async def tag_assignments(
    template_id: str, tag: str, system: System, caller: Caller
) -> replies.Assignments:
    found = await _own(system, caller, template_id)
    return replies.Assignments(data=replies.assignments_of(found, tag))


async def _own(system: System, caller: Caller, template_id: str) -> BuiltTemplate:
    found = await system.building.library.own(caller.team, template_id)
    if found is None:
        raise NotFoundError(f"there is no built template {template_id[:255]!r}")
    return found
