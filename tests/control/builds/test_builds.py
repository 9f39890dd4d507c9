from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.control.builds.yards import (
    SIZE,
    TEAM,
    Yard,
    copy,
    env,
    run,
    user,
    workdir,
    zipped,
)

from aenv.control.builds.plans import Plan
from aenv.control.builds.service import BuildStatus, NewBuild
from aenv.models.errors import (
    AgentUnreachableError,
    CapacityError,
    ConflictError,
    InvalidRequestError,
    NotFoundError,
)
from aenv.models.settings import BuildSettings
from aenv.models.templates import GuestFacts, ImageFacts, TemplateInfo
from aenv.node.workbench import CopyTarget, Surroundings


async def test_steps_run_in_the_context_that_those_before_have_made(yard: Yard) -> None:
    content = zipped("archive")
    await yard.upload(content)

    build = await yard.build(
        env("A", "1", "B", "${A}2"),
        run("first"),
        workdir("srv"),
        workdir("app"),
        user("root"),
        run("second", "daemon"),
        copy("src", "lib", content, "", "0644"),
        start_cmd="serve",
        ready_cmd="up",
    )

    assert build.status is BuildStatus.READY, build
    script = yard.node.script
    assert [(c.command, c.user, c.cwd) for c in script.ran] == [
        ("first", "user", ""),
        ("second", "daemon", "/srv/app"),
        ("serve", "root", "/srv/app"),
        ("up", "root", "/srv/app"),
    ]
    assert script.ran[0].env == {"A": "1", "B": "12"}
    assert script.folders == [("/srv", "user"), ("/srv/app", "user")]
    assert script.copied == [(CopyTarget("src", "/srv/app/lib", "root", "", "0644"), content)]
    facts = GuestFacts("root", "/srv/app", {"A": "1", "B": "12"}, "serve", "up")
    assert (build.facts, script.declared) == (facts, [facts])
    assert yard.node.running == {}


async def test_a_create_starts_from_what_was_built(yard: Yard) -> None:
    build = await yard.build(run("a"), name="app:v1")
    await yard.build(run("b"))

    tagged = await yard.create(template="app:v1")
    other = await yard.create(template="default/app")
    by_id = await yard.create(template=build.template_id)
    await yard.settled()

    specs = yard.node.running
    assert specs[tagged.id].snapshot == build.snapshot_id
    assert specs[other.id].snapshot == specs[by_id.id].snapshot != build.snapshot_id
    assert (tagged.template_id, tagged.resources) == (build.template_id, SIZE)
    found = await yard.system.building.library.get(TEAM, "app")
    assert found is not None
    assert found.uses.count == 3
    with pytest.raises(InvalidRequestError):
        await yard.create(template="app", memory_mb=100)
    with pytest.raises(NotFoundError):
        await yard.create(template="app:v2")


async def test_steps_that_are_cached_are_not_done_again(yard: Yard) -> None:
    await yard.build(run("a"), env("X", "1"), run("b"), run("c"))
    yard.node.script.ran.clear()

    build = await yard.build(run("a"), env("X", "1"), run("b"), run("d"), name="other")

    assert yard.node.script.commands == ["d"]
    said = await yard.said(build)
    assert [line for line in said if line.startswith("CACHED")] == [
        "CACHED [builder 1/4] RUN a",
        "CACHED [builder 2/4] ENV X=…",
        "CACHED [builder 3/4] RUN b",
    ]


@pytest.mark.parametrize(
    ("steps", "options", "done"),
    [
        ([run("a"), run("b")], {"force": True}, ["a", "b"]),
        ([run("a"), run("b", force=True), run("c")], {}, ["b", "c"]),
        ([env("X", "2"), run("a"), run("b")], {}, ["a", "b"]),
        ([user("root"), run("a")], {}, ["a"]),
        ([workdir("/x"), run("a")], {}, ["a"]),
        ([run("a", "root")], {}, ["a"]),
        ([run("b"), run("a")], {}, ["b", "a"]),
        ([run("a"), run("b")], {}, []),
    ],
)
async def test_what_the_cache_goes_by(yard: Yard, steps, options, done) -> None:  # type: ignore[no-untyped-def]
    await yard.build(run("a"), run("b"), run("c"))
    yard.node.script.ran.clear()
    await yard.build(*steps, **options)
    assert yard.node.script.commands == done


