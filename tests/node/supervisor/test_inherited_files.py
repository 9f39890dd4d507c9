"""What the starting process leaves open must not stay open in the daemon."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from aenv.node.supervisor import launch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the supervisor is for Linux")


def test_a_pipe_of_the_starter_ends_with_the_starter(tmp_path: Path):
    folder = tmp_path / "run"
    reader, writer = os.pipe()
    daemon = str(Path(launch.__file__).parent)
    argv = [sys.executable, "-I", "-S", "-c", launch._BOOTSTRAP, daemon, str(folder), "60"]
    subprocess.run(argv, pass_fds=[writer], check=True, timeout=20)
    os.close(writer)
    try:
        ready, _, _ = select.select([reader], [], [], 5)
        assert ready, "the daemon still holds the pipe"
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)
        for pid in _daemons(folder):
            os.kill(pid, signal.SIGTERM)


def _daemons(folder: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if entry.name.isdigit() and os.fsencode(folder) in words:
            found.append(int(entry.name))
    return found
