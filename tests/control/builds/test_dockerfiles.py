"""What only Dockerfiles ask of builds."""

from __future__ import annotations

from dataclasses import replace

from tests.control.builds.yards import Yard, copy, env, run, user, workdir, zipped

from aenv.control.builds.plans import DockerPlan, DockerStage, DockerStep, Step, StepType
from aenv.control.builds.service import BuildRecord, BuildStatus
from aenv.models.templates import GuestFacts, ImageFacts, TemplateInfo
from aenv.node.workbench import CopyTarget


def docker(step: Step, **options: object) -> Step:
    return replace(step, docker=DockerStep(**options))  # type: ignore[arg-type]


async def build(yard: Yard, *steps: Step, plan: DockerPlan, **options: object) -> BuildRecord:
    return await yard.build(*steps, template=None, docker=plan, **options)


def an_image(yard: Yard, name: str = "tool:1", **facts: object) -> None:
    said = ImageFacts(**facts)  # type: ignore[arg-type]
    yard.node.infos[name] = TemplateInfo(name, f"sha256:{name}", 1, 1.0, env=said.env, image=said)


async def test_a_dockerfile_begins_as_its_image_says(yard: Yard) -> None:
    an_image(yard, user="app", workdir="/srv", env={"A": "1"})
    an_image(yard, "plain:1")
    await build(yard, docker(run("a")), plan=DockerPlan("tool:1"))
    await build(yard, docker(run("b")), plan=DockerPlan("plain:1"))
    await build(yard, docker(run("c")), plan=DockerPlan("base"))
    assert [(c.user, c.cwd, dict(c.env)) for c in yard.node.script.ran] == [
        ("app", "/srv", {"A": "1"}),
        ("root", "/", {}),
        ("root", "/", {}),
    ]


async def test_arguments_are_variables_of_steps_and_weaker_than_env(yard: Yard) -> None:
    arguments = {"WHO": "world", "A": "arg"}
    done = await build(
        yard,
        docker(env("A", "env", "B", "$A-$WHO"), variables=arguments),
        docker(run("a"), argv=("/bin/sh", "-c", "a"), variables=arguments),
        docker(workdir("/srv/$WHO"), variables=arguments),
        docker(user("${NOBODY:-root}")),
        plan=DockerPlan("base"),
    )
    (ran,) = yard.node.script.ran
    assert ran.argv == ("/bin/sh", "-c", "a")
    assert ran.env == {"WHO": "world", "A": "env", "B": "arg-world"}
    assert done.facts == GuestFacts("root", "/srv/world", {"A": "env", "B": "arg-world"})
    yard.node.script.ran.clear()
    await build(
        yard,
        docker(env("A", "env", "B", "$A-$WHO"), variables=arguments),
        docker(run("a"), argv=("/bin/sh", "-c", "a"), variables={"WHO": "you"}),
        plan=DockerPlan("base"),
    )
    assert len(yard.node.script.ran) == 1, "other arguments are another step"


async def test_files_belong_to_root_unless_said_otherwise(yard: Yard) -> None:
    await yard.upload(zipped("x"))
    await build(
        yard,
        docker(user("app")),
        docker(copy("a", "$D/", zipped("x")), variables={"D": "/srv"}),
        docker(copy("a", "b", zipped("x"), "app:app", "0755")),
        plan=DockerPlan("base"),
    )
    assert [target for target, _ in yard.node.script.copied] == [
        CopyTarget("a", "/srv/", "app", "0:0", ""),
        CopyTarget("a", "/b", "app", "app:app", "0755"),
    ]


