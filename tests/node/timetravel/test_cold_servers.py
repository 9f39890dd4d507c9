"""Servers whose paused sandboxes and snapshots are in the blob store, on real gVisor."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from sqlalchemy import select
from tests.conformance.subjects import Subject
from tests.control.houses import QUICK
from tests.fakes.waiting import until, until_equal
from tests.node.timetravel.travel import COUNTER, SMALL, TEMPLATE, make_node, settings_in

from aenv.control.keys import Caller
from aenv.control.requests import CreateRequest
from aenv.control.resumes import Call
from aenv.control.system import CATALOG, System
from aenv.models.errors import BlobStoreUnreachableError, ConflictError, NotFoundError
from aenv.models.sandboxes import SandboxState
from aenv.models.settings import BlobSettings, Settings
from aenv.models.snapshots import RestoreMode, SnapshotPlace
from aenv.node import faults
from aenv.node.agents import AgentClient
from aenv.node.engine import Address
from aenv.store import cold
from aenv.store import sandboxes as rows
from aenv.store.blob_tables import holders
from aenv.store.records import SandboxRecord

pytestmark = [pytest.mark.root, pytest.mark.gvisor]
LIFE = 600


@dataclass
class Server:
    """A control plane over a real node. ``shared`` is its blob store."""

    settings: Settings
    agent: Path
    shared: Path
    system: System | None = None

    @property
    def now(self) -> System:
        assert self.system is not None
        return self.system

    @property
    def caller(self) -> Caller:
        return self.now.keys.authenticate(self.now.keys.local)

    async def start(self) -> None:
        node = make_node(self.settings, self.agent)
        self.system = await System.open(self.settings, node, timing=QUICK)

    async def stop(self) -> None:
        if self.system is not None:
            system, self.system = self.system, None
            await system.close()

    async def create(self, template: str = TEMPLATE) -> SandboxRecord:
        size = (SMALL.cpu, SMALL.memory_mb, SMALL.disk_mb) if template == TEMPLATE else (None,) * 3
        request = CreateRequest(
            template=template, timeout=LIFE, cpu=size[0], memory_mb=size[1], disk_mb=size[2]
        )
        return await self.now.sandboxes.create(self.caller, request)

    async def counting(self) -> SandboxRecord:
        sandbox = await self.create()
        await (await self.guest(sandbox.id)).spawn(COUNTER, user="root")
        await self.sh(sandbox.id, "until [ -s /root/count ]; do sleep 0.01; done")
        return sandbox

    async def count(self, sandbox_id: str) -> tuple[int, int]:
        """The counter's pid and count."""
        pid, count = (await self.sh(sandbox_id, "cat /root/count")).split()
        return int(pid), int(count)

    async def guest(self, sandbox_id: str) -> AgentClient:
        found, row = self.now.routes.get(sandbox_id), await self.row(sandbox_id)
        assert found is not None
        secrets = {"host_secret": row.host_secret, "access_token": row.access_token}
        return AgentClient(Address(*found.agent), **secrets)

    async def sh(self, sandbox_id: str, command: str) -> str:
        done = await (await self.guest(sandbox_id)).run(command, user="root", timeout=20)
        assert done.exit_code == 0, done.output
        return done.output.strip()

    async def pause(self, sandbox_id: str) -> str:
        await self.now.sandboxes.pause(self.caller, sandbox_id)
        image = (await self.row(sandbox_id)).snapshot_id
        assert image is not None
        return image

    async def connect(self, sandbox_id: str) -> SandboxRecord:
        return (await self.now.sandboxes.connect(self.caller, sandbox_id, Call(LIFE)))[0]

    async def evict(self, reference: str) -> None:
        await self.now.snapshots.evict(self.caller.team, reference)

    async def row(self, sandbox_id: str) -> SandboxRecord:
        found = await self.now.catalog.read(lambda db: rows.get(db, sandbox_id))
        assert found is not None
        return found

    async def place(self, image: str) -> SnapshotPlace:
        return (await self.now.cold.places([image]))[image]

    async def becomes(self, image: str, place: SnapshotPlace) -> None:
        await until_equal(lambda: self.place(image), place, timeout=60)

    async def held(self) -> set[str]:
        """Who holds blobs."""
        return await self.now.catalog.read(lambda db: set(db.scalars(select(holders.c.holder))))


