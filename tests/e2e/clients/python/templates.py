"""Building templates, and starting from them."""

import asyncio
import tempfile
import uuid
from pathlib import Path

from e2b import (
    AsyncSandbox,
    AsyncTemplate,
    BuildException,
    Sandbox,
    SandboxException,
    Template,
    wait_for_file,
    wait_for_port,
)
from scenarios import SDK, raises, scenario, until

SIZE = {"cpu_count": 1, "memory_mb": 512}


def _name() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


def _context() -> Path:
    folder = Path(tempfile.mkdtemp())
    (folder / "app" / "lib").mkdir(parents=True)
    (folder / "app" / "main.py").write_text("print('main')\n")
    (folder / "app" / "lib" / "a.py").write_text(f"# {uuid.uuid4()}\n")
    (folder / "notes.txt").write_text("notes\n")
    (folder / "app" / "secret.txt").write_text("not sent\n")
    (folder / ".dockerignore").write_text("**/secret.txt\n")
    return folder


def _build(template, name, **options) -> list[str]:
    """What the log says."""
    said: list[str] = []
    options = {**SIZE, **options, "on_build_logs": lambda entry: said.append(entry.message)}
    Template.build(template, name, **options)
    return said


def _failing(template, name) -> tuple[BuildException, list[str]]:
    said: list[str] = []
    error = raises(
        BuildException,
        lambda: Template.build(
            template, name, **SIZE, on_build_logs=lambda entry: said.append(entry.message)
        ),
    )
    return error, said


@scenario
def steps_make_what_sandboxes_start_from():
    name = _name()
    template = (
        Template(file_context_path=str(_context()))
        .from_template("base")
        .set_envs({"COLOUR": "red", "MIXED": "${COLOUR}-blue"})
        .run_cmd("echo $MIXED > /home/user/colours")
        .set_workdir("/srv/work")
        .copy("app", "code")
        .copy("notes.txt", "/etc/notes/", user="root", mode=0o600)
        .set_user("root")
        .run_cmd("id -u > /root-was-here")
        .set_user("user")
        .set_start_cmd("python3 -m http.server 8123", wait_for_port(8123))
    )
    said = _build(template, name)
    assert any("RUN echo $MIXED" in line for line in said), said
    with Sandbox.create(name, timeout=120) as sandbox:
        ran = sandbox.commands.run
        assert ran("whoami; pwd").stdout == "user\n/srv/work\n"
        assert ran("cat /home/user/colours; echo $COLOUR").stdout == "red-blue\nred\n"
        assert ran("find code | sort").stdout.split() == [
            *("code", "code/lib", "code/lib/a.py", "code/main.py")
        ]
        assert ran("stat -c %U:%a code/main.py").stdout == "user:644\n"
        assert ran("sudo stat -c %U:%a /etc/notes/notes.txt").stdout == "root:600\n"
        assert ran("cat /root-was-here").stdout == "0\n"
        served = ran("curl -s localhost:8123/code/main.py").stdout
        assert served == "print('main')\n", served
        assert (sandbox.get_info().cpu_count, sandbox.get_info().name) == (1, name)


@scenario
def a_build_goes_on_from_the_steps_that_are_cached():
    name, context = _name(), _context()
    mark = uuid.uuid4().hex

    def template(last: str):
        return (
            Template(file_context_path=str(context))
            .from_template("base")
            .run_cmd(f"echo {mark}; head -c 8 /dev/urandom | od -An -tx1 > /home/user/once")
            .copy("app", "/home/user/app")
            .run_cmd(last)
        )

    def once() -> str:
        with Sandbox.create(name, timeout=60) as sandbox:
            return sandbox.files.read("/home/user/once")

    _build(template("echo one"), name)
    first = once()
    said = _build(template("echo two"), name)
    cached = [line for line in said if line.startswith("CACHED")]
    assert len(cached) == 2, said
    assert once() == first
    (context / "app" / "main.py").write_text("changed\n")
    said = _build(template("echo two"), name)
    assert len([line for line in said if line.startswith("CACHED")]) == 1, said
    _build(template("echo two"), name, skip_cache=True)
    assert once() != first


@scenario
def a_step_that_fails_is_named_with_its_words():
    name = _name()
    template = Template().from_template("base").run_cmd("echo before").run_cmd("echo why; exit 3")
    error, said = _failing(template, name)
    assert str(error) == "failed to run command 'echo why; exit 3': exit status 3"
    assert any(line.endswith("why") for line in said), said
    raises(SandboxException, lambda: Sandbox.create(name))


@scenario
def an_unknown_user_is_refused_in_the_words_of_e2b():
    template = Template().from_template("base").run_cmd("whoami", user="root123")
    error, _ = _failing(template, _name())
    wanted = "command failed: unauthenticated: invalid username: 'root123'"
    assert str(error) == f"failed to run command 'whoami': {wanted}"