async def test_another_template_below_is_another_cache(yard: Yard) -> None:
    await yard.build(run("a"), name="one")
    await yard.build(run("b"), name="two")
    yard.node.script.ran.clear()
    await yard.build(run("c"), name="x", template="one")
    await yard.build(run("c"), name="y", template="two")
    assert yard.node.script.commands == ["c", "c"]


async def test_changed_files_are_copied_again(yard: Yard) -> None:
    for text in ("one", "one", "two"):
        await yard.upload(zipped(text))
        await yard.build(copy("src", "/lib", zipped(text)))
    assert [content for _, content in yard.node.script.copied] == [zipped("one"), zipped("two")]


async def test_a_step_that_fails_is_named_and_those_before_are_kept(yard: Yard) -> None:
    yard.node.script.failing["b"] = 3

    build = await yard.build(run("a"), run("b"), run("c"))

    assert (build.status, build.step) == (BuildStatus.ERROR, "2")
    assert build.message == "failed to run command 'b': exit status 3"
    assert yard.node.running == {}
    said = await yard.said(build)
    assert "[builder 2/3] [stdout]: und" in said
    assert "[builder 2/3] [stderr]: möglich" in said
    with pytest.raises(NotFoundError):
        await yard.create(template="app")
    del yard.node.script.failing["b"]
    yard.node.script.ran.clear()
    assert (await yard.build(run("a"), run("b"), run("c"))).status is BuildStatus.READY
    assert yard.node.script.commands == ["b", "c"]


async def test_an_unknown_user_is_told_in_the_words_of_the_contract(yard: Yard) -> None:
    yard.node.script.refused.add("root123")
    build = await yard.build(run("whoami", "root123"))
    assert build.message == (
        "failed to run command 'whoami': command failed: unauthenticated: "
        "invalid username: 'root123'"
    )


async def test_files_that_are_not_there_fail_the_step(yard: Yard) -> None:
    build = await yard.build(copy("src", "/lib", b"never sent"))
    assert build.step == "1"
    assert "are not on the server" in str(build.message)


@pytest.mark.parametrize(
    ("failing", "start", "ready", "words"),
    [
        ({"serve": 4}, "serve", "up", "the start command 'serve' failed: exit status 4"),
        ({"up": 1}, "serve", "up", "the ready command 'up' did not succeed within 0.2 s"),
    ],
)
async def test_commands_of_the_template_that_fail(
    yard: Yard, failing: dict[str, int], start: str, ready: str, words: str
) -> None:
    yard.node.script.failing.update({"up": 1}, **failing)
    build = await yard.build(start_cmd=start, ready_cmd=ready)
    assert build.step == "finalize"
    assert str(build.message).startswith(words)
    assert yard.node.images == {}


async def test_a_sandbox_that_dies_under_a_build_fails_it(yard: Yard) -> None:
    yard.node.script.errors["a"] = AgentUnreachableError("the sandbox ended: killed")
    build = await yard.build(run("a"))
    assert (build.step, build.message) == ("1", "the sandbox ended: killed")
    assert yard.node.running == {}


async def test_a_disk_that_is_full_leaves_nothing(yard: Yard) -> None:
    from aenv.models.errors import DiskFullError

    yard.node.knobs.snapshot_errors.append(DiskFullError("no room"))
    build = await yard.build(run("a"))
    assert build.message == "no room"
    assert (yard.node.images, yard.node.running, await yard.layer_keys()) == ({}, {}, [])


