from __future__ import annotations

import bz2
import io
import os
import tarfile
from pathlib import Path

import pytest

from aenv.dockerfile.contexts import Context, inline
from aenv.dockerfile.ignoring import Ignored
from aenv.models.errors import InvalidRequestError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.txt", "b.md", "src/main.py", "src/.hidden", "src/lib/c.txt", "out/x.o"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "src/link").symlink_to("main.py")
    return tmp_path


def context(folder: Path, *rules: str) -> Context:
    return Context(folder, Ignored(rules))


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("a.txt", ["a.txt"]),
        ("*.txt", ["a.txt"]),
        ("src/lib", ["src/lib", "src/lib/c.txt"]),
        ("**/*.txt", ["a.txt", "src/lib/c.txt"]),
        ("[ab].*", ["a.txt", "b.md"]),
        ("s?c/l*", ["src/lib", "src/lib/c.txt", "src/link"]),
    ],
)
def test_what_a_copy_names(folder: Path, source: str, wanted: list[str]) -> None:
    assert context(folder).choose(source) == wanted


@pytest.mark.parametrize(
    ("rules", "left_out"),
    [
        (["out"], {"out", "out/x.o"}),
        (["/out/"], {"out", "out/x.o"}),
        (["*.txt"], {"a.txt"}),
        (["**/*.txt"], {"a.txt", "src/lib/c.txt"}),
        (["*", "!src"], {"a.txt", "b.md", "out", "out/x.o"}),
        (["src/*", "!src/main.py"], {"src/.hidden", "src/lib", "src/lib/c.txt", "src/link"}),
        (["# comment", "", "  b.md  "], {"b.md"}),
        (["src/lib", "!src/lib/c.txt"], {"src/lib"}),
    ],
)
def test_what_is_ignored(folder: Path, rules: list[str], left_out: set[str]) -> None:
    every = set(context(folder).choose("."))
    assert every - set(context(folder, *rules).choose(".")) == left_out


def test_what_is_not_there_or_ignored_cannot_be_copied(folder: Path) -> None:
    for source, rules in (("nope", ()), ("*.zip", ()), ("out", ("out",))):
        with pytest.raises(InvalidRequestError):
            context(folder, *rules).choose(source)


def test_the_hash_goes_by_content_names_and_modes(folder: Path) -> None:
    def now(source: str = "src") -> str:
        return context(folder).hash(source, context(folder).choose(source))

    first = now()
    os.utime(folder / "src/main.py", (1, 1))
    assert now() == first
    (folder / "src/main.py").chmod(0o700)
    second = now()
    (folder / "src/main.py").write_text("other")
    third = now()
    (folder / "src/link").unlink()
    (folder / "src/link").symlink_to("lib")
    fourth = now()
    (folder / "src/lib/c.txt").rename(folder / "src/lib/d.txt")
    assert len({first, second, third, fourth, now()}) == 5


def test_archives_hold_what_was_chosen_and_no_owners(folder: Path) -> None:
    out = io.BytesIO()
    chosen = context(folder)
    chosen.pack(chosen.choose("src"), out)
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as archive:
        members = archive.getmembers()
    assert [m.name for m in members] == chosen.choose("src")
    assert {(m.uid, m.gid, m.uname) for m in members} == {(0, 0, "")}
    assert next(m for m in members if m.name == "src/link").issym()


def test_an_archive_that_add_takes_apart_is_sent_as_it_is(folder: Path) -> None:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        archive.add(folder / "a.txt", "etc/a.txt")
    (folder / "r.tar.bz2").write_bytes(bz2.compress(raw.getvalue()))
    out = io.BytesIO()
    context(folder).unpacked("r.tar.bz2", out)
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as archive:
        assert archive.getnames() == ["etc/a.txt"]
    with pytest.raises(tarfile.ReadError):
        context(folder).unpacked("a.txt", io.BytesIO())


def test_an_inline_file(folder: Path) -> None:
    one, other = io.BytesIO(), io.BytesIO()
    assert inline("conf", b"x", one) != inline("conf", b"y", other)
    with tarfile.open(fileobj=io.BytesIO(one.getvalue())) as archive:
        assert archive.extractfile("conf").read() == b"x"  # type: ignore[union-attr]


def test_a_dockerfile_may_have_rules_of_its_own(folder: Path) -> None:
    (folder / ".dockerignore").write_text("a.txt\n")
    assert Ignored.of(folder, folder / "Dockerfile")("a.txt")
    (folder / "Dockerfile.dockerignore").write_text("b.md\n")
    assert not Ignored.of(folder, folder / "Dockerfile")("a.txt")
