"""Who may call what (contract e2b §8, agentenv). Everything needs an API key but what is named
here.

| route | needs |
|---|---|
| ``/health``, ``/openapi.json`` | nothing |
| ``/metrics`` | nothing from loopback without a forwarding header, else a key |
| ``PUT /templates/{id}/files/{hash}`` | the signature in the link |
| ``/volumecontent/*`` | the volume's token, as ``Authorization: Bearer`` |
| ``/admin/*`` | an admin key |
| everything else | a key, in exactly one ``X-API-Key`` header |
"""

from __future__ import annotations

import ipaddress
import re

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from aenv.control.keys import Caller, Keys
from aenv.models.errors import ForbiddenError, UnauthorizedError
from aenv.server import errors

OPEN = frozenset({"/health", "/openapi.json"})
KEY = b"x-api-key"
UPLOAD = re.compile(r"/templates/[^/]+/files/[^/]+\Z")
CONTENT = "/volumecontent/"
CONTENT_FILE = re.compile(r"/volumecontent/[^/]+/file\Z")


class Authenticated:
    """ASGI middleware: sets ``request.state.caller``, or answers 401/403 before a byte of the body
    is read.
    """

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or is_open(scope):
            await self._app(scope, receive, send)
            return
        try:
            caller = self._authenticate(scope)
        except (UnauthorizedError, ForbiddenError) as error:
            await errors.reply(error)(scope, receive, send)
            return
        scope.setdefault("state", {})["caller"] = caller
        await self._app(scope, receive, send)

    def _authenticate(self, scope: Scope) -> Caller:
        keys = [value for name, value in scope["headers"] if name == KEY]
        if not keys:
            raise UnauthorizedError("an API key is needed: send it in the header X-API-Key")
        if len(keys) > 1:
            raise UnauthorizedError("more than one X-API-Key header: send exactly one")
        caller = self._keys.authenticate(keys[0].decode("latin-1"))
        if scope["path"].startswith("/admin/") and not caller.admin:
            raise ForbiddenError("this needs an admin key")
        return caller


def caller_of(request: Request) -> Caller:
    caller = request.state.caller
    assert isinstance(caller, Caller)
    return caller


def is_open(scope: Scope) -> bool:
    """Whether a request needs no key."""
    path = scope["path"]
    if path in OPEN or path.startswith(CONTENT) or is_upload(scope):
        return True
    return path == "/metrics" and _is_local(scope)


def is_upload(scope: Scope) -> bool:
    """Whether it carries a file, of a build or of a volume, and its own proof of the right to."""
    path = scope["path"]
    known = UPLOAD.match(path) or CONTENT_FILE.match(path)
    return scope["method"] == "PUT" and known is not None


def _is_local(scope: Scope) -> bool:
    """From this machine, and not through somebody's reverse proxy on it."""
    for name, _ in scope["headers"]:
        if name in (b"forwarded", b"via", b"x-real-ip") or name.startswith(b"x-forwarded"):
            return False
    client = scope.get("client")
    try:
        return client is not None and ipaddress.ip_address(client[0]).is_loopback
    except ValueError:
        return False
