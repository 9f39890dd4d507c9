"""Capturing a sandbox: its disk and memory of one moment become a stored snapshot.

What is dirty is written first, while it runs. Then it is frozen, its memory and its disk are copied
side by side, and a snapshot lets it run on before anything is made durable; a pause leaves that to
its caller. The snapshot is there once it is published, whole; whatever fails before leaves nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from aenv.models.errors import (
    AenvError,
    AgentUnreachableError,
    CapabilityError,
    ConflictError,
    DiskFullError,
)
from aenv.models.snapshots import SnapshotImage
from aenv.node import faults
from aenv.node.disks.stores import free_bytes
from aenv.node.engine import DiskImage, Engine, MemoryImage
from aenv.node.engines.tasks import finish
from aenv.node.logs import LogKeeper
from aenv.node.residents import Resident
from aenv.node.snapshots.manifest import Manifest, Private, memory_files
from aenv.node.snapshots.store import Draft, SnapshotStore, Stored
from aenv.node.usage import MIB

logger = logging.getLogger(__name__)

_GUEST_SYNC = 30.0
_SPARE = 256 * MIB


class Pins(Protocol):
    """The part of ``lowers.Lowers`` that keeps what is below a disk."""

    async def pin(self, name: str, digest: str, layers: Sequence[str], holder: Path) -> None: ...


@dataclass(frozen=True, slots=True)
class Order:
    """What to capture. ``operation`` names it in faults and messages. ``thawed`` is called as soon
    as the sandbox runs on. ``volumes``: those that it may write to as well.
    """

    operation: str
    snapshot_id: str
    memory: bool
    parent: str | None
    thawed: Callable[[], Awaitable[None]] | None = None
    volumes: bool = False


@dataclass(frozen=True, slots=True)
class Captured:
    """What was copied while the sandbox was frozen."""

    disk: DiskImage
    memory: MemoryImage | None
    created_at: float


class Capturer:
    """Pins the layers below a snapshot's disk in ``lowers`` for as long as the snapshot exists."""

    def __init__(self, store: SnapshotStore, logs: LogKeeper, lowers: Pins) -> None:
        self._store = store
        self._logs = logs
        self._lowers = lowers

    async def capture(
        self, resident: Resident, engine: Engine, order: Order, *, stay_frozen: bool
    ) -> SnapshotImage:
        """The caller holds the resident's lock. With ``stay_frozen`` it is frozen afterwards, also
        after a failure. Raises CapabilityError, ConflictError, DiskFullError, EngineError.
        """
        _require(engine, order)
        async with self._store.draft(order.snapshot_id) as draft:
            if order.memory:
                await _require_room(resident, draft.folder)
            await self._write_dirty(resident, order)
            await resident.machine.freeze()
            await faults.reach(f"{order.operation}.frozen")
            try:
                captured = await self._copy(resident, engine, draft, order)
                await faults.reach(f"{order.operation}.copied")
                if not stay_frozen:
                    await finish(_thaw(resident))
                    if order.thawed is not None:
                        await order.thawed()
            except BaseException:
                await finish(_drop(engine, order.snapshot_id))
                if not stay_frozen:
                    with suppress(AenvError):  # it is the failure itself, or the machine is dead
                        await finish(_thaw(resident))
                raise
            return await self._publish(resident, engine, draft, order, captured)

    async def discard(self, engine: Engine, snapshot_id: str) -> None:
        """Take back what was published and never acknowledged."""
        await self._store.delete(snapshot_id, lambda: _drop(engine, snapshot_id))

    async def _write_dirty(self, resident: Resident, order: Order) -> None:
        if not order.memory:  # what the guest has not written yet would be lost with its memory
            try:
                await resident.agent.sync(timeout=_GUEST_SYNC)
            except AgentUnreachableError as error:
                logger.warning("a guest did not write its files before a snapshot: %s", error)
        await resident.machine.sync()

    async def _copy(
        self, resident: Resident, engine: Engine, draft: Draft, order: Order
    ) -> Captured:
        created_at = time.time()
        saving = resident.machine.save_disk(draft.id, volumes=order.volumes)
        if not order.memory:
            return Captured(await saving, None, created_at)
        disk = asyncio.ensure_future(saving)
        try:
            memory = await finish(resident.machine.checkpoint(draft.memory))
        finally:
            await asyncio.wait({disk})
            failed = disk.exception()
        if failed is not None:
            raise failed
        return Captured(disk.result(), memory, created_at)

    async def _publish(
        self, resident: Resident, engine: Engine, draft: Draft, order: Order, captured: Captured
    ) -> SnapshotImage:
        memo = resident.memo
        assert memo is not None
        image = captured.memory
        manifest = Manifest(
            id=draft.id,
            template=memo.template,
            template_digest=memo.digest,
            resources=memo.resources,
            created_at=captured.created_at,
            engine=engine.capabilities.engine,
            engine_version=image.engine_version if image else "",
            cpu_features=image.cpu_features if image else "",
            memory=await asyncio.to_thread(memory_files, image.path) if image else {},
            parent=order.parent,
            log_seq=self._logs.seen(resident.sandbox_id),
            facts=memo.facts,
            layers=memo.layers,
        )
        private = Private(
            resident.agent.host_secret,
            memo.env_vars,
            frozenset(memo.secret_env),
            memo.env_known,
        )
        try:
            place = self._store.place(draft.id)
            await self._lowers.pin(memo.template, memo.digest, memo.layers, place)
            stored = await finish(self._store.publish(draft, manifest, private))
        except BaseException:
            if draft.id not in self._store:
                await finish(_drop(engine, draft.id))
            raise
        await faults.reach(f"{order.operation}.published")
        return describe(stored, captured.disk)


