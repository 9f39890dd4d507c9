"""``aenv doctor`` on a real host: it agrees with itself, its remedies mend what they name."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.e2e.servers import LiveServer
from tests.e2e.wire import Wire

from aenv.cli.checkups import is_command
from aenv.models.folders import Folders
from aenv.node.runsc import find

MakeServer = Callable[..., LiveServer]


def report(server: LiveServer, *options: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(server.aenv("doctor", "--json", *options, check=False))
    return found


def about(found: dict[str, Any], topic: str) -> list[dict[str, Any]]:
    return [finding for finding in found["findings"] if finding["topic"] == topic]


def test_doctor_says_the_same_with_and_without_a_server(make_server: MakeServer):
    server = make_server()
    server.start()
    during = report(server)
    (at,) = about(during, "server")
    assert server.url in at["summary"]
    server.aenv("down", "--keep")
    after = report(server)
    assert during["ok"]
    assert after["ok"]
    changing = ("server", "disk")  # figures of free space
    assert _without(during, changing) == _without(after, changing)
    severities = [[f["severity"] for f in about(one, "disk")] for one in (during, after)]
    assert severities[0] == severities[1]


def test_every_remedy_is_a_command(make_server: MakeServer):
    found = report(make_server())
    remedies = [finding["fix"] for finding in found["findings"] if finding["fix"]]
    assert [remedy for remedy in remedies if not is_command(remedy)] == []


async def test_fix_installs_a_runsc_that_is_missing(
    make_server: MakeServer, tmp_path: Path, base_template: None
):
    """A host with neither wheel nor cache nor runsc on PATH, whose operator names a copy."""
    binary = (await find(Folders.resolve())).path
    (tmp_path / "shadow").mkdir()
    (tmp_path / "shadow" / "aenv_runsc.py").write_text("raise ImportError\n")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "images").symlink_to(Folders.resolve().cache / "images")
    server = make_server(
        PYTHONPATH=f"{tmp_path / 'shadow'}:{Path(__file__).parents[2] / 'src'}",
        PATH=_path_without("runsc", tmp_path / "bin"),
        AENV_CACHE_DIR=str(tmp_path / "cache"),
        AENV_RUNSC_URL=binary.as_uri(),
        AENV_RUNSC_SHA256=hashlib.sha256(binary.read_bytes()).hexdigest(),
    )
    before = report(server)
    (lost,) = about(before, "runsc")
    assert (lost["severity"], lost["fix"]) == ("missing", "aenv setup --no-base")
    assert not before["ok"]

    mended = report(server, "--fix", "-y")
    assert mended["ok"]
    assert str(tmp_path / "cache") in about(mended, "runsc")[0]["summary"]
    server.start()
    assert Wire(server).run(Wire(server).create(), "dmesg").exit_code == 0


def _without(found: dict[str, Any], topics: tuple[str, ...]) -> list[dict[str, Any]]:
    return [finding for finding in found["findings"] if finding["topic"] not in topics]


def _path_without(name: str, folder: Path) -> str:
    """This PATH, its folders that hold ``name`` replaced by links to everything else in them."""
    kept = []
    for number, entry in enumerate(os.environ["PATH"].split(os.pathsep)):
        if not shutil.which(name, path=entry):
            kept.append(entry)
            continue
        copy = folder / str(number)
        copy.mkdir(parents=True)
        for found in Path(entry).iterdir():
            if found.name != name:
                (copy / found.name).symlink_to(found)
        kept.append(str(copy))
    return os.pathsep.join(kept)
