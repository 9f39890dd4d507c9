"""Around every control request: an id, a log line, the counters, a limit on the body, a last net
for surprises.
"""

from __future__ import annotations

import re
import secrets
import time

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aenv.control.idling import Activity
from aenv.control.telemetry import Telemetry
from aenv.models.errors import CallerError
from aenv.server import errors
from aenv.server.auth import is_upload

log = structlog.get_logger()
MAX_BODY = 8 * 2**20
UNCOUNTED = frozenset({"/health", "/metrics"})
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")
_SANDBOX = re.compile(r"/sandboxes/([a-z0-9]{20})(?:/|\Z)")
METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})


class BodyTooLargeError(CallerError):
    code = "body_too_large"
    status = 413


class Observed:
    """The outermost middleware. The id is the caller's ``X-Request-Id`` where it is a sane one."""

    def __init__(self, app: ASGIApp, telemetry: Telemetry, activity: Activity) -> None:
        self._app = app
        self._telemetry = telemetry
        self._activity = activity

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        counted = scope["path"] not in UNCOUNTED
        if counted:
            self._activity.begin()
        try:
            await self._observe(scope, receive, send, counted)
        finally:
            if counted:
                self._activity.finish()

    async def _observe(self, scope: Scope, receive: Receive, send: Send, counted: bool) -> None:
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.match(given) else secrets.token_hex(8)
        started = time.perf_counter()
        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await self._app(scope, receive, sending)
            except Exception:
                log.exception("request failed", method=scope["method"], route=_route(scope))
                if status:
                    raise
                await errors.surprise()(scope, receive, sending)
            finally:
                self._record(scope, status or 499, time.perf_counter() - started, counted)

    def _record(self, scope: Scope, status: int, seconds: float, counted: bool) -> None:
        method = scope["method"] if scope["method"] in METHODS else "other"
        self._telemetry.request(method, _route(scope), status, seconds)
        if counted:
            found = _SANDBOX.search(scope["path"])
            about = {"sandbox_id": found[1]} if found else {}
            log.info(
                "request",
                method=method,
                route=_route(scope),
                status=status,
                ms=round(seconds * 1000, 1),
                **about,
            )


class Limited:
    """Answers 413 to a body above ``limit`` bytes, announced or not, without keeping it. Files
    of builds and volumes are streamed, and bounded where they are kept.
    """

    def __init__(self, app: ASGIApp, limit: int = MAX_BODY) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or is_upload(scope):
            await self._app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "0")
        if announced.isdecimal() and int(announced) > self._limit:
            await self._refuse(scope, receive, send)
            return
        body, complete = await _read(receive, self._limit)
        if not complete:
            await self._refuse(scope, receive, send)
            return
        await self._app(scope, _replayed(body, receive), send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = errors.reply(BodyTooLargeError(f"the body is larger than {self._limit} bytes"))
        response.headers["connection"] = "close"
        await response(scope, receive, send)


async def _read(receive: Receive, limit: int) -> tuple[bytes, bool]:
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b"", True
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            return b"", False
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks), True


def _replayed(body: bytes, receive: Receive) -> Receive:
    waiting = True

    async def replay() -> Message:
        nonlocal waiting
        if waiting:
            waiting = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replay


def _route(scope: Scope) -> str:
    """The template of the route, so that labels and logs stay few and hold no ids or secrets."""
    return str(getattr(scope.get("route"), "path", "unmatched"))
