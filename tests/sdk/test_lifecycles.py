"""Pause, resume, snapshots, forks and rollbacks, against the real server over a fake node."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.running import Running

from aenv import AsyncSandbox, AsyncSnapshot, Sandbox, Snapshot
from aenv.models.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    SandboxNotFoundError,
    SandboxPausedError,
)
from aenv.models.sandboxes import NetworkPolicy, SandboxState


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    running = Running(tmp_path / "server")
    monkeypatch.setenv("AENV_SYSTEM_URL", running.url)
    monkeypatch.setenv("AENV_API_KEY", running.key)
    yield running
    running.end(signal.SIGKILL)


@pytest.fixture
async def sandbox(server: Running) -> AsyncSandbox:
    return await AsyncSandbox.create("base")


async def test_pausing_and_resuming_say_whether_they_did(sandbox: AsyncSandbox) -> None:
    assert await sandbox.pause()
    assert not await sandbox.pause()
    info = await sandbox.info()
    assert (info.state, info.pause_mode) == (SandboxState.PAUSED, "full")

    assert await sandbox.resume(timeout=60)
    assert not await sandbox.resume()
    assert (await sandbox.info()).restored == "hot"


async def test_without_memory(sandbox: AsyncSandbox) -> None:
    await sandbox.pause(memory=False)
    assert (await sandbox.info()).pause_mode == "filesystem"
    await sandbox.resume()
    assert (await sandbox.info()).restored == "disk"


async def test_work_in_a_paused_one_is_told_so_and_how_to_resume(sandbox: AsyncSandbox) -> None:
    await sandbox.pause()
    remedy = f"is paused; resume it with: aenv resume {sandbox.id}"

    with pytest.raises(SandboxPausedError, match=remedy):
        await sandbox.exec(["true"])
    with pytest.raises(SandboxPausedError, match=remedy):
        await sandbox.files.read("/etc/hostname")
    with pytest.raises(SandboxNotFoundError, match=remedy):
        await sandbox.set_timeout(60)
    await AsyncSandbox.kill(sandbox)
    with pytest.raises(SandboxNotFoundError, match="was killed"):
        await sandbox.exec(["true"])


async def test_connecting_resumes(sandbox: AsyncSandbox) -> None:
    await sandbox.pause()
    again = await AsyncSandbox.connect(sandbox.id)
    assert (await again.info()).state == SandboxState.RUNNING


async def test_lists_by_state(sandbox: AsyncSandbox) -> None:
    other = await AsyncSandbox.create("base")
    await other.pause()

    async def ids(state: str | None) -> list[str]:
        return [info.id for info in await AsyncSandbox.list(state=state)]  # type: ignore[arg-type]

    assert await ids("running") == [sandbox.id]
    assert await ids("paused") == [other.id]
    assert await ids(None) == [other.id, sandbox.id]


async def test_at_the_end_of_its_time_it_pauses_if_asked(server: Running) -> None:
    sandbox = await AsyncSandbox.create("base", auto_pause=True, auto_resume=True)
    await sandbox.set_timeout(0)
    assert (await sandbox.info()).state == SandboxState.PAUSED
    with pytest.raises(InvalidRequestError, match="autoPauseMemory"):
        await AsyncSandbox.create(
            "base", auto_pause=True, auto_pause_memory=False, auto_resume=True
        )


class TestSnapshots:
    async def test_start_others_until_they_are_deleted(self, sandbox: AsyncSandbox) -> None:
        kept = await sandbox.snapshot("mine:v1")
        assert (kept.id, kept.names) == ("default/mine:v1", ("default/mine:v1",))
        assert (kept.sandbox, kept.base, kept.has_memory) == (sandbox.id, "base", True)

        child = await AsyncSandbox.create(kept.id)

        info = await child.info()
        assert (info.parent_sandbox, info.parent_snapshot) == (sandbox.id, kept.image)
        assert await AsyncSnapshot.delete(kept.id)
        assert not await AsyncSnapshot.delete(kept.id)
        with pytest.raises(NotFoundError):
            await AsyncSandbox.create(kept.id)

    async def test_are_listed_and_found(self, sandbox: AsyncSandbox) -> None:
        other = await AsyncSandbox.create("base")
        first, second = await sandbox.snapshot(), await other.snapshot("two", memory=False)

        assert [one.id for one in await AsyncSnapshot.list()] == [second.id, first.id]
        assert [one.id for one in await AsyncSnapshot.list(sandbox=sandbox.id)] == [first.id]
        assert [one.id for one in await AsyncSnapshot.list(name="two")] == [second.id]
        assert await AsyncSnapshot.get("two") == second
        with pytest.raises(NotFoundError):
            await AsyncSnapshot.get("nobody")

    async def test_are_verified(self, sandbox: AsyncSandbox) -> None:
        kept = await sandbox.snapshot()
        await AsyncSnapshot.verify(kept.id)
        with pytest.raises(NotFoundError):
            await AsyncSnapshot.verify("nobody")

    async def test_more_than_a_page(
        self, sandbox: AsyncSandbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("aenv.sdk.snapshots.PAGE", 2)
        kept = [(await sandbox.snapshot()).id for _ in range(5)]
        assert [one.id for one in await AsyncSnapshot.list()] == kept[::-1]

    async def test_of_a_paused_one_are_refused(self, sandbox: AsyncSandbox) -> None:
        await sandbox.pause()
        with pytest.raises(ConflictError, match="paused"):
            await sandbox.snapshot()


class TestForks:
    async def test_are_sandboxes_of_their_own(self, sandbox: AsyncSandbox) -> None:
        forks = await sandbox.fork(3)

        assert len({one.id for one in [sandbox, *forks]}) == 4
        assert {(await one.info()).parent_sandbox for one in forks} == {sandbox.id}
        await forks[0].kill()
        assert (await forks[1].info()).state == SandboxState.RUNNING

    async def test_come_all_or_none(self, tmp_path: Path) -> None:
        running = Running(tmp_path / "small", **{"quotas.sandboxes": 3})
        try:
            options = {"url": running.url, "api_key": running.key}
            sandbox = await AsyncSandbox.create("base", **options)
            with pytest.raises(Exception, match="quota"):
                await sandbox.fork(4)
            assert [info.id for info in await AsyncSandbox.list(**options)] == [sandbox.id]
        finally:
            running.end(signal.SIGKILL)


class TestRollback:
    async def test_goes_on_as_a_new_sandbox(self, server: Running) -> None:
        network = NetworkPolicy(allow_internet=False, allow_out=("1.1.1.1/32",))
        sandbox = await AsyncSandbox.create(
            "base", metadata={"a": "b"}, network=network, auto_pause=True, secrets={"KEY": "s"}
        )
        kept = await sandbox.snapshot()
        old, host = sandbox.id, sandbox.host(80)

        await sandbox.rollback(kept)

        assert sandbox.id != old
        assert sandbox.host(80) != host
        info = await sandbox.info()
        assert (info.metadata, info.parent_snapshot) == ({"a": "b"}, kept.image)
        detail = (await sandbox._control("GET", "")).json()
        assert detail["lifecycle"]["onTimeout"] == "pause"
        assert detail["allowInternetAccess"] is False
        assert detail["network"]["allowOut"] == ["1.1.1.1/32"]
        with pytest.raises(NotFoundError):
            await AsyncSandbox.attach(old)

    async def test_that_fails_changes_nothing(self, sandbox: AsyncSandbox) -> None:
        old = sandbox.id
        with pytest.raises(NotFoundError):
            await sandbox.rollback("nobody")
        assert sandbox.id == old
        assert (await sandbox.info()).state == SandboxState.RUNNING


def test_the_sync_face_does_the_same(server: Running) -> None:
    with Sandbox("base") as sandbox:
        sandbox.pause()
        sandbox.resume()
        kept = sandbox.snapshot("mine")
        forks = sandbox.fork(2)
        assert all(isinstance(fork, Sandbox) for fork in forks)
        sandbox.rollback(kept)
        assert [one.id for one in Snapshot.list()] == [kept.id]
        assert Snapshot.delete("mine")
    assert {info.id for info in Sandbox.list()} == {fork.id for fork in forks}
