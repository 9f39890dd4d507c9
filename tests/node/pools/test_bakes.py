"""Memory images of templates: made behind the creates, and nobody's snapshots."""

from __future__ import annotations

from dataclasses import replace

from tests.fakes.waiting import until
from tests.node.nodes import make_spec
from tests.node.pools.ponds import Pond

from aenv.models.errors import ImageUnusableError


async def baked(pond: Pond, template: str = "busy") -> str:
    """The name of the template's image, once it is there and a machine of it waits."""
    await pond.warm(template)
    images = [one.manifest for one in pond.node._makers.bakes.store.all()]
    (name,) = [facts.id for facts in images if facts.template == template]
    return name


async def test_a_template_with_a_start_command_is_baked_once(pond: Pond):
    first, _ = await pond.create("busy")
    await pond.filled(1, "busy")
    engine = pond.bench.engine
    assert (engine.done.count("checkpoint"), engine.done.count("restore")) == (1, 1)
    assert pond.machine(first.sandbox_id).agent.started == ["serve"]
    spec, running = await pond.create("busy")
    assert (running.pooled, running.restored) == (True, None)
    assert pond.machine(spec.sandbox_id).agent.started == []  # it is in the memory
    await pond.filled(1, "busy")
    assert engine.done.count("checkpoint") == 1


async def test_a_create_that_finds_none_waiting_restores_the_image(pond: Pond):
    await baked(pond)
    spec, running = await pond.create("busy", resources=make_spec().resources)
    other = make_spec(template="busy")
    running = await pond.node.create(other)
    assert (running.pooled, running.restored, running.note) == (False, None, None)
    machine = pond.machine(other.sandbox_id)
    assert machine.agent.started == []
    (init,) = machine.agent.inits
    assert init["restored"]
    assert "resumed" not in init
    assert init["lifeId"] != pond.machine(spec.sandbox_id).agent.inits[-1]["lifeId"]


async def test_what_bakes_is_ended_and_its_image_no_snapshot(pond: Pond):
    name = await baked(pond)
    assert len(pond.alive) == 1  # the one that waits
    assert await pond.node.snapshots() == []
    assert name in pond.bench.engine.disks
    report = pond.report()
    assert report.images == 1
    assert report.image_bytes > 0


async def test_it_survives_a_restart(pond: Pond):
    name = await baked(pond)
    await pond.close()
    await pond.start()
    assert name in pond.bench.engine.disks
    spec = make_spec(template="busy")
    await pond.node.create(spec)
    assert pond.machine(spec.sandbox_id).agent.started == []


async def test_one_that_serves_no_more_is_dropped_at_the_start(pond: Pond):
    await baked(pond)
    await pond.close()
    pond.bench.images.ready["busy"] = replace(pond.bench.images.ready["busy"], digest="new")
    await pond.start()
    assert (pond.report().images, pond.bench.engine.disks) == (0, {})


async def test_one_of_another_release_is_dropped_at_the_start(pond: Pond):
    await baked(pond)
    await pond.close()
    pond.bench.engine.release = "2"
    await pond.start()
    assert (pond.report().images, pond.bench.engine.disks) == (0, {})


async def test_it_goes_with_its_template(pond: Pond):
    await baked(pond)
    await pond.node.delete_template("busy")
    assert (pond.report().images, pond.bench.engine.disks, pond.alive) == (0, {}, set())


async def test_one_that_cannot_be_restored_is_baked_anew_once(pond: Pond):
    await baked(pond)
    engine = pond.bench.engine
    engine.errors["restore"] = [ImageUnusableError("damaged")]
    other = make_spec(template="busy")
    running = await pond.node.create(other)
    assert "damaged" in (running.note or "")
    assert pond.machine(other.sandbox_id).agent.started == ["serve"]
    await until(lambda: pond.report().images == 0)
    await pond.claim("busy")
    await until(lambda: engine.done.count("checkpoint") == 2)
    await pond.filled(1, "busy")
    engine.errors["restore"] = [ImageUnusableError("damaged")]
    await pond.node.create(make_spec(template="busy"))
    await pond.claim("busy")
    await pond.filled(1, "busy")  # by a boot
    assert engine.done.count("checkpoint") == 2


async def test_a_snapshot_without_usable_memory_is_baked(pond: Pond):
    source = await pond.node.create(make_spec(template="busy"))
    name = "s" + source.sandbox_id[1:]
    pond.machine(source.sandbox_id).disk = "kept"
    await pond.node.snapshot(source.sandbox_id, name)
    engine = pond.bench.engine
    engine.errors["restore"] = [ImageUnusableError("another CPU")] * 2
    _, first = await pond.create("busy", snapshot=name)
    assert (first.restored, "another CPU" in (first.note or "")) == ("disk", True)
    await until(lambda: pond.report().images == 1)
    spec = replace(make_spec(template="busy"), snapshot=name)
    second = await pond.node.create(spec)
    assert (second.restored, second.note) == ("warm", None)
    assert pond.machine(spec.sandbox_id).disk == "kept"
    assert pond.machine(spec.sandbox_id).agent.started == []
    await pond.node.delete_snapshot(name)
    assert pond.report().images == 0


async def test_without_the_setting_nothing_is_baked(pond: Pond):
    await pond.close()
    pond.bench.template_memory = False
    await pond.start()
    await pond.warm("busy")
    spec, running = await pond.create("busy")
    assert running.pooled
    machine = pond.machine(spec.sandbox_id)
    assert machine.agent.started == ["serve"]  # while it waited
    assert [init.get("restored", False) for init in machine.agent.inits] == [False, True]
    assert "checkpoint" not in pond.bench.engine.done
