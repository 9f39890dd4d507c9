"""``/volumes``: with an API key; ``/volumecontent``: with the volume's own token."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from aenv.control.volumes import VolumeContent
from aenv.models.errors import InvalidRequestError, UnauthorizedError
from aenv.models.volumes import Ownership
from aenv.server.callers import HungUpError
from aenv.server.openapi import fails
from aenv.server.routing import Caller, System
from aenv.server.volume_bodies import (
    Entry,
    EntryChange,
    Mode,
    NewVolume,
    Owner,
    Volume,
    VolumeAndToken,
)

router = APIRouter(tags=["volumes"])
CONTENT_FAILS = fails(404, 409, 507)
Path = Annotated[str, Query(min_length=1, max_length=4096)]
_RANGE = re.compile(r"bytes=(\d*)-(\d*)\Z")


@router.get("/volumes", responses=fails(), response_model_exclude_none=True)
async def list_volumes(system: System, caller: Caller) -> list[Volume]:
    """The team's, by name."""
    states = await system.volumes.states(await system.volumes.of_team(caller.team))
    return [Volume.of(state) for state in states]


@router.post(
    "/volumes",
    status_code=201,
    responses=fails(409, 503, 507),
    response_model_exclude_none=True,
)
async def create_volume(body: NewVolume, system: System, caller: Caller) -> VolumeAndToken:
    record = await system.volumes.create(caller.team, body.name, body.size_mb)
    (state,) = await system.volumes.states([record])
    return VolumeAndToken.of(state)


@router.get("/volumes/{volume_id}", responses=fails(404), response_model_exclude_none=True)
async def get_volume(volume_id: str, system: System, caller: Caller) -> VolumeAndToken:
    record = await system.volumes.get(caller.team, volume_id)
    (state,) = await system.volumes.states([record])
    return VolumeAndToken.of(state)


@router.delete("/volumes/{volume_id}", status_code=204, responses=fails(404, 409))
async def delete_volume(volume_id: str, system: System, caller: Caller) -> None:
    """409 names the sandboxes that have it, running or paused."""
    await system.volumes.delete(caller.team, volume_id)


@router.post(
    "/aenv/volumes/{volume_id}/seal", responses=fails(404, 409), response_model_exclude_none=True
)
async def seal_volume(volume_id: str, system: System, caller: Caller) -> Volume:
    """Read-only for good, with the digest of its tree; 409 while a sandbox may write to it."""
    (state,) = await system.volumes.states([await system.volumes.seal(caller.team, volume_id)])
    return Volume.of(state)


async def _content(volume_id: str, system: System, request: Request) -> VolumeContent:
    """The files of the volume that the bearer's token opens."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise UnauthorizedError("the volume's token is needed: send it as Authorization: Bearer")
    writes = request.method not in ("GET", "HEAD")
    return await system.volumes.content(volume_id, token.strip(), write=writes)


Content = Annotated[VolumeContent, Depends(_content)]


async def _owner(
    uid: Annotated[Owner | None, Query()] = None,
    gid: Annotated[Owner | None, Query()] = None,
    mode: Annotated[Mode | None, Query()] = None,
) -> Ownership:
    return Ownership(uid, gid, mode)


New = Annotated[Ownership, Depends(_owner)]


@router.get(
    "/volumecontent/{volume_id}/path", responses=CONTENT_FAILS, response_model_exclude_none=True
)
async def look(content: Content, path: Path) -> Entry:
    return Entry.of(await content.look(path))


@router.patch(
    "/volumecontent/{volume_id}/path", responses=CONTENT_FAILS, response_model_exclude_none=True
)
async def change(content: Content, path: Path, body: EntryChange) -> Entry:
    return Entry.of(await content.change(path, body.ownership()))


@router.delete("/volumecontent/{volume_id}/path", status_code=204, responses=CONTENT_FAILS)
async def remove(content: Content, path: Path) -> None:
    """A folder with all in it."""
    await content.remove(path)


@router.get(
    "/volumecontent/{volume_id}/dir", responses=CONTENT_FAILS, response_model_exclude_none=True
)
async def walk(
    content: Content, path: Path, depth: Annotated[int, Query(ge=1, le=64)] = 1
) -> list[Entry]:
    return [Entry.of(entry) for entry in await content.walk(path, depth)]


@router.post(
    "/volumecontent/{volume_id}/dir",
    status_code=201,
    responses=CONTENT_FAILS,
    response_model_exclude_none=True,
)
async def make_folder(content: Content, path: Path, owner: New, force: bool = False) -> Entry:
    """``force``: with the folders above it, and no matter if it is there."""
    return Entry.of(await content.make_folder(path, owner, parents=force))


@router.get(
    "/volumecontent/{volume_id}/file",
    responses=CONTENT_FAILS,
    response_class=StreamingResponse,
)
async def read(
    content: Content, path: Path, wanted: Annotated[str | None, Header(alias="Range")] = None
) -> Response:
    """The whole, or one range of it (206; 416 beyond its end)."""
    file = await content.open(path)
    start, end, status = 0, file.size, 200
    headers = {"Accept-Ranges": "bytes"}
    if wanted and (found := _RANGE.match(wanted)) and found.group() != "bytes=-":
        start, end = _range(found, file.size)
        if start >= end:
            await file.close()
            return Response(None, 416, {"Content-Range": f"bytes */{file.size}"})
        status, headers["Content-Range"] = 206, f"bytes {start}-{end - 1}/{file.size}"
    headers["Content-Length"] = str(end - start)
    chunks = file.chunks(start, end)
    return StreamingResponse(chunks, status, headers, "application/octet-stream")


@router.put(
    "/volumecontent/{volume_id}/file",
    status_code=201,
    responses=CONTENT_FAILS,
    response_model_exclude_none=True,
    openapi_extra={"requestBody": {"content": {"application/octet-stream": {}}}},
)
async def write(
    volume_id: str,
    system: System,
    request: Request,
    content: Content,
    path: Path,
    owner: New,
    force: bool = False,
) -> Entry:
    """The body is the file; it is there as a whole or, when the upload breaks off, as before.
    ``force`` changes nothing: a file that is there is always replaced.
    """

    async def body() -> AsyncIterator[bytes]:
        async for chunk in _body(request):
            yield chunk
        await _content(volume_id, system, request)  # it may have been sealed meanwhile

    return Entry.of(await content.write(path, body(), owner))


async def _body(request: Request) -> AsyncIterator[bytes]:
    try:
        async for chunk in request.stream():
            if chunk:
                yield chunk
    except ClientDisconnect:
        raise HungUpError("the upload broke off; nothing was changed") from None


def _range(found: re.Match[str], size: int) -> tuple[int, int]:
    first, last = found.groups()
    if len(first) > 18 or len(last) > 18:
        raise InvalidRequestError("Range: the figures are too large")
    if not first:
        return max(0, size - int(last)), size
    return int(first), min(size, int(last) + 1) if last else size
