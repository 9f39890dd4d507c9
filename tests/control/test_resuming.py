"""Resuming: one resumes and the others join, by request or by traffic; what fails costs nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.control.houses import House
from tests.fakes.waiting import until, until_equal

from aenv.control.resumes import Call, Unwoken
from aenv.control.routes import Route, sign
from aenv.control.visitors import Signed, Visitor
from aenv.models.errors import (
    CapacityError,
    ConflictError,
    EngineError,
    SandboxNotFoundError,
    UnresponsiveAtPauseError,
)
from aenv.models.sandboxes import AGENT_PORT, NetworkPolicy
from aenv.models.snapshots import RestoreMode
from aenv.store import snapshots

SECOND = 10**9
VISITOR = Visitor(8000)


async def test_a_resumed_sandbox_is_the_same_with_its_time_from_now(house: House) -> None:
    record = await house.create(timeout=60, env_vars={"A": "b"})
    spec = house.node.running[record.id]
    route = house.system.routes.get(record.id)
    await house.pause(record.id)
    house.clock.pass_time(3600)

    resumed, did = await house.connect(record.id, 100)

    assert did
    assert resumed.end_at == house.clock.wall() + 100 * SECOND
    assert (resumed.state, resumed.restored) == ("running", RestoreMode.HOT)
    assert house.system.routes.get(record.id) == route
    again = house.node.running[record.id]
    assert (again.access_token, again.env_vars, again.host_secret) == (
        spec.access_token,
        {"A": "b"},
        spec.host_secret,
    )
    house.clock.pass_time(100)
    await until_equal(lambda: house.state(record.id), "killed")


async def test_its_image_is_freed_once_it_runs(house: House) -> None:
    record = await house.create()
    await house.pause(record.id)

    await house.connect(record.id)

    await until(lambda: not house.node.images)
    assert await house.system.catalog.read(snapshots.needed) == frozenset()
    assert (await house.row(record.id)).snapshot_id is None


async def test_from_the_image_when_it_is_not_in_memory(house: House) -> None:
    house.node.knobs.keep_hot = False
    record = await house.create()
    await house.pause(record.id)

    resumed, _ = await house.connect(record.id)

    assert resumed.restored is RestoreMode.WARM


async def test_a_memory_that_cannot_be_restored_is_told(house: House) -> None:
    house.node.knobs.keep_hot = house.node.knobs.restorable = False
    record = await house.create()
    await house.pause(record.id)

    resumed, _ = await house.connect(record.id)

    assert resumed.restored is RestoreMode.DISK
    assert resumed.note == "its memory could not be restored"
    assert house.node.notes == [(record.id, "warn", "its memory could not be restored")]


async def test_without_its_memory_if_asked(house: House) -> None:
    record = await house.create()
    await house.pause(record.id)

    resumed, _ = await house.connect(record.id, reboot=True)

    assert resumed.restored is RestoreMode.DISK


async def test_of_many_one_resumes_and_the_others_join(house: House) -> None:
    record = await house.create()
    await house.pause(record.id)

    outcomes = await asyncio.gather(*(house.connect(record.id, 60 + n) for n in range(8)))

    assert sum(resumed for _, resumed in outcomes) == 1
    assert house.node.count("resume") == 1
    assert (await house.row(record.id)).end_at == house.clock.wall() + 67 * SECOND


async def test_resume_is_refused_while_it_runs(house: House) -> None:
    record = await house.create()
    resume = house.system.sandboxes.resume

    with pytest.raises(ConflictError, match="running already"):
        await resume(house.caller, record.id, Call(60))
    await house.pause(record.id)
    outcomes = await asyncio.gather(
        *(resume(house.caller, record.id, Call(60)) for _ in range(3)), return_exceptions=True
    )
    assert sum(isinstance(outcome, ConflictError) for outcome in outcomes) == 2


@pytest.mark.parametrize("error", [CapacityError("full"), EngineError("broken"), OSError("odd")])
async def test_a_resume_that_fails_leaves_it_paused_with_its_image(
    house: House, error: Exception
) -> None:
    record = await house.create()
    await house.pause(record.id)
    house.node.knobs.resume_errors = [error]

    with pytest.raises(Exception, match=str(error)):
        await house.connect(record.id)

    row = await house.row(record.id)
    assert row.state == "paused"
    assert row.snapshot_id in house.node.images
    _, resumed = await house.connect(record.id)
    assert resumed


async def test_a_caller_who_hangs_up_leaves_it_running(house: House) -> None:
    record = await house.create()
    await house.pause(record.id)
    house.node.knobs.resume_gate = asyncio.Event()
    caller = asyncio.create_task(house.connect(record.id))
    await until(lambda: house.node.count("resume"))

    caller.cancel()
    house.node.knobs.resume_gate.set()

    await until_equal(lambda: house.state(record.id), "running")
    await until(lambda: house.system.routes.get(record.id))


async def test_killing_while_it_resumes_wins(house: House) -> None:
    record = await house.create()
    await house.pause(record.id)
    house.node.knobs.resume_gate = asyncio.Event()
    caller = asyncio.create_task(house.connect(record.id))
    await until(lambda: house.node.count("resume"))

    await house.system.sandboxes.kill(house.caller, record.id)

    with pytest.raises(SandboxNotFoundError):
        await caller
    assert await house.state(record.id) == "killed"
    assert (house.node.running, house.node.hot, house.node.images) == ({}, {}, {})
    assert house.system.routes.get(record.id) is None


async def test_connecting_while_it_is_being_paused_resumes_it_after(house: House) -> None:
    record = await house.create()
    house.node.knobs.pause_gate = asyncio.Event()
    pausing = asyncio.create_task(house.pause(record.id))
    await until(lambda: house.node.count("pause"))
    connecting = asyncio.create_task(house.connect(record.id))
    await asyncio.sleep(0.02)
    assert not connecting.done()

    house.node.knobs.pause_gate.set()

    await pausing
    _, resumed = await connecting
    assert resumed
    assert await house.state(record.id) == "running"


async def test_pausing_while_it_resumes_pauses_it_after(house: House) -> None:
    record = await house.create()
    await house.pause(record.id)
    house.node.knobs.resume_gate = asyncio.Event()
    connecting = asyncio.create_task(house.connect(record.id))
    await until(lambda: house.node.count("resume"))
    pausing = asyncio.create_task(house.pause(record.id))

    house.node.knobs.resume_gate.set()

    await connecting
    await pausing
    assert await house.state(record.id) == "paused"


async def test_a_timeout_set_while_it_resumes_counts(house: House) -> None:
    record = await house.create()
    await house.pause(record.id)
    house.node.knobs.resume_gate = asyncio.Event()
    connecting = asyncio.create_task(house.connect(record.id, 60))
    await until(lambda: house.node.count("resume"))
    setting = asyncio.create_task(house.system.sandboxes.set_timeout(house.caller, record.id, 5))

    house.node.knobs.resume_gate.set()
    await connecting
    await setting

    assert (await house.row(record.id)).end_at == house.clock.wall() + 5 * SECOND


async def test_a_mute_agents_memory_is_not_restored(house: House) -> None:
    record = await house.create()
    house.node.knobs.mute.add(record.id)
    await house.pause(record.id)

    with pytest.raises(UnresponsiveAtPauseError):
        await house.connect(record.id)
    _, resumed = await house.connect(record.id, reboot=True)

    assert resumed
    assert not (await house.row(record.id)).unresponsive_at_pause


class TestTraffic:
    async def test_resumes_what_was_made_so(self, house: House) -> None:
        record = await house.create(timeout=60, auto_pause=True, auto_resume=True)
        house.clock.pass_time(60)
        await until_equal(lambda: house.state(record.id), "paused")

        route = await house.system.sandboxes.wake(record.id, VISITOR)

        assert route == house.system.routes.get(record.id)
        assert route is not None
        assert (await house.row(record.id)).end_at == house.clock.wall() + 300 * SECOND

    async def test_gives_it_the_time_it_was_made_with_when_that_is_longer(
        self, house: House
    ) -> None:
        record = await house.create(timeout=1000, auto_resume=True)
        await house.pause(record.id)

        await house.system.sandboxes.wake(record.id, VISITOR)

        assert (await house.row(record.id)).end_at == house.clock.wall() + 1000 * SECOND

    async def test_does_not_resume_others(self, house: House) -> None:
        record = await house.create()
        await house.pause(record.id)

        assert await house.system.sandboxes.wake(record.id, VISITOR) is Unwoken.ASLEEP
        assert await house.state(record.id) == "paused"

    async def test_never_resumes_what_has_no_memory(self, house: House) -> None:
        record = await house.create(auto_resume=True)
        await house.pause(record.id, memory=False)

        assert await house.system.sandboxes.wake(record.id, VISITOR) is Unwoken.ASLEEP

    async def test_of_many_requests_one_resumes(self, house: House) -> None:
        record = await house.create(auto_resume=True)
        await house.pause(record.id)

        routes = await asyncio.gather(
            *(house.system.sandboxes.wake(record.id, VISITOR) for _ in range(50))
        )

        assert set(routes) == {house.system.routes.get(record.id)}
        assert house.node.count("resume") == 1

    async def test_of_many_requests_one_fails_for_all(self, house: House) -> None:
        record = await house.create(auto_resume=True)
        await house.pause(record.id)
        house.node.knobs.resume_errors = [CapacityError("full")]

        outcomes = await asyncio.gather(
            *(house.system.sandboxes.wake(record.id, VISITOR) for _ in range(50)),
            return_exceptions=True,
        )

        assert all(isinstance(outcome, CapacityError) for outcome in outcomes)

    async def test_without_its_token_leaves_a_private_one_asleep(self, house: House) -> None:
        private = NetworkPolicy(allow_public_traffic=False)
        record = await house.create(auto_resume=True, network=private)
        await house.pause(record.id)
        wake = house.system.sandboxes.wake

        assert await wake(record.id, VISITOR) is Unwoken.BARRED
        assert await wake(record.id, Visitor(8000, b"guessed")) is Unwoken.BARRED
        assert await house.state(record.id) == "paused"

        assert record.traffic_token is not None
        assert await wake(record.id, Visitor(8000, record.traffic_token.encode()))

    async def test_to_the_agent_wakes_with_what_the_agent_demands(self, house: House) -> None:
        private = NetworkPolicy(allow_public_traffic=False)
        record = await house.create(auto_resume=True, network=private)
        await house.pause(record.id)
        token, wake = record.access_token, house.system.sandboxes.wake

        def signed(expiration: str = "", *, token: str = token, operation: str = "read") -> Signed:
            suffix = f":{expiration}" if expiration else ""
            signature = sign(f"/f:read:user:{token}{suffix}")
            return Signed("/f", operation, "user", signature, expiration)

        def caller(**shown: Any) -> Visitor:
            return Visitor(AGENT_PORT, **shown)

        now = house.clock.wall() // SECOND
        for stranger in (
            caller(),
            caller(access_token=b"guessed"),
            caller(access_token=b"guessed", signed=signed()),
            caller(traffic_token=(record.traffic_token or "").encode()),
            caller(signed=signed(token="other")),
            caller(signed=signed(operation="write")),
            caller(signed=signed(str(now - 1))),
            caller(signed=signed("soon")),
        ):
            assert await wake(record.id, stranger) is Unwoken.BARRED, stranger
        assert house.node.count("resume") == 0

        for friend in (
            caller(access_token=token.encode()),
            caller(signed=signed()),
            caller(signed=signed(str(now + 60))),
        ):
            assert isinstance(await wake(record.id, friend), Route), friend
            await house.pause(record.id)

    async def test_that_asks_whether_it_runs_wakes_nobody(self, house: House) -> None:
        record = await house.create(auto_resume=True)
        await house.pause(record.id)
        probe, wake = Visitor(AGENT_PORT, probe=True), house.system.sandboxes.wake

        assert await wake(record.id, probe) is Unwoken.ASLEEP

        house.node.knobs.resume_gate = asyncio.Event()
        resuming = asyncio.create_task(wake(record.id, VISITOR))
        await until(lambda: house.node.count("resume"))
        asked = asyncio.create_task(wake(record.id, probe))
        await asyncio.sleep(0.02)
        house.node.knobs.resume_gate.set()
        assert await resuming == await asked is not None, "it waits for one that is on its way"

    async def test_while_it_pauses_resumes_it_after(self, house: House) -> None:
        record = await house.create(auto_resume=True)
        house.node.knobs.pause_gate = asyncio.Event()
        pausing = asyncio.create_task(house.pause(record.id))
        await until(lambda: house.node.count("pause"))
        house.system.routes.withdraw(record.id)
        waking = asyncio.create_task(house.system.sandboxes.wake(record.id, VISITOR))
        await asyncio.sleep(0.02)

        house.node.knobs.pause_gate.set()

        await pausing
        assert await waking is not None
        assert await house.state(record.id) == "running"

    async def test_while_a_caller_resumes_it_joins(self, house: House) -> None:
        record = await house.create()
        await house.pause(record.id)
        house.node.knobs.resume_gate = asyncio.Event()
        connecting = asyncio.create_task(house.connect(record.id))
        await until(lambda: house.node.count("resume"))
        waking = asyncio.create_task(house.system.sandboxes.wake(record.id, VISITOR))
        await asyncio.sleep(0.02)

        house.node.knobs.resume_gate.set()

        await connecting
        assert await waking == house.system.routes.get(record.id)

    async def test_killed_meanwhile_there_is_nothing(self, house: House) -> None:
        record = await house.create(auto_resume=True)
        await house.pause(record.id)
        house.node.knobs.resume_gate = asyncio.Event()
        waking = asyncio.create_task(house.system.sandboxes.wake(record.id, VISITOR))
        await until(lambda: house.node.count("resume"))

        await house.system.sandboxes.kill(house.caller, record.id)

        assert await waking is None
        assert await house.system.sandboxes.wake(record.id, VISITOR) is None
        assert await house.system.sandboxes.wake("nonsense", VISITOR) is None

    async def test_each_request_that_leaves_leaves_the_others(self, house: House) -> None:
        record = await house.create(auto_resume=True)
        await house.pause(record.id)
        house.node.knobs.resume_gate = asyncio.Event()
        first, second = (
            asyncio.create_task(house.system.sandboxes.wake(record.id, VISITOR)) for _ in range(2)
        )
        await until(lambda: house.node.count("resume"))
        first.cancel()

        house.node.knobs.resume_gate.set()

        assert await second == house.system.routes.get(record.id)
