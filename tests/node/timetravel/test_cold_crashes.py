"""kill -9 of the server at every step to the blob store and back: the next one goes on."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from tests.conformance.subjects import Subject
from tests.fakes.waiting import until
from tests.node.timetravel.dying import Plan
from tests.node.timetravel.dying_cold import open_blobs
from tests.node.timetravel.travel import (
    Guest,
    Host,
    make_node,
    make_spec,
    new_snapshot_id,
    settings_in,
)

from aenv.models.ids import new_sandbox_id
from aenv.models.snapshots import ColdCopy, RestoreMode

pytestmark = [pytest.mark.gvisor, pytest.mark.root]
ROOT = Path(__file__).parents[3]
POINTS = (
    "store.sealed",
    "store.layers",
    "store.memory",
    "fetch.layers",
    "fetch.memory",
    "fetch.published",
)


@pytest.mark.parametrize("point", POINTS)
async def test_the_next_server_goes_on(folder: Path, agent_binary: Path, point: str) -> None:
    operation = point.partition(".")[0]
    plan = Plan(operation, new_sandbox_id(), "", new_snapshot_id(), point=point)
    command = [sys.executable, "-m", "tests.node.timetravel.dying_cold"]
    told = (str(folder), str(agent_binary), json.dumps(asdict(plan)))
    dying = await asyncio.create_subprocess_exec(*command, *told, cwd=ROOT)
    assert await asyncio.wait_for(dying.wait(), 120) == -signal.SIGKILL
    settings = settings_in(folder)
    host = Host(settings, agent_binary, make_node(settings, agent_binary))
    await host.begin(snapshots=[plan.snapshot_id])
    blobs, catalog = await open_blobs(folder)

    if operation == "store":
        kept = await host.node.store_snapshot(plan.snapshot_id, blobs)
        assert (kept.bytes_new == 0) == (point == "store.memory")
        copy = kept.copy
        await host.node.evict_snapshot(plan.snapshot_id)
    else:
        copy = ColdCopy.from_json(json.loads((folder / "copy.json").read_text()))
    assert not list((settings.folders.data / "sealed" / "new").glob("*"))
    if not await host.node.has_snapshot(plan.snapshot_id):
        assert point != "fetch.published"
        await host.node.fetch_snapshot(copy, blobs)
    spec = make_spec(sandbox_id=plan.sandbox_id)
    back = await host.resume(Guest(spec, None), plan.snapshot_id)  # type: ignore[arg-type]

    assert (back.running.restored, back.running.note) == (RestoreMode.WARM, None)
    pid, count = await back.count()
    await back.sh(f"until [ $(cut -d' ' -f2 /root/count) -gt {count} ]; do sleep 0.01; done")
    assert (await back.count())[0] == pid
    assert await back.sh("stat -c %s /root/file") == "2000000"
    await host.node.destroy(plan.sandbox_id)
    await catalog.close()
    await host.restart()
    assert await host.disk_images() == []
    await host.node.close()
    traces = Subject.of("gvisor", folder, agent_binary).instance_traces
    await until(lambda: traces() == [], timeout=15)
