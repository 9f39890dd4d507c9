"""Starting guests: told who they are, with the template's commands running, or said to be dead.
Nothing here makes machines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from aenv.models.errors import EngineError, EnvironmentFaultError
from aenv.models.sandboxes import SandboxExit
from aenv.models.templates import TemplateInfo
from aenv.node.agents import AgentClient
from aenv.node.agentwire import AgentInit
from aenv.node.engine import Machine

AGENT_DEADLINE = 20.0
READY_DEADLINE = 60.0
READY_INTERVAL = 0.5

T = TypeVar("T")


async def alive(machine: Machine, work: Awaitable[T]) -> T:
    """The result of ``work``, or EngineError as soon as the machine has ended."""
    task = asyncio.ensure_future(work)
    end = asyncio.create_task(machine.wait())
    try:
        await asyncio.wait({task, end}, return_when=asyncio.FIRST_COMPLETED)
        if end.done() and not end.cancelled():
            raise EngineError(_ended(end.result()))
        return await task
    finally:
        for pending in (task, end):
            pending.cancel()
        await asyncio.gather(task, end, return_exceptions=True)


async def start(agent: AgentClient, init: AgentInit, template: TemplateInfo) -> tuple[str, ...]:
    """Initialise a fresh guest, run the template's start command, and wait for its ready one."""
    failures = await agent.initialise(init, timeout=AGENT_DEADLINE)
    if template.start:
        await agent.spawn(template.start, user=template.default_user)
    if template.ready_cmd:
        await _wait_ready(agent, template, template.ready_cmd)
    return failures


async def destroy(machine: Machine) -> None:
    """Undo a boot, also while being cancelled."""
    await asyncio.shield(asyncio.ensure_future(machine.destroy()))


async def _wait_ready(agent: AgentClient, template: TemplateInfo, command: str) -> None:
    said = "it did not end in time"
    try:
        async with asyncio.timeout(READY_DEADLINE):
            while True:
                result = await agent.run(
                    command, user=template.default_user, timeout=READY_DEADLINE
                )
                if result.exit_code == 0:
                    return
                said = f"exit code {result.exit_code}: {result.output[-500:].strip()}"
                await asyncio.sleep(READY_INTERVAL)
    except TimeoutError:
        raise EnvironmentFaultError(
            f"the ready command of template {template.name!r} did not succeed within "
            f"{READY_DEADLINE:g} s ({said}); mend the template's start or ready command"
        ) from None


def _ended(found: SandboxExit) -> str:
    code = "" if found.code is None else f" (exit code {found.code})"
    return f"the sandbox ended while it was being started: {found.reason}{code}"
