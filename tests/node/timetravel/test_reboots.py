"""The host restarts: what was paused comes back from the disk, what ran is told as lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.conformance.subjects import Subject
from tests.fakes.waiting import until
from tests.node.timetravel.reboots import reboot
from tests.node.timetravel.test_crashes import a_plan, die, goes_on, guest_of, spec_of
from tests.node.timetravel.travel import Host, make_node, make_spec, settings_in

from aenv.models.errors import Culprit
from aenv.models.snapshots import RestoreMode

pytestmark = [pytest.mark.gvisor, pytest.mark.root]


@pytest.fixture
async def host(folder: Path, agent_binary: Path) -> AsyncIterator[Host]:
    """A host whose first server runs elsewhere; no trace of any may be left."""
    settings = settings_in(folder)
    host = Host(settings, agent_binary, make_node(settings, agent_binary))
    yield host
    await host.node.close()
    await host.begin()
    assert await host.node.snapshots() == []
    baked = [one.manifest.id for one in host.node._makers.bakes.store.all()]
    assert await host.disk_images() == baked
    await host.node.close()
    traces = Subject.of("gvisor", folder, agent_binary).instance_traces
    await until(lambda: traces() == [], timeout=15)


@pytest.mark.parametrize("run_folder_stays", [False, True])
async def test_the_paused_come_back_and_the_running_are_told_as_lost(
    host: Host, run_folder_stays: bool
) -> None:
    plan = await die(host, a_plan("crowd", point="pause.marked"))
    await reboot(host.settings.folders, run_folder_stays=run_folder_stays)
    lost = make_spec(sandbox_id=plan.child_id)

    adoption = await host.begin(lost, paused=(spec_of(plan),), snapshots=[plan.snapshot_id])

    assert (adoption.running, adoption.paused) == ((), ())
    [end] = adoption.ended
    assert (end.sandbox_id, end.culprit) == (lost.sandbox_id, Culprit.INFRASTRUCTURE)
    subject = Subject.of("gvisor", host.settings.folders.data.parent, host.agent)
    assert subject.traces(lost.sandbox_id) == []
    assert subject.traces(plan.sandbox_id) == []
    back = await host.resume(guest_of(plan), plan.snapshot_id)
    assert back.running.restored is RestoreMode.WARM
    await goes_on(back)
    other = await host.create(snapshot=plan.snapshot_id)
    assert await other.sh("cat /root/file") == "precious"


async def test_what_was_paused_in_memory_alone_is_gone(host: Host) -> None:
    plan = await die(host, a_plan("keep", point="keep.frozen"))
    await reboot(host.settings.folders)

    adoption = await host.begin(paused=(spec_of(plan),))

    assert (adoption.running, adoption.paused, adoption.ended) == ((), (), ())