def describe(stored: Stored, disk: DiskImage | None) -> SnapshotImage:
    """As the node tells it. ``disk``: its disk image as it is now."""
    facts = stored.manifest
    memory = sum(facts.memory.values())
    return SnapshotImage(
        id=facts.id,
        template=facts.template,
        template_digest=facts.template_digest,
        resources=facts.resources,
        created_at=facts.created_at,
        has_memory=facts.has_memory,
        fingerprint=facts.fingerprint,
        disk_bytes=disk.bytes if disk else 0,
        own_bytes=memory + (disk.own_bytes if disk else 0),
        memory_bytes=memory,
        parent=facts.parent,
        checksum=stored.checksum,
    )


def _require(engine: Engine, order: Order) -> None:
    capabilities = engine.capabilities
    if not capabilities.disk_snapshot or not capabilities.freeze:
        raise CapabilityError(
            f"the engine {capabilities.engine!r} keeps no snapshots; use gvisor for this sandbox"
        )
    if order.memory and not capabilities.memory_snapshot:
        raise CapabilityError(
            f"the engine {capabilities.engine!r} keeps no memory; ask for the disk alone"
        )


async def _require_room(resident: Resident, folder: Path) -> None:
    """A memory image must not take the last of the host's disk, where the catalog lives too."""
    free = await asyncio.to_thread(free_bytes, folder)
    assert resident.memo is not None
    if free > resident.memo.resources.memory_mb * MIB + _SPARE:
        return
    used = (await resident.machine.stats()).memory_bytes
    if free < used + _SPARE:
        raise DiskFullError(
            f"the memory of the sandbox takes up to {used // MIB} MiB, and {free // MIB} MiB of "
            f"disk are left, of which {_SPARE // MIB} MiB are kept in reserve; free some"
        )


async def _drop(engine: Engine, name: str) -> None:
    with suppress(AenvError):  # a restart drops it
        await engine.drop_disk(name)


async def _thaw(resident: Resident) -> None:
    if resident.gone:
        raise ConflictError(f"sandbox {resident.sandbox_id} was killed meanwhile")
    await resident.machine.thaw()
