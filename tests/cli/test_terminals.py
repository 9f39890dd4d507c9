"""``start``, ``cn`` and ``exec -it`` on a terminal."""

from __future__ import annotations

import signal

from tests.cli.conftest import Cli
from tests.cli.terminals import Terminal, raw
from tests.fakes.control_plane import ControlPlane


def test_start_gives_a_shell_and_takes_the_sandbox_with_it(cli: Cli, plane: ControlPlane) -> None:
    with Terminal(cli, "start", "base") as terminal:
        terminal.type("echo $((40 + 2)); stty size\n")
        terminal.expect("42")
        terminal.expect("24 80")
        assert raw(terminal.settings())
        terminal.type("exit 5\n")
        assert terminal.wait() == 5
    assert plane.guests == {}


def test_resizes_reach_the_guest(cli: Cli, sandbox: str) -> None:
    with Terminal(cli, "cn", sandbox) as terminal:
        terminal.type("echo ready-$((1 + 1))\n")
        terminal.expect("ready-2")
        terminal.resize(100, 33)
        terminal.send(signal.SIGWINCH)
        terminal.type(
            "until [ \"$(stty size)\" = '33 100' ]; do sleep 0.1; done; echo got-$((2+2))\n"
        )
        terminal.expect("got-4")
        terminal.type("exit\n")
        assert terminal.wait() == 0


def test_ctrl_c_is_the_guests(cli: Cli, sandbox: str, plane: ControlPlane) -> None:
    with Terminal(cli, "cn", sandbox) as terminal:
        terminal.type("trap 'echo caught-$((3 + 3))' INT; echo set-$((1 + 1))\n")
        terminal.expect("set-2")
        terminal.type("\x03")
        terminal.expect("caught-6")
        terminal.type("exit 3\n")
        assert terminal.wait() == 3
    assert sandbox in plane.guests


def test_the_terminal_is_restored_whatever_ends_the_command(cli: Cli, sandbox: str) -> None:
    for number, code in ((signal.SIGTERM, 143), (signal.SIGHUP, 129)):
        with Terminal(cli, "exec", "-it", sandbox, "sh", "-c", "echo up-$((1+1)); sleep 60") as one:
            one.expect("up-2")
            one.send(number)
            assert one.wait() == code


async def test_a_killed_sandbox_gives_the_terminal_back(
    cli: Cli, sandbox: str, plane: ControlPlane
) -> None:
    from aenv.sdk import _loops

    with Terminal(cli, "cn", sandbox) as terminal:
        terminal.type("echo ready-$((1 + 1))\n")
        terminal.expect("ready-2")
        _loops.run(plane.kill(sandbox))
        assert terminal.wait() == 125
        assert b"was killed" in terminal.seen


def test_while_attached_the_sandbox_is_kept_alive(
    cli: Cli, sandbox: str, plane: ControlPlane
) -> None:
    with Terminal(cli, "cn", sandbox) as terminal:
        terminal.type("echo ready-$((1 + 1)); exit\n")
        terminal.expect("ready-2")
        assert terminal.wait() == 0
    assert ("refreshes", 300) in plane.guests[sandbox].timeouts


def test_without_a_terminal_the_shell_reads_its_commands(cli: Cli, plane: ControlPlane) -> None:
    done = cli.run("start", "base", stdin=b"echo from stdin; exit 4\n", check=False)
    assert (done.stdout, done.returncode) == (b"from stdin\n", 4)
    assert plane.guests == {}


def test_rm_asks_on_a_terminal(cli: Cli, sandbox: str, plane: ControlPlane) -> None:
    with Terminal(cli, "rm", "--all") as terminal:
        terminal.expect("Kill 1 sandbox?")
        terminal.type("n\n")
        assert terminal.wait() == 1
    assert sandbox in plane.guests
    with Terminal(cli, "rm", "--all") as terminal:
        terminal.expect("Kill 1 sandbox?")
        terminal.type("y\n")
        assert terminal.wait() == 0
    assert plane.guests == {}
