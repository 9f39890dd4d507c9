"""Every failure as ``{"code", "message", "error_code"}`` with the right status; no traceback, no
input echoed.
"""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from aenv.models.errors import AenvError, InvalidRequestError, NotFoundError

RETRY_AFTER = 2.0


class ErrorReply(BaseModel):
    """``culprit``: whose fault it was (caller, policy, environment, infrastructure)."""

    code: int
    message: str
    error_code: str
    culprit: str | None = None


def install(app: FastAPI) -> None:
    app.add_exception_handler(AenvError, _of_ours)
    app.add_exception_handler(RequestValidationError, _of_validation)
    app.add_exception_handler(HTTPException, _of_http)


def reply(error: AenvError) -> JSONResponse:
    """The clients retry 503 by themselves, so it says when; and 429 by a quota, where it would be
    in vain.
    """
    headers: dict[str, str] = {}
    if error.status == HTTPStatus.SERVICE_UNAVAILABLE:
        seconds = RETRY_AFTER if error.retry_after is None else error.retry_after
        headers = {"Retry-After": str(max(1, math.ceil(seconds))), "Should-Retry": "true"}
    elif error.status == HTTPStatus.TOO_MANY_REQUESTS:
        headers = {"Should-Retry": "false"}
    return _json(error.status, error.message, error.code, headers, culprit=error.culprit.value)


def surprise() -> JSONResponse:
    """For what nobody foresaw. The traceback is in the log, under the request's id."""
    return _json(500, "the server failed; its log tells why, under this X-Request-Id", "internal")


def _json(
    status: int,
    message: str,
    code: str,
    headers: dict[str, str] | None = None,
    culprit: str | None = None,
) -> JSONResponse:
    content = ErrorReply(code=status, message=message, error_code=code, culprit=culprit)
    return JSONResponse(content.model_dump(exclude_none=True), status, headers)


def _of_ours(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, AenvError)
    return reply(error)


def _of_validation(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    problems = "; ".join(_described(problem) for problem in error.errors()[:5])
    return reply(InvalidRequestError(problems or "the request is not valid"))


def _described(problem: dict[str, Any]) -> str:
    if problem["type"] == "json_invalid":
        return f"the body is not valid JSON: {problem.get('ctx', {}).get('error', '')}".strip(": ")
    place, *path = problem["loc"]
    name = ".".join(str(part)[:64] for part in path) or f"the {place}"
    if place == "body" and not path and problem["type"] in ("model_attributes_type", "dict_type"):
        return "the body must be a JSON object, sent with Content-Type: application/json"
    return f"{name}: {problem['msg'][:300]}"


def _of_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    if status is HTTPStatus.NOT_FOUND:
        return reply(NotFoundError(f"there is no route {request.url.path[:200]}"))
    message = str(error.detail)
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        message = f"{request.method[:20]} is not allowed for {request.url.path[:200]}"
    code = "invalid_request" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "internal"
    return _json(status, message, code, dict(error.headers or {}), culprit=None)
