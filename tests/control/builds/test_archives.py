from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.control.builds.yards import once
from tests.fakes.clock import FakeClock

from aenv.control.builds.archives import LIFE, Archives, ArchiveTooLargeError, chunks
from aenv.models.errors import ForbiddenError, InvalidRequestError, NotFoundError

TEAM = "default"


def hashed(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def archives(tmp_path: Path) -> Archives:
    return Archives(tmp_path / "files", FakeClock(), most=1000, reserve=0)


async def put(archives: Archives, content: bytes) -> str:
    name = hashed(content)
    await archives.receive(archives.ticket(TEAM, name), len(content), once(content))
    return name


def left(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "files").rglob("*") if path.is_file()]


async def test_an_upload_is_there_for_its_team(archives: Archives) -> None:
    name = await put(archives, b"content")
    assert archives.has(TEAM, name)
    assert not archives.has("others", name)
    with archives.using(TEAM, name) as path:
        assert b"".join([chunk async for chunk in chunks(path)]) == b"content"


async def test_an_upload_that_breaks_off_leaves_nothing(archives: Archives, tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"half"
        raise asyncio.CancelledError

    ticket = archives.ticket(TEAM, hashed(b"x"))
    with pytest.raises(asyncio.CancelledError):
        await archives.receive(ticket, 8, broken())
    with pytest.raises(InvalidRequestError):
        await archives.receive(ticket, 8, once(b"short"))
    assert not archives.has(TEAM, hashed(b"x"))
    assert left(tmp_path) == []


async def test_a_link_is_forged_or_late(archives: Archives, tmp_path: Path) -> None:
    ticket = archives.ticket(TEAM, hashed(b"x"))
    for forged in (
        replace(ticket, team="others"),
        replace(ticket, files_hash=hashed(b"y")),
        replace(ticket, expires=ticket.expires + 1),
        replace(ticket, signature="00"),
        replace(ticket, signature="ü"),
    ):
        with pytest.raises(ForbiddenError):
            await archives.receive(forged, 1, once(b"x"))
    clock = archives._clock
    assert isinstance(clock, FakeClock)
    clock.pass_time(LIFE + 1)
    with pytest.raises(ForbiddenError):
        await archives.receive(ticket, 1, once(b"x"))
    assert left(tmp_path) == []


async def test_what_is_too_large_is_refused_announced_or_not(
    archives: Archives, tmp_path: Path
) -> None:
    content = b"x" * 501
    ticket = archives.ticket(TEAM, hashed(content))
    for announced in (501, None):
        with pytest.raises(ArchiveTooLargeError):
            await archives.receive(ticket, announced, once(content))
    assert left(tmp_path) == []


async def test_a_full_disk_is_told_before_it_is_full(tmp_path: Path) -> None:
    from aenv.models.errors import DiskFullError

    archives = Archives(tmp_path / "files", FakeClock(), most=1 << 40, reserve=1 << 60)
    with pytest.raises(DiskFullError):
        await put(archives, b"content")
    assert left(tmp_path) == []


async def test_those_used_longest_ago_go_first(archives: Archives) -> None:
    first = await put(archives, b"1" * 400)
    second = await put(archives, b"2" * 400)
    with archives.using(TEAM, first):
        third = await put(archives, b"3" * 400)
        assert [archives.has(TEAM, name) for name in (first, second, third)] == [True, False, True]
    await put(archives, b"4" * 400)
    with pytest.raises(NotFoundError), archives.using(TEAM, second) as path:
        path.stat()


@pytest.mark.parametrize("name", ["", "../../x", "a" * 63, "A" * 64])
def test_what_is_no_hash(archives: Archives, name: str) -> None:
    with pytest.raises(InvalidRequestError):
        archives.ticket(TEAM, name)


async def test_a_restart_removes_what_was_never_whole(archives: Archives, tmp_path: Path) -> None:
    name = await put(archives, b"content")
    folder = next(path for path in (tmp_path / "files").iterdir())
    (folder / ".new-abc").write_bytes(b"half")
    await archives.open()
    assert [path.name for path in left(tmp_path)] == [name]
