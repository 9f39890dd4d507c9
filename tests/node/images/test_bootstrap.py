from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from aenv.models.errors import DiskFullError, TemplateBuildError
from aenv.node.images.bootstrap import Progress, failure, mmdebstrap

OUTPUT = [
    "I: running apt-get update...",
    "I: downloading packages with apt...",
    "0 upgraded, 2 newly installed, 0 to remove and 0 not upgraded.",
    "Get:1 http://mirror.example/debian bookworm/main amd64 a amd64 1 [1 B]",
    "Get:2 http://mirror.example/debian bookworm/main amd64 b amd64 1 [1 B]",
    "I: extracting archives...",
    "I: installing essential packages...",
    "Setting up a (1) ...",
    "Setting up b (1) ...",
    "I: installing remaining packages inside the chroot...",
    "0 upgraded, 4 newly installed, 0 to remove and 0 not upgraded.",
    "Get:1 http://mirror.example/debian bookworm/main amd64 c amd64 1 [1 B]",
    "Unpacking c (1) ...",
    "Setting up c (1) ...",
    "Processing triggers for libc-bin (1) ...",
    "I: cleaning package lists and apt cache...",
]


def test_progress_rises_with_every_package_and_names_the_step() -> None:
    seen: list[tuple[float, str]] = []
    progress = Progress(lambda fraction, step: seen.append((fraction, step)))

    for line in OUTPUT:
        progress.see(line)

    fractions = [fraction for fraction, _ in seen]
    assert fractions == sorted(fractions)
    assert len(set(fractions)) > len(OUTPUT) // 2
    assert [step for _, step in seen][-1] == "cleaning up"


def test_more_lines_than_packages_do_not_push_it_beyond_the_phase() -> None:
    seen: list[float] = []
    progress = Progress(lambda fraction, _: seen.append(fraction))

    for line in [*OUTPUT[:4], *["Get:9 x"] * 50]:
        progress.see(line)

    assert max(seen) <= 0.12


def test_a_full_disk_is_told_as_such() -> None:
    assert isinstance(failure(["dpkg: error: No space left on device"]), DiskFullError)


def test_a_failure_carries_the_lines_that_matter() -> None:
    error = failure(["I: noise", "E: Unable to locate package nonsense"])

    assert isinstance(error, TemplateBuildError)
    assert "nonsense" in str(error)
    assert "noise" not in str(error)


def test_a_killed_run_leaves_its_temporary_files_where_they_are_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "bin" / "mmdebstrap"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\nmktemp -d -t mmdebstrap.gpghome.XXXXXX\nkill -9 $$\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    before = set(Path(tempfile.gettempdir()).glob("mmdebstrap.*"))
    workspace = tmp_path / "workspace"
    workspace.mkdir()

    with pytest.raises(TemplateBuildError):
        mmdebstrap(
            workspace / "root",
            suite="bookworm",
            packages=["bash"],
            sources=[],
            archives=tmp_path / "archives",
            scratch=workspace / "tmp",
            acquire=[],
            report=lambda *_: None,
        )

    assert set(Path(tempfile.gettempdir()).glob("mmdebstrap.*")) <= before
    assert len(list((workspace / "tmp").glob("mmdebstrap.gpghome.*"))) == 1
