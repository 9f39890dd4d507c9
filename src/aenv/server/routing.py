"""What every router shares: the system and the caller."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from fastapi import Depends
from starlette.requests import Request

from aenv.control.keys import Caller as ApiCaller
from aenv.control.system import System as ControlSystem
from aenv.server.auth import caller_of


def _system(request: Request) -> ControlSystem:
    system = request.app.state.system
    assert isinstance(system, ControlSystem)
    return system


System: TypeAlias = Annotated[ControlSystem, Depends(_system)]
Caller: TypeAlias = Annotated[ApiCaller, Depends(caller_of)]
