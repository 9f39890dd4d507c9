"""The aenv command as a user runs it: a process of its own, against a plane with real agents."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.agents import agent_binary
from tests.fakes.control_plane import KEY, ControlPlane

from aenv.sdk import _loops

ARGV = [sys.executable, "-m", "aenv.cli.main"]
TIMEOUT = 120


@dataclass(frozen=True)
class Cli:
    """``run`` returns what the command wrote, as bytes, and its exit code."""

    env: dict[str, str]
    cwd: Path

    def run(
        self, *args: str, stdin: bytes | None = b"", check: bool = True
    ) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run(
            [*ARGV, *args],
            input=stdin,
            capture_output=True,
            env=self.env,
            cwd=self.cwd,
            timeout=TIMEOUT,
            check=False,
        )
        if check:
            assert done.returncode == 0, done.stderr.decode()
        return done

    def text(self, *args: str) -> str:
        return self.run(*args).stdout.decode()

    def json(self, *args: str) -> Any:
        return json.loads(self.run(*args, "--json").stdout)

    def fail(self, *args: str, code: int = 1) -> str:
        done = self.run(*args, check=False)
        assert done.returncode == code, (done.returncode, done.stderr.decode())
        assert b"Traceback" not in done.stderr
        return done.stderr.decode()


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, str]:
    """Variables that keep a command away from this machine's servers and credentials."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("AENV_")}
    for name in ("data", "cache", "config", "run"):
        env[f"AENV_{name.upper()}_DIR"] = str(tmp_path / "aenv" / name)
    return env


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    found = ControlPlane(agent_binary(), tmp_path / "guests")
    _loops.run(found.start())
    yield found
    _loops.run(found.close())


@pytest.fixture
def cli(plane: ControlPlane, folders: dict[str, str], tmp_path: Path) -> Cli:
    (tmp_path / "here").mkdir()
    env = {**folders, "AENV_SYSTEM_URL": plane.url, "AENV_API_KEY": KEY, "TERM": "xterm"}
    return Cli(env, tmp_path / "here")


@pytest.fixture
def sandbox(cli: Cli) -> str:
    return cli.text("start", "base", "-d").strip()
