"""Health, metrics, nodes, shutting down."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from aenv.control.telemetry import CONTENT_TYPE
from aenv.server import bodies
from aenv.server import node_replies as replies
from aenv.server.openapi import fails
from aenv.server.routing import Caller, System

router = APIRouter(tags=["operations"])
TEXT: dict[str, Any] = {"content": {"text/plain": {"schema": {"type": "string"}}}}


@router.get("/health", status_code=204, response_class=Response)
async def health() -> Response:
    return Response(status_code=204)


@router.get("/metrics", response_class=Response, responses={200: TEXT, **fails()})
async def metrics(system: System) -> Response:
    """Prometheus' text format; without a key only from this machine."""
    return Response(await system.hosts.prometheus(), headers={"content-type": CONTENT_TYPE})


@router.get("/nodes", responses=fails())
async def nodes(system: System, caller: Caller) -> list[replies.NodeReply]:
    return [replies.NodeReply.of(report) for report in await system.hosts.all()]


@router.get("/nodes/{node_id}", responses=fails(404))
async def node(node_id: str, system: System, caller: Caller) -> replies.NodeReply:
    return replies.NodeReply.of(await system.hosts.get(node_id))


@router.post("/admin/shutdown", responses=fails(403))
async def shut_down(
    system: System, caller: Caller, body: bodies.Shutdown | None = None
) -> replies.ShutdownReply:
    """End the server; its sandboxes too with ``kill``."""
    killed, failed = await system.shut_down(kill=(body or bodies.Shutdown()).kill)
    return replies.ShutdownReply(killed=killed, failed=failed)
