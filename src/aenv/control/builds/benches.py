"""The sandboxes that builds run in. They are nobody's: not in the catalog, so that whatever happens
to the server, its next start ends them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

from aenv.control.builds.journals import Journal
from aenv.control.builds.surrounding import surround
from aenv.control.clocks import Clock
from aenv.control.deadlines import deadline
from aenv.models.errors import AenvError, CapacityError
from aenv.models.ids import new_sandbox_id, new_snapshot_id, new_token
from aenv.models.sandboxes import NetworkPolicy, Resources
from aenv.models.snapshots import SnapshotImage, SnapshotKind
from aenv.models.templates import GuestFacts
from aenv.node.port import Node, SandboxSpec
from aenv.node.workbench import Surroundings, Workbench
from aenv.store.records import SnapshotRecord

BOOT_TIMEOUT = 120.0
SNAPSHOT_TIMEOUT = 600.0
DESTROY_TIMEOUT = 60.0
ROOM_PATIENCE = 600.0
ROOM_PAUSE = 5.0
AROUND_TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class Origin:
    """What a bench is booted from: the node's template, or a snapshot above it."""

    template: str
    snapshot: str | None = None

    def at(self, snapshot: str) -> Origin:
        return replace(self, snapshot=snapshot)


@dataclass(frozen=True, slots=True)
class Bench:
    """A sandbox that runs, and what can be done in it. ``env``: what all its steps are given."""

    sandbox_id: str
    engine: str
    origin: Origin
    resources: Resources
    work: Workbench
    env: Mapping[str, str] = field(default_factory=dict, repr=False)


class Benches:
    def __init__(self, node: Node, clock: Clock, engine: str) -> None:
        self._node = node
        self._clock = clock
        self._engine = engine

    @asynccontextmanager
    async def open(
        self,
        origin: Origin,
        resources: Resources,
        journal: Journal,
        facts: GuestFacts,
        around: Surroundings | None = None,
    ) -> AsyncIterator[Bench]:
        """Boot one from its disk, none of its commands run, and end it afterwards. Raises what a
        create does; a host without room is waited for. ``around``: what its steps are to reach.
        """
        around = around or Surroundings()
        spec = SandboxSpec(
            sandbox_id=new_sandbox_id(),
            template=origin.template,
            resources=resources,
            network=NetworkPolicy(private_out=around.openings),
            access_token=new_token(),
            host_secret=new_token(),
            engine=self._engine,
            snapshot=origin.snapshot,
            reboot=True,
            facts=facts,
        )
        try:
            engine = await self._boot(spec, journal)
            work = await self._node.workbench(spec.sandbox_id)
            env = await surround(work, around)
            yield Bench(spec.sandbox_id, engine, origin, resources, work, env)
        finally:
            await asyncio.shield(asyncio.ensure_future(self._end(spec.sandbox_id)))

    async def surroundings(self, journal: Journal) -> Surroundings:
        """How the host reaches its registries."""
        async with deadline(AROUND_TIMEOUT, "reading the host's registry configuration"):
            found = await self._node.surroundings()
        for note in found.notes:
            journal.say(note, level="warn", step="base")
        return found

    async def keep(
        self,
        bench: Bench,
        team: str,
        kind: SnapshotKind,
        template_id: str | None = None,
        parent: str | None = None,
    ) -> tuple[SnapshotImage, SnapshotRecord]:
        """Its disk now, and for a template its memory too. The caller records it, or drops it.
        ``parent``: the snapshot that it goes on from.
        """
        memory = kind is SnapshotKind.TEMPLATE
        snapshot_id = new_snapshot_id()
        async with deadline(SNAPSHOT_TIMEOUT, "keeping the disk of a build"):
            if memory:
                await self._node.settle(bench.sandbox_id)
            image = await self._node.snapshot(bench.sandbox_id, snapshot_id, memory=memory)
        now = self._clock.wall()
        return image, SnapshotRecord(
            id=image.id,
            kind=kind,
            team=team,
            sandbox_id=bench.sandbox_id,
            base_id=bench.origin.template,
            base=bench.origin.template,
            engine=bench.engine,
            resources=bench.resources,
            has_memory=image.has_memory,
            disk_bytes=image.disk_bytes,
            memory_bytes=image.memory_bytes,
            own_bytes=image.own_bytes,
            created_at=now,
            updated_at=now,
            template_id=template_id,
            parent=parent,
        )

    async def _boot(self, spec: SandboxSpec, journal: Journal) -> str:
        waited = 0.0
        while True:
            try:
                async with deadline(BOOT_TIMEOUT, "booting the sandbox of a build"):
                    return (await self._node.create(spec)).engine
            except CapacityError as error:
                if waited >= ROOM_PATIENCE:
                    raise
                if not waited:
                    journal.say(f"waiting for room on the host: {error}", level="warn")
                await asyncio.sleep(ROOM_PAUSE)
                waited += ROOM_PAUSE

    async def _end(self, sandbox_id: str) -> None:
        with suppress(AenvError, TimeoutError):  # the next start of the server ends it
            async with asyncio.timeout(DESTROY_TIMEOUT):
                await self._node.destroy(sandbox_id)
                await self._node.forget(sandbox_id)
