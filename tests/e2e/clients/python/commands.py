"""process.Process through ``sandbox.commands``, sync and async."""

import asyncio
import contextlib
import time

from e2b import (
    AsyncSandbox,
    AuthenticationException,
    CommandExitException,
    InvalidArgumentException,
    NotFoundException,
    Sandbox,
    SandboxException,
    TimeoutException,
)
from scenarios import SDK, raises, scenario, until


@scenario
def foreground_collects_both_streams(sandbox: Sandbox):
    result = sandbox.commands.run("echo out; echo err >&2")
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 0)
    assert not result.error


@scenario
def a_failing_command_raises_with_all_it_said(sandbox: Sandbox):
    error = raises(CommandExitException, lambda: sandbox.commands.run("echo o; echo e >&2; exit 7"))
    assert (error.exit_code, error.stdout, error.stderr) == (7, "o\n", "e\n")
    assert "exit status 7" in (error.error or "")


@scenario
def a_command_that_does_not_exist_is_127(sandbox: Sandbox):
    error = raises(CommandExitException, lambda: sandbox.commands.run("no-such-command"))
    assert error.exit_code == 127
    assert "not found" in error.stderr


@scenario
def a_user_that_does_not_exist_is_refused(sandbox: Sandbox):
    error = raises(
        (AuthenticationException, SandboxException),
        lambda: sandbox.commands.run("true", user="nobody-here"),
    )
    assert "nobody-here" in str(error)


@scenario
def a_folder_that_does_not_exist_is_refused(sandbox: Sandbox):
    raises(InvalidArgumentException, lambda: sandbox.commands.run("true", cwd="/no/such/folder"))


@scenario
def runs_as_the_default_user_in_its_home(sandbox: Sandbox):
    result = sandbox.commands.run("whoami; pwd; echo $HOME; id -u")
    assert result.stdout.split() == ["user", "/home/user", "/home/user", "1000"]


@scenario
def runs_as_root_when_asked(sandbox: Sandbox):
    result = sandbox.commands.run("whoami; pwd; id -u", user="root")
    assert result.stdout.split() == ["root", "/root", "0"]


@scenario
def the_default_user_may_sudo(sandbox: Sandbox):
    assert sandbox.commands.run("sudo id -u").stdout.strip() == "0"


@scenario
def cwd_and_envs_are_honoured(sandbox: Sandbox):
    result = sandbox.commands.run(
        'pwd; echo "$GREETING|$E2B_SANDBOX|$E2B_SANDBOX_ID"', cwd="/tmp", envs={"GREETING": "a b"}
    )
    assert result.stdout.splitlines() == ["/tmp", f"a b|true|{sandbox.sandbox_id}"]


@scenario
def unicode_passes_unharmed(sandbox: Sandbox):
    text = "zażółć 中文 🦊 e\u0301"
    assert sandbox.commands.run(f"echo '{text}'").stdout == text + "\n"
    assert sandbox.commands.run("echo $T", envs={"T": text}).stdout == text + "\n"


@scenario
def large_output_arrives_whole(sandbox: Sandbox):
    result = sandbox.commands.run("seq 1 200000")
    assert result.stdout == "".join(f"{n}\n" for n in range(1, 200001))


@scenario
def a_million_lines_are_streamed(sandbox: Sandbox):
    seen = [0]

    def count(chunk: str) -> None:
        seen[0] += chunk.count("\n")

    sandbox.commands.run("yes | head -1000000", on_stdout=count, timeout=120)
    assert seen[0] == 1_000_000


@scenario
def binary_output_does_not_break_the_stream(sandbox: Sandbox):
    result = sandbox.commands.run("head -c 100000 /dev/urandom; echo; echo done")
    assert result.stdout.endswith("done\n")


@scenario
def output_is_streamed_while_the_command_runs(sandbox: Sandbox):
    seen: list[tuple[float, str]] = []
    started = time.monotonic()
    sandbox.commands.run(
        "echo one; sleep 1; echo two", on_stdout=lambda s: seen.append((time.monotonic(), s))
    )
    assert [text for _, text in seen] == ["one\n", "two\n"]
    assert seen[0][0] - started < 0.8
    assert seen[1][0] - seen[0][0] > 0.8


@scenario
def background_wait_and_kill(sandbox: Sandbox):
    handle = sandbox.commands.run("sleep 0.2; echo done", background=True)
    assert handle.pid > 0
    assert handle.wait().stdout == "done\n"
    sleeper = sandbox.commands.run("sleep 60", background=True)
    assert sleeper.kill() is True
    raises(CommandExitException, sleeper.wait)
    assert sandbox.commands.kill(sleeper.pid) is False


@scenario
def the_list_names_what_runs(sandbox: Sandbox):
    handle = sandbox.commands.run("sleep 60", background=True, envs={"MARK": "1"}, cwd="/tmp")
    found = {process.pid: process for process in sandbox.commands.list()}[handle.pid]
    assert (found.cmd, found.args) == ("/bin/bash", ["-l", "-c", "sleep 60"])
    assert (found.envs.get("MARK"), found.cwd) == ("1", "/tmp")
    handle.kill()
    until(lambda: handle.pid not in {process.pid for process in sandbox.commands.list()})


@scenario
def a_command_outlives_its_client_and_can_be_joined(sandbox: Sandbox):
    handle = sandbox.commands.run("sleep 0.7; echo late; exit 3", background=True)
    handle.disconnect()
    joined = sandbox.commands.connect(handle.pid)
    error = raises(CommandExitException, joined.wait)
    assert (error.exit_code, error.stdout) == (3, "late\n")


