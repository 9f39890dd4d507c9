"""Builds of built-in templates on a server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import quote

from aenv.models.templates import PartProgress, TemplateProgress, TemplateStatus
from aenv.sdk.client import Client

_WAIT = 1.0


async def progress(client: Client, name: str) -> TemplateProgress:
    answer = await client.call("GET", f"/aenv/templates/{_quoted(name)}/build")
    return _from_wire(answer.json())


async def newest(client: Client, name: str) -> TemplateProgress:
    """How far the newest build of a template is that somebody made. NotFoundError."""
    body = (await client.call("GET", f"/templates/{_quoted(name)}")).json()
    build = max(body["builds"], key=lambda one: str(one["createdAt"]), default=None)
    if build is None:
        return TemplateProgress(name, TemplateStatus.ABSENT)
    status = "building" if build["status"] == "waiting" else build["status"]
    return TemplateProgress(name, TemplateStatus(status), error=build.get("error"))


async def start(client: Client, name: str, *, wait: float = 0) -> TemplateProgress:
    """Start or join, and wait up to ``wait`` seconds for the end. NotFoundError if unknown."""
    answer = await client.call("POST", f"/aenv/templates/{name}/build", params={"wait": str(wait)})
    return _from_wire(answer.json())


async def pull(client: Client, image: str, *, wait: float = _WAIT) -> TemplateProgress:
    """Have the server fetch what an image's name means now; :func:`progress` tells of the rest."""
    path = f"/aenv/images/{_quoted(image)}/pull"
    answer = await client.call("POST", path, params={"wait": str(wait)})
    return _from_wire(answer.json())


async def bring_about(client: Client, name: str) -> AsyncIterator[TemplateProgress]:
    """Start or join, and tell how far it is; the last one says what it came to."""
    while True:
        now = await start(client, name, wait=_WAIT)
        yield now
        if now.status is not TemplateStatus.BUILDING:
            return


def _from_wire(body: dict[str, object]) -> TemplateProgress:
    error = body.get("error")
    return TemplateProgress(
        name=str(body["name"]),
        status=TemplateStatus(str(body["status"])),
        fraction=float(str(body.get("fraction") or 0)),
        step=str(body.get("step") or ""),
        error=str(error) if error else None,
        parts=_parts(body.get("parts")),
    )


def _quoted(name: str) -> str:
    return quote(name, safe="/:@")


def _parts(found: object) -> tuple[PartProgress, ...]:
    if not isinstance(found, list):
        return ()
    return tuple(
        PartProgress(str(one["name"]), str(one["state"]), int(one["done"]), int(one["total"]))
        for one in found
    )
