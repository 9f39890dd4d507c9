from __future__ import annotations

from pathlib import Path

from tests.fakes.clock import FakeClock

from aenv.control.builds import journals
from aenv.control.builds.journals import Journals, Lines


async def test_lines_of_a_command_arrive_whole(tmp_path: Path) -> None:
    found = Journals(tmp_path / "logs", FakeClock())
    journal = found.open("b")
    lines = Lines(journal, "1", "> ", "info")
    for piece in (b"one\ntw", b"o\r\n\n 10%\r 50%\r100%\n", b"gr\xc3", b"\xbcn\xff", b"\nend"):
        lines.write(piece)
    lines.close()
    assert [one.message for one in await found.read("b")] == [
        *("> one", "> two", "> 100%", "> grün\ufffd", "> end")
    ]


async def test_a_line_without_end_does_not_fill_memory(tmp_path: Path) -> None:
    found = Journals(tmp_path, FakeClock())
    lines = Lines(found.open("b"), "1", "", "info")
    for _ in range(10):
        lines.write(b"x" * 3000)
    assert len(lines._open) <= journals.LONGEST_LINE
    lines.close()
    assert {len(one.message) for one in await found.read("b")} <= set(range(1, 4097))


async def test_a_log_is_bounded_and_errors_still_fit(tmp_path: Path) -> None:
    found = Journals(tmp_path, FakeClock())
    journal = found.open("b")
    for _ in range(4000):
        journal.say("x" * 4000)
    journal.say("it failed", level="error")
    entries = await found.read("b")
    assert (tmp_path / "b.jsonl").stat().st_size < journals.MOST_BYTES + 100_000
    assert [one.message for one in entries[-2:]] == [
        *("the log is full; the build goes on", "it failed")
    ]


async def test_levels_filter_and_a_torn_line_is_skipped(tmp_path: Path) -> None:
    found = Journals(tmp_path, FakeClock())
    journal = found.open("b")
    for level in journals.LEVELS:
        journal.say(level, level=level)
    with (tmp_path / "b.jsonl").open("a") as file:
        file.write('[1, "info", "half')
    assert [one.message for one in await found.read("b", level="warn")] == ["warn", "error"]
    assert await found.read("nothing") == []
