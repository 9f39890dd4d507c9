"""Commands through the SDK, on a real agent."""

from __future__ import annotations

import asyncio

import pytest
from tests.fakes.control_plane import ControlPlane
from tests.fakes.waiting import until

from aenv import AsyncSandbox
from aenv.models.errors import (
    AenvError,
    AgentUnreachableError,
    CommandFailedError,
    CommandTimeoutError,
    InvalidRequestError,
    SandboxNotFoundError,
)
from aenv.sdk import Exited, Output, Started


async def test_a_string_goes_to_a_login_shell(sandbox: AsyncSandbox) -> None:
    result = await sandbox.exec("echo $((6 * 7)); echo oops >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit_code) == ("42\n", "oops\n", 3)
    assert 0 < result.duration < 30
    assert not result.ok


async def test_a_sequence_runs_as_it_is(sandbox: AsyncSandbox) -> None:
    result = await sandbox.exec(["printf", "%s|", "a b", "$HOME", "*"])
    assert result.stdout == "a b|$HOME|*|"


async def test_environment_and_directory(sandbox: AsyncSandbox) -> None:
    await sandbox.exec("mkdir -p sub")
    result = await sandbox.exec('echo "$A $PWD"', env={"A": "1"}, cwd="sub")
    assert result.stdout.startswith("1 /")
    assert result.stdout.endswith("/sub\n")


async def test_stdin_is_binary_safe_and_may_be_larger_than_any_buffer(
    sandbox: AsyncSandbox,
) -> None:
    data = bytes(range(256)) * 8192
    result = await sandbox.exec(["cat"], stdin=data)
    assert result.stdout_bytes == data


async def test_a_command_that_ignores_its_stdin_ends_all_the_same(sandbox: AsyncSandbox) -> None:
    result = await sandbox.exec(["true"], stdin=b"x" * 4_000_000)
    assert result.exit_code == 0


async def test_callbacks_hear_whole_characters_in_order(sandbox: AsyncSandbox) -> None:
    heard: list[str] = []

    async def hear(text: str) -> None:
        heard.append(text)

    script = "printf '\\303'; sleep 0.2; printf '\\251'; sleep 0.2; printf '\\377'"
    result = await sandbox.exec(script, on_stdout=hear)
    assert "".join(heard) == "é\ufffd" == result.stdout


async def test_check_raises_and_keeps_the_output(sandbox: AsyncSandbox) -> None:
    with pytest.raises(CommandFailedError, match=r"status 4: no luck") as caught:
        await sandbox.exec("echo some; echo no luck >&2; exit 4", check=True)
    assert (caught.value.exit_code, caught.value.stdout) == (4, b"some\n")


async def test_a_signal_shows_as_128_plus_its_number(sandbox: AsyncSandbox) -> None:
    assert (await sandbox.exec(["sh", "-c", "kill -TERM $$"])).exit_code == 143


async def test_past_its_timeout_the_command_is_killed_and_its_output_kept(
    sandbox: AsyncSandbox,
) -> None:
    with pytest.raises(CommandTimeoutError, match=r"timeout of 0.5 s") as caught:
        await sandbox.exec("echo before; sleep 4711", timeout=0.5)
    assert caught.value.stdout == b"before\n"
    assert await _eventually_gone(sandbox, "sleep 4711")


async def test_cancelling_kills_the_command(sandbox: AsyncSandbox) -> None:
    task = asyncio.create_task(sandbox.exec("sleep 4712"))
    await _eventually(sandbox, "sleep 4712")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await _eventually_gone(sandbox, "sleep 4712")


async def test_leaving_a_stream_early_kills_the_command(sandbox: AsyncSandbox) -> None:
    stream = sandbox.stream("echo one; sleep 4713")
    events = [await anext(stream), await anext(stream)]
    await stream.aclose()  # type: ignore[attr-defined]
    assert isinstance(events[0], Started)
    assert events[1] == Output("stdout", b"one\n")
    assert await _eventually_gone(sandbox, "sleep 4713")


async def test_a_stream_ends_with_the_exit(sandbox: AsyncSandbox) -> None:
    events = [event async for event in sandbox.stream("exit 5")]
    assert isinstance(events[-1], Exited)
    assert events[-1].exit_code == 5


async def test_unknown_folder_and_unknown_program_are_the_callers_fault(
    sandbox: AsyncSandbox,
) -> None:
    with pytest.raises(InvalidRequestError):
        await sandbox.exec("true", cwd="/nowhere/at/all")
    with pytest.raises(AenvError, match="no-such-program"):
        await sandbox.exec(["no-such-program"])
    with pytest.raises(InvalidRequestError, match="empty"):
        await sandbox.exec([])


async def test_a_background_process_never_waits_for_a_reader(sandbox: AsyncSandbox) -> None:
    process = await sandbox.spawn("head -c 30000000 /dev/zero; echo done")
    result = await process.wait(timeout=60)
    assert result.truncated
    assert result.stdout.endswith("done\n")
    assert len(result.stdout_bytes) < 9 << 20


async def test_a_background_process_takes_input_and_tells_its_output(
    sandbox: AsyncSandbox,
) -> None:
    process = await sandbox.spawn(["cat"], stdin=True)
    await process.send_stdin("hello\n")
    await until(lambda: process.stdout == "hello\n")
    await process.close_stdin()
    assert (await process.wait(timeout=10)).exit_code == 0
    assert await process.kill() is False


async def test_waiting_may_end_before_the_process(sandbox: AsyncSandbox) -> None:
    process = await sandbox.spawn("sleep 4714")
    with pytest.raises(CommandTimeoutError, match="still runs"):
        await process.wait(timeout=0.1)
    assert await process.kill()
    assert (await process.wait(timeout=10)).exit_code == 137


async def test_another_handle_finds_a_running_process(sandbox: AsyncSandbox) -> None:
    process = await sandbox.spawn("echo early; sleep 1; echo late; exit 6")
    other = await sandbox.process(process.pid)
    assert [info.pid for info in await sandbox.processes()] == [process.pid]
    events = [event async for event in other.events()]
    assert events[-1] == Exited(6, "exit status 6", "exit status 6")


async def test_a_terminal_knows_its_size_and_is_resized(sandbox: AsyncSandbox) -> None:
    terminal = await sandbox.pty(["sh"], cols=91, rows=31)
    await terminal.send_stdin("stty size\n")
    events = terminal.events()
    await _read_until(events, b"31 91")
    await terminal.resize(101, 41)
    await terminal.send_stdin("stty size; exit 9\n")
    await _read_until(events, b"41 101")
    last = [event async for event in events][-1]
    assert isinstance(last, Exited)
    assert last.exit_code == 9


async def test_a_killed_sandbox_is_told_apart_from_a_failed_command(
    sandbox: AsyncSandbox, plane: ControlPlane
) -> None:
    task = asyncio.create_task(sandbox.exec("sleep 4715"))
    await _eventually(sandbox, "sleep 4715")
    await plane.kill(sandbox.id)
    with pytest.raises(AgentUnreachableError, match="it was killed"):
        await task
    with pytest.raises(SandboxNotFoundError):
        await sandbox.exec("true")


async def _read_until(events: object, wanted: bytes) -> None:
    seen = b""
    async with asyncio.timeout(10):
        while wanted not in seen:
            event = await anext(events)  # type: ignore[call-overload]
            if isinstance(event, Output):
                seen += event.data


async def _eventually(sandbox: AsyncSandbox, command: str) -> None:
    async with asyncio.timeout(10):
        while (await _find(sandbox, command)).exit_code != 0:
            pass


async def _eventually_gone(sandbox: AsyncSandbox, command: str) -> bool:
    async with asyncio.timeout(10):
        while (await _find(sandbox, command)).exit_code == 0:
            pass
    return True


async def _find(sandbox: AsyncSandbox, command: str):  # type: ignore[no-untyped-def]
    return await sandbox.exec(["pgrep", "-xf", command])
