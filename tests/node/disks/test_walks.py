"""What guests made is measured and removed, whatever it is."""

from __future__ import annotations

import os
from pathlib import Path

from aenv.node.disks.walks import remove_tree, tree_size

MIB = 1 << 20
DEEP = 3000


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