@pytest.fixture
async def server(folder: Path, agent_binary: Path) -> AsyncIterator[Server]:
    shared = folder / "shared"
    shared.mkdir()
    settings = settings_in(folder)
    settings = replace(settings, store=BlobSettings(folder=str(shared)), warm_max=0)
    server = Server(settings, agent_binary, shared)
    await server.start()
    yield server
    if server.system is None:
        await server.start()
    await server.now.sandboxes.kill_all()
    await server.stop()
    traces = Subject.of("gvisor", folder, agent_binary).instance_traces
    await until(lambda: traces() == [], timeout=15)


async def test_a_pause_is_stored_by_itself_and_resumed_from_the_store(server: Server) -> None:
    sandbox = await server.counting()
    before = await server.count(sandbox.id)
    image = await server.pause(sandbox.id)
    await server.becomes(image, SnapshotPlace.BOTH)
    await server.evict(sandbox.id)
    assert await server.place(image) is SnapshotPlace.STORED

    record = await server.connect(sandbox.id)

    assert (record.restored, record.note) == (RestoreMode.WARM, None)
    after = await server.count(sandbox.id)
    assert (after[0], after[1] >= before[1]) == (before[0], True)
    await until_equal(server.held, set(), timeout=30)


async def test_what_is_in_the_store_outlives_the_data_folders_images(server: Server) -> None:
    """The catalog is kept, all else of the data folder is lost."""
    sandbox = await server.counting()
    pid, _ = await server.count(sandbox.id)
    image = await server.pause(sandbox.id)
    await server.becomes(image, SnapshotPlace.BOTH)
    await server.now.node.demote(sandbox.id)
    await server.stop()
    data = server.settings.folders.data
    for path in data.iterdir():
        if not path.name.startswith(CATALOG):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    await server.start()

    assert (await server.row(sandbox.id)).state is SandboxState.PAUSED
    assert await server.place(image) is SnapshotPlace.STORED
    assert (await server.connect(sandbox.id)).note is None
    assert (await server.count(sandbox.id))[0] == pid


async def test_named_snapshots_start_sandboxes_from_the_store(server: Server) -> None:
    source = await server.create()
    await server.sh(source.id, "echo kept > /root/kept")
    kept = await server.now.snapshots.create(server.caller.team, source.id, name="kept")
    await server.evict("kept")
    assert await server.place(kept.id) is SnapshotPlace.STORED

    first = await server.create("kept")

    assert first.restored is RestoreMode.WARM
    assert await server.sh(first.id, "cat /root/kept") == "kept"
    assert await server.place(kept.id) is SnapshotPlace.BOTH
    await server.evict("kept")
    assert await server.sh(first.id, "cat /root/kept") == "kept"
    await server.now.snapshots.delete(server.caller.team, "kept")
    await until_equal(server.held, set(), timeout=30)


async def test_many_who_start_from_it_share_one_fetch(server: Server) -> None:
    """And nobody drops it under them."""
    source = await server.create()
    await server.sh(source.id, "echo kept > /root/kept")
    await server.now.snapshots.create(server.caller.team, source.id, name="kept")
    await server.evict("kept")
    fetches = []

    async def fetched(point: str) -> None:
        fetches.append(point)
        with pytest.raises(TimeoutError):  # it waits for the fetch, and finds it in use
            async with asyncio.timeout(0.2):
                await server.evict("kept")

    with faults.armed("fetch.published", fetched):
        found = await asyncio.gather(server.create("kept"), server.create("kept"))

    assert fetches == ["fetch.published"]
    for sandbox in found:
        assert await server.sh(sandbox.id, "cat /root/kept") == "kept"


