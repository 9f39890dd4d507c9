"""kill -9 of the server at every step: what was acknowledged is there, and nothing else is left."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from tests.conformance.subjects import Subject
from tests.fakes.waiting import until
from tests.node.timetravel.dying import Plan
from tests.node.timetravel.travel import Guest, Host, make_node, make_spec, settings_in
from tests.node.timetravel.travel import new_snapshot_id as new_name

from aenv.models.ids import new_sandbox_id
from aenv.models.snapshots import RestoreMode
from aenv.node.port import Adoption, SandboxSpec

pytestmark = [pytest.mark.gvisor, pytest.mark.root]

ROOT = Path(__file__).parents[3]


@pytest.fixture
async def host(folder: Path, agent_binary: Path) -> AsyncIterator[Host]:
    """A host whose first server runs elsewhere; no trace of any may be left."""
    settings = settings_in(folder)
    host = Host(settings, agent_binary, make_node(settings, agent_binary))
    yield host
    await host.node.close()
    await host.begin()
    assert await host.node.snapshots() == []
    assert await host.disk_images() == []
    await host.node.close()
    traces = Subject.of("gvisor", folder, agent_binary).instance_traces
    await until(lambda: traces() == [], timeout=15)


@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize("point", ["frozen", "copied", "published", "marked"])
async def test_a_pause_that_was_not_acknowledged_did_not_happen(
    host: Host, point: str, memory: bool
) -> None:
    plan = await die(host, a_plan("pause", point=f"pause.{point}", memory=memory))

    adoption = await host.begin(spec_of(plan), snapshots=[plan.snapshot_id])

    guest = running(adoption, plan)
    await goes_on(guest)
    kept = [one.id for one in await host.node.snapshots()]
    assert kept == ([plan.snapshot_id] if point in ("published", "marked") else [])
    again = new_name()
    await host.node.pause(plan.sandbox_id, again)
    await host.node.demote(plan.sandbox_id)
    await goes_on(await host.resume(guest, again))


@pytest.mark.parametrize("hot", [True, False])
async def test_a_pause_that_was_acknowledged_is_one(host: Host, hot: bool) -> None:
    plan = await die(host, a_plan("pause", point="pause.marked"))

    adoption = await host.begin(paused=(spec_of(plan),), snapshots=[plan.snapshot_id])

    assert adoption.paused == (plan.sandbox_id,)
    if not hot:
        assert await host.node.demote(plan.sandbox_id)
    back = await host.resume(guest_of(plan), plan.snapshot_id)
    assert back.running.restored is (RestoreMode.HOT if hot else RestoreMode.WARM)
    await goes_on(back)


@pytest.mark.parametrize("point", ["frozen", "copied", "published", "marked"])
async def test_an_image_made_later_that_was_not_recorded_is_gone_and_can_be_made_again(
    host: Host, point: str
) -> None:
    plan = await die(host, a_plan("keep", point=f"keep.{point}"))

    adoption = await host.begin(paused=(spec_of(plan),))

    assert adoption.paused == (plan.sandbox_id,)
    assert await host.node.snapshots() == []
    assert await host.disk_images() == []
    assert not await host.node.demote(plan.sandbox_id)
    again = new_name()
    await host.node.keep(plan.sandbox_id, again)
    assert await host.node.demote(plan.sandbox_id)
    await goes_on(await host.resume(guest_of(plan), again))


async def test_an_image_made_later_that_was_recorded_is_one(host: Host) -> None:
    plan = await die(host, a_plan("keep", point="keep.marked"))
    await host.begin(paused=(spec_of(plan),), snapshots=[plan.snapshot_id])
    assert await host.node.demote(plan.sandbox_id)
    await goes_on(await host.resume(guest_of(plan), plan.snapshot_id))


@pytest.mark.parametrize("point", ["frozen", "copied", "published"])
async def test_a_snapshot_that_was_not_acknowledged_is_gone_and_its_source_runs_on(
    host: Host, point: str
) -> None:
    plan = await die(host, a_plan("snapshot", point=f"snapshot.{point}"))

    adoption = await host.begin(spec_of(plan))

    await goes_on(running(adoption, plan))
    assert await host.node.snapshots() == []
    assert await host.disk_images() == []
    assert list((host.settings.folders.data / "snapshots").iterdir()) == []


@pytest.mark.parametrize("known_as", ["paused", "running"])
@pytest.mark.parametrize(
    ("operation", "point"),
    [
        ("resume-hot", "resume.thawed"),
        ("resume-hot", "resume.told"),
        ("resume-warm", "restore.restored"),
        ("resume-warm", "restore.told"),
    ],
)
async def test_a_resume_that_was_not_acknowledged_can_be_repeated(
    host: Host, operation: str, point: str, known_as: str
) -> None:
    plan = await die(host, a_plan(operation, point=point))
    spec = spec_of(plan)

    if known_as == "paused":
        adoption = await host.begin(paused=(spec,), snapshots=[plan.snapshot_id])
        assert adoption.running == adoption.ended == ()
    else:
        adoption = await host.begin(spec, snapshots=[plan.snapshot_id])

    if adoption.running:
        await goes_on(running(adoption, plan))
    else:
        await goes_on(await host.resume(guest_of(plan), plan.snapshot_id))


@pytest.mark.parametrize("point", ["restore.restored", "restore.told"])
async def test_a_fork_that_was_not_acknowledged_is_gone(host: Host, point: str) -> None:
    plan = await die(host, a_plan("fork", point=point))

    adoption = await host.begin(spec_of(plan), snapshots=[plan.snapshot_id])

    await goes_on(running(adoption, plan))
    subject = Subject.of("gvisor", host.settings.folders.data.parent, host.agent)
    assert subject.traces(plan.child_id) == []
    child = await host.create(snapshot=plan.snapshot_id)
    assert await child.sh("cat /root/file") == "precious"


@pytest.mark.parametrize("operation", ["pause", "snapshot", "resume-hot", "resume-warm", "fork"])
@pytest.mark.parametrize("delay", [0.005, 0.03, 0.08, 0.15])
async def test_at_any_moment_nothing_is_lost(host: Host, operation: str, delay: float) -> None:
    plan = await die(host, a_plan(operation, delay=delay))
    spec = spec_of(plan)
    was_paused = operation.startswith("resume")

    adoption = await host.begin(
        *(() if was_paused else (spec,)),
        paused=(spec,) if was_paused else (),
        snapshots=[plan.snapshot_id],
    )

    if adoption.running:
        await goes_on(running(adoption, plan))
    else:
        assert was_paused
        await goes_on(await host.resume(guest_of(plan), plan.snapshot_id))


def a_plan(operation: str, *, point: str = "", delay: float = 0.0, memory: bool = True) -> Plan:
    return Plan(operation, new_sandbox_id(), new_sandbox_id(), new_name(), point, delay, memory)


async def die(host: Host, plan: Plan) -> Plan:
    """Let a server follow the plan until it dies."""
    root = host.settings.folders.data.parent
    arguments = (str(root), str(host.agent), json.dumps(asdict(plan)))
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.node.timetravel.dying", *arguments, cwd=ROOT
    )
    assert await asyncio.wait_for(server.wait(), 60) == -signal.SIGKILL
    return plan


def spec_of(plan: Plan) -> SandboxSpec:
    return make_spec(sandbox_id=plan.sandbox_id)


def guest_of(plan: Plan) -> Guest:
    return Guest(make_spec(sandbox_id=plan.sandbox_id), None)  # type: ignore[arg-type]


def running(adoption: Adoption, plan: Plan) -> Guest:
    assert adoption.ended == ()
    [found] = adoption.running
    return replace(guest_of(plan), running=found)


async def goes_on(guest: Guest) -> None:
    """The process of before still counts, and the file is there."""
    assert await guest.sh("cat /root/file") == "precious"
    _, count = await guest.count()
    await guest.sh(f"until [ $(cut -d' ' -f2 /root/count) -gt {count} ]; do sleep 0.01; done")
