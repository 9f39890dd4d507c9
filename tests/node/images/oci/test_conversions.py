"""Archives of layers as EROFS images, read back through the kernel."""

from __future__ import annotations

import os
import stat
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.fakes.layers import archive, digest, entry, folder, link, pack

from aenv.node.host.loops import RootLoopDevices
from aenv.node.host.mounts import RootMounts
from aenv.node.images.oci.conversions import convert, read_folders

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs root on Linux"),
]

Show = Callable[..., Path]


@pytest.fixture
def show(tmp_path: Path) -> Iterator[Show]:
    """Converts archives (lowest first) into one image and mounts it."""
    mounts = RootMounts(RootLoopDevices())
    mounted: list[Path] = []

    def make(*tars: bytes, compression: str = "gzip") -> Path:
        here = tmp_path / f"image{len(mounted)}"
        here.mkdir()
        pairs = []
        for number, tar in enumerate(tars):
            blob = here / f"blob{number}"
            blob.write_bytes(pack(tar, compression))
            pairs.append((blob, digest(tar).removeprefix("sha256:")))
        convert(pairs, here)
        target = here / "mounted"
        target.mkdir()
        mounts.image(here / "layer.erofs", target)
        mounted.append(target)
        return target

    yield make
    for target in mounted:
        mounts.unmount(target)


def facts(path: Path) -> tuple[str, int, int]:
    found = path.lstat()
    return stat.filemode(found.st_mode), found.st_uid, found.st_gid


def test_files_folders_and_links(show: Show) -> None:
    root = show(
        archive(
            folder("./", mode=0o711, uid=7),
            folder("etc", mode=0o700, uid=1, gid=2, mtime=1_000_000_000.5),
            entry("etc/shadow", b"secret\n", mode=0o4640, uid=3, gid=2**32 - 2),
            link("etc/link", "/no/where"),
            link("etc/again", "etc/shadow", hard=True),
            entry("etc/empty", b""),
            entry("pipe", type=tarfile.FIFOTYPE),
        )
    )

    assert facts(root) == ("drwx--x--x", 7, 0)
    assert facts(root / "etc") == ("drwx------", 1, 2)
    assert (root / "etc").stat().st_mtime_ns == 1_000_000_000_500_000_000
    assert (root / "etc/shadow").read_bytes() == b"secret\n"
    assert facts(root / "etc/shadow") == ("-rwSr-----", 3, 2**32 - 2)
    assert (root / "etc/shadow").stat().st_nlink == 2
    assert (root / "etc/shadow").stat().st_ino == (root / "etc/again").stat().st_ino
    assert os.readlink(root / "etc/link") == "/no/where"
    assert (root / "etc/empty").read_bytes() == b""
    assert stat.S_ISFIFO((root / "pipe").stat().st_mode)
    assert sorted(os.listdir(root)) == ["etc", "pipe"]


@pytest.mark.parametrize("compression", ["gzip", "zstd", "none"])
def test_every_compression(show: Show, compression: str) -> None:
    content = os.urandom(3 << 20)

    root = show(archive(entry("big", content)), compression=compression)

    assert (root / "big").read_bytes() == content


def test_attributes_are_kept_and_the_overlays_own_are_not_believed(show: Show) -> None:
    capability = struct.pack("<IIIII", 0x02000000, 1 << 10, 0, 0, 0)
    pax = {
        "SCHILY.xattr.security.capability": capability.decode("latin-1"),
        "SCHILY.xattr.user.note": "héllo",
        "SCHILY.xattr.trusted.overlay.redirect": "/etc",
        "SCHILY.xattr.user.overlay.opaque": "y",
        "SCHILY.xattr.security.selinux": "label",
    }

    root = show(archive(entry("tool", b"x", pax_headers=pax)))

    assert sorted(os.listxattr(root / "tool")) == ["security.capability", "user.note"]
    assert os.getxattr(root / "tool", "user.note") == "héllo".encode()
    assert os.getxattr(root / "tool", "security.capability") == capability


def test_removals_become_the_overlays_marks(show: Show) -> None:
    root = show(
        archive(
            folder("kept"),
            entry("kept/.wh.gone"),
            entry("kept/new", b"1"),
            folder("all"),
            entry("all/mine", b"2"),
            entry("all/.wh..wh..opq"),
            entry(".wh.folder"),
            folder("folder"),
            entry("folder/fresh", b"3"),
            entry(".wh..wh.plnk"),
        )
    )

    gone = (root / "kept/gone").lstat()
    assert (stat.S_ISCHR(gone.st_mode), gone.st_rdev) == (True, 0)
    assert os.getxattr(root / "all", "trusted.overlay.opaque") == b"y"
    assert (root / "all/mine").read_text() == "2"
    assert os.getxattr(root / "folder", "trusted.overlay.opaque") == b"y"
    assert (root / "folder/fresh").read_text() == "3"
    assert sorted(os.listdir(root)) == ["all", "folder", "kept"]


def test_a_removal_after_the_new_entry_does_not_concern_it(show: Show) -> None:
    root = show(
        archive(folder("a"), entry("a/x", b"1"), entry("b", b"2"), entry(".wh.a"), entry(".wh.b"))
    )

    assert (root / "a/x").read_text() == "1"
    assert os.getxattr(root / "a", "trusted.overlay.opaque") == b"y"
    assert (root / "b").read_text() == "2"


