"""How sandboxes end: once, for one reason, leaving nothing, whatever fails on the way."""

from __future__ import annotations

import asyncio

import pytest
from tests.control.houses import House
from tests.fakes.waiting import until, until_equal

from aenv.models.errors import DiskFullError, EngineError, SandboxNotFoundError
from aenv.models.sandboxes import Culprit, EndKind
from aenv.store import sandboxes as rows


async def test_a_killed_sandbox_is_gone_for_everybody(house: House) -> None:
    record = await house.create()

    await house.system.sandboxes.kill(house.caller, record.id)

    assert record.id not in house.node.running
    assert house.system.routes.get(record.id) is None
    row = await house.row(record.id)
    assert (row.state, row.end_kind) == ("killed", EndKind.KILLED)
    with pytest.raises(SandboxNotFoundError):
        await house.system.sandboxes.get(house.caller, record.id)


async def test_its_log_ends_with_why_it_ended(house: House) -> None:
    killed, stopped = await house.create(), await house.create()

    await house.system.sandboxes.kill(house.caller, killed.id)
    await house.system.sandboxes.set_timeout(house.caller, stopped.id, 0)

    assert house.node.notes == [
        (killed.id, "info", "the sandbox ended: killed by request"),
        (stopped.id, "info", "the sandbox ended: its timeout was set to 0"),
    ]


async def test_of_two_deletes_at_once_one_wins(house: House) -> None:
    record = await house.create()

    kills = (house.system.sandboxes.kill(house.caller, record.id) for _ in range(8))
    outcomes = await asyncio.gather(*kills, return_exceptions=True)

    assert sum(outcome is None for outcome in outcomes) == 1
    assert sum(isinstance(outcome, SandboxNotFoundError) for outcome in outcomes) == 7


async def test_the_route_goes_before_the_machine(house: House) -> None:
    record = await house.create()
    house.node.knobs.destroy_gate = asyncio.Event()
    kill = asyncio.create_task(house.system.sandboxes.kill(house.caller, record.id))

    await until(lambda: house.node.count("destroy"))
    assert house.system.routes.get(record.id) is None
    assert record.id in house.node.running

    house.node.knobs.destroy_gate.set()
    await kill


async def test_destroying_is_tried_until_it_works(house: House) -> None:
    record = await house.create()
    house.node.knobs.destroy_errors = [EngineError("busy"), OSError("odd"), EngineError("busy")]

    await house.system.sandboxes.kill(house.caller, record.id)

    await until_equal(lambda: house.state(record.id), "killed")
    assert house.node.running == {}
    assert house.node.count("destroy") == 4


async def test_another_teams_sandbox_cannot_be_ended(house: House) -> None:
    record = await house.create()

    with pytest.raises(SandboxNotFoundError):
        await house.system._endings.end(record.id, EndKind.KILLED, "no", team="others")
    assert await house.state(record.id) == "running"


