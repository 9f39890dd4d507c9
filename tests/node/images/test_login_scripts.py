"""The login scripts, run by a real bash: every command of an SDK passes through them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aenv.node.images.recipes import OVERLAY, install_overlay

needs_root = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="needs root on Linux"
)


def login(tmp_path: Path, script: str, env: dict[str, str] | None = None) -> str:
    """What ``bash -l -c`` prints, started as the first process of its PID namespace.

    Our files are bound over the host's ``/etc/profile`` and ``/etc/profile.d``.
    """
    install_overlay(tmp_path)
    home, profiles = tmp_path / "etc/skel", tmp_path / "profile.d"
    profiles.mkdir()
    (profiles / "tool.sh").write_text("export FROM_PROFILE_D=yes\n")
    mounts = (
        f"mount --bind {tmp_path}/etc/profile /etc/profile && "
        f"mkdir -p /etc/profile.d && mount --bind {profiles} /etc/profile.d && exec "
    )
    command = ["unshare", "--pid", "--fork", "bash", "-l", "-c", script]
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", mounts + '"$@"', "sh", *command],
        env={"HOME": str(home), "PATH": os.environ["PATH"], **(env or {})},
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
    ).stdout.strip()


@needs_root
@pytest.mark.root
def test_a_login_shell_forks_nothing_before_the_command(tmp_path: Path) -> None:
    """Process ids in a new namespace are counted from 1: the shell is 1, its first child 2."""
    assert login(tmp_path, "sh -c 'echo $$'; true") == "2"


@needs_root
@pytest.mark.root
def test_what_the_caller_sets_is_kept(tmp_path: Path) -> None:
    env = {"PATH": f"/given:{os.environ['PATH']}", "LANG": "de_DE.UTF-8"}

    assert login(tmp_path, "echo ${PATH%%:*} $LANG", env) == "/given de_DE.UTF-8"


@needs_root
@pytest.mark.root
def test_the_locale_is_utf8_and_profile_d_is_read(tmp_path: Path) -> None:
    assert login(tmp_path, "echo $LANG $FROM_PROFILE_D ${_script-unset}") == "C.UTF-8 yes unset"


@pytest.mark.parametrize("name", ["etc/profile", "etc/bash.bashrc", "etc/skel/.profile"])
def test_a_plain_sh_reads_them_too(name: str) -> None:
    subprocess.run(["sh", "-n", str(OVERLAY / name)], check=True, timeout=10)
