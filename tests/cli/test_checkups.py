"""What ``doctor`` tells one who is not root."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from aenv.cli import checkups
from aenv.node.engine import Finding, Severity


@pytest.fixture
def _as_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


@pytest.mark.usefixtures("_as_a_user")
async def test_every_command_that_mends_is_one_a_user_can_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    true = shutil.which("true")
    absent = Finding("builds", Severity.WARNING, "absent", "true -x; true && true 'a b'")
    monkeypatch.setattr(checkups, "_tools", lambda: [absent])

    found = await checkups.examine()

    (mended,) = (finding.fix for finding in found if finding.summary == "absent")
    assert mended == f"sudo {true} -x; sudo {true} && sudo {true} 'a b'"
    assert all(f.fix.startswith("sudo ") for f in found if f.fix and checkups.is_command(f.fix))


async def test_a_setting_that_stops_every_server_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config.toml").write_text('engine = "foo"\n')
    monkeypatch.setenv("AENV_CONFIG_DIR", str(tmp_path))

    (found,) = checkups.missing(await checkups.examine())

    assert found.topic == "settings"
    assert "'engine' must be gvisor or process, not 'foo'" in found.summary


async def test_sandboxes_without_their_server_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "process" / ("i" * 20)).mkdir(parents=True)
    monkeypatch.setenv("AENV_DATA_DIR", str(tmp_path))

    (found,) = (one for one in await checkups.examine() if one.topic == "server")

    assert "it left 1 sandbox running" in found.summary
    assert found.severity is Severity.WARNING


@pytest.mark.usefixtures("_as_a_user")
async def test_an_engine_that_cannot_run_here_is_not_listed_as_one_that_can() -> None:
    found = await checkups.examine()

    assert any(f.topic == "gvisor" and f.severity is Severity.MISSING for f in found)
    assert not any(f.topic == "engine" and f.summary.startswith("gvisor") for f in found)