@scenario
def a_build_in_the_background_is_followed():
    name = _name()
    template = (
        Template()
        .from_template("base")
        .set_start_cmd("sleep 1; touch /tmp/up; sleep 1000", wait_for_file("/tmp/up"))
    )
    info = Template.build_in_background(template, name, **SIZE)

    def over():
        found = Template.get_build_status(info)
        return found if found.status.value not in ("building", "waiting") else None

    status = until(over, timeout=120)
    assert status.status.value == "ready", status
    assert [entry.message for entry in status.log_entries]
    offset = len(status.log_entries)
    assert Template.get_build_status(info, logs_offset=offset).log_entries == []
    with Sandbox.create(info.template_id, timeout=60) as sandbox:
        assert sandbox.files.exists("/tmp/up")
        assert [one for one in sandbox.commands.list() if "touch /tmp/up" in str(one.args)]


@scenario
def tags_name_builds():
    name = _name()
    plain = Template().from_template("base")
    _build(plain.run_cmd("echo one > /home/user/v"), f"{name}:one", tags=["stable"])
    assert Template.exists(name)
    assert not Template.exists(_name())
    raises(SandboxException, lambda: Sandbox.create(name))
    _build(Template().from_template("base").run_cmd("echo two > /home/user/v"), name)

    def version(reference: str) -> str:
        with Sandbox.create(reference, timeout=60) as sandbox:
            return sandbox.files.read("/home/user/v").strip()

    assert [version(f"{name}:stable"), version(name)] == ["one", "two"]
    Template.assign_tags(f"{name}:default", ["stable", "best"])
    assert version(f"{name}:stable") == "two"
    assert {tag.tag for tag in Template.get_tags(name)} == {"default", "one", "stable", "best"}
    Template.remove_tags(name, ["best", "one"])
    assert {tag.tag for tag in Template.get_tags(name)} == {"default", "stable"}
    raises(SandboxException, lambda: Sandbox.create(f"{name}:one"))


@scenario
def its_start_command_runs_again_after_a_boot_from_the_disk():
    name = _name()
    _build(
        Template()
        .from_template("base")
        .set_workdir("/srv")
        .set_start_cmd("python3 -m http.server 8123", wait_for_port(8123)),
        name,
    )
    sandbox = Sandbox.create(name, timeout=120)
    try:
        sandbox.files.write("/srv/mine", "mine")
        sandbox.pause(**({"mode": "filesystem"} if SDK >= (2, 63) else {"keep_memory": False}))
        again = Sandbox.connect(sandbox.sandbox_id)
        assert again.commands.run("curl -s localhost:8123/mine; pwd").stdout == "mine/srv\n"
    finally:
        sandbox.kill()


@scenario
def a_template_is_built_on_another():
    parent, child = _name(), _name()
    _build(
        Template()
        .from_template("base")
        .set_envs({"LAYER": "parent"})
        .set_workdir("/srv")
        .run_cmd("touch mine")
        .set_start_cmd("touch /tmp/started; sleep 4321", wait_for_file("/tmp/started")),
        parent,
    )
    quiet = "pwd > here; if pgrep -x sleep; then exit 1; fi"
    _build(Template().from_template(parent).run_cmd(quiet), child)
    with Sandbox.create(child, timeout=60) as sandbox:
        assert sandbox.commands.run("cat here; ls; echo $LAYER").stdout == (
            "/srv\nhere\nmine\nparent\n"
        )
        assert sandbox.commands.run("pgrep -fx 'sleep 4321'").exit_code == 0, "it is inherited"


@scenario
def a_dockerfile_is_compiled_by_the_client():
    name, context = _name(), _context()
    dockerfile = (
        "FROM e2bdev/base\nARG WHO=world\nENV GREETING=hello-$WHO\nWORKDIR /app\n"
        "COPY app/main.py notes.txt ./\nRUN echo $GREETING > greeting && id -un > whoami\n"
    )
    template = Template(file_context_path=str(context)).from_dockerfile(dockerfile)
    _build(template, name)
    with Sandbox.create(name, timeout=60) as sandbox:
        assert sandbox.commands.run("cd /app; cat greeting whoami; ls").stdout == (
            "hello-world\nroot\ngreeting\nmain.py\nnotes.txt\nwhoami\n"
        )


@scenario
def two_equal_builds_at_once_are_both_right():
    mark = uuid.uuid4().hex

    async def both():
        async def build(name):
            template = (
                AsyncTemplate()
                .from_template("base")
                .run_cmd(f"sleep 1; echo {mark}; head -c 8 /dev/urandom > /home/user/once")
                .run_cmd("touch /home/user/done")
            )
            await AsyncTemplate.build(template, name, **SIZE)
            sandbox = await AsyncSandbox.create(name, timeout=60)
            try:
                return await sandbox.files.read("/home/user/once", format="bytes")
            finally:
                await sandbox.kill()

        return await asyncio.gather(build(_name()), build(_name()))

    one, other = asyncio.run(both())
    assert one == other, "the step was done once"
