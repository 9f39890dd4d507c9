"""What the proxy does for a sandbox without a route: a paused one may be resumed by traffic."""

from __future__ import annotations

from aenv.control.resumes import Unwoken
from aenv.control.routes import Route
from aenv.control.system import System
from aenv.control.visitors import Visitor
from aenv.server.proxy import Refusal, Resolve


def waking(system: System) -> Resolve:
    async def resolve(sandbox_id: str, visitor: Visitor) -> Route | Refusal | None:
        found = await system.sandboxes.wake(sandbox_id, visitor)
        match found:
            case Unwoken.ASLEEP:
                return Refusal(paused=True)
            case Unwoken.BARRED:
                return Refusal(barred=True)
            case _:
                return found

    return resolve
