"""A node made of fakes pauses, resumes and copies: order of steps, failures, budgets, restarts."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.fakes.engine import FAKE
from tests.fakes.waiting import until
from tests.node.nodes import Bench, adopt_request, make_spec

from aenv.models.errors import (
    CapabilityError,
    ConflictError,
    DiskFullError,
    EngineError,
    NotFoundError,
)
from aenv.models.ids import new_sandbox_id
from aenv.models.snapshots import RestoreMode
from aenv.node.local import LocalNode
from aenv.node.port import SandboxSpec


def new_name() -> str:
    return "s" + new_sandbox_id()[1:]


async def started(node: LocalNode, **changes: object) -> SandboxSpec:
    spec = replace(make_spec(), **changes)  # type: ignore[arg-type]
    await node.create(spec)
    return spec


async def paused(node: LocalNode, **changes: object) -> SandboxSpec:
    """The spec a resume of it would use."""
    spec = await started(node, **changes)
    name = new_name()
    await node.pause(spec.sandbox_id, name)
    return replace(spec, snapshot=name)


async def test_a_snapshot_freezes_for_the_copies_only(bench: Bench, node: LocalNode):
    spec = await started(node)
    image = await node.snapshot(spec.sandbox_id, new_name(), parent="sparent")
    assert bench.engine.done[:2] == ["sync", "freeze"]
    assert sorted(bench.engine.done[2:4]) == ["checkpoint", "save_disk"]
    assert bench.engine.done[4:] == ["thaw"]
    assert (image.parent, image.has_memory, image.template) == ("sparent", True, "base")
    assert [one.id for one in await node.snapshots()] == [image.id]
    assert bench.images.pins["abc"][-1].name == image.id


async def test_pins_end_with_their_holders(bench: Bench, node: LocalNode):
    spec = await started(node)
    image = await node.snapshot(spec.sandbox_id, new_name())
    await node.destroy(spec.sandbox_id)
    assert [one.name for one in bench.images.pins["abc"]] == [image.id]
    await node.delete_snapshot(image.id)
    assert bench.images.pins["abc"] == []


async def test_the_manifest_knows_the_fingerprint_and_the_resources(node: LocalNode):
    spec = await started(node)
    image = await node.snapshot(spec.sandbox_id, new_name())
    assert image.fingerprint is not None
    assert (image.fingerprint.engine, image.fingerprint.engine_version) == ("fake", "1")
    assert image.resources == image.fingerprint.resources == spec.resources
    bare = await node.snapshot(spec.sandbox_id, new_name(), memory=False)
    assert (bare.fingerprint, bare.memory_bytes) == (None, 0)


@pytest.mark.parametrize("step", ["sync", "freeze", "checkpoint", "save_disk"])
async def test_a_step_that_fails_leaves_the_sandbox_running_and_nothing_else(
    bench: Bench, node: LocalNode, step: str
):
    spec = await started(node)
    for operation in (node.snapshot, node.pause):
        bench.engine.errors[step] = [EngineError("broken")]
        with pytest.raises(EngineError, match="broken"):
            await operation(spec.sandbox_id, new_name())
        assert not bench.engine.machines[spec.sandbox_id].frozen
    assert (await node.snapshots(), bench.engine.disks) == ([], {})
    await node.pause(spec.sandbox_id, new_name())


async def test_a_full_disk_leaves_it_paused_in_memory_alone(bench: Bench, node: LocalNode):
    spec = await started(node)
    bench.engine.errors["checkpoint"] = [DiskFullError("full")]
    with pytest.raises(DiskFullError):
        await node.pause(spec.sandbox_id, new_name())
    assert bench.engine.machines[spec.sandbox_id].frozen
    assert not await node.demote(spec.sandbox_id)
    assert (await node.resume(spec)).restored is RestoreMode.HOT


async def test_a_hot_resume_tells_the_guest_and_keeps_its_secret(bench: Bench, node: LocalNode):
    spec = await paused(node, env_vars={"A": "1"})
    running = await node.resume(replace(spec, env_vars={}))
    assert running.restored is RestoreMode.HOT
    told = bench.engine.machines[spec.sandbox_id].agent.inits[-1]
    assert (told["restored"], told["resumed"]) == (True, True)
    assert told["envVars"] == {"LANG": "C.UTF-8", "A": "1"}
    assert bench.engine.machines[spec.sandbox_id].agent.secrets == ["secret", "secret"]


async def test_a_warm_resume_is_the_same_sandbox(bench: Bench, node: LocalNode):
    spec = await paused(node, env_vars={"A": "1", "K": "x"}, secret_env=frozenset({"K"}))
    first = bench.engine.machines[spec.sandbox_id]
    first.disk = "later than the copy"
    assert await node.demote(spec.sandbox_id)
    assert not bench.engine.alive

    running = await node.resume(replace(spec, env_vars={}, secret_env=frozenset()))

    machine = bench.engine.machines[spec.sandbox_id]
    assert running.restored is RestoreMode.WARM
    assert machine is not first
    assert machine.disk == ""
    assert (machine.spec.same_life, machine.spec.hostname) == (True, spec.sandbox_id)
    told = machine.agent.inits[-1]
    assert told["envVars"] == {"LANG": "C.UTF-8", "A": "1", "K": "x"}
    assert (told["resumed"], told["secretEnv"]) == (True, ["K"])


async def test_a_fork_gets_an_identity_of_its_own_and_no_secret(bench: Bench, node: LocalNode):
    spec = await started(node, env_vars={"A": "1", "K": "x"}, secret_env=frozenset({"K"}))
    name = new_name()
    await node.snapshot(spec.sandbox_id, name)
    child = replace(make_spec(env_vars={"B": "2"}), snapshot=name, host_secret="own")

    running = await node.create(child)

    machine = bench.engine.machines[child.sandbox_id]
    assert running.restored is RestoreMode.WARM
    assert not machine.spec.same_life
    [told] = machine.agent.inits
    assert machine.agent.secrets == ["secret"]  # what the image's agent knows, for the last time
    assert told["nextVerifier"]
    assert told["envVars"] == {"LANG": "C.UTF-8", "A": "1", "B": "2"}
    assert (told["sandboxId"], told.get("resumed", False)) == (child.sandbox_id, False)
    await node.snapshot(child.sandbox_id, new_name())


async def test_an_image_this_host_cannot_restore_boots_from_disk(bench: Bench, node: LocalNode):
    spec = await paused(node)
    await node.demote(spec.sandbox_id)
    bench.engine.release = "2"
    bench.images.ready["base"] = replace(bench.images.ready["base"], start_cmd="serve")
    running = await node.resume(spec)
    assert running.restored is RestoreMode.DISK
    assert "release 1" in (running.note or "")
    assert bench.engine.done.count("restore") == 1
    assert bench.engine.machines[spec.sandbox_id].agent.started == ["serve"]
    [line] = await node.logs(spec.sandbox_id)
    assert "booted from its disk" in line.message


async def test_a_restore_that_fails_once_is_tried_again(bench: Bench, node: LocalNode):
    spec = await paused(node)
    await node.demote(spec.sandbox_id)
    bench.engine.errors["restore"] = [EngineError("busy")]
    assert (await node.resume(spec)).restored is RestoreMode.WARM
    bench.engine.errors["restore"] = [EngineError("busy"), EngineError("busy")]
    child = replace(make_spec(), snapshot=spec.snapshot)
    assert (await node.create(child)).restored is RestoreMode.DISK


async def test_an_image_below_that_is_gone_costs_the_memory_only(bench: Bench, node: LocalNode):
    spec = await paused(node)
    await node.demote(spec.sandbox_id)
    bench.images.ready["base"] = replace(bench.images.ready["base"], digest="newer")
    running = await node.resume(spec)
    assert running.restored is RestoreMode.DISK
    assert "is gone" in (running.note or "")


async def test_a_hot_machine_that_does_not_thaw_is_restored(bench: Bench, node: LocalNode):
    spec = await paused(node)
    bench.engine.errors["thaw"] = [EngineError("stuck")]
    assert (await node.resume(spec)).restored is RestoreMode.WARM


async def test_a_hot_machine_that_dies_is_no_end(bench: Bench, node: LocalNode):
    spec = await paused(node)
    await bench.engine.machines[spec.sandbox_id].die("killed by the host")
    await until(lambda: not bench.engine.alive)
    assert node._residents._exits.empty()
    assert (await node.resume(spec)).restored is RestoreMode.WARM


async def test_a_kill_ends_a_pause(bench: Bench, node: LocalNode):
    spec = await paused(node)
    await node.destroy(spec.sandbox_id)
    assert not bench.engine.alive
    assert [one.id for one in await node.snapshots()] == [spec.snapshot]
    assert spec.snapshot is not None
    await node.delete_snapshot(spec.snapshot)
    assert (await node.snapshots(), bench.engine.disks) == ([], {})
    with pytest.raises(NotFoundError):
        await node.resume(spec)


async def test_the_longest_paused_give_way_to_the_budget_and_to_creates(
    bench: Bench, node: LocalNode
):
    node._pauses._budget = 2 * bench.engine.memory_bytes
    specs = [await paused(node) for _ in range(4)]
    await node._pauses.settled()
    assert bench.engine.alive == {spec.sandbox_id for spec in specs[2:]}

    headroom, bench.headroom = bench.headroom, replace(bench.headroom, memory=0)
    refused = asyncio.create_task(node.create(make_spec()))
    await until(lambda: not bench.engine.alive)
    bench.headroom = headroom
    await asyncio.gather(refused, return_exceptions=True)


async def test_deleting_its_snapshot_leaves_a_hot_sandbox_in_memory(bench: Bench, node: LocalNode):
    spec = await paused(node)
    assert spec.snapshot is not None
    await node.delete_snapshot(spec.snapshot)
    assert not await node.demote(spec.sandbox_id)
    assert (await node.resume(spec)).restored is RestoreMode.HOT


async def test_a_paused_or_running_sandbox_refuses_what_does_not_fit(node: LocalNode):
    spec = await paused(node)
    with pytest.raises(ConflictError, match="paused already"):
        await node.pause(spec.sandbox_id, new_name())
    await node.resume(spec)
    with pytest.raises(ConflictError, match="not paused"):
        await node.resume(spec)
    with pytest.raises(NotFoundError):
        await node.pause("unknown", new_name())


async def test_an_engine_without_snapshots_refuses_them(bench: Bench):
    bench.engine.capabilities = replace(FAKE, disk_snapshot=False)
    node = bench.node()
    await node.start(())
    spec = await started(node)
    with pytest.raises(CapabilityError, match="fake"):
        await node.snapshot(spec.sandbox_id, new_name())
    bench.engine.capabilities = replace(FAKE, memory_snapshot=False)
    with pytest.raises(CapabilityError, match="disk alone"):
        await node.pause(spec.sandbox_id, new_name())
    await node.pause(spec.sandbox_id, new_name(), memory=False)
    assert not bench.engine.alive
    await node.close()


async def test_a_restart_keeps_the_hot_and_reaps_what_nobody_knows(bench: Bench, node: LocalNode):
    hot, forgotten = await paused(node), await paused(node)
    assert hot.snapshot is not None
    await node.close()
    again = bench.node()

    request = replace(adopt_request(hot), paused=True)
    adoption = await again.start((request,), snapshots=frozenset({hot.snapshot}))

    assert (adoption.paused, adoption.running, adoption.ended) == ((hot.sandbox_id,), (), ())
    assert [one.id for one in await again.snapshots()] == [hot.snapshot]
    assert set(bench.engine.disks) == {hot.snapshot}
    assert forgotten.sandbox_id not in bench.engine.alive
    assert (await again.resume(hot)).restored is RestoreMode.HOT
    await again.close()


async def test_what_was_frozen_for_a_copy_runs_on_after_a_restart(bench: Bench, node: LocalNode):
    spec = await started(node)
    await bench.engine.machines[spec.sandbox_id].freeze()
    await node.close()
    again = bench.node()
    adoption = await again.start((adopt_request(spec),))
    assert [one.sandbox_id for one in adoption.running] == [spec.sandbox_id]
    assert not bench.engine.machines[spec.sandbox_id].frozen
    await again.close()


async def test_metrics_and_logs_follow_on(bench: Bench, node: LocalNode):
    spec = await started(node)
    agent = bench.engine.machines[spec.sandbox_id].agent
    agent.say("before")
    await until(lambda: node._logs.seen(spec.sandbox_id) == 1)
    samples = await node.metrics(spec.sandbox_id)
    name = new_name()
    await node.pause(spec.sandbox_id, name)
    assert [entry.message for entry in await node.logs(spec.sandbox_id)] == ["before"]
    assert await node.metrics(spec.sandbox_id) == samples
    await node.resume(replace(spec, snapshot=name))
    agent.say("after")
    await until(lambda: node._logs.seen(spec.sandbox_id) == 2)
    assert [e.message for e in await node.logs(spec.sandbox_id)] == ["before", "after"]
    assert (await node.metrics(spec.sandbox_id))[: len(samples)] == samples


async def test_the_log_of_a_sandbox_that_was_set_back_goes_on(bench: Bench, node: LocalNode):
    spec = await started(node)
    agent = bench.engine.machines[spec.sandbox_id].agent
    agent.say("one")
    await until(lambda: node._logs.seen(spec.sandbox_id) == 1)
    name = new_name()
    await node.snapshot(spec.sandbox_id, name)
    agent.say("lost with the life it was said in")
    await until(lambda: node._logs.seen(spec.sandbox_id) == 2)
    await node.destroy(spec.sandbox_id)

    await node.resume(replace(spec, snapshot=name))

    restored = bench.engine.machines[spec.sandbox_id].agent
    restored.say("one")
    restored.say("two")
    await until(lambda: node._logs.seen(spec.sandbox_id) == 2)
    assert [e.message for e in await node.logs(spec.sandbox_id)][-1] == "two"


async def test_what_found_no_room_is_kept_later_and_may_then_be_demoted(
    bench: Bench, node: LocalNode
):
    spec = await started(node)
    bench.engine.errors["checkpoint"] = [DiskFullError("full"), DiskFullError("still full")]
    for attempt in (node.pause, node.keep):
        with pytest.raises(DiskFullError):
            await attempt(spec.sandbox_id, new_name())
    resident = node._residents.get(spec.sandbox_id)
    assert resident is not None
    assert resident.hot is not None
    since = resident.hot.since

    name = new_name()
    image = await node.keep(spec.sandbox_id, name, parent="sparent")

    assert (image.id, image.has_memory, image.parent) == (name, True, "sparent")
    assert bench.engine.machines[spec.sandbox_id].frozen
    assert resident.hot.since == since
    assert await node.demote(spec.sandbox_id)
    assert (await node.resume(replace(spec, snapshot=name))).restored is RestoreMode.WARM


async def test_only_what_is_paused_in_memory_alone_is_kept_later(node: LocalNode):
    for spec in (await started(node), await paused(node)):
        with pytest.raises(ConflictError, match="not paused in memory alone"):
            await node.keep(spec.sandbox_id, new_name())
