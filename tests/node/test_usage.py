"""What sandboxes use of the host's memory, and what a new one is expected to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.node.nodes import Bench, make_spec
from tests.node.test_pauses import paused, started

from aenv.models.errors import CapabilityError, CapacityError
from aenv.models.sandboxes import Resources
from aenv.node.local import LocalNode
from aenv.node.usage import LEAST, MIB, SETTLING, MemoryUse

LARGE = Resources(memory_mb=4096)


@pytest.fixture
def use(node: LocalNode) -> MemoryUse:
    return MemoryUse(node._residents, node._sampler.memory)


async def test_nobody_knows_yet_so_a_quarter_of_the_limit_is_expected(use: MemoryUse):
    assert use.expected("base", LARGE) == 1024 * MIB
    assert use.expected("base", Resources(memory_mb=128)) == LEAST
    assert use.expected("base", Resources(memory_mb=32)) == 32 * MIB


async def test_a_memory_image_tells_what_comes_back(use: MemoryUse):
    assert use.expected("base", LARGE, image=700 * MIB) == 700 * MIB
    assert use.expected("base", Resources(memory_mb=512), image=700 * MIB) == 512 * MIB


async def test_those_of_the_same_template_tell(bench: Bench, node: LocalNode, use: MemoryUse):
    for megabytes in range(100, 200, 10):
        bench.engine.memory_bytes = megabytes * MIB
        await started(node, resources=LARGE)
        await use.refresh()
    assert use.expected("base", LARGE) == 190 * MIB
    assert use.expected("host", LARGE) == 1024 * MIB


async def test_a_new_one_is_owed_what_it_does_not_use_yet(bench: Bench, node: LocalNode):
    bench.engine.memory_bytes = 20 * MIB
    await started(node, resources=LARGE)
    now = [next(iter(node._residents)).since]
    use = MemoryUse(node._residents, node._sampler.memory, lambda: now[0])
    assert use.owed() == 1024 * MIB
    await use.refresh()
    assert use.owed() == LEAST - 20 * MIB
    now[0] += SETTLING
    assert use.owed() == 0


async def test_one_that_came_back_from_memory_is_owed_that(bench: Bench, node: LocalNode):
    spec = await paused(node, resources=LARGE)
    await node.demote(spec.sandbox_id)
    await node.resume(spec)
    [resident] = node._residents
    assert resident.image > 0
    resident.image = 500 * MIB
    bench.engine.memory_bytes = 20 * MIB
    use = MemoryUse(node._residents, node._sampler.memory, lambda: resident.since)
    await use.refresh()
    assert use.owed() == 480 * MIB


async def test_a_burst_of_one_template_is_not_held_back_by_what_was_expected_of_the_first(
    bench: Bench, node: LocalNode
):
    """Once one of them was measured, the others are expected to use what it does."""
    bench.engine.memory_bytes = 17 * MIB
    bench.headroom = replace(bench.headroom, memory=4096 * MIB)
    for _ in range(20):
        await node.create(make_spec(resources=LARGE))


async def test_the_samplers_figure_takes_the_place_of_the_first(
    bench: Bench, node: LocalNode, use: MemoryUse
):
    await started(node, resources=LARGE)
    bench.engine.memory_bytes = 100 * MIB
    await use.refresh()
    bench.engine.memory_bytes = 300 * MIB
    await node._sampler.sample_all()
    assert use.expected("base", LARGE) == 300 * MIB


async def test_the_report_tells_running_from_paused_ones(bench: Bench, node: LocalNode):
    bench.engine.memory_bytes = 20 * MIB
    for _ in range(2):
        await started(node, resources=LARGE)
    await paused(node, resources=LARGE)

    report = await node.memory()

    assert (report.running.sandboxes, report.running.used) == (2, 40 * MIB)
    assert report.running.promised == 2 * 4096 * MIB
    assert (report.hot.sandboxes, report.hot.used) == (1, 20 * MIB)
    assert report.ratio == pytest.approx(2 * 4096 / 60)
    assert report.available == bench.headroom.memory


async def test_pressure_takes_the_longest_paused_and_its_log_says_so(bench: Bench, node: LocalNode):
    running = await started(node)
    first, second = await paused(node), await paused(node)
    plenty, marks = bench.headroom, node._memory.pressure._marks
    bench.headroom = replace(plenty, memory=marks.low - 1)
    destroyed = len(bench.engine.destroys)

    def look() -> int:
        """There is room again as soon as one is gone."""
        return plenty.memory if len(bench.engine.destroys) > destroyed else bench.headroom.memory

    node._memory.pressure._available = look
    await node._memory.pressure.check()

    assert bench.engine.alive == {running.sandbox_id, second.sandbox_id}
    [event] = await node.logs(first.sandbox_id)
    assert "took its memory back" in event.message
    assert (await node.memory()).relieved == {"hot": 1}


async def test_running_sandboxes_are_never_touched_and_creates_are_refused(
    bench: Bench, node: LocalNode
):
    running = [await started(node) for _ in range(2)]
    await paused(node)
    plenty = bench.headroom
    bench.headroom = replace(plenty, memory=1)
    await node._memory.pressure.check()
    with pytest.raises(CapacityError, match="short of memory"):
        await node.create(make_spec())

    assert bench.engine.alive == {spec.sandbox_id for spec in running}
    report = await node.memory()
    assert report.exhausted
    assert report.refusals == {"memory": 1}
    bench.headroom = plenty
    await node.create(make_spec())


async def test_more_than_the_host_has_is_promised_to_nobody(node: LocalNode):
    huge = Resources(memory_mb=1 << 40)
    with pytest.raises(CapabilityError, match="cannot run on this host"):
        await node.create(make_spec(resources=huge))