@scenario
def a_late_connect_still_learns_the_exit(sandbox: Sandbox):
    handle = sandbox.commands.run("exit 5", background=True)
    raises(CommandExitException, handle.wait)
    error = raises(CommandExitException, lambda: sandbox.commands.connect(handle.pid).wait())
    assert error.exit_code == 5


@scenario
def an_unknown_process_is_not_found(sandbox: Sandbox):
    raises(NotFoundException, lambda: sandbox.commands.connect(999_999))
    assert sandbox.commands.kill(999_999) is False
    raises(NotFoundException, lambda: sandbox.commands.send_stdin(999_999, "x"))


@scenario
def stdin_is_sent_and_closed(sandbox: Sandbox):
    handle = sandbox.commands.run("cat", background=True, stdin=True)
    sandbox.commands.send_stdin(handle.pid, "hello ")
    sandbox.commands.send_stdin(handle.pid, "wörld\n")
    sandbox.commands.close_stdin(handle.pid)
    assert handle.wait().stdout == "hello wörld\n"


@scenario
def without_stdin_a_reader_sees_the_end(sandbox: Sandbox):
    assert sandbox.commands.run("cat; echo over", timeout=5).stdout == "over\n"


@scenario
def stdin_is_streamed(sandbox: Sandbox):
    if SDK < (2, 63):
        return
    handle = sandbox.commands.run("wc -c", background=True, stdin=True)
    sandbox.commands.stream_input(handle.pid, (b"x" * 10_000 for _ in range(50)))
    sandbox.commands.close_stdin(handle.pid)
    assert handle.wait().stdout.strip() == "500000"


@scenario
def a_timeout_kills_the_whole_tree(sandbox: Sandbox):
    started = time.monotonic()
    raises(
        TimeoutException,
        lambda: sandbox.commands.run("(sleep 4711 & sleep 4711); true", timeout=1),
    )
    assert time.monotonic() - started < 5
    until(lambda: not sandbox.commands.run("pgrep -f '[s]leep 4711' || true").stdout.strip())


@scenario
def a_command_that_ignores_sigterm_dies_of_a_kill(sandbox: Sandbox):
    handle = sandbox.commands.run(
        "trap '' TERM; echo ready; while true; do sleep 0.1; done", background=True
    )
    until(lambda: sandbox.commands.kill(handle.pid) or True)
    error = raises(CommandExitException, handle.wait)
    assert error.exit_code != 0


@scenario
def signals_are_told_apart_from_exits(sandbox: Sandbox):
    error = raises(CommandExitException, lambda: sandbox.commands.run("kill -9 $$"))
    assert error.exit_code != 0
    assert "killed" in (error.error or "")


@scenario
def orphans_do_not_hold_a_command_open(sandbox: Sandbox):
    started = time.monotonic()
    sandbox.commands.run("setsid sleep 20 >/dev/null 2>&1 & echo started")
    assert time.monotonic() - started < 10


@scenario
async def many_commands_at_once(sandbox: AsyncSandbox):
    results = await asyncio.gather(
        *(sandbox.commands.run(f"echo {number}") for number in range(30))
    )
    assert [result.stdout for result in results] == [f"{number}\n" for number in range(30)]


@scenario
async def async_background_streams_and_stdin(sandbox: AsyncSandbox):
    seen: list[str] = []
    handle = await sandbox.commands.run("cat", background=True, stdin=True, on_stdout=seen.append)
    await sandbox.commands.send_stdin(handle.pid, "one\n")
    await sandbox.commands.close_stdin(handle.pid)
    result = await handle.wait()
    assert result.stdout == "one\n"
    assert seen == ["one\n"]


@scenario
async def async_kill_ends_the_stream(sandbox: AsyncSandbox):
    handle = await sandbox.commands.run("sleep 60", background=True)
    assert await handle.kill() is True
    ended = await asyncio.gather(handle.wait(), return_exceptions=True)
    assert isinstance(ended[0], CommandExitException), ended


@scenario
def a_flooding_command_does_not_stop_others(sandbox: Sandbox):
    flood = sandbox.commands.run("yes", background=True, timeout=0)  # nobody reads it
    for _ in range(3):
        assert sandbox.commands.run("echo here", timeout=10).stdout == "here\n"
    assert sandbox.commands.kill(flood.pid) is True
    flood.disconnect()


@scenario
def a_fork_bomb_is_survived_or_ends_alone():
    sandbox = Sandbox.create(timeout=60)
    bystander = Sandbox.create(timeout=60)
    try:
        with contextlib.suppress(SandboxException):
            sandbox.commands.run("f(){ f|f& }; f; sleep 3", timeout=8)
        assert bystander.commands.run("echo fine", timeout=20).stdout == "fine\n"
    finally:
        assert sandbox.kill() in (True, False)
        bystander.kill()


@scenario
def memory_beyond_the_limit_ends_the_hog_alone():
    sandbox = Sandbox.create(timeout=120)
    bystander = Sandbox.create(timeout=60)
    try:
        hog = "python3 -c \"x = bytearray(b'x') * (8 << 30)\""
        raises(SandboxException, lambda: sandbox.commands.run(hog, timeout=60))
        assert bystander.commands.run("echo fine", timeout=20).stdout == "fine\n"
    finally:
        sandbox.kill()
        bystander.kill()
