"""The server of this machine: started once, found again, refused with the reason."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from aenv import Sandbox
from aenv.models.errors import HostSetupError, ServerUnreachableError
from aenv.models.folders import Folders
from aenv.sdk import holders, local_servers
from aenv.sdk.local_servers import Launch


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Launch]:
    """A server of the process engine in this test's folders, on any free port."""
    monkeypatch.setenv("AENV_PORT", "0")
    monkeypatch.setenv("AENV_ENGINE", "process")
    folders = Folders.resolve()
    yield Launch(folders, engine="process")
    down = [sys.executable, "-m", "aenv.cli.main", "down", "--kill"]
    subprocess.run(down, timeout=120, check=True, capture_output=True)
    assert holders.holder_of(folders.data) is None


def test_two_programs_at_once_start_one_server(launch: Launch) -> None:
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(lambda _: local_servers.find_or_start(launch), range(3)))
    assert len({endpoint.url for endpoint in found}) == 1
    assert found[0].api_key
    assert local_servers.find(launch.folders) == found[0]
    with pytest.warns(UserWarning, match="base"), Sandbox(engine="process") as sandbox:
        assert sandbox.exec("echo from nothing").stdout == "from nothing\n"
    os.kill(int(str(holders.holder_of(launch.folders.data)["pid"])), 9)  # type: ignore[index]
    again = local_servers.find_or_start(launch)
    assert again.api_key == found[0].api_key


def test_what_the_server_said_before_it_failed_is_passed_on(launch: Launch) -> None:
    broken = Launch(launch.folders, engine="no-such-engine")
    with pytest.raises((ServerUnreachableError, HostSetupError), match="no-such-engine"):
        local_servers.find_or_start(broken)


def test_without_root_the_refusal_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(HostSetupError, match=r"need root.*engine=\"process\""):
        Sandbox()


def test_without_the_server_extra_the_refusal_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(HostSetupError, match=r"aenv-platform\[server\]"):
        Sandbox()


def test_a_lock_that_nobody_holds_is_no_server(tmp_path: Path) -> None:
    (tmp_path / "server.lock").write_text(json.dumps({"pid": 1, "url": "http://127.0.0.1:1"}))
    assert holders.running(tmp_path) is None


def test_a_namesake_is_warned_of(tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    (site / "aenvironment-0.1.dist-info").mkdir(parents=True)
    script = f"import sys; sys.path.append({str(site)!r}); import aenv"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "pip uninstall aenvironment" in done.stderr


def test_a_server_on_demand_takes_the_port_that_the_settings_file_names(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AENV_PORT")
    launch.folders.config.mkdir(parents=True, exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (launch.folders.config / "config.toml").write_text(f"port = {port}\n")
        with pytest.raises(
            (ServerUnreachableError, HostSetupError), match=f"port {port} .* in use"
        ):
            local_servers.find_or_start(launch)
    assert local_servers.find_or_start(launch).url == f"http://127.0.0.1:{port}"
