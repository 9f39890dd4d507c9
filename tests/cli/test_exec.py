"""``exec``: everything passes through."""

from __future__ import annotations

import os
import signal
import subprocess

from tests.cli.conftest import ARGV, Cli
from tests.fakes.control_plane import ControlPlane

from aenv.sdk import _loops


def test_both_outputs_and_the_exit_code(cli: Cli, sandbox: str) -> None:
    done = cli.run("exec", sandbox, "--", "sh", "-c", "echo out; echo err >&2; exit 7", check=False)
    assert (done.stdout, done.stderr, done.returncode) == (b"out\n", b"err\n", 7)


def test_stdin_is_binary_safe(cli: Cli, sandbox: str) -> None:
    data = bytes(range(256)) * 20_000
    assert cli.run("exec", sandbox, "cat", stdin=data).stdout == data


def test_options_of_the_command_are_its_own(cli: Cli, sandbox: str) -> None:
    assert cli.text("exec", sandbox, "echo", "--json", "-u", "--url", "x") == "--json -u --url x\n"
    assert cli.text("exec", sandbox, "--", "echo", "--", "-i") == "-- -i\n"


def test_directory_and_variables(cli: Cli, sandbox: str) -> None:
    text = cli.text("exec", "-w", "/", "-e", "A=1", "-e", "B=x=y", sandbox, "sh", "-c",
                    "echo $PWD $A $B")  # fmt: skip
    assert text == "/ 1 x=y\n"


def test_a_stdin_that_is_left_alone_is_empty_there(cli: Cli, sandbox: str) -> None:
    assert cli.run("exec", "-n", sandbox, "cat", stdin=b"not for you").stdout == b""


def test_ids_may_be_shortened(cli: Cli, sandbox: str) -> None:
    assert cli.text("exec", sandbox[:6], "echo", "hi") == "hi\n"


def test_what_goes_wrong_is_one_line(cli: Cli, sandbox: str) -> None:
    assert "there is no sandbox" in cli.fail("exec", "nosuch", "true", code=125)
    assert "/nowhere" in cli.fail("exec", "-w", "/nowhere", sandbox, "true", code=125)
    assert "no-such-program" in cli.fail("exec", sandbox, "no-such-program", code=127)
    assert "/no/such" in cli.fail("exec", sandbox, "/no/such/program", code=127)
    assert "/etc" in cli.fail("exec", sandbox, "/etc", code=126)
    assert "stand before ID" in cli.fail("exec", sandbox, "--timeout", "1", "true", code=127)
    assert "sh -c 'LINE'" in cli.fail("exec", sandbox, "echo a | cat", code=127)
    assert "timeout of 0.3 s" in cli.fail(
        "exec", "--timeout", "0.3", sandbox, "sleep", "4731", code=124
    )
    assert "needs a terminal" in cli.fail("exec", "-t", sandbox, "true", code=2)
    assert "KEY=VALUE" in cli.fail("exec", "-e", "A", sandbox, "true", code=2)


def test_a_death_by_signal_is_128_and_its_number(cli: Cli, sandbox: str) -> None:
    for number in (9, 15, 31, 35):
        done = cli.run("exec", sandbox, "sh", "-c", f"kill -{number} $$", check=False)
        assert done.returncode == 128 + number


def test_ctrl_c_kills_the_command(cli: Cli, sandbox: str, plane: ControlPlane) -> None:
    process = subprocess.Popen(
        [*ARGV, "exec", sandbox, "sh", "-c", "echo begun; exec sleep 4732"],
        env=cli.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    process.stdout.close()
    gone = cli.run("exec", sandbox, "pgrep", "-xf", "sleep 4732", check=False)
    assert gone.returncode == 1


def test_a_closed_pipe_ends_the_command(cli: Cli, sandbox: str) -> None:
    words = " ".join(ARGV)
    script = f"yes | {words} exec {sandbox} cat | head -1; exit ${{PIPESTATUS[1]}}"
    done = subprocess.run(
        ["bash", "-c", script], env=cli.env, capture_output=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == (b"y\n", b"", 141)


def test_a_sandbox_killed_meanwhile_is_told(cli: Cli, sandbox: str, plane: ControlPlane) -> None:
    process = subprocess.Popen(
        [*ARGV, "exec", sandbox, "sh", "-c", "echo begun; exec sleep 4733"],
        env=cli.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    _loops.run(plane.kill(sandbox))
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 125
    assert b"was killed" in errors
    assert os.linesep.encode() in errors
