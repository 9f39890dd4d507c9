"""Taking over, after a restart of the server, a sandbox that outlived it."""

from __future__ import annotations

import asyncio
import contextlib

from aenv.models.errors import AenvError, AgentUnreachableError, Culprit
from aenv.models.sandboxes import AGENT_PORT, SandboxExit
from aenv.models.templates import TemplateInfo
from aenv.node.agents import AgentClient
from aenv.node.engine import Machine
from aenv.node.engine_set import EngineSet
from aenv.node.launches import Launcher
from aenv.node.port import AdoptRequest
from aenv.node.residents import DESTROY_DEADLINE, Resident

PROBE_TIMEOUT = 2.0
_EXIT_IS_KNOWN = 1.0


async def adopt(
    engines: EngineSet, launcher: Launcher, request: AdoptRequest
) -> Resident | SandboxExit:
    """The resident, or how it ended meanwhile. A guest that hangs is alive, and adopted."""
    try:
        engine = await engines.get(request.engine)
        machine = await engine.adopt(request.sandbox_id)
        agent = AgentClient(
            machine.address(AGENT_PORT),
            host_secret=request.host_secret,
            access_token=request.access_token,
        )
    except AenvError as error:
        reason = f"it could not be taken over after a restart of the server: {error}"
        return SandboxExit(request.sandbox_id, None, Culprit.INFRASTRUCTURE, reason)
    if end := await _known_end(machine, agent):
        with contextlib.suppress(AenvError, TimeoutError):
            async with asyncio.timeout(DESTROY_DEADLINE):
                await machine.destroy()
        return end
    info: TemplateInfo = await launcher.template(engine, request.template)
    return Resident(request.sandbox_id, machine, engine.capabilities, agent, info)


async def _known_end(machine: Machine, agent: AgentClient) -> SandboxExit | None:
    """Its exit if it has ended: who answers lives, who does not is given time to be dead."""
    end = asyncio.create_task(machine.wait())
    try:
        answered = await _answers(agent)
        await asyncio.wait({end}, timeout=0 if answered else _EXIT_IS_KNOWN)
        return end.result() if end.done() else None
    except AenvError as error:
        return SandboxExit(machine.sandbox_id, None, Culprit.INFRASTRUCTURE, str(error))
    finally:
        end.cancel()


async def _answers(agent: AgentClient) -> bool:
    try:
        await agent.health(timeout=PROBE_TIMEOUT)
    except AgentUnreachableError:
        return False
    return True
