"""What a hostile sandbox may send as an archive, and what becomes of it: nothing outside."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from aenv.models.errors import ConflictError, HostileArchiveError
from aenv.sdk.archives import Extraction, pack


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> io.BytesIO:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as writer:
        for member, content in members:
            member.size = len(content)
            writer.addfile(member, io.BytesIO(content))
    stream.seek(0)
    return stream


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644):  # type: ignore[no-untyped-def]
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    return info


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("untouched")
    (tmp_path / "inside").mkdir()
    return tmp_path / "inside"


def unpack(inside: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Extraction:
    copy = Extraction(inside, root="t", name="t")
    copy.unpack(archive(*members))
    return copy


@pytest.mark.parametrize(
    "name",
    ["/etc/evil", "../evil", "t/../../evil", "other/evil", "t/./../../evil", "..", "evil"],
)
def test_names_outside_of_the_copy_are_refused(inside: Path, name: str) -> None:
    with pytest.raises(HostileArchiveError, match="outside"):
        unpack(inside, (member(name), b"x"))
    assert sorted(p.name for p in inside.parent.iterdir()) == ["inside", "secret"]


@pytest.mark.parametrize(
    "target",
    ["/etc/passwd", "..", "../..", "../secret", "sub/../../secret", "x/../../../secret", "../../x"],
)
def test_symlinks_that_may_lead_outside_are_left_out(inside: Path, target: str) -> None:
    copy = unpack(inside, (member("t/link", tarfile.SYMTYPE, target), b""))
    assert len(copy.skipped) == 1
    assert not os.path.lexists(inside / "t/link")


def test_a_copy_that_is_itself_a_symlink_is_left_out(inside: Path) -> None:
    copy = unpack(inside, (member("t", tarfile.SYMTYPE, "secret"), b""))
    assert len(copy.skipped) == 1
    assert list(inside.iterdir()) == []


def test_nothing_is_written_through_a_symlink_of_the_archive(inside: Path) -> None:
    """Symlinks are made last, so a later entry below one makes a folder in its place."""
    with pytest.raises(ConflictError, match="dir"):
        unpack(
            inside,
            (member("t/dir", tarfile.SYMTYPE, "inner"), b""),
            (member("t/dir/file"), b"x"),
        )
    assert (inside.parent / "secret").read_text() == "untouched"


def test_nothing_is_written_through_a_symlink_that_was_there(inside: Path) -> None:
    (inside / "t").mkdir()
    (inside / "t/out").symlink_to(inside.parent)
    with pytest.raises(HostileArchiveError, match="symlink"):
        unpack(inside, (member("t/out/secret"), b"evil"))
    (inside / "t/file").symlink_to(inside.parent / "secret")
    unpack(inside, (member("t/file"), b"new"))
    assert (inside.parent / "secret").read_text() == "untouched"
    assert (inside / "t/file").read_text() == "new"


def test_symlinks_of_symlinks_cannot_climb_together(inside: Path) -> None:
    copy = unpack(
        inside,
        (member("t/a/b/c", tarfile.DIRTYPE, mode=0o755), b""),
        (member("t/a/b/c/up", tarfile.SYMTYPE, "../../.."), b""),
        (member("t/a/b/c/out", tarfile.SYMTYPE, "up/../secret"), b""),
    )
    assert [one.split(" ")[0] for one in copy.skipped] == ["t/a/b/c/out"]
    for path in (inside / "t").rglob("*"):
        assert path.resolve().is_relative_to(inside / "t")


def test_hard_links_reach_only_files_of_the_copy(inside: Path) -> None:
    unpack(
        inside,
        (member("t/f"), b"1"),
        (member("t/g", tarfile.LNKTYPE, "t/f"), b""),
    )
    assert (inside / "t/g").read_bytes() == b"1"
    for target in ("../secret", "/etc/passwd", "secret"):
        with pytest.raises(HostileArchiveError):
            unpack(inside, (member("t/h", tarfile.LNKTYPE, target), b""))
    (inside / "t/s").symlink_to(inside.parent / "secret")
    with pytest.raises(HostileArchiveError):
        unpack(inside, (member("t/h", tarfile.LNKTYPE, "t/s"), b""))


def test_special_files_are_left_out_and_set_id_bits_dropped(inside: Path) -> None:
    copy = unpack(
        inside,
        (member("t/su", mode=0o6755), b"x"),
        (member("t/null", tarfile.CHRTYPE), b""),
        (member("t/pipe", tarfile.FIFOTYPE), b""),
    )
    assert copy.skipped[0] == "t/su: its set-user-ID or set-group-ID bit"
    assert len(copy.skipped) == 3
    assert (inside / "t/su").stat().st_mode & 0o7777 == 0o755


def test_a_folder_closed_to_writing_is_filled_before_it_closes(inside: Path) -> None:
    unpack(
        inside,
        (member("t/ro", tarfile.DIRTYPE, mode=0o555), b""),
        (member("t/ro/f"), b"1"),
    )
    assert (inside / "t/ro").stat().st_mode & 0o777 == 0o555
    assert (inside / "t/ro/f").read_bytes() == b"1"


def test_absurd_times_do_no_harm(inside: Path) -> None:
    strange = member("t/f")
    strange.mtime = -(2**40)
    unpack(inside, (strange, b"1"))
    assert (inside / "t/f").exists()


def test_packing_leaves_owners_out_and_links_in(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/l").symlink_to("/etc/passwd")
    stream = io.BytesIO()
    pack(tmp_path / "d", "name", stream)
    stream.seek(0)
    with tarfile.open(fileobj=stream) as reader:
        found = {info.name: info for info in reader}
    assert found["name/l"].linkname == "/etc/passwd"
    assert {info.uid for info in found.values()} == {0}
