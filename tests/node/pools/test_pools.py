"""Machines that wait for creates: made by demand, claimed once, given back first."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace

import pytest
from tests.fakes.waiting import until
from tests.node.nodes import ROOMY, make_spec
from tests.node.pools.ponds import Pond

from aenv.models.errors import EngineError, NotFoundError
from aenv.models.sandboxes import NetworkPolicy, Resources
from aenv.node.machines import Machines
from aenv.node.pools import shelf


async def test_nothing_waits_before_the_first_create(pond: Pond):
    assert (pond.alive, pond.report().machines) == (set(), 0)


async def test_the_first_create_finds_none_and_the_second_one(pond: Pond):
    spec, first = await pond.create()
    await pond.filled()
    other, second = await pond.create()
    assert (first.pooled, second.pooled) == (False, True)
    assert second.restored is None
    assert {spec.sandbox_id, other.sandbox_id} <= pond.alive
    share = pond.report().shares[0]
    assert (share.template, share.hits, share.misses) == ("base", 1, 1)


async def test_who_waits_is_frozen_and_no_sandbox(pond: Pond):
    await pond.warm()
    (name,) = pond.alive
    assert pond.machine(name).is_frozen
    with pytest.raises(NotFoundError):
        await pond.node.set_network(name, NetworkPolicy())
    assert await pond.node.metrics(name) == []
    assert await pond.node.logs(name) == []
    assert not await pond.node.healthy(name)


async def test_it_is_told_who_it_is_when_it_is_claimed(pond: Pond):
    await pond.warm()
    policy = NetworkPolicy(allow_internet=False)
    spec, _ = await pond.create(env_vars={"A": "b"}, network=policy)
    machine = pond.machine(spec.sandbox_id)
    assert not machine.is_frozen
    assert machine.policies[-1] == policy
    (init,) = machine.agent.inits  # nobody told it anything before
    assert (init["sandboxId"], init["accessToken"]) == (spec.sandbox_id, "token")
    assert init["envVars"]["A"] == "b"
    assert init["nextVerifier"] == hashlib.sha256(b"secret").hexdigest()
    assert machine.agent.secrets != ["secret"]  # that of the pool, which is replaced


async def test_creates_at_once_never_get_the_same(pond: Pond):
    await pond.warm()
    claimed = await asyncio.gather(*(pond.claim() for _ in range(5)))
    assert len([name for name in claimed if name]) == 1


async def test_the_pool_grows_to_what_a_burst_would_have_used(pond: Pond):
    await asyncio.gather(*(pond.create() for _ in range(5)))
    await pond.filled(5)
    again = await asyncio.gather(*(pond.create() for _ in range(5)))
    assert all(running.pooled for _, running in again)


async def test_other_resources_get_another_machine(pond: Pond):
    await pond.warm()
    assert await pond.node.claim("base", Resources(disk_mb=777)) is None


async def test_a_claim_serves_what_was_claimed_only(pond: Pond):
    await pond.warm()
    claimed = await pond.claim()
    spec = make_spec(sandbox_id=claimed, resources=Resources(disk_mb=777))
    running = await pond.node.create(spec)
    assert (running.sandbox_id, running.pooled) == (claimed, False)


async def test_one_that_died_while_it_waited_is_not_handed_out(pond: Pond):
    await pond.warm()
    (name,) = pond.alive
    await pond.machine(name).die("killed")
    await until(lambda: pond.waiting() == 0)
    _, running = await pond.create()
    assert not running.pooled
    await until(lambda: name not in pond.alive)


@pytest.mark.parametrize("step", ["thaw", "init"])
async def test_one_that_is_dead_when_it_is_claimed_is_replaced(pond: Pond, step: str):
    await pond.warm()
    claimed = await pond.claim()
    assert claimed is not None
    dead = pond.machine(claimed)
    if step == "thaw":
        pond.bench.engine.errors["thaw"] = [EngineError("gone")]
    else:
        dead.agent.behaviour = replace(dead.agent.behaviour, init_status=500)
    running = await pond.node.create(make_spec(sandbox_id=claimed))
    assert (running.sandbox_id, running.pooled, running.note) == (claimed, False, None)
    assert pond.machine(claimed) is not dead
    assert pond.bench.engine.destroys.count(claimed) == 1


async def test_a_fault_of_the_pool_fails_no_create(pond: Pond, monkeypatch: pytest.MonkeyPatch):
    async def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    await pond.warm()
    monkeypatch.setattr(Machines, "hand_over", broken)
    spec, running = await pond.create()
    assert (running.pooled, spec.sandbox_id in pond.alive) == (False, True)


async def test_a_claim_that_nobody_uses_expires(pond: Pond, monkeypatch: pytest.MonkeyPatch):
    await pond.warm()
    monkeypatch.setattr(shelf, "CLAIM_LIFE", 0.0)
    claimed = await pond.claim()
    await until(lambda: claimed not in pond.alive)


async def test_a_claim_that_was_told_to_nobody_is_given_back(pond: Pond):
    await pond.warm()
    claimed = await pond.claim()
    assert claimed is not None
    await pond.node.unclaim(claimed)
    await pond.node.unclaim(claimed)
    assert await pond.claim() == claimed


async def test_a_kill_before_the_create_ends_the_claimed_machine(pond: Pond):
    await pond.warm()
    claimed = await pond.claim()
    assert claimed is not None
    await pond.node.destroy(claimed)
    assert claimed not in pond.alive


async def test_a_create_that_is_cancelled_leaves_nothing(pond: Pond):
    await pond.warm()
    claimed = await pond.claim()
    assert claimed is not None
    machine = pond.machine(claimed)
    pond.bench.engine.behaviour = replace(pond.bench.engine.behaviour, silent=True)

    async def silent_thaw() -> None:
        machine.is_frozen = False

    machine.thaw = silent_thaw  # type: ignore[method-assign]
    create = asyncio.create_task(pond.node.create(make_spec(sandbox_id=claimed)))
    await until(lambda: not machine.is_frozen)
    create.cancel()
    with pytest.raises(asyncio.CancelledError):
        await create
    assert claimed not in pond.alive
    assert pond.node._memos.read(claimed) is None


async def test_a_closed_node_leaves_none_that_wait(pond: Pond):
    _, running = await pond.create()
    await pond.filled()
    await pond.claim()
    await pond.node.close()
    assert pond.alive == {running.sandbox_id}
    await pond.start()


async def test_after_a_crash_the_next_server_reaps_them(pond: Pond):
    await pond.warm()
    (waiting,) = pond.alive
    crashed, pond.node = pond.node, pond.bench.node()
    adoption = await pond.node.start(())
    assert (adoption.reaped, adoption.running, pond.alive) == ((waiting,), (), set())
    assert pond.node._memos.read(waiting) is None
    await crashed.close()


async def test_they_are_the_first_to_give_memory_back(pond: Pond):
    _, running = await pond.create()
    await pond.node.pause(running.sandbox_id, "s" + running.sandbox_id[1:])
    await pond.filled()
    relieve = pond.node._memory.pressure.relieve
    assert await relieve()
    assert pond.alive == {running.sandbox_id}
    assert await relieve()
    assert pond.alive == set()
    assert not await relieve()
    assert pond.node._memory.pressure.relieved == {"pooled": 1, "hot": 1}


async def test_none_is_made_while_the_host_is_short(pond: Pond):
    await pond.create()
    await pond.filled()
    await pond.node._makers.pools.relieve()
    pond.bench.headroom = replace(ROOMY, memory=0)
    pools = pond.node._makers.pools
    assert not await pools._filling.possible(pools._demand.kinds()[0])


async def test_their_memory_counts_under_its_own_name(pond: Pond):
    await pond.create()
    await pond.filled()
    report = await pond.node.memory()
    assert (report.pooled.sandboxes, report.pooled.used, report.running.sandboxes) == (1, 5000, 1)
    info = await pond.node.info()
    assert (info.pools.machines, info.pools.memory) == (1, 5000)


async def test_no_more_wait_than_their_memory_allows(pond: Pond):
    await pond.close()
    pond.bench.warm_memory_mb = 1
    pond.bench.engine.memory_bytes = 700_000
    await pond.start()
    pond.node._makers.pools._shelf._sizes[_only_key(pond)] = 700_000
    await asyncio.gather(*(pond.create() for _ in range(4)))
    await pond.filled(1)
    assert pond.report().shares[0].wanted == 1


async def test_without_pools_nothing_waits(pond: Pond):
    await pond.close()
    pond.bench.warm_max, pond.bench.template_memory = 0, False
    await pond.start()
    await pond.create()
    assert await pond.claim() is None
    assert pond.node._makers.pools._keeper is None


async def test_they_go_when_nobody_asks_any_more(pond: Pond):
    await pond.close()
    pond.bench.warm_idle = 0.5
    await pond.start()
    await pond.claim()
    await pond.filled()
    await until(lambda: pond.alive == set())


async def test_they_go_with_their_template(pond: Pond):
    await pond.warm()
    await pond.node.delete_template("base")
    assert (pond.alive, pond.waiting()) == (set(), 0)


async def test_one_of_an_older_build_of_the_template_is_not_handed_out(pond: Pond):
    await pond.warm()
    pond.bench.images.ready["base"] = replace(pond.bench.images.ready["base"], digest="new")
    _, running = await pond.create()
    assert (running.pooled, running.template.digest) == (False, "new")


async def test_a_snapshot_that_is_started_often_has_machines_waiting(pond: Pond):
    source = await pond.node.create(make_spec(env_vars={"OF": "source"}))
    name = "s" + source.sandbox_id[1:]
    await pond.node.snapshot(source.sandbox_id, name)
    await pond.node.destroy(source.sandbox_id)
    await pond.create(snapshot=name)
    await pond.filled()
    spec, running = await pond.create(snapshot=name)
    assert (running.pooled, running.restored) == (True, "warm")
    init = pond.machine(spec.sandbox_id).agent.inits[-1]
    assert (init["restored"], "resumed" in init, init["envVars"]["OF"]) == (True, False, "source")
    await pond.filled()
    await pond.node.delete_snapshot(name)
    assert pond.waiting() == 0


def _only_key(pond: Pond):  # type: ignore[no-untyped-def]
    from tests.node.nodes import RESOURCES

    from aenv.node.pools import PoolKey

    return PoolKey("base", RESOURCES, "fake")
