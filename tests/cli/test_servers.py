"""``up``: a server of one's own, and what it is told about it."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Cli


def test_up_warns_of_no_isolation_and_of_a_port_it_does_not_take(
    folders: dict[str, str], tmp_path: Path
) -> None:
    cli = Cli(folders, tmp_path)
    try:
        first = cli.run("up", "--engine", "process", "--port", "0")
        assert "isolates nothing" in first.stderr.decode()
        again = cli.run("up", "--port", "1")
        assert again.stdout == first.stdout
        assert "--port 1 is not used" in again.stderr.decode()
        assert "isolates nothing" not in again.stderr.decode()
    finally:
        cli.run("down", "--kill")
