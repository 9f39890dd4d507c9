"""What every router shares: the system, the caller, and the errors a route may answer."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from fastapi import Depends
from starlette.requests import Request

from aenv.control.keys import Caller as ApiCaller
from aenv.control.system import System as ControlSystem
from aenv.server.auth import caller_of
from aenv.server.errors import ErrorReply


def _system(request: Request) -> ControlSystem:
    system = request.app.state.system
    assert isinstance(system, ControlSystem)
    return system


System: TypeAlias = Annotated[ControlSystem, Depends(_system)]
Caller: TypeAlias = Annotated[ApiCaller, Depends(caller_of)]

Responses: TypeAlias = dict[int | str, dict[str, Any]]


def fails(*statuses: int) -> Responses:
    """For OpenAPI: the error answers of a route besides 400, 401 and 500."""
    return {status: {"model": ErrorReply} for status in (400, 401, *statuses, 500)}
