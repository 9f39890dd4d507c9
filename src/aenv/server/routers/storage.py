"""``/admin/store/…``: the blob store. Long work answers lines of JSON: ``{"progress": …}`` now and
then, at last ``{"result": …}`` or ``{"error": …}``. Who hangs up calls it off.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from starlette.responses import StreamingResponse

from aenv.models.blobs import Progress
from aenv.models.errors import AenvError
from aenv.server.errors import ErrorReply
from aenv.server.openapi import fails
from aenv.server.routing import Caller, System

router = APIRouter(tags=["storage"])
MEDIA = "application/x-ndjson"
LINES: dict[str, Any] = {"content": {MEDIA: {"schema": {"type": "string"}}}}
ANSWERS = {200: LINES, **fails(403)}


@router.get("/admin/store/usage", response_class=StreamingResponse, responses=ANSWERS)
async def usage(system: System, caller: Caller) -> StreamingResponse:
    """What every byte of the store and of this host's folders is for."""
    return _lines(system.storage.usage())


@router.post("/admin/store/gc", response_class=StreamingResponse, responses=ANSWERS)
async def gc(system: System, caller: Caller) -> StreamingResponse:
    """Free what nobody needs."""
    return _lines(system.storage.gc())


@router.post("/admin/store/verify", response_class=StreamingResponse, responses=ANSWERS)
async def verify(system: System, caller: Caller) -> StreamingResponse:
    """Read all of it and compare it with its digests."""
    return _lines(system.storage.verify())


def _lines(work: AsyncGenerator[Any, None]) -> StreamingResponse:
    return StreamingResponse(_told(work), media_type=MEDIA)


async def _told(work: AsyncGenerator[Any, None]) -> AsyncIterator[bytes]:
    async with aclosing(work):
        try:
            async for one in work:
                kind = "progress" if isinstance(one, Progress) else "result"
                yield _line(kind, asdict(one))
        except AenvError as error:
            body = ErrorReply(
                code=error.status,
                message=error.message,
                error_code=error.code,
                culprit=error.culprit.value,
            )
            yield _line("error", body.model_dump())


def _line(kind: str, content: dict[str, Any]) -> bytes:
    return json.dumps({kind: content}).encode() + b"\n"
