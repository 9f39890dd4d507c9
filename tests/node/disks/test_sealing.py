"""Disks as layers: what an overlay shows over a sealed one is what it showed before."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from aenv.models.errors import EngineError
from aenv.node.cold import sealing, worker
from aenv.node.cold.sealing import seal
from aenv.node.disks.removals import remove_tree
from aenv.node.host.mounts import mount, unmount

pytestmark = pytest.mark.root
OPTIONS = "redirect_dir=on,metacopy=off,index=off"


class Overlays:
    """Overlays in a folder; ``base`` is the lowest layer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.base = self._make("base")
        self._mounted: list[Path] = []

    def over(self, *lowers: Path, upper: str) -> Path:
        target = self._make(f"{upper}-merged")
        dirs = ":".join(map(str, (*lowers, self.base)))
        places = f"upperdir={self._make(upper)},workdir={self._make(f'{upper}-work')}"
        mount("overlay", target, "overlay", 0, f"lowerdir={dirs},{places},{OPTIONS}")
        self._mounted.append(target)
        return target

    def sealed(self, upper: str) -> Path:
        image, target = self.folder / f"{upper}.erofs", self._make(f"{upper}-layer")
        seal(self.folder / upper, image)
        mount(str(image), target, "erofs", 1)
        self._mounted.append(target)
        return target

    def end(self) -> None:
        for target in reversed(self._mounted):
            unmount(target)

    def _make(self, name: str) -> Path:
        path = self.folder / name
        path.mkdir()
        return path


@pytest.fixture
def overlays(tmp_path: Path) -> Iterator[Overlays]:
    if os.geteuid() != 0:
        pytest.skip("mounts need root")
    found = Overlays(tmp_path)
    yield found
    found.end()


def look(root: Path) -> dict[str, object]:
    """All that a guest sees below ``root``, but for folders' sizes and link counts."""
    found: dict[str, object] = {}
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(folder, name)
            status = path.lstat()
            kind = stat.S_IFMT(status.st_mode)
            content: object = None
            if kind == stat.S_IFREG:
                content = (status.st_size, status.st_nlink, hash(path.read_bytes()))
            elif kind == stat.S_IFLNK:
                content = path.readlink()
            mtime = None if kind == stat.S_IFDIR else status.st_mtime_ns
            attributes = {n: os.getxattr(path, n, follow_symlinks=False) for n in _attributes(path)}
            facts = (status.st_mode, status.st_uid, status.st_gid, status.st_rdev, mtime)
            found[str(path.relative_to(root))] = (facts, content, attributes)
    return found


def _attributes(path: Path) -> list[str]:
    names = os.listxattr(path, follow_symlinks=False)
    return [name for name in names if not name.startswith("trusted.overlay.")]


def write_base(base: Path) -> None:
    for name in ("gone", "edited", "folder/kept", "folder/gone", "moved/a", "opaque/old"):
        (base / name).parent.mkdir(exist_ok=True)
        (base / name).write_text(f"base {name}")


def change(root: Path) -> None:
    for name in ("gone", "folder/gone", "opaque/old"):
        (root / name).unlink()
    (root / "opaque").rmdir()
    (root / "opaque").mkdir()
    (root / "opaque/new").write_text("new")
    (root / "edited").write_text("changed")
    (root / "moved").rename(root / "folder/moved here")
    (root / "one").write_bytes(os.urandom(9000))
    os.link(root / "one", root / "two")
    os.chown(root / "one", 5, 6)
    (root / "one").chmod(0o4755)
    os.setxattr(root / "one", "user.note", b"x" * 3000)
    os.setxattr(root / "one", "security.capability", b"\1\0\0\2" + bytes(16))
    os.symlink("x" * 3000, root / "long link")
    os.mkfifo(root / "pipe")
    os.mknod(root / "device", stat.S_IFCHR | 0o600, os.makedev(300, 70000))
    (root / "empty").touch()
    os.utime(root / "empty", ns=(1, 981173106123456789))
    (root / os.fsdecode(b"\xff\n name")).touch()
    (root / "wide").mkdir()
    for number in range(400):
        (root / "wide" / f"{number:0100}").touch()
    with (root / "sparse").open("wb") as file:
        file.seek(3 << 20)
        file.write(b"in the middle")
        file.truncate(9 << 20)


def test_a_sealed_disk_shows_what_the_disk_showed(overlays: Overlays) -> None:
    write_base(overlays.base)
    merged = overlays.over(upper="first")
    change(merged)
    before = look(merged)

    again = overlays.over(overlays.sealed("first"), upper="second")

    assert look(again) == before
    (again / "folder/moved here/a").write_text("mine")
    (again / "opaque/new").unlink()
    (again / "folder/kept").unlink()
    before = look(again)
    lowers = overlays.folder / "first-layer"
    third = overlays.over(overlays.sealed("second"), lowers, upper="third")
    assert look(third) == before


def test_the_same_files_are_the_same_layer(tmp_path: Path) -> None:
    trees = []
    for name in ("one", "two"):
        tree = tmp_path / name
        tree.mkdir()
        for file in ("b", "a") if name == "one" else ("a", "b"):
            (tree / file).write_text(file)
            os.utime(tree / file, (7, 7))
        os.utime(tree, (7, 7))
        trees.append(seal(tree, tmp_path / f"{name}.erofs"))
    assert trees[0] == trees[1]


def test_holes_take_no_room(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    os.truncate(os.open(tree / "hole", os.O_CREAT | os.O_WRONLY), 1 << 30)
    made = seal(tree, tmp_path / "image")
    assert made.bytes > 1 << 30
    assert (tmp_path / "image").stat().st_blocks * 512 < 1 << 20


def test_what_no_layer_holds_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("a", "b"):
        os.truncate(os.open(tree / name, os.O_CREAT | os.O_WRONLY), 7 << 30)
    monkeypatch.setattr(sealing, "MOST_BYTES", 8 << 30)
    with pytest.raises(EngineError, match="8 GiB"):
        seal(tree, tmp_path / "image")
    monkeypatch.setattr(sealing, "MOST_INODES", 2)
    for name in ("a", "b"):
        (tree / name).write_text("short")
    with pytest.raises(EngineError, match="more than 2 files"):
        seal(tree, tmp_path / "other")


async def test_deep_trees_and_sockets(tmp_path: Path) -> None:
    """In the worker's process, which may open a descriptor per level."""
    tree = tmp_path / "tree"
    tree.mkdir()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tree / "socket"))
    here = os.open(tree, os.O_RDONLY)
    for _ in range(2000):
        os.mkdir("deeper", dir_fd=here)
        below = os.open("deeper", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    made = await worker.run(tree, tmp_path / "image")
    remove_tree(tree)
    assert (made.inodes, made.skipped) == (2001, {"sockets": 1})


async def test_a_worker_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="cannot be read"):
        await worker.run(tmp_path / "absent", tmp_path / "image")