class TestTime:
    async def test_a_sandbox_ends_when_its_time_passes(self, house: House) -> None:
        record = await house.create(timeout=60)

        house.clock.pass_time(59)
        await asyncio.sleep(0.05)
        assert await house.state(record.id) == "running"
        house.clock.pass_time(1)

        await until_equal(lambda: house.state(record.id), "killed")
        assert (await house.row(record.id)).end_kind == EndKind.EXPIRED
        assert house.node.running == {}

    async def test_it_is_gone_for_callers_before_the_reaper_comes_by(self, house: House) -> None:
        record = await house.create(timeout=60)
        house.system._loops[0].cancel()
        house.clock.pass_time(60)

        for call in (
            house.system.sandboxes.get(house.caller, record.id),
            house.system.sandboxes.extend(house.caller, record.id, 60),
            house.system.sandboxes.set_timeout(house.caller, record.id, 60),
        ):
            with pytest.raises(SandboxNotFoundError):
                await call

    async def test_zero_ends_it_at_once(self, house: House) -> None:
        record = await house.create()

        await house.system.sandboxes.set_timeout(house.caller, record.id, 0)

        assert (await house.row(record.id)).end_kind == EndKind.EXPIRED
        with pytest.raises(SandboxNotFoundError):
            await house.system.sandboxes.set_timeout(house.caller, record.id, 0)

    async def test_a_timeout_may_shorten_and_the_reaper_notices(self, house: House) -> None:
        record = await house.create(timeout=3600)

        await house.system.sandboxes.set_timeout(house.caller, record.id, 5)
        house.clock.pass_time(5)

        await until_equal(lambda: house.state(record.id), "killed")

    async def test_connecting_only_extends(self, house: House) -> None:
        record = await house.create(timeout=100)

        same = await house.system.sandboxes.extend(house.caller, record.id, 10)
        longer = await house.system.sandboxes.extend(house.caller, record.id, 200)

        assert same.end_at == record.end_at
        assert longer.end_at == house.clock.wall() + 200 * 10**9

    async def test_time_passed_in_a_suspend_counts(self, house: House) -> None:
        short, long = await house.create(timeout=60), await house.create(timeout=7200)

        house.clock.pass_time(3600)

        await until_equal(lambda: house.state(short.id), "killed")
        assert await house.state(long.id) == "running"

    @pytest.mark.parametrize("step", [86_400, -86_400])
    async def test_setting_the_clock_is_not_time_passing(self, house: House, step: int) -> None:
        record = await house.create(timeout=60)

        house.clock.set_wall(step)

        async def left() -> float:
            return ((await house.row(record.id)).end_at - house.clock.wall()) / 10**9

        await until_equal(left, 60.0)
        assert await house.state(record.id) == "running"
        house.clock.pass_time(61)
        await until_equal(lambda: house.state(record.id), "killed")

    async def test_one_hanging_destroy_does_not_hold_up_the_others(self, house: House) -> None:
        stuck = await house.create(timeout=10)
        other = await house.create(timeout=20)
        gate = house.node.knobs.destroy_gate = asyncio.Event()
        house.clock.pass_time(11)
        await until(lambda: house.node.count("destroy"))
        house.node.knobs.destroy_gate = None
        house.clock.pass_time(10)

        await until_equal(lambda: house.state(other.id), "killed")
        assert await house.state(stuck.id) == "killing"
        gate.set()
        await until_equal(lambda: house.state(stuck.id), "killed")

    async def test_extending_against_the_reaper_has_one_winner(self, house: House) -> None:
        record = await house.create(timeout=60)
        seen = await house.row(record.id)
        await house.system.sandboxes.extend(house.caller, record.id, 600)

        await house.system._endings.expire(seen)

        assert await house.state(record.id) == "running"
        assert house.system.routes.get(record.id) is not None

    async def test_the_reaper_outlives_a_failing_catalog(
        self, house: House, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        record = await house.create(timeout=60)
        real, failures = rows.due, []

        def failing(*arguments: object) -> object:
            if len(failures) < 3:
                failures.append(1)
                raise OSError("disk on fire")
            return real(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(rows, "due", failing)
        house.clock.pass_time(61)

        await until_equal(lambda: house.state(record.id), "killed")
        assert len(failures) == 3


class TestAFullDisk:
    """The catalog cannot be written, but machines can be freed."""

    @pytest.fixture
    def full(self, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
        """Set: changes of sandboxes fail."""
        real, full = rows.change, asyncio.Event()

        def change(*arguments: object) -> bool:
            if full.is_set():
                raise DiskFullError("disk is full")
            return real(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(rows, "change", change)
        return full

    async def test_refuses_a_create_and_keeps_no_machine(
        self, house: House, full: asyncio.Event
    ) -> None:
        full.set()
        with pytest.raises(DiskFullError):
            await house.create()
        assert house.node.running == {}

        full.clear()
        house.clock.pass_time(31)
        await until_equal(lambda: _count(house), 0)

    async def test_delays_the_end_until_there_is_room_without_spinning(
        self, house: House, full: asyncio.Event, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("aenv.control.reaper.LONGEST_PAUSE", 0.05)
        record = await house.create(timeout=60)
        full.set()
        house.clock.pass_time(60)
        before = asyncio.get_running_loop().time()
        passes = 0
        real = rows.due

        def counted(*arguments: object) -> object:
            nonlocal passes
            passes += 1
            return real(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(rows, "due", counted)
        await asyncio.sleep(0.5)
        spent = asyncio.get_running_loop().time() - before
        assert 1 <= passes <= spent / 0.05 + 5
        assert await house.state(record.id) == "running"

        full.clear()
        await until_equal(lambda: house.state(record.id), "killed")


async def _count(house: House) -> int:
    return len(await house.living())


class TestExits:
    @pytest.mark.parametrize(
        ("culprit", "state", "kind"),
        [
            (Culprit.POLICY, "killed", EndKind.GUEST_EXITED),
            (Culprit.INFRASTRUCTURE, "failed", EndKind.INFRASTRUCTURE),
        ],
    )
    async def test_are_recorded_with_whose_fault_they_are(
        self, house: House, culprit: Culprit, state: str, kind: EndKind
    ) -> None:
        record = await house.create()

        house.node.exit(record.id, code=137, culprit=culprit)

        await until_equal(lambda: house.state(record.id), state)
        row = await house.row(record.id)
        assert (row.end_kind, row.exit_code) == (kind, 137)
        assert house.system.routes.get(record.id) is None

    async def test_are_still_heard_after_the_stream_broke(self, house: House) -> None:
        house.system._exits._pause = 0.01
        first, second = await house.create(), await house.create()
        house.node.knobs.exits_errors = [EngineError("stream broke")]

        house.node.exit(first.id)
        await until_equal(lambda: house.state(first.id), "killed")
        house.node.exit(second.id)
        await until_equal(lambda: house.state(second.id), "killed")


async def test_ended_sandboxes_and_their_logs_are_forgotten_after_a_day(house: House) -> None:
    record = await house.create()
    await house.system.sandboxes.kill(house.caller, record.id)
    await house.system.sandboxes.find(house.caller, record.id)

    house.clock.pass_time(24 * 3600 + 31)
    await until(lambda: house.node.count("forget"))

    with pytest.raises(SandboxNotFoundError):
        await house.system.sandboxes.find(house.caller, record.id)


async def test_killing_all_ends_all(house: House) -> None:
    records = [await house.create() for _ in range(5)]

    killed, failed = await house.system.shut_down(kill=True)

    assert (killed, failed) == (5, [])
    assert house.node.running == {}
    assert house.system.stop.is_set()
    assert [await house.state(record.id) for record in records] == ["killed"] * 5
    await house.system.close()
    assert house.node.count("clear") == 1


async def test_a_server_that_ends_alone_leaves_the_node_as_it_is(house: House) -> None:
    await house.create()
    await house.system.shut_down(kill=False)
    await house.system.close()
    assert len(house.node.running) == 1


async def test_a_server_that_ends_without_a_sandbox_leaves_nothing_on_the_host(
    house: House,
) -> None:
    await house.system.shut_down(kill=False)
    await house.system.close()
    assert house.node.count("clear") == 1
