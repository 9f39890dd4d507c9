"""Logs on disk: bounded, mended after a crash, searchable; and pulling them from agents."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.fakes.agent import FakeAgent
from tests.fakes.waiting import until, until_equal

from aenv.models.sandboxes import LogEntry
from aenv.node.agents import AgentClient
from aenv.node.logfiles import LogFiles, LogLine, LogQuery
from aenv.node.logs import LogBudget, LogKeeper


def line(message: str, *, level: str = "info", at: float = 0.0, agent_seq: int = 0) -> LogLine:
    return LogLine(at, "stdout", level, message, {}, agent_seq)


def open_log(folder: Path, *, budget: int = 1 << 20, segment: int = 1 << 12) -> LogFiles:
    return LogFiles(folder / "i1", budget=budget, segment_bytes=segment)


def messages(entries: list[LogEntry]) -> list[str]:
    return [entry.message for entry in entries]


def test_lines_are_read_back_in_both_directions(tmp_path: Path):
    log = open_log(tmp_path, segment=300)
    log.append(line(str(number)) for number in range(1, 11))
    assert [entry.seq for entry in log.query(LogQuery())] == list(range(1, 11))
    assert messages(log.query(LogQuery(after=7))) == ["8", "9", "10"]
    assert messages(log.query(LogQuery(limit=2))) == ["1", "2"]
    assert messages(log.query(LogQuery(descending=True, limit=3))) == ["10", "9", "8"]
    assert messages(log.query(LogQuery(descending=True, after=4))) == ["3", "2", "1"]


def test_filters_by_level_text_and_time(tmp_path: Path):
    log = open_log(tmp_path)
    for number, level in enumerate(("debug", "info", "warn", "error")):
        log.append([line(f"{level} “text”", level=level, at=float(number))])
    assert messages(log.query(LogQuery(level="warn"))) == ["warn “text”", "error “text”"]
    assert messages(log.query(LogQuery(search="info “"))) == ["info “text”"]
    assert len(log.query(LogQuery(start=2.0))) == 2
    assert len(log.query(LogQuery(start=2.0, descending=True))) == 3


def test_the_oldest_segments_go_first(tmp_path: Path):
    log = open_log(tmp_path, budget=2000, segment=500)
    log.append(line(str(number)) for number in range(100))
    assert log.size <= 2000
    found = log.query(LogQuery())
    assert found[-1].message == "99"
    assert found[0].seq > 50
    assert sum(path.stat().st_size for path in (tmp_path / "i1").iterdir()) == log.size


def test_counting_goes_on_after_a_restart(tmp_path: Path):
    first = open_log(tmp_path)
    first.append([line("one", agent_seq=40), line("a note")])
    again = open_log(tmp_path)
    assert (again.last_seq, again.last_agent_seq) == (2, 40)
    again.append([line("three")])
    assert [entry.seq for entry in again.query(LogQuery())] == [1, 2, 3]


@pytest.mark.parametrize("torn", [b'{"seq":3,"mess', b"\x00" * 100, b"[]", b'{"seq":9}'])
def test_a_torn_tail_is_cut(tmp_path: Path, torn: bytes):
    log = open_log(tmp_path)
    log.append([line("one"), line("two")])
    (path,) = (tmp_path / "i1").iterdir()
    path.write_bytes(path.read_bytes() + torn)
    mended = open_log(tmp_path)
    mended.append([line("three")])
    assert messages(mended.query(LogQuery())) == ["one", "two", "three"]


def test_spoilt_lines_are_skipped(tmp_path: Path):
    log = open_log(tmp_path)
    log.append([line("one"), line("two"), line("three")])
    (path,) = (tmp_path / "i1").iterdir()
    first, _, third = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + b"spoilt\n" + third)
    assert messages(open_log(tmp_path).query(LogQuery())) == ["one", "three"]


def test_a_segment_of_rubbish_does_not_cost_the_others(tmp_path: Path):
    log = open_log(tmp_path, segment=300)
    log.append(line(str(number)) for number in range(10))
    newest = max((tmp_path / "i1").iterdir())
    newest.write_bytes(b"rubbish\n")
    mended = open_log(tmp_path)
    mended.append([line("after")])
    found = messages(mended.query(LogQuery()))
    assert found[0] == "0"
    assert found[-1] == "after"


@pytest.fixture
async def agent() -> AsyncIterator[FakeAgent]:
    agent = FakeAgent()
    yield agent
    await agent.stop()


async def client(agent: FakeAgent) -> AgentClient:
    return AgentClient(await agent.start(), host_secret="s", access_token="t")


async def test_what_an_agent_says_is_kept_as_it_comes(tmp_path: Path, agent: FakeAgent):
    keeper = LogKeeper(tmp_path)
    keeper.follow("i1", await client(agent))
    agent.say("one")
    await _until_kept(keeper, ["one"])
    agent.say("two", stream="stderr", level="error")
    await _until_kept(keeper, ["one", "two"])
    entry = (await keeper.query("i1", LogQuery()))[1]
    assert (entry.stream, entry.level, entry.fields) == ("stderr", "error", {"pid": "7"})
    await keeper.close()


async def test_the_last_words_are_fetched_when_a_sandbox_leaves(tmp_path: Path, agent: FakeAgent):
    keeper = LogKeeper(tmp_path)
    keeper.follow("i1", await client(agent))
    agent.ring.append({"seq": 1, "message": "last words"})  # nobody is woken by it
    await keeper.unfollow("i1", drain=True)
    assert messages(await keeper.query("i1", LogQuery())) == ["last words"]


async def test_a_guest_set_back_to_an_older_snapshot_is_followed_from_there(
    tmp_path: Path, agent: FakeAgent
):
    first = open_log(tmp_path)
    first.append([line("from the future", agent_seq=100)])
    keeper = LogKeeper(tmp_path)
    await keeper.open(["i1"])
    agent.say("from the past")
    keeper.follow("i1", await client(agent))
    await until(lambda: keeper._logs["i1"].files.last_agent_seq == 1)
    agent.say("and on")
    await _until_kept(keeper, ["from the future", "and on"])
    await keeper.close()


async def test_a_gap_is_told(tmp_path: Path, agent: FakeAgent):
    agent.dropped = 12
    agent.say("later")
    keeper = LogKeeper(tmp_path)
    keeper.follow("i1", await client(agent))
    await _until_kept(
        keeper, ["12 lines were dropped: they came faster than they can be kept", "later"]
    )
    await keeper.close()


async def test_a_full_disk_costs_lines_but_neither_the_log_nor_the_reserve(
    tmp_path: Path, agent: FakeAgent
):
    free = 0
    keeper = LogKeeper(tmp_path, LogBudget(min_free=100), free_bytes=lambda _: free)
    keeper.follow("i1", await client(agent))
    agent.say("lost")
    await keeper.note("i1", "also lost")
    await until(lambda: keeper._logs["i1"].unwritten == 2)
    assert not (tmp_path / "i1").exists()
    free = 1000
    agent.say("kept")
    await _until_kept(keeper, ["2 lines were lost: the host's disk was full", "kept"])
    await keeper.close()


async def test_the_total_is_bounded_ended_sandboxes_pay_first(tmp_path: Path, agent: FakeAgent):
    keeper = LogKeeper(tmp_path, LogBudget(total=4000, segment=1000))
    found = await client(agent)
    keeper.follow("lives", found)
    for number in range(10):
        await keeper.note("lives", f"{number}")
        await keeper.note("ended", "x" * 300)
    assert _size_on_disk(tmp_path) <= 5000
    assert len(await keeper.query("lives", LogQuery())) == 10
    assert len(await keeper.query("ended", LogQuery())) < 10
    await keeper.close()


def _size_on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.jsonl"))


async def test_a_forgotten_log_is_gone(tmp_path: Path):
    keeper = LogKeeper(tmp_path)
    await keeper.note("i1", "hello")
    await keeper.forget("i1")
    await keeper.forget("i1")
    assert not (tmp_path / "i1").exists()
    assert await keeper.query("i1", LogQuery()) == []


async def _until_kept(keeper: LogKeeper, expected: list[str]) -> None:
    await until_equal(lambda: _messages(keeper), expected)


async def _messages(keeper: LogKeeper) -> list[str]:
    return messages(await keeper.query("i1", LogQuery()))
