"""Listings, copies, ports, profiles, settings: what each prints, for people and for machines."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from tests.cli.conftest import Cli
from tests.fakes.control_plane import KEY, ControlPlane

TWENTY = "i" * 20


def test_sandboxes_are_listed_and_shown(cli: Cli, sandbox: str) -> None:
    [entry] = cli.json("ls")
    assert (entry["id"], entry["alias"], entry["state"]) == (sandbox, "base", "running")
    assert cli.text("ls", "-q") == f"{sandbox}\n"
    assert sandbox in cli.text("list")
    shown = cli.json("inspect", sandbox)
    assert shown["sandbox"]["id"] == sandbox
    assert shown["metrics"]["cpu_used_pct"] == 12.5
    assert "12.5 %" in cli.text("inspect", sandbox)


def test_labels_filter(cli: Cli) -> None:
    one = cli.json("start", "base", "-d", "-m", "job=1")["id"]
    cli.text("start", "base", "-d", "-m", "job=2")
    assert [entry["id"] for entry in cli.json("ls", "--filter", "job=1")] == [one]
    assert cli.json("rm", "--filter", "job=1", "-y") == {"killed": [one], "missing": []}
    assert len(cli.json("ls")) == 1


def test_removing_tells_what_was_not_there(cli: Cli, sandbox: str) -> None:
    assert f"there is no sandbox {TWENTY}" in cli.fail("rm", sandbox, TWENTY)
    assert cli.json("ls") == []


def test_removing_all_without_a_terminal_needs_consent(cli: Cli, sandbox: str) -> None:
    assert "needs -y" in cli.fail("rm", "--all", code=2)
    assert "name sandboxes" in cli.fail("rm", code=2)
    assert cli.text("rm", "--all", "-y") == f"{sandbox}\n"


def test_a_negative_time_is_no_option(cli: Cli, sandbox: str) -> None:
    assert "greater than or equal to 0" in cli.fail("timeout", sandbox, "-5", code=2)


def test_the_version_is_an_option_too(cli: Cli) -> None:
    assert cli.text("--version") == cli.text("version")


def test_a_profile_is_not_asked_for_without_a_terminal(cli: Cli) -> None:
    assert "needs --url URL and --api-key KEY" in cli.fail("auth", "set", "mine", code=2)


def test_https_to_a_plain_port_is_named(cli: Cli, plane: ControlPlane) -> None:
    url = plane.url.replace("http:", "https:")
    assert f"does not speak https; try {plane.url}" in cli.fail("ls", "--url", url)


def test_timeout_top_templates(cli: Cli, sandbox: str, plane: ControlPlane) -> None:
    cli.text("timeout", sandbox, "9")
    assert plane.guests[sandbox].timeouts == [("timeout", 9)]
    view = cli.json("top")
    [sample] = view["sandboxes"]
    assert sample["metrics"]["mem_total"] == 1 << 30
    [host] = view["hosts"]
    assert (host["id"], host["promised_to_used"]) == ("n1", 32.0)
    assert host["hot"] == {"sandboxes": 2, "promised": 2 << 30, "used": 12 << 20}
    text = cli.text("top", "--once")
    assert "12.5 %" in text
    assert "promised ÷ used: 32.0; 3.0 GiB are available" in text
    assert "memory was given back 3 times" in text
    assert "creates refused: memory 1, disk 2" in text
    assert {t["names"][0]: t["status"] for t in cli.json("template", "list")} == {
        "base": "ready",
        "host": "ready",
    }


def test_logs(cli: Cli, sandbox: str, plane: ControlPlane) -> None:
    stamp = "2026-01-01T00:00:00.5Z"
    plane.guests[sandbox].logs += [
        {"seq": 1, "timestamp": stamp, "message": "one"},
        {"seq": 2, "timestamp": stamp, "message": "two"},
    ]
    assert cli.text("logs", sandbox) == "one\ntwo\n"
    assert cli.text("logs", "-n", "1", "-t", sandbox).endswith(".500000Z two\n")
    assert json.loads(cli.text("logs", sandbox, "--search", "one", "--json"))["message"] == "one"


def test_a_folder_goes_there_and_back(cli: Cli, sandbox: str) -> None:
    tree = cli.cwd / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub/run.sh").write_text("echo ran")
    (tree / "sub/run.sh").chmod(0o750)
    (tree / "link").symlink_to("sub/run.sh")
    os.utime(tree / "sub/run.sh", (10**9, 10**9))
    assert "copy it with -r" in cli.fail("cp", "tree", f"{sandbox}:there", code=2)
    assert cli.json("cp", "-r", "tree", f"{sandbox}:there")["files"] >= 3
    assert "copy it with -r" in cli.fail("cp", f"{sandbox}:there", "back", code=2)
    cli.text("cp", "-r", f"{sandbox}:there", "back")
    found = (cli.cwd / "back/sub/run.sh").stat()
    assert stat.S_IMODE(found.st_mode) == 0o750
    assert int(found.st_mtime) == 10**9
    assert os.readlink(cli.cwd / "back/link") == "sub/run.sh"


def test_upload_and_download(cli: Cli, sandbox: str) -> None:
    (cli.cwd / "f").write_bytes(b"\0\xff")
    cli.text("upload", sandbox, "f")
    (cli.cwd / "f").unlink()
    cli.text("download", sandbox, "f")
    assert (cli.cwd / "f").read_bytes() == b"\0\xff"


def test_a_copy_needs_exactly_one_side_in_a_sandbox(cli: Cli, sandbox: str) -> None:
    assert "one of SRC and DST" in cli.fail("cp", "a", "b", code=2)
    assert "one of SRC and DST" in cli.fail("cp", f"{sandbox}:a", f"{sandbox}:b", code=2)
    assert "does not exist" in cli.fail("cp", "absent", f"{sandbox}:x")
    assert "no file" in cli.fail("cp", f"{sandbox}:a", "-", code=2)
    assert "no file" in cli.fail("cp", "-", f"{sandbox}:a", code=2)


def test_what_leads_outside_is_left_out_and_said(cli: Cli, sandbox: str) -> None:
    cli.text("exec", sandbox, "sh", "-c", "mkdir t; ln -s /etc/passwd t/evil; echo 1 > t/good")
    done = cli.run("cp", "-r", f"{sandbox}:t", "t")
    assert b"left out: t/evil -> /etc/passwd" in done.stderr
    assert [path.name for path in (cli.cwd / "t").iterdir()] == ["good"]


def test_a_port_is_a_url(cli: Cli, sandbox: str, plane: ControlPlane) -> None:
    port = plane.url.rpartition(":")[2]
    assert cli.text("port", sandbox, "8080") == f"http://8080-{sandbox}.localhost:{port}\n"


def test_errors_for_machines(cli: Cli) -> None:
    error = json.loads(cli.fail("--json", "inspect", TWENTY))["error"]
    assert (error["code"], error["culprit"]) == ("sandbox_not_found", "caller")
    assert "no sandbox" in error["message"]


def test_common_options_stand_anywhere(cli: Cli, plane: ControlPlane) -> None:
    bare = Cli({k: v for k, v in cli.env.items() if k != "AENV_SYSTEM_URL"}, cli.cwd)
    assert bare.text("--url", plane.url, "ls", "--json") == "[]\n"
    assert bare.text("ls", f"--url={plane.url}", "--api-key", KEY, "--json") == "[]\n"
    assert "key" in bare.fail("ls", "--url", plane.url, "--api-key", "wrong")
    assert "requires an argument" in bare.fail("ls", "--url", code=2)


def test_profiles_are_stored_for_nobody_else(cli: Cli, plane: ControlPlane) -> None:
    bare = Cli(
        {k: v for k, v in cli.env.items() if k not in ("AENV_SYSTEM_URL", "AENV_API_KEY")}, cli.cwd
    )
    bare.text("auth", "set", "work", "--url", plane.url, "--api-key", KEY)
    file = Path(cli.env["AENV_CONFIG_DIR"]) / "credentials.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert bare.text("--profile", "work", "ls", "-q") == ""
    assert bare.text("--profile", "work", "auth", "show", "--key") == f"{KEY}\n"
    assert KEY not in bare.text("auth", "show")
    bare.text("auth", "remove", "work")
    assert "no profile" in bare.fail("--profile", "work", "ls")


def test_settings_are_written_and_checked(cli: Cli) -> None:
    cli.text("config", "set", "port", "9001")
    cli.text("config", "set", "egress.private_allow", "10.1.0.0/16,10.2.0.0/16:53")
    shown = cli.json("config", "show")
    assert shown["port"] == 9001
    assert shown["egress.private_allow"] == ["10.1.0.0/16", "10.2.0.0/16:53"]
    assert cli.text("config", "get", "port") == "9001\n"
    assert "did you mean 'port'" in cli.fail("config", "get", "prot", code=2)
    assert "'engine' must be gvisor or process" in cli.fail("config", "set", "engine", "foo")
    assert "must not be negative" in cli.fail("config", "set", "pool_mb", "-1")
    assert "did you mean 'port'" in cli.fail("config", "set", "prot", "1")
    assert "port must be a whole number" in cli.fail("config", "set", "port", "many")
    assert cli.json("config", "show")["port"] == 9001
    assert "credentials" in cli.json("config", "path")


def test_version_and_usage(cli: Cli) -> None:
    assert cli.text("version").startswith("aenv ")
    assert "Did you mean" in cli.fail("sart", code=2)
    for command in ("", "exec", "template", "auth set"):
        assert "Usage" in cli.text(*command.split(), "--help")


def test_wrong_usage_is_told_to_machines_too(cli: Cli) -> None:
    for words in ("--json sart", "ls --json --nope", "--json timeout", "exec --json"):
        done = cli.run(*words.split(), check=False)
        error = json.loads(done.stderr)["error"]
        assert (done.returncode, error["code"], error["culprit"]) == (2, "usage", "caller")
        assert error["message"]


@pytest.mark.skipif(os.geteuid() != 0, reason="reads what root sees")
def test_doctor_speaks_to_machines(cli: Cli) -> None:
    done = cli.run("doctor", "--json", check=False)
    report = json.loads(done.stdout)
    topics = {finding["topic"] for finding in report["findings"]}
    assert {"python", "rights", "engine", "kvm", "cgroups", "disk", "templates", "server"} <= topics
    assert done.returncode == (0 if report["ok"] else 1)
    assert {f["severity"] for f in report["findings"]} <= {"ok", "warning", "missing"}