def test_an_overlay_of_layers_shows_what_the_image_means(show: Show, tmp_path: Path) -> None:
    low = show(archive(folder("d"), entry("d/a", b"1"), entry("d/b", b"1"), entry("e/f", b"1")))
    high = show(archive(folder("d"), entry("d/.wh.a"), entry("d/c", b"2"), entry("e/.wh..wh..opq")))
    mounts, merged = RootMounts(RootLoopDevices()), tmp_path / "merged"
    merged.mkdir()

    mounts.overlay([high, low], None, None, merged)
    try:
        assert sorted(os.listdir(merged / "d")) == ["b", "c"]
        assert os.listdir(merged / "e") == []
    finally:
        mounts.unmount(merged)


def test_layers_applied_to_one_image_give_the_same(show: Show) -> None:
    root = show(
        archive(
            folder("d", mode=0o700, uid=5),
            entry("d/a", b"1"),
            entry("d/b", b"1"),
            entry("e/f", b"1"),
            entry("g", b"1"),
        ),
        archive(entry("d/.wh.a"), entry("d/c", b"2"), entry("e/.wh..wh..opq"), entry("e/n", b"2")),
        archive(entry(".wh.g"), folder("g"), entry("g/h", b"3")),
    )

    assert sorted(os.listdir(root / "d")) == ["a", "b", "c"]
    assert stat.S_ISCHR((root / "d/a").lstat().st_mode)
    assert facts(root / "d") == ("drwx------", 5, 0)
    assert os.listdir(root / "e") == ["n"]
    assert (root / "g/h").read_text() == "3"


def test_the_last_of_several_entries_wins(show: Show) -> None:
    root = show(
        archive(
            entry("x", b"first"),
            entry("x", b"second", mode=0o600),
            folder("d"),
            entry("d/in", b""),
            entry("d", b"a file now"),
            link("l", "x"),
            folder("l"),
            folder("m", mode=0o700),
            entry("m/in", b"kept"),
            folder("m", mode=0o750),
        )
    )

    assert (root / "x").read_bytes() == b"second"
    assert facts(root / "x")[0] == "-rw-------"
    assert (root / "d").read_bytes() == b"a file now"
    assert (root / "l").is_dir()
    assert (root / "m/in").read_text() == "kept"
    assert facts(root / "m")[0] == "drwxr-x---"


def test_devices_are_there_and_open_nothing_on_the_host(show: Show) -> None:
    root = show(
        archive(
            entry("null", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
            entry("disk", type=tarfile.BLKTYPE, devmajor=259, devminor=70_000),
        )
    )

    assert (root / "null").stat().st_rdev == os.makedev(1, 3)
    assert (root / "disk").stat().st_rdev == os.makedev(259, 70_000)
    with pytest.raises(PermissionError):
        (root / "null").open("rb")


def test_large_folders_odd_names_and_deep_paths(show: Show) -> None:
    names = [f"{'n' * (number % 200)}-{number}" for number in range(5000)]
    odd = ["!first", "-dash", "#hash", "..two", "ünï", "\udcff\udc80raw", "sp ace", "x" * 255]
    deep = "/".join(["deep"] * 60)

    root = show(
        archive(
            *(entry(f"many/{n}", n.encode()[:9]) for n in names),
            *(entry(o) for o in odd),
            entry(f"{deep}/end", b"end"),
        )
    )

    assert sorted(os.listdir(root / "many")) == sorted(names)
    assert all((root / "many" / n).read_bytes() == n.encode()[:9] for n in names)
    assert sorted(os.listdir(root)) == sorted([*odd, "many", "deep"])
    assert (root / deep / "end").read_text() == "end"


def test_long_links_and_large_attributes(show: Show) -> None:
    pax = {f"SCHILY.xattr.user.a{number}": "v" * 3000 for number in range(6)}

    root = show(
        archive(link("long", "t" * 4095), folder("many", pax_headers=pax), entry("many/x", b"1"))
    )

    assert os.readlink(root / "long") == "t" * 4095
    assert os.getxattr(root / "many", "user.a5") == b"v" * 3000
    assert (root / "many/x").read_text() == "1"


@pytest.mark.parametrize("form", ["--format=gnu", "--format=pax"])
def test_sparse_files_take_no_room(show: Show, tmp_path: Path, form: str) -> None:
    source = tmp_path / "source"
    source.mkdir()
    with (source / "holes").open("wb") as file:
        file.write(b"begin")
        file.seek(300 << 20)
        file.write(b"end")
    command = ["tar", "--sparse", form, "-C", str(source), "-cf", "-", "holes"]
    tar = subprocess.run(command, check=True, capture_output=True).stdout
    assert len(tar) < 1 << 20

    root = show(tar)

    with (root / "holes").open("rb") as file:
        assert file.read(6) == b"begin\0"
        file.seek(300 << 20)
        assert file.read() == b"end"
    assert (root.parent / "layer.erofs").stat().st_blocks * 512 < 2 << 20


def test_the_same_archive_becomes_the_same_bytes(tmp_path: Path) -> None:
    tar = archive(folder("a", mtime=5), *(entry(f"a/{n}", b"x" * n) for n in range(300)))
    blob = tmp_path / "blob"
    blob.write_bytes(tar)
    found = set()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        found.add(convert([(blob, digest(tar).removeprefix("sha256:"))], tmp_path / name))

    assert len(found) == 1


def test_folders_that_are_only_implied_are_told_apart(tmp_path: Path) -> None:
    tar = archive(folder("a", mode=0o700, uid=4), entry("a/b/c", b""), entry("d/.wh..wh..opq"))
    blob = tmp_path / "blob"
    blob.write_bytes(tar)
    convert([(blob, digest(tar).removeprefix("sha256:"))], tmp_path)

    found = read_folders(tmp_path / "folders.json")

    assert set(found) == {b"", b"a", b"a/b", b"d"}
    assert (found[b"a"].mode, found[b"a"].uid, found[b"a"].implied) == (0o700, 4, False)
    assert found[b"a/b"].implied
    assert found[b"d"].opaque
