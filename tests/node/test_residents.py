"""Sandboxes that end by themselves, and those that outlive the server."""

from __future__ import annotations

import asyncio

import pytest
from tests.fakes.waiting import until_equal
from tests.node.nodes import Bench, adopt_request, make_spec

from aenv.models.errors import Culprit
from aenv.node import adoptions
from aenv.node.local import LocalNode


async def test_a_death_is_told_once_and_cleaned_up(bench: Bench, node: LocalNode):
    spec = make_spec()
    await node.create(spec)
    await bench.engine.machines[spec.sandbox_id].die("init exited", code=3)
    exits = aiter(node.exits())
    end = await asyncio.wait_for(anext(exits), 5)
    assert (end.sandbox_id, end.code, end.culprit) == (spec.sandbox_id, 3, Culprit.POLICY)
    await node.destroy(spec.sandbox_id)
    assert not bench.engine.alive
    logs = await node.logs(spec.sandbox_id, search="ended")
    assert [entry.message for entry in logs] == ["the sandbox ended: init exited"]


async def test_a_wanted_end_is_not_told(bench: Bench, node: LocalNode):
    wanted, unwanted = make_spec(), make_spec()
    await node.create(wanted)
    await node.create(unwanted)
    await node.destroy(wanted.sandbox_id)
    await bench.engine.machines[unwanted.sandbox_id].die("crashed")
    end = await asyncio.wait_for(anext(aiter(node.exits())), 5)
    assert end.sandbox_id == unwanted.sandbox_id


async def test_a_restart_adopts_the_living_reports_the_dead_and_reaps_the_rest(bench: Bench):
    before = bench.node()
    await before.start(())
    lives, dies, unknown, gone = (make_spec() for _ in range(4))
    for spec in (lives, dies, unknown):
        await before.create(spec)
    await before.close()
    await bench.engine.machines[dies.sandbox_id].die("init exited", code=7)

    after = bench.node()
    adopted = await after.start(tuple(adopt_request(spec) for spec in (lives, dies, gone)))
    assert [running.sandbox_id for running in adopted.running] == [lives.sandbox_id]
    assert {(end.sandbox_id, end.code) for end in adopted.ended} == {
        (dies.sandbox_id, 7),
        (gone.sandbox_id, None),
    }
    assert adopted.reaped == (unknown.sandbox_id,)
    assert bench.engine.alive == {lives.sandbox_id}
    await after.destroy(lives.sandbox_id)
    assert not bench.engine.alive
    await after.close()


async def test_close_leaves_sandboxes_running(bench: Bench):
    node = bench.node()
    await node.start(())
    spec = make_spec()
    await node.create(spec)
    await node.close()
    assert bench.engine.alive == {spec.sandbox_id}
    await bench.engine.machines[spec.sandbox_id].destroy()


async def test_a_hanging_guest_is_alive_and_adopted(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(adoptions, "PROBE_TIMEOUT", 0.05)
    monkeypatch.setattr(adoptions, "_EXIT_IS_KNOWN", 0.05)
    before = bench.node()
    await before.start(())
    spec = make_spec()
    await before.create(spec)
    await before.close()
    bench.engine.behaviour.silent = True
    after = bench.node()
    adopted = await after.start((adopt_request(spec),))
    assert [running.sandbox_id for running in adopted.running] == [spec.sandbox_id]
    await after.destroy(spec.sandbox_id)
    await after.close()


async def test_logs_are_kept_and_go_on_after_a_restart(bench: Bench):
    before = bench.node()
    await before.start(())
    spec = make_spec()
    await before.create(spec)
    agent = bench.engine.machines[spec.sandbox_id].agent
    agent.say("one")
    await until_logged(before, spec.sandbox_id, ["one"])
    await before.close()
    agent.say("two")
    after = bench.node()
    await after.start((adopt_request(spec),))
    await until_logged(after, spec.sandbox_id, ["one", "two"])
    await after.destroy(spec.sandbox_id)
    assert len(await after.logs(spec.sandbox_id)) == 2
    await after.forget(spec.sandbox_id)
    assert await after.logs(spec.sandbox_id) == []
    await after.close()


async def until_logged(node: LocalNode, sandbox_id: str, messages: list[str]) -> None:
    async def logged() -> list[str]:
        return [entry.message for entry in await node.logs(sandbox_id)]

    await until_equal(logged, messages)
