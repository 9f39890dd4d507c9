"""Folders of ours alone."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from aenv.models.errors import HostSetupError
from aenv.store.private import make_private

STRANGER = 54321
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a stranger's folder")


def mode(folder: Path) -> int:
    return stat.S_IMODE(folder.stat().st_mode)


def test_a_new_folder_is_ours_alone(tmp_path: Path) -> None:
    make_private(tmp_path / "run" / "instance")
    assert mode(tmp_path / "run" / "instance") == 0o700


def test_an_open_folder_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o755)
    (folder / "kept").touch()
    make_private(folder)
    assert mode(folder) == 0o700
    assert (folder / "kept").exists()


@as_root
def test_a_strangers_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    os.chown(tmp_path / "run", STRANGER, STRANGER)
    with pytest.raises(HostSetupError, match=f"belongs to uid {STRANGER}"):
        make_private(tmp_path / "run")
    with pytest.raises(HostSetupError, match=f"belongs to uid {STRANGER}"):
        make_private(tmp_path / "run" / "instance")


def test_a_folder_that_others_may_rename_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(HostSetupError, match="everybody may write"):
        make_private(tmp_path / "open" / "run")
    (tmp_path / "open").chmod(0o1777)
    make_private(tmp_path / "open" / "run")
