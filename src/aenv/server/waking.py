"""What the proxy does for a sandbox without a route: a paused one may be resumed by traffic."""

from __future__ import annotations

from aenv.control.resumes import Asleep
from aenv.control.routes import Route
from aenv.control.system import System
from aenv.server.proxy import Refusal, Resolve


def waking(system: System) -> Resolve:
    async def resolve(sandbox_id: str) -> Route | Refusal | None:
        found = await system.sandboxes.wake(sandbox_id)
        return Refusal(paused=True) if isinstance(found, Asleep) else found

    return resolve
