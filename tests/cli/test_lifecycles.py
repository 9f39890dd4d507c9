"""``pause``, ``resume``, ``fork``, ``snapshot`` and ``tree``, against the real server over a fake
node.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import ARGV, TIMEOUT, Cli
from tests.fakes.running import Running

IDS = 20


@pytest.fixture
def cli(folders: dict[str, str], tmp_path: Path) -> Iterator[Cli]:
    running = Running(tmp_path / "server")
    env = {**folders, "AENV_SYSTEM_URL": running.url, "AENV_API_KEY": running.key, "TERM": "xterm"}
    yield Cli(env, tmp_path)
    running.end(signal.SIGKILL)


def test_a_sandbox_pauses_and_resumes(cli: Cli, sandbox: str) -> None:
    assert cli.text("pause", sandbox[:8]).strip() == sandbox
    assert "was paused already" in cli.run("pause", sandbox).stderr.decode()
    assert cli.json("inspect", sandbox)["sandbox"]["pause_mode"] == "full"
    row = next(line for line in cli.text("ls").splitlines() if sandbox in line)
    assert row.split()[2:5:2] == ["paused", "-"]
    assert cli.text("ls", "-q", "--state", "running") == ""
    assert "never while it is paused" in cli.text("inspect", sandbox)

    assert cli.json("resume", sandbox) == {
        "id": sandbox,
        "state": "running",
        "changed": True,
    }
    assert cli.json("resume", sandbox) == {
        "id": sandbox,
        "state": "running",
        "changed": False,
    }
    assert cli.text("ls", "-q", "--state", "running").split() == [sandbox]


def test_without_memory_it_boots_again(cli: Cli, sandbox: str) -> None:
    cli.run("pause", "--no-memory", sandbox)
    cli.run("resume", sandbox)
    assert cli.json("inspect", sandbox)["sandbox"]["restored"] == "disk"


def test_a_paused_sandbox_says_so(cli: Cli, sandbox: str) -> None:
    cli.run("pause", sandbox)
    remedy = f"is paused; resume it with: aenv resume {sandbox}"
    assert remedy in cli.fail("exec", sandbox, "true", code=125)
    assert remedy in cli.fail("cp", f"{sandbox}:/etc/hostname", "here")
    assert remedy in cli.fail("timeout", sandbox, "60")


def test_a_paused_sandbox_is_removed(cli: Cli, sandbox: str) -> None:
    cli.run("pause", sandbox)
    assert cli.text("rm", sandbox).strip() == sandbox
    assert cli.text("ls", "-q") == ""


def test_https_to_the_plain_port_is_named(cli: Cli) -> None:
    plain = cli.env["AENV_SYSTEM_URL"]
    said = cli.fail("ls", "--url", plain.replace("http:", "https:"))
    assert f"does not speak https; try {plain}" in said


def test_its_log_ends_with_its_end(cli: Cli, sandbox: str) -> None:
    other = cli.text("start", "base", "-d").strip()
    follower = subprocess.Popen(
        [*ARGV, "logs", "-f", sandbox], env=cli.env, cwd=cli.cwd, stdout=subprocess.PIPE
    )
    cli.run("rm", sandbox)
    cli.run("timeout", other, "0")
    told, _ = follower.communicate(timeout=TIMEOUT)

    assert told.decode().splitlines()[-1:] == ["the sandbox ended: killed by request"]
    assert cli.text("logs", sandbox) == told.decode()
    assert "the sandbox ended: its timeout was set to 0" in cli.text("logs", other)


def test_forks_are_named(cli: Cli, sandbox: str) -> None:
    forks = cli.text("fork", sandbox, "-n", "3").split()
    assert len(set(forks)) == 3
    assert {len(one) for one in forks} == {IDS}
    cli.fail("fork", sandbox, "-n", "21", code=2)
    cli.run("pause", sandbox)
    assert "paused" in cli.fail("fork", sandbox)


def test_snapshots_are_made_seen_and_deleted(cli: Cli, sandbox: str) -> None:
    kept = cli.text("snapshot", "create", sandbox, "--name", "mine:v1").strip()
    other = cli.text("snapshot", "create", sandbox[:6], "--no-memory").strip()

    assert kept == "default/mine:v1"
    header, *rows = cli.text("snapshot", "list").splitlines()
    columns = "ID SANDBOX TEMPLATE MEMORY OWN SHARED WHERE AGE"
    assert header.split() == columns.split()
    assert [row.split()[0] for row in rows] == [other, kept]
    assert [row.split()[3:8] for row in rows] == [
        ["no", "1000", "B", "2.0", "KiB"],
        ["yes", "1000", "B", "2.4", "KiB"],
    ]
    assert cli.text("snapshot", "list", "-q", "--name", "mine").split() == [kept]
    assert cli.json("snapshot", "inspect", "mine:v1")["sandbox"] == sandbox
    assert cli.text("snapshot", "verify", "mine:v1", other).split() == ["mine:v1", other]
    assert cli.text("snapshot", "verify").split() == [other, kept]
    assert "there is no snapshot" in cli.fail("snapshot", "verify", "nobody")
    child = cli.text("start", kept, "-d").strip()
    rows = {row.split()[0]: row.split()[1] for row in cli.text("ls").splitlines()}
    assert (rows[child], rows[sandbox]) == (kept, "base")
    assert cli.text("snapshot", "delete", kept, other).split() == [kept, other]
    assert "there is no snapshot" in cli.fail("snapshot", "delete", kept)
    assert child in cli.text("ls", "-q").split()


def test_a_name_without_tag_means_its_default_one(cli: Cli, sandbox: str) -> None:
    for name in ("mine", "mine:v1", "mine:v2"):
        cli.run("snapshot", "create", sandbox, "--name", name)

    cli.run("snapshot", "delete", "mine")
    assert set(cli.text("snapshot", "list", "-q").split()) == {"default/mine:v1", "default/mine:v2"}
    assert "there is no snapshot mine" in cli.fail("snapshot", "delete", "mine")
    cli.run("snapshot", "delete", "--all-tags", "mine")
    assert cli.text("snapshot", "list", "-q") == ""
    assert "there is no snapshot mine" in cli.fail("snapshot", "delete", "--all-tags", "mine")


def test_the_id_behind_a_name_deletes_every_tag(cli: Cli, sandbox: str) -> None:
    for name in ("mine:v1", "mine:v2"):
        cli.run("snapshot", "create", sandbox, "--name", name)
    cli.run("snapshot", "delete", cli.json("snapshot", "inspect", "mine:v1")["template"])
    assert cli.text("snapshot", "list", "-q") == ""


def test_deleting_a_template_spares_the_snapshot_of_that_name(cli: Cli, sandbox: str) -> None:
    kept = cli.text("snapshot", "create", sandbox, "--name", "mine").strip()
    assert "there is no template 'mine'" in cli.fail("template", "delete", "mine", "-y")
    assert cli.text("snapshot", "list", "-q").split() == [kept]


def test_the_lineage_is_a_tree(cli: Cli, sandbox: str) -> None:
    kept = cli.text("snapshot", "create", sandbox, "--name", "mine").strip()
    child = cli.text("start", kept, "-d").strip()
    grandchild = cli.text("fork", child).strip()
    alone = cli.text("start", "base", "-d").strip()

    def shape(branch: dict[str, Any]) -> tuple[str, list[Any]]:
        return branch["id"], [shape(one) for one in branch["children"]]

    found = [shape(branch) for branch in cli.json("tree")]
    assert found == [(sandbox, [(kept, [(child, [(grandchild, [])])])]), (alone, [])]
    lines = cli.text("tree").splitlines()
    assert [line.split("  ")[0] for line in lines[:1]] == [f"sandbox {sandbox}"]
    assert lines[1].startswith(f"└─ snapshot {kept}")
    assert lines[3].startswith(f"      └─ sandbox {grandchild}")
    cli.run("rm", sandbox)
    assert [shape(branch)[0] for branch in cli.json("tree")] == [kept, alone]