async def test_a_stage_takes_files_of_another(yard: Yard) -> None:
    an_image(yard)
    stages = (
        DockerStage("build", "base", (docker(run("make")),)),
        DockerStage("more", "build", (docker(run("more")),)),
    )
    take = Step(StepType.COPY, ("/out", "/in", "", ""), docker=DockerStep(stage="more"))

    done = await build(yard, take, docker(run("last")), plan=DockerPlan("tool:1", stages))

    script = yard.node.script
    assert done.status is BuildStatus.READY, done
    assert (script.commands, script.packed) == (["make", "more", "last"], ["/out"])
    assert script.copied == [(CopyTarget("/out", "/in", "root", "0:0"), b"packed /out ")]
    said = await yard.said(done)
    assert "[more 1/1] RUN more" in said
    script.ran.clear()
    again = await build(yard, take, docker(run("last")), plan=DockerPlan("tool:1", stages))
    assert (script.commands, script.packed) == ([], ["/out"]), await yard.said(again)
    changed = (replace(stages[0], steps=(docker(run("make it")),)), stages[1])
    await build(yard, take, docker(run("last")), plan=DockerPlan("tool:1", changed))
    assert script.commands == ["make it", "more", "last"]


async def test_the_last_stage_may_start_from_another(yard: Yard) -> None:
    stages = (DockerStage("one", "base", (docker(env("A", "1")), docker(run("a")))),)
    done = await build(yard, docker(run("b")), plan=DockerPlan("one", stages))
    assert yard.node.script.commands == ["a", "b"]
    assert done.facts is not None
    assert done.facts.env == {"A": "1"}


async def test_a_step_of_an_earlier_stage_that_fails_is_named(yard: Yard) -> None:
    yard.node.script.failing["b"] = 1
    stages = (DockerStage("one", "base"), DockerStage("two", "base", (docker(run("b")),)))
    done = await build(yard, plan=DockerPlan("base", stages))
    assert (done.status, done.step) == (BuildStatus.ERROR, "1/1")


async def test_a_cache_goes_from_one_build_to_the_next(yard: Yard) -> None:
    script = yard.node.script
    script.outputs["/cache"] = b"first"
    await build(yard, docker(run("a"), caches=("/cache",)), plan=DockerPlan("base"))
    assert (script.copied, script.covered) == ([], [])
    await build(yard, docker(run("b"), caches=("/cache",)), plan=DockerPlan("base"))
    kept = CopyTarget("/cache", "/cache", "root", "=")
    assert (script.copied, script.covered) == ([(kept, b"packed /cache first")], [])


async def test_what_the_image_says_of_itself_is_kept_and_can_be_started(yard: Yard) -> None:
    an_image(yard, entrypoint=("/entry",), cmd=("below",), ports=("80/tcp",))
    own = DockerPlan("tool:1", image=ImageFacts(cmd=("serve", "a b"), ports=("81/tcp",)))
    done = await build(yard, plan=own, start_image=True, ready_cmd="up")
    assert done.image is not None
    assert done.image.ports == ("80/tcp", "81/tcp")
    assert done.facts is not None
    assert done.facts.start_cmd == "/entry serve 'a b'"
    assert done.facts.start == ("/entry", "serve", "a b"), "no shell is needed"
    assert done.facts.start in [one.command for one in yard.node.script.ran]
    quiet = await build(yard, plan=own)
    assert quiet.facts is not None
    assert quiet.facts.start_cmd is None
    other = DockerPlan("tool:1", image=ImageFacts(entrypoint=("new",)))
    forgot = await build(yard, plan=other, start_image=True, ready_cmd="up")
    assert forgot.facts is not None
    assert forgot.facts.start_cmd == "new", "an ENTRYPOINT forgets the CMD below"
    none = await build(yard, plan=DockerPlan("base"), start_image=True)
    assert none.message == "the image has no ENTRYPOINT or CMD to start"


async def test_a_template_of_ours_is_found_by_its_name(yard: Yard) -> None:
    await yard.build(run("x"), name="mine")
    done = await build(yard, docker(run("y")), plan=DockerPlan("mine"), name="other")
    assert done.status is BuildStatus.READY
    assert yard.node.script.commands == ["x", "y"]
