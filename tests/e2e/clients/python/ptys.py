"""Pseudo-terminals, sync and async."""

import asyncio

from e2b import AsyncSandbox, CommandExitException, PtySize, Sandbox
from scenarios import raises, scenario, until


@scenario
def a_terminal_echoes_resizes_and_exits(sandbox: Sandbox):
    handle = sandbox.pty.create(PtySize(rows=24, cols=80), timeout=60)
    sandbox.pty.send_stdin(handle.pid, b"tput cols; tput lines; echo $TERM; tty\n")
    sandbox.pty.resize(handle.pid, PtySize(rows=30, cols=132))
    sandbox.pty.send_stdin(handle.pid, b"sleep 0.3; stty size; whoami; exit 4\n")
    output = bytearray()
    error = raises(CommandExitException, lambda: handle.wait(on_pty=output.extend))
    text = output.decode(errors="replace")
    assert error.exit_code == 4
    assert "30 132" in text
    assert "xterm-256color" in text
    assert "/dev/pts/" in text
    assert "user" in text


@scenario
def ctrl_c_interrupts_the_foreground(sandbox: Sandbox):
    handle = sandbox.pty.create(PtySize(rows=24, cols=80), timeout=60)
    output = bytearray()
    sandbox.pty.send_stdin(handle.pid, b"echo re''ady; sleep 1000\n")
    interrupted = asked = 0
    for _, _, data in handle:
        output.extend(data or b"")
        if b"ready" in output and not interrupted:
            # not before the shell has given the terminal to it
            until(lambda: sandbox.commands.run("pgrep -x sleep || true").stdout)
            sandbox.pty.send_stdin(handle.pid, b"\x03")
            interrupted = len(output)
        elif interrupted and not asked and b"$ " in output[interrupted:]:
            # not before the prompt: an interrupt throws away what was typed ahead
            sandbox.pty.send_stdin(handle.pid, b"echo still-he''re; exit\n")
            asked = len(output)
        if b"still-here" in output:
            break
    assert b"still-here" in output
    sandbox.pty.kill(handle.pid)


@scenario
def envs_cwd_and_user(sandbox: Sandbox):
    handle = sandbox.pty.create(
        PtySize(rows=24, cols=80), user="root", cwd="/tmp", envs={"MARK": "m4rk"}, timeout=30
    )
    sandbox.pty.send_stdin(handle.pid, b"echo $MARK-$(whoami)-$PWD; exit\n")
    output = bytearray()
    handle.wait(on_pty=output.extend)
    assert b"m4rk-root-/tmp" in output


@scenario
def a_killed_terminal_is_gone(sandbox: Sandbox):
    handle = sandbox.pty.create(PtySize(rows=24, cols=80))
    assert sandbox.pty.kill(handle.pid) is True
    raises(CommandExitException, handle.wait)
    assert sandbox.pty.kill(handle.pid) is False


@scenario
async def async_terminal(sandbox: AsyncSandbox):
    output = bytearray()
    handle = await sandbox.pty.create(PtySize(rows=24, cols=80), on_data=output.extend, timeout=30)
    await sandbox.pty.send_stdin(handle.pid, b"echo he''llo; exit\n")
    await asyncio.wait_for(handle.wait(), 20)
    assert b"hello" in output
