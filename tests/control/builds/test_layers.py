from __future__ import annotations

import asyncio
from pathlib import Path

from tests.control.builds.yards import TEAM, Yard, run

from aenv.control.builds.service import BuildStatus
from aenv.models.settings import BuildSettings


async def cramped(tmp_path: Path, count: int) -> Yard:
    """A cache for so many steps: the fake's disks are of one size."""
    yard = Yard(tmp_path)
    await yard.open()
    yard.system.building.layers._most = count
    return yard


async def test_those_used_longest_ago_are_dropped(tmp_path: Path) -> None:
    yard = await cramped(tmp_path, 2)
    for name in ("a", "b"):
        await yard.build(run(name))
        yard.clock.pass_time(1)
    await yard.build(run("a"), run("c"))  # a is used again
    await yard.settled()
    assert len(await yard.layer_keys()) == 2
    yard.node.script.ran.clear()
    await yard.build(run("a"))
    assert yard.node.script.commands == []
    await yard.build(run("b"))
    assert yard.node.script.commands == ["b"]
    await yard.settled()
    kept = await yard.layer_keys()
    assert len(kept) == 2
    assert len(yard.node.images) == 2 + 1  # and the template
    await yard.system.close()


async def test_bytes_count_too(tmp_path: Path) -> None:
    yard = Yard(tmp_path, options={"builds": BuildSettings(cache_mb=1)})
    await yard.open()
    yard.system.building.layers._most_bytes = 4500  # disks of 3000, of which 1000 are their own
    build = await yard.build(*(run(str(n)) for n in range(6)))
    await yard.settled()
    assert build.status is BuildStatus.READY
    assert len(await yard.layer_keys()) == 2
    await yard.system.close()


async def test_a_disk_that_a_build_goes_on_from_is_not_dropped_under_it(tmp_path: Path) -> None:
    yard = await cramped(tmp_path, 1)
    await yard.build(run("a"))
    gate = yard.node.script.gates["b"] = asyncio.Event()
    going = await yard.begin(run("a"), run("b"))
    async with asyncio.timeout(5):
        while "b" not in yard.node.script.commands:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    await yard.build(run("x"), name="other")
    await yard.build(run("a"), name="again", force=True)
    gate.set()
    assert (await yard.end(going)).status is BuildStatus.READY
    await yard.settled()
    assert len(await yard.layer_keys()) == 1
    templates = [await yard.system.building.library.get(TEAM, n) for n in ("app", "other", "again")]
    images = {b.snapshot_id for t in templates if t for b in t.builds if b.snapshot_id}
    assert len(yard.node.images) == 1 + len(images)
    await yard.system.close()


async def test_a_cached_step_is_nobodys_snapshot(tmp_path: Path) -> None:
    yard = await cramped(tmp_path, 5)
    await yard.build(run("a"))
    from aenv.control.snapshots import SnapshotRequest

    assert await yard.system.snapshots.page(TEAM, SnapshotRequest()) == ([], "")
    await yard.system.close()
