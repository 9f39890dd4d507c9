"""The wheels in an empty environment outside the repository, with no compiler and no cache."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.packaging.wheels import Installation, make_environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.gvisor,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs root on Linux"),
]

SDK_LINES = """
from aenv import Sandbox
sb = Sandbox()
print(sb.exec("uname -a").stdout)
sb.files.write("/home/user/a.txt", "kept")
print(sb.files.read("/home/user/a.txt"))
sb.kill()
"""


def test_doctor_up_a_sandbox_and_down(installation: Installation) -> None:
    report = installation.aenv("doctor")
    assert "venv/lib" in next(line for line in report.splitlines() if "runsc" in line)

    assert installation.aenv("up").startswith("http://127.0.0.1:")
    said = installation.python(SDK_LINES)
    assert "gvisor" in said
    assert "kept" in said

    installation.aenv("down", "--kill")
    assert "does not run" in installation.aenv("doctor")


def test_a_program_starts_the_server_by_itself(installation: Installation) -> None:
    assert "gvisor" in installation.python(SDK_LINES)


def test_the_bare_installation_is_the_sdk_and_the_command(wheel: Path, tmp_path: Path) -> None:
    bare = Installation(tmp_path, make_environment(tmp_path, str(wheel)))

    assert bare.aenv("version")
    told = bare.python(
        "from aenv import AenvError, Sandbox\n"
        "try: Sandbox()\n"
        "except AenvError as error: print(error)"
    )
    assert "aenv-platform[server]" in told
