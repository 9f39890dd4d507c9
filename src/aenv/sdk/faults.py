"""From what a server or agent answers to the error tree, culprit included."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from aenv.models.errors import (
    AenvError,
    AgentUnreachableError,
    CallerError,
    CapacityError,
    CommandNotExecutableError,
    CommandNotFoundError,
    CommandTimeoutError,
    ConflictError,
    Culprit,
    DiskFullError,
    ForbiddenError,
    InfrastructureError,
    InvalidRequestError,
    NotBuiltYetError,
    NotFoundError,
    QuotaExceededError,
    SandboxNotFoundError,
    ServerUnreachableError,
    UnauthorizedError,
)

_BY_STATUS: dict[int, type[AenvError]] = {
    400: InvalidRequestError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    429: QuotaExceededError,
    501: NotBuiltYetError,
    502: ServerUnreachableError,
    503: CapacityError,
    507: DiskFullError,
}

_BY_RPC: dict[str, type[AenvError]] = {
    "already_exists": ConflictError,
    "canceled": InfrastructureError,
    "deadline_exceeded": CommandTimeoutError,
    "failed_precondition": InvalidRequestError,
    "internal": InfrastructureError,
    "invalid_argument": InvalidRequestError,
    "not_found": NotFoundError,
    "permission_denied": ForbiddenError,
    "resource_exhausted": QuotaExceededError,
    "unauthenticated": InvalidRequestError,
    "unavailable": AgentUnreachableError,
    "unimplemented": NotBuiltYetError,
}

_BY_REASON: dict[str, type[AenvError]] = {
    "command-not-found": CommandNotFoundError,
    "command-not-executable": CommandNotExecutableError,
}


def from_response(
    status: int, content: bytes, *, retry_after: str | None = None, what: str = "request"
) -> AenvError:
    """The error of an HTTP answer: by its ``error_code``, else by the Connect code, else by its
    status.
    """
    body = _object(content)
    message = str(body.get("message") or "") or f"the {what} was answered with HTTP {status}"
    if status == 502 and "sandboxId" in body:
        return _proxy_error(body, message)
    code = body.get("error_code") or body.get("code")
    known = _by_code().get(str(code)) or _BY_RPC.get(str(code)) or _by_status(status)
    return known(message, retry_after=_seconds(retry_after), culprit=_culprit(body))


def from_body(body: dict[str, Any]) -> AenvError:
    """The error of one part of an answer, as an error body spells it."""
    return from_response(int(body.get("code") or 500), json.dumps(body).encode())


def from_rpc(code: str, message: str, reason: str = "") -> AenvError:
    """The error in a Connect stream's last frame; ``reason``: our agent's, where it says more."""
    known = _BY_REASON.get(reason) or _BY_RPC.get(code, InfrastructureError)
    return known(message or code)


def _proxy_error(body: dict[str, Any], message: str) -> AenvError:
    if "was not found" in message:
        return SandboxNotFoundError(
            f"sandbox {body['sandboxId']} was not found: it was killed or reached its end of life"
        )
    if "port" in body:
        return NotFoundError(f"nothing listens on port {body['port']} of {body['sandboxId']}")
    return AgentUnreachableError(message)


def _by_status(status: int) -> type[AenvError]:
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return CallerError if 400 <= status < 500 else InfrastructureError


def _by_code() -> dict[str, type[AenvError]]:
    """``code`` → the most general class that carries it."""
    found: dict[str, type[AenvError]] = {}
    for kind in _below(AenvError):
        found.setdefault(kind.code, kind)
    return found


def _below(parent: type[AenvError]) -> Iterator[type[AenvError]]:
    for child in parent.__subclasses__():
        yield child
        yield from _below(child)


def _culprit(body: dict[str, Any]) -> Culprit | None:
    try:
        return Culprit(body["culprit"])
    except (KeyError, ValueError):
        return None


def _object(content: bytes) -> dict[str, Any]:
    try:
        body = json.loads(content)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _seconds(header: str | None) -> float | None:
    try:
        return float(header) if header else None
    except ValueError:
        return None
