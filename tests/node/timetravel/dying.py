"""A server that dies at a named point: ``python -m … ROOT AGENT PLAN`` (a JSON file).

The plan names the operation, the fault point (or a delay), and the ids it must use. It exits with
42 where the point was never reached.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.node.timetravel.travel import Guest, Host, make_node, make_spec, settings_in

from aenv.models.errors import DiskFullError
from aenv.node import faults

NOT_REACHED = 42


@dataclass(frozen=True)
class Plan:
    """``operation``: pause, keep, snapshot, resume-hot, resume-warm, fork, pool (a machine waits),
    claim (one is made a sandbox) or crowd (a pause while another runs and a machine waits).
    ``delay``: seconds after its begin, instead of a ``point``.
    """

    operation: str
    sandbox_id: str
    child_id: str
    snapshot_id: str
    point: str = ""
    delay: float = 0.0
    memory: bool = True


async def main(root: str, agent: str, plan: Plan) -> None:
    settings = settings_in(Path(root))
    node = make_node(settings, Path(agent))
    await node.start(())
    host = Host(settings, Path(agent), node)
    guest = await host.create(sandbox_id=plan.sandbox_id)
    await guest.start_counter()
    await guest.sh("echo precious > /root/file")
    if plan.operation == "keep":
        with faults.armed("pause.frozen", fill), suppress(DiskFullError):
            await node.pause(plan.sandbox_id, plan.snapshot_id)
    if plan.operation in ("resume-hot", "resume-warm"):
        await node.pause(plan.sandbox_id, plan.snapshot_id, memory=plan.memory)
    if plan.operation == "resume-warm":
        await node.demote(plan.sandbox_id)
    if plan.operation == "fork":
        await node.snapshot(plan.sandbox_id, plan.snapshot_id)
    if plan.operation == "crowd":
        await host.create(sandbox_id=plan.child_id)
        await host.warm()
    if plan.point:
        with faults.armed(plan.point, die):
            await operate(host, guest, plan)
    else:
        asyncio.get_running_loop().call_later(plan.delay, kill)
        await operate(host, guest, plan)
        await asyncio.sleep(plan.delay + 1)
    os._exit(NOT_REACHED)


async def operate(host: Host, guest: Guest, plan: Plan) -> None:
    match plan.operation:
        case "pause" | "crowd":
            await host.node.pause(plan.sandbox_id, plan.snapshot_id, memory=plan.memory)
        case "keep":
            await host.node.keep(plan.sandbox_id, plan.snapshot_id)
        case "snapshot":
            await host.node.snapshot(plan.sandbox_id, plan.snapshot_id, memory=plan.memory)
        case "fork":
            spec = make_spec(sandbox_id=plan.child_id, snapshot=plan.snapshot_id)
            await host.node.create(spec)
        case "pool" | "claim":
            await host.warm()
            if plan.operation == "claim":
                await host.claim()
        case _:
            await host.resume(guest, plan.snapshot_id)


async def fill(point: str) -> None:
    raise DiskFullError("the disk is full")


async def die(point: str) -> None:
    kill()


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Plan(**json.loads(sys.argv[3]))))
