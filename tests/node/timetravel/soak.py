"""Kills at random moments, as often as one likes: ``python -m tests.node.timetravel.soak``.

Not part of the suite: what it finds becomes a test of its own, at a named fault point. Needs root.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import tempfile
import time
import traceback
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tests.conformance.subjects import Subject, build_agent
from tests.fakes.waiting import until
from tests.node.timetravel.test_crashes import ROOT, a_plan, die, goes_on, guest_of, spec_of
from tests.node.timetravel.travel import SMALL, Guest, Host, make_node, make_spec, settings_in
from tests.node.timetravel.travel import new_snapshot_id as new_name

from aenv.models.errors import AenvError
from aenv.models.snapshots import RestoreMode

LONGEST = {
    "pause": 0.25,
    "keep": 0.25,
    "snapshot": 0.25,
    "resume-hot": 0.12,
    "resume-warm": 0.5,
    "fork": 0.5,
    "pool": 2.5,
    "claim": 2.8,
}
"""Seconds within which each operation is hit."""
MACHINES = ("sandbox", "gofer", "commands", "supervisor")
OF_MACHINES = ("pause", "snapshot", "resume-hot", "resume-warm", "fork")


async def kill_server(host: Host, chance: random.Random, operation: str) -> str:
    """A server dies; the next one must find everything, and be able to go on with it."""
    delay, memory = chance.uniform(0, LONGEST[operation]), chance.random() < 0.8
    memory = memory or operation in ("keep", "pool", "claim")
    plan = a_plan(operation, delay=delay, memory=memory)
    was_paused = operation.startswith("resume") or operation == "keep"
    recorded = [] if operation in ("keep", "snapshot") else [plan.snapshot_id]
    spec = spec_of(plan)
    await die(host, plan)
    running, paused = ((), (spec,)) if was_paused else ((spec,), ())
    adoption = await host.begin(*running, paused=paused, snapshots=recorded)
    try:
        if adoption.running:
            guest = replace(guest_of(plan), running=adoption.running[0])
            if operation == "pause":
                await host.node.delete_snapshot(plan.snapshot_id)  # as control does
        else:
            whole = [one.id for one in await host.node.snapshots()]
            assert was_paused or plan.snapshot_id in whole, f"lost: {adoption.ended}"
            guest = await host.resume(guest_of(plan), recorded[0] if recorded else None)
        if memory:
            await goes_on(guest)
        await _pause_once_more(host, guest, cold=chance.random() < 0.5)
        if operation == "claim":
            await host.create(sandbox_id=await host.node.claim("host", SMALL))
        await clean(host)
    finally:
        await host.node.close()
    return f"{operation} after {delay:.4f} s, memory={memory}"


async def kill_part(host: Host, chance: random.Random, operation: str, victim: str) -> str:
    """A part of a machine dies: the operation ends in time, and what was acknowledged holds."""
    delay = chance.uniform(0, LONGEST[operation])
    guest, name = await host.create(), new_name()
    child = make_spec(snapshot=name)
    whom = child.sandbox_id if operation == "fork" else guest.spec.sandbox_id
    await guest.start_counter()
    await guest.sh("echo precious > /root/file; sync")
    await _prepare(host, guest, operation, name)
    node = host.node
    work = {
        "pause": lambda: node.pause(whom, name),
        "snapshot": lambda: node.snapshot(whom, name),
        "fork": lambda: node.create(child),
    }.get(operation, lambda: node.resume(replace(guest.spec, snapshot=name)))
    task = asyncio.ensure_future(work())
    await asyncio.sleep(delay)
    hits = await _strike(host, whom, victim)
    failure: AenvError | None = None
    try:
        await asyncio.wait_for(task, 60)
    except AenvError as error:
        failure = error
    await _check(host, guest, operation, name, failure)
    await clean(host)
    return f"{operation}, {victim} after {delay:.4f} s, {hits} killed: {failure or 'done'}"


async def _prepare(host: Host, guest: Guest, operation: str, name: str) -> None:
    if operation == "fork":
        await host.node.snapshot(guest.spec.sandbox_id, name)
    if operation.startswith("resume"):
        await host.node.pause(guest.spec.sandbox_id, name)
    if operation == "resume-warm":
        await host.node.demote(guest.spec.sandbox_id)


async def _strike(host: Host, sandbox_id: str, victim: str) -> int:
    """Returns how many processes it hit."""
    engine = await host.node._engines.get("gvisor")
    parts = engine._parts  # type: ignore[attr-defined]
    bundle = parts.bundle(sandbox_id)
    state = bundle.read_state()
    main = {"sandbox": (state.get("sandbox") or {}).get("pid"), "gofer": state.get("goferPid")}
    match victim:
        case "supervisor":
            pids = [parts.supervisor.pid]
        case "commands":  # runsc restore, checkpoint, …
            pids = [pid for pid in _of(sandbox_id, bundle.runsc_root) if pid not in main.values()]
        case _:
            pids = [main[victim]]
    hits = 0
    for pid in filter(None, pids):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            hits += 1
    return hits


def _of(sandbox_id: str, runsc_root: Path) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (entry / "cmdline").read_text(errors="replace").split("\0")
            if f"--root={runsc_root}" in words and sandbox_id in words:
                found.append(int(entry.name))
    return found


async def _check(
    host: Host, guest: Guest, operation: str, name: str, failure: AenvError | None
) -> None:
    kept = [one.id for one in await host.node.snapshots()]
    if operation in ("pause", "snapshot") and failure is not None:
        assert kept == [], "half a snapshot"
        return
    assert kept == [name]
    if operation in ("snapshot", "fork"):
        await goes_on(await host.create(snapshot=name))
        return
    await host.node.destroy(guest.spec.sandbox_id)
    back = await host.resume(guest, name)
    assert back.running.restored is RestoreMode.WARM, back.running.note
    await goes_on(back)


async def _pause_once_more(host: Host, guest: Guest, *, cold: bool) -> None:
    name = new_name()
    await host.node.pause(guest.spec.sandbox_id, name)
    if cold:
        await host.node.demote(guest.spec.sandbox_id)
    guest = await host.resume(guest, name)
    assert await guest.sh("cat /root/file") == "precious"


async def clean(host: Host) -> None:
    """Everything goes, and nothing may be left."""
    node = host.node
    for resident in node._residents:
        await node.destroy(resident.sandbox_id)
    for image in await node.snapshots():
        await node.delete_snapshot(image.id)
    await node._pools.close()
    baked = sorted(one.manifest.id for one in node._makers.bakes.store.all())
    assert sorted(await host.disk_images()) == baked
    await until(lambda: left(host) == [], timeout=15)


def left(host: Host) -> list[str]:
    folders = host.settings.folders
    run = folders.instance_run
    found = [*(run / "gvisor" / "machines").glob("*"), *(run / "residents").glob("*")]
    found += [*(folders.data / "pool").glob("i*"), *(folders.data / "snapshots").glob("*")]
    return [str(path) for path in found]


async def rounds(host: Host, chance: random.Random, asked: argparse.Namespace) -> str:
    if asked.server:
        return await kill_server(host, chance, chance.choice(list(LONGEST)))
    return await kill_part(host, chance, chance.choice(OF_MACHINES), chance.choice(MACHINES))


async def soak(asked: argparse.Namespace, agent: Path, chance: random.Random) -> int:
    """Rounds on one host after the other, a new one after each failure; how many failed."""
    failures = done = 0
    while done < asked.rounds:
        with tempfile.TemporaryDirectory(prefix="aenv-s-", ignore_cleanup_errors=True) as name:
            settings = settings_in(Path(name))
            host = Host(settings, agent, make_node(settings, agent))
            if not asked.server:
                await host.begin()
            try:
                while done < asked.rounds:
                    done += 1
                    print(done, await rounds(host, chance, asked), flush=True)
            except Exception as error:  # noqa: BLE001 - told, and the next round is another host's
                failures += 1
                traceback.print_exception(error)
            await host.node.close()
            await host.begin()
            await host.node.close()
            traces = Subject.of("gvisor", Path(name), agent).instance_traces
            await until(lambda traces=traces: traces() == [], timeout=15)  # type: ignore[misc]
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--server", action="store_true", help="kill the server, not its machines")
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="aenv-s-") as tools:
        agent = build_agent(Path(tools, "agent"), ROOT / "agent")
        failures = asyncio.run(soak(asked, agent, random.Random(asked.seed)))
    print(f"{failures} failures", flush=True)
    return min(failures, 1)


if __name__ == "__main__":
    raise SystemExit(main())
