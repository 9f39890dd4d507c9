"""What guests made is measured and removed, whatever it is."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from aenv.node.disks.removals import remove_tree
from aenv.node.disks.walks import tree_size

MIB = 1 << 20
DEEP = 3000
_NOBODY = 65534


def make_deep(folder: Path, *, end: bytes) -> None:
    """Deeper than Python recurses and than a path can be long; a file at the end."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(DEEP):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    file = os.open("end", os.O_WRONLY | os.O_CREAT, dir_fd=here)
    os.write(file, end)
    os.close(file)
    os.close(here)


def test_a_tree_too_deep_for_paths_is_measured_and_removed(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    make_deep(disk, end=bytes(MIB))
    assert tree_size(disk) >= MIB
    remove_tree(disk)
    assert not disk.exists()


def test_links_are_removed_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/kept").write_text("kept")
    disk = tmp_path / "disk"
    (disk / "a/b").mkdir(parents=True)
    for link in (disk / "to", disk / "a/to", disk / "a/b/to"):
        link.symlink_to(tmp_path / "outside")
    (disk / "a/hard").hardlink_to(tmp_path / "outside/kept")
    os.mkfifo(disk / "a/fifo")
    remove_tree(disk)
    assert not disk.exists()
    assert (tmp_path / "outside/kept").read_text() == "kept"


def test_a_missing_tree_is_removed_already(tmp_path: Path) -> None:
    remove_tree(tmp_path / "nothing")


def test_names_that_are_no_text_are_removed(tmp_path: Path) -> None:
    disk = os.fsencode(tmp_path) + b"/disk"
    for name in (b"\xff\xfe", b"-rf", b" ", b"new\nline", "grüße".encode()):
        os.makedirs(disk + b"/" + name + b"/" + name)
        open(disk + b"/" + name + b"/file", "wb").close()
    remove_tree(tmp_path / "disk")
    assert not os.path.exists(disk)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody who is not")
def test_an_owner_without_rights_removes_all_the_same() -> None:
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        disk = Path(name) / "disk"
        (disk / "a/b/c").mkdir(parents=True)
        (disk / "a/b/f").write_text("x")
        for path in (disk / "a/b/c", disk / "a/b", disk / "a", disk):
            os.chown(path, _NOBODY, _NOBODY)
            path.chmod(0o000)
        assert _as_nobody(lambda: remove_tree(disk)) == 0
        assert not disk.exists()


def _as_nobody(work: Callable[[], None]) -> int:
    """The exit status of a child that did it: 0 if nothing was raised."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
        work()
        os._exit(0)
    finally:
        os._exit(1)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_what_was_made_immutable_is_removed(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    (disk / "a/b").mkdir(parents=True)
    (disk / "a/f").write_text("x")
    (disk / "a/log").write_text("x")
    subprocess.run(["chattr", "+a", disk / "a/log"], check=True)
    for path in (disk / "a/f", disk / "a/b", disk / "a", disk):
        subprocess.run(["chattr", "+i", path], check=True)
    remove_tree(disk)
    assert not disk.exists()
