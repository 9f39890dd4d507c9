"""Samples: at once, in order, bounded; an agent that hangs is noticed."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.fakes.engine import FakeEngine, FakeMachine
from tests.fakes.images import ROOTFS
from tests.node.nodes import make_spec

from aenv.models.sandboxes import Resources, SandboxMetrics
from aenv.node.agents import AgentClient
from aenv.node.engine import MachineSpec
from aenv.node.metrics import MetricsSampler, SampleRing


def sample(timestamp: float) -> SandboxMetrics:
    return SandboxMetrics(timestamp, 2.0, 50.0, 1 << 40, 2, 3, 4, 5)


def test_a_ring_keeps_the_newest_in_order():
    ring = SampleRing(capacity=3)
    for timestamp in range(5):
        ring.add(sample(timestamp))
    assert ring.samples() == [sample(2), sample(3), sample(4)]


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def machine() -> AsyncIterator[FakeMachine]:
    spec = make_spec()
    machine = FakeMachine(
        FakeEngine(),
        MachineSpec("i1", ROOTFS, Resources(), spec.network, "i1", ROOTFS.lowers[0]),
    )
    await machine.boot()
    yield machine
    await machine.agent.stop()


class Hangs(list[tuple[str, bool]]):
    async def __call__(self, sandbox_id: str, hangs: bool) -> None:
        self.append((sandbox_id, hangs))


def tracked(machine: FakeMachine, clock: Clock, hangs: Hangs | None = None) -> MetricsSampler:
    sampler = MetricsSampler(hangs if hangs is not None else Hangs(), clock=clock)
    agent = AgentClient(machine.address(49983), host_secret="s", access_token="t")
    sampler.track("i1", machine, agent, Resources(cpu=2, memory_mb=512))
    return sampler


async def test_the_first_sample_is_there_when_asked_for(machine: FakeMachine):
    sampler = tracked(machine, Clock())
    (first,) = await sampler.query("i1")
    assert first == SandboxMetrics(100.0, 2, 0.0, 1000, 512 << 20, 0, 100, 200)
    assert await sampler.query("i1") == [first]


async def test_cpu_is_the_share_of_all_vcpus_since_the_last_sample(machine: FakeMachine):
    clock = Clock()
    sampler = tracked(machine, clock)
    await sampler.sample_all()
    clock.now += 5  # the fake engine counts one CPU second per sample
    await sampler.sample_all()
    assert [one.cpu_used_pct for one in await sampler.query("i1")] == [0.0, 10.0]


async def test_samples_are_selected_by_time(machine: FakeMachine):
    clock = Clock()
    sampler = tracked(machine, clock)
    for _ in range(4):
        await sampler.sample_all()
        clock.now += 5
    found = await sampler.query("i1", start=105, end=110)
    assert [one.timestamp for one in found] == [105.0, 110.0]


async def test_an_agent_that_hangs_is_told_once_and_again_when_it_is_back(machine: FakeMachine):
    hangs = Hangs()
    sampler = tracked(machine, Clock(), hangs)
    machine.agent.behaviour.metrics_status = 500
    for _ in range(5):
        await sampler.sample_all()
    assert hangs == [("i1", True)]
    assert sampler.unresponsive("i1")
    assert (await sampler.query("i1"))[0].mem_used == 5000
    machine.agent.behaviour.metrics_status = 200
    await sampler.sample_all()
    assert hangs == [("i1", True), ("i1", False)]
    assert not sampler.unresponsive("i1")


async def test_samples_stay_until_they_are_forgotten(machine: FakeMachine):
    sampler = tracked(machine, Clock())
    await sampler.sample_all()
    sampler.untrack("i1")
    await sampler.sample_all()
    assert len(await sampler.query("i1")) == 1
    sampler.forget("i1")
    assert await sampler.query("i1") == []