async def test_a_kill_calls_a_fetch_off(server: Server) -> None:
    sandbox = await server.create()
    image = await server.pause(sandbox.id)
    await server.evict(sandbox.id)
    reached = asyncio.Event()

    async def stall(_: str) -> None:
        reached.set()
        await asyncio.Event().wait()

    with faults.armed("fetch.memory", stall):
        resuming = asyncio.create_task(server.connect(sandbox.id))
        await reached.wait()
        await server.now.sandboxes.kill(server.caller, sandbox.id)
        with pytest.raises(NotFoundError):
            await resuming

    assert await server.place(image) is SnapshotPlace.LOST
    assert not list((server.settings.folders.data / "snapshots").iterdir())
    await until_equal(server.held, set(), timeout=30)


async def test_a_resume_calls_an_upload_off(server: Server) -> None:
    sandbox = await server.counting()
    reached = asyncio.Event()

    async def stall(_: str) -> None:
        reached.set()
        await asyncio.Event().wait()

    with faults.armed("store.layers", stall):
        image = await server.pause(sandbox.id)
        await reached.wait()
        assert (await server.connect(sandbox.id)).restored is RestoreMode.HOT
        await until_equal(lambda: server.place(image), SnapshotPlace.LOST, timeout=30)
    await until_equal(server.held, set(), timeout=30)
    again = await server.pause(sandbox.id)
    await server.becomes(again, SnapshotPlace.BOTH)


async def test_without_the_store_it_stays_paused_and_can_be_resumed_later(server: Server) -> None:
    sandbox = await server.counting()
    image = await server.pause(sandbox.id)
    await server.evict(sandbox.id)
    away = server.shared.with_name("away")
    server.shared.rename(away)

    with pytest.raises(BlobStoreUnreachableError):
        await server.connect(sandbox.id)

    assert (await server.row(sandbox.id)).state is SandboxState.PAUSED
    assert await server.place(image) is SnapshotPlace.STORED
    away.rename(server.shared)
    assert (await server.connect(sandbox.id)).restored is RestoreMode.WARM


async def test_a_store_that_comes_back_gets_what_was_paused_meanwhile(server: Server) -> None:
    sandbox = await server.create()
    await server.now.storage.blobs()
    away = server.shared.with_name("away")
    server.shared.rename(away)
    image = await server.pause(sandbox.id)

    async def failed() -> bool:
        found = await server.now.catalog.read(lambda db: cold.get(db, image))
        return bool(found and found.error)

    await until_equal(failed, True, timeout=60)
    away.rename(server.shared)
    await server.becomes(image, SnapshotPlace.BOTH)


async def test_the_longest_unused_goes_when_the_budget_asks(server: Server) -> None:
    first, second = await server.create(), await server.create()
    old, new = await server.pause(first.id), await server.pause(second.id)
    for image, sandbox in ((old, first), (new, second)):
        await server.becomes(image, SnapshotPlace.BOTH)
        await server.now.node.demote(sandbox.id)
    own = {image.id: image.own_bytes for image in await server.now.node.snapshots()}

    await server.now.cold._trim(own[old] + own[new] - 1)

    assert await server.place(old) is SnapshotPlace.STORED
    assert await server.place(new) is SnapshotPlace.BOTH


async def test_what_is_frozen_in_memory_does_not_go_by_itself(server: Server) -> None:
    sandbox = await server.create()
    image = await server.pause(sandbox.id)
    await server.becomes(image, SnapshotPlace.BOTH)

    await server.now.cold._trim(0)

    assert await server.place(image) is SnapshotPlace.BOTH
    assert (await server.connect(sandbox.id)).restored is RestoreMode.HOT


async def test_only_what_is_paused_or_kept_can_be_evicted(server: Server) -> None:
    sandbox = await server.create()
    with pytest.raises(ConflictError, match="not paused"):
        await server.evict(sandbox.id)
    with pytest.raises(NotFoundError):
        await server.evict("nothing")


async def test_a_kill_frees_what_is_cold(server: Server) -> None:
    sandbox = await server.create()
    image = await server.pause(sandbox.id)
    await server.evict(sandbox.id)
    await server.now.sandboxes.kill(server.caller, sandbox.id)
    await until_equal(server.held, set(), timeout=30)
    assert await server.place(image) is SnapshotPlace.LOST