async def test_a_host_without_room_is_waited_for(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    from aenv.control.builds import benches

    monkeypatch.setattr(benches, "ROOM_PAUSE", 0.01)
    yard.node.knobs.create_errors.append(CapacityError("no memory"))
    build = await yard.build(run("a"))
    assert build.status is BuildStatus.READY
    assert "waiting for room on the host: no memory" in await yard.said(build)


async def test_an_image_is_given_its_user_once(yard: Yard) -> None:
    image = ImageFacts(user="", workdir="", env={"PATH": "/x"}, cmd=("serve",))
    yard.node.infos["tool:1"] = TemplateInfo(
        "tool:1", "sha256:t", 1, 1.0, default_user="root", env={"PATH": "/x"}, image=image
    )
    first = await yard.build(run("a"), template=None, image="tool:1")
    await yard.build(run("b"), name="other", template=None, image="docker.io/library/tool:1")
    assert yard.node.script.users == ["user"]
    assert [dict(one.env) for one in yard.node.script.ran] == [{"PATH": "/x"}] * 2
    assert first.image == image
    assert first.facts == GuestFacts("user", "", {"PATH": "/x"})


async def test_the_start_command_below_is_inherited_unless_another_is_named(yard: Yard) -> None:
    await yard.build(name="parent", start_cmd="serve", ready_cmd="up")
    child = await yard.build(name="child", template="parent")
    other = await yard.build(name="other", template="parent", start_cmd="else")
    assert child.facts == GuestFacts(start_cmd="serve", ready_cmd="up")
    assert other.facts == GuestFacts(start_cmd="else")


async def test_e2bs_base_image_means_ours(yard: Yard) -> None:
    build = await yard.build(template=None, image="e2bdev/base:latest")
    assert build.status is BuildStatus.READY


async def test_two_equal_builds_at_once_do_each_step_once(yard: Yard) -> None:
    gate = yard.node.script.gates["a"] = asyncio.Event()
    one = await yard.begin(run("a"), run("b"), name="one")
    other = await yard.begin(run("a"), run("b"), name="other")
    async with asyncio.timeout(5):
        while not yard.node.script.ran:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    gate.set()
    assert {(await yard.end(b)).status for b in (one, other)} == {BuildStatus.READY}
    assert sorted(yard.node.script.commands) == ["a", "b"]


async def test_a_step_that_another_build_failed_at_is_done_by_the_next(yard: Yard) -> None:
    gate = yard.node.script.gates["a"] = asyncio.Event()
    yard.node.script.errors["a"] = AgentUnreachableError("gone")
    one, other = [await yard.begin(run("a"), name=name) for name in ("one", "other")]
    gate.set()
    found = {(await yard.end(build)).status for build in (one, other)}
    assert found == {BuildStatus.READY, BuildStatus.ERROR}


async def test_builds_beyond_the_limit_wait(yard: Yard) -> None:
    gate = asyncio.Event()
    for name in ("one", "two"):
        yard.node.script.gates[name] = gate
        await yard.begin(run(name), name=name)
    waiting = await yard.begin(run("quick"), name="late")
    async with asyncio.timeout(5):
        while len(yard.node.script.ran) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    _, now = await yard.system.building.builds.get(TEAM, waiting.template_id, waiting.id)
    assert now.status is BuildStatus.WAITING
    gate.set()
    assert (await yard.end(waiting)).status is BuildStatus.READY


async def test_a_build_that_is_cancelled_ends_its_sandbox(yard: Yard) -> None:
    yard.node.script.gates["a"] = asyncio.Event()
    build = await yard.begin(run("a"))
    async with asyncio.timeout(5):
        while not yard.node.script.ran:  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    await yard.system.building.builds.cancel(TEAM, build.template_id, build.id)

    build = await yard.end(build)
    assert (build.status, build.message) == (BuildStatus.ERROR, "the build was cancelled")
    assert yard.node.running == {}


async def test_a_server_that_dies_in_a_build_fails_it_and_keeps_the_steps(yard: Yard) -> None:
    yard.node.script.gates["b"] = asyncio.Event()
    build = await yard.begin(run("a"), run("b"))
    async with asyncio.timeout(5):
        while "b" not in yard.node.script.commands:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    for task in yard.system.building.builds._tasks.values():
        task.get_loop().call_soon(lambda: None)
    await yard.abandon()
    assert yard.node.running

    await yard.restart()

    now = await yard.end(build)
    assert "the server was stopped during the build" in str(now.message)
    assert yard.node.running == {}
    assert len(yard.node.images) == len(await yard.layer_keys()) == 1
    assert (await yard.build(run("a"), run("c"))).status is BuildStatus.READY
    assert yard.node.script.commands == ["c"]


async def test_a_server_that_is_stopped_ends_its_builds(yard: Yard) -> None:
    yard.node.script.gates["a"] = asyncio.Event()
    build = await yard.begin(run("a"))
    async with asyncio.timeout(5):
        while not yard.node.script.ran:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    await yard.system.close()
    assert yard.node.running == {}
    await yard.restart()
    assert "stopped during the build" in str((await yard.end(build)).message)


async def test_a_build_is_told_its_steps_once(yard: Yard) -> None:
    build = await yard.build(run("a"))
    with pytest.raises(ConflictError):
        await yard.system.building.builds.start(
            TEAM, build.template_id, build.id, Plan(template="base")
        )


@pytest.mark.parametrize("name", ["Ups", "", "a b", "other/app", "app:UP", "x" * 200, "a:b:c"])
async def test_names_that_are_none(yard: Yard, name: str) -> None:
    with pytest.raises(InvalidRequestError):
        await yard.request(name)


async def test_names_of_other_nouns_are_refused(yard: Yard) -> None:
    sandbox = await yard.create()
    await yard.snapshot(sandbox.id, "kept")
    for name in ("base", "kept"):
        with pytest.raises(ConflictError):
            await yard.request(name)
    await yard.request("app")
    with pytest.raises(ConflictError):
        await yard.snapshot(sandbox.id, "app")


@pytest.mark.parametrize(
    "plan",
    [
        Plan(),
        Plan(template="base", image="python"),
        Plan((run(""),), template="base"),
        Plan((run("a\0"),), template="base"),
        Plan((run("x" * 200_000),), template="base"),
        Plan((env("A"),), template="base"),
        Plan((env("A=B", "x"),), template="base"),
        Plan((copy("a", "b", b"", "", "rw"),), template="base"),
        Plan((run("a"),) * 1001, template="base"),
    ],
)
async def test_plans_that_make_no_sense(yard: Yard, plan: Plan) -> None:
    build = await yard.request()
    with pytest.raises(InvalidRequestError):
        await yard.system.building.builds.start(TEAM, build.template_id, build.id, plan)
    await yard.system.building.builds.start(
        TEAM, build.template_id, build.id, Plan(template="base")
    )
    assert (await yard.end(build)).status is BuildStatus.READY


async def test_variables_that_make_no_sense_fail_the_build(yard: Yard) -> None:
    build = await yard.build(env("A", "${B:?it is needed}"))
    assert build.message == "B: it is needed"


async def test_a_template_that_is_deleted_takes_its_builds_along(yard: Yard) -> None:
    await yard.build(run("a"))
    yard.node.script.gates["b"] = asyncio.Event()
    await yard.begin(run("a"), run("b"))

    assert await yard.system.building.builds.delete(TEAM, "app")

    await yard.settled()
    assert await yard.system.building.library.get(TEAM, "app") is None
    assert yard.node.running == {}
    assert len(yard.node.images) == len(await yard.layer_keys())
    assert not await yard.system.building.builds.delete(TEAM, "app")


async def test_a_new_build_takes_the_tag_and_the_old_image_is_freed(yard: Yard) -> None:
    old = await yard.build(run("a"))
    kept = await yard.build(run("b"), name="app:v1")
    new = await yard.build(run("c"))
    await yard.settled()
    assert old.snapshot_id not in yard.node.images
    assert {kept.snapshot_id, new.snapshot_id} <= set(yard.node.images)


async def test_old_builds_are_forgotten_with_their_logs(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    from aenv.control.builds import service

    monkeypatch.setattr(service, "KEPT_BUILDS", 3)
    tagged = await yard.build(name="app:v1")
    others = []
    for _ in range(5):
        yard.clock.pass_time(1)
        others.append(await yard.build())
    template = await yard.system.building.library.get(TEAM, "app")
    assert template is not None
    kept = [one.id for one in template.builds]
    assert set(kept) == {tagged.id, *(one.id for one in others[-3:])}
    logs = {path.stem for path in (yard.root / "data" / "builds" / "logs").iterdir()}
    assert logs == set(kept)
    (yard.root / "data" / "builds" / "logs" / "gone.jsonl").write_text("")
    await yard.abandon()
    await yard.restart()
    assert {p.stem for p in (yard.root / "data" / "builds" / "logs").iterdir()} == set(kept)


async def test_a_template_outlives_a_restart(yard: Yard) -> None:
    build = await yard.build(run("a"))
    await yard.abandon()
    await yard.restart()
    sandbox = await yard.create(template="app")
    assert yard.node.running[sandbox.id].snapshot == build.snapshot_id


async def test_another_teams_template_is_found_once_it_is_public(yard: Yard) -> None:
    library = yard.system.building.library
    await yard.build(run("a"))
    assert await library.find("others", "default/app") is None
    await library.publish(TEAM, "app", True)
    assert await library.find("others", "default/app") is not None
    assert await library.find("others", "app") is None
    assert not await yard.system.building.builds.delete("others", "default/app")


async def test_teams_share_no_cached_steps(yard: Yard) -> None:
    await yard.build(run("a"))
    builds = yard.system.building.builds
    _, build = await builds.request("others", NewBuild("app", SIZE))
    await builds.start("others", build.template_id, build.id, Plan((run("a"),), template="base"))
    async with asyncio.timeout(5):
        while build.id in builds._tasks:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert yard.node.script.commands == ["a", "a"]


AROUND = Surroundings(
    env={"PIP_INDEX_URL": "https://mirror/simple", "PIP_CERT": "/x"},
    files={"npmrc": b"registry=https://mirror", "apt.conf": b"conf", "sources.list": b"@SUITE@"},
    openings=("10.1.2.3/32:443",),
    notes=("here:1 is on this host's loopback",),
)


@pytest.mark.parametrize("debian", [True, False])
async def test_steps_reach_registries_as_the_host_does_if_the_build_asks(
    yard: Yard, debian: bool
) -> None:
    yard.node.around = AROUND
    if debian:
        release = b"ID=debian\nVERSION_CODENAME=trixie\n"
        yard.node.script.outputs["('/bin/cat', '/etc/os-release')"] = release

    build = await yard.build(env("PIP_CERT", "mine"), run("a"), host_registries=True)

    assert build.status is BuildStatus.READY
    ran = next(one for one in yard.node.script.ran if one.command == "a")
    wanted = {"PIP_INDEX_URL": "https://mirror/simple", "PIP_CERT": "mine"}
    written = {"/dev/shm/aenv-build/npmrc": b"registry=https://mirror"}
    if debian:
        wanted["APT_CONFIG"] = "/dev/shm/aenv-build/apt.conf"
        written["/dev/shm/aenv-build/apt.conf"] = b"conf"
        written["/dev/shm/aenv-build/sources.list"] = b"trixie"
    assert ran.env == wanted
    assert yard.node.script.written == written
    assert build.facts == GuestFacts(env={"PIP_CERT": "mine"})
    assert yard.node.opened == [("10.1.2.3/32:443",), ()]
    assert "here:1 is on this host's loopback" in await yard.said(build)


@pytest.mark.parametrize(
    ("setting", "asked", "given"),
    [("ask", False, False), ("always", False, True), ("never", True, False)],
)
async def test_the_operator_decides_whether_builds_may(
    tmp_path: Path, setting: str, asked: bool, given: bool
) -> None:
    yard = Yard(tmp_path, options={"builds": BuildSettings(host_registries=setting)})
    await yard.open()
    yard.node.around = AROUND
    await yard.build(run("a"), host_registries=asked)
    ran = next(one for one in yard.node.script.ran if one.command == "a")
    assert ("PIP_INDEX_URL" in ran.env) is given
    await yard.system.close()
