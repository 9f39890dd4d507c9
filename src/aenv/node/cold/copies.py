"""Snapshots go to the blob store and come back: their disk as sealed layers, their memory image
file by file.

What comes back is a stored snapshot like any other, without a disk image: its disk is made of the
layers alone. Its facts travel with the catalog (:class:`ColdCopy`), and with them its secrets.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from aenv.models.blobs import BlobRef, Uploaded
from aenv.models.errors import (
    BlobDamagedError,
    BlobMissingError,
    ConflictError,
    DiskFullError,
    EngineError,
    NotFoundError,
    SnapshotDamagedError,
)
from aenv.models.snapshots import ColdCopy, Kept
from aenv.node import faults
from aenv.node.cold import worker
from aenv.node.cold.layers import SealedLayers, key_of
from aenv.node.disks.stores import free_bytes
from aenv.node.engine_set import EngineSet
from aenv.node.lowers import Lowers
from aenv.node.snapshots import manifest as manifests
from aenv.node.snapshots.found import Stored
from aenv.node.snapshots.store import Draft, SnapshotStore

if TYPE_CHECKING:
    from aenv.store.blobs.store import BlobStore

logger = logging.getLogger(__name__)

SPARE = 256 << 20
"""Bytes of the host's disk that no copy takes: the catalog lives there, too."""
MOST_LAYERS = 32
"""Sealed ones of one disk: a mount's options name them all, beside the template's."""
_SEALED = "sealed"
"""In a snapshot's folder while its layer is kept here: the layer's digest; it pins the layer."""


def holder_of(snapshot_id: str) -> str:
    """What holds a snapshot's blobs."""
    return f"snapshot:{snapshot_id}"


class ColdCopies:
    def __init__(
        self, engines: EngineSet, snapshots: SnapshotStore, sealed: SealedLayers, lowers: Lowers
    ) -> None:
        self._engines = engines
        self._snapshots = snapshots
        self._sealed = sealed
        self._lowers = lowers
        self._putting: dict[str, asyncio.Task[Kept]] = {}

    async def put(self, snapshot_id: str, blobs: BlobStore) -> Kept:
        """Idempotent, and goes on where an earlier attempt ended. Raises NotFoundError,
        SnapshotDamagedError, DiskFullError, EngineError, what the store fails with, and
        ConflictError when it was called off.
        """
        task = asyncio.create_task(self._put(snapshot_id, blobs), name=f"put {snapshot_id}")
        self._putting[snapshot_id] = task
        try:
            return await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
            raise ConflictError(f"snapshot {snapshot_id} is being deleted") from None
        finally:
            del self._putting[snapshot_id]

    async def call_off(self, snapshot_id: str) -> None:
        """Put it no further."""
        if (task := self._putting.get(snapshot_id)) is not None:
            task.cancel()
            await asyncio.wait({task})

    async def _put(self, snapshot_id: str, blobs: BlobStore) -> Kept:
        async with self._snapshots.using(snapshot_id) as stored:
            if stored.damage is not None:
                raise SnapshotDamagedError(stored.damage)
            facts = stored.manifest
            keys = facts.layers
            if len(keys) >= MOST_LAYERS:
                raise EngineError(
                    f"the disk of snapshot {snapshot_id} has {len(keys)} sealed layers below it "
                    "already, and one more could not be mounted everywhere: it stays on this host"
                )
            if facts.own_disk:
                keys = (await self._sealed_disk(stored), *keys)
            await faults.reach("store.sealed")
            with self._sealed.claimed(keys):
                put = _Putting(blobs, holder_of(snapshot_id))
                layers = {key: await put.file(self._sealed.image(key)) for key in keys}
                await faults.reach("store.layers")
                memory = {}
                if facts.has_memory:
                    image = facts.memory_image(stored.folder)
                    memory = {name: await put.file(image.path / name) for name in facts.memory}
                await faults.reach("store.memory")
            cold = replace(facts, layers=keys, own_disk=False)
            copy = ColdCopy(
                snapshot_id,
                manifests.manifest_json(cold),
                manifests.private_json(stored.private),
                layers,
                memory,
            )
            await asyncio.to_thread((stored.folder / _SEALED).unlink, missing_ok=True)
        await self._sealed.sweep()
        return put.kept(copy)

    async def fetch(self, copy: ColdCopy, blobs: BlobStore) -> None:
        """Have it here again; nothing is left of a failed attempt but layers that others use.

        A damaged memory image is left out: what starts boots from the disk. Raises
        SnapshotDamagedError for a damaged layer, DiskFullError, what the store fails with.
        """
        await blobs.require()  # in an unmounted folder all is missing
        facts = manifests.parsed(copy.manifest)
        private = manifests.parsed_private(copy.private)
        with self._sealed.claimed(facts.layers):
            async with self._snapshots.draft(copy.snapshot_id) as draft:
                await asyncio.to_thread(self._require_room, draft.folder, copy)
                for key in facts.layers:
                    await self._fetch_layer(key, copy.layers[key], blobs, draft)
                await faults.reach("fetch.layers")
                await self._fetch_memory(copy.memory, blobs, draft)
                await faults.reach("fetch.memory")
                place = self._snapshots.place(draft.id)
                await self._lowers.pin(facts.template, facts.template_digest, facts.layers, place)
                await self._snapshots.publish(draft, facts, private)
                await faults.reach("fetch.published")

    async def _sealed_disk(self, stored: Stored) -> str:
        """The key of its disk's layer, which is made unless an earlier attempt has."""
        facts, note = stored.manifest, stored.folder / _SEALED
        if (known := await asyncio.to_thread(_read, note)) and self._sealed.has(key_of(known)):
            return key_of(known)
        engine = await self._engines.get(facts.engine)
        try:
            upper = await engine.disk_tree(facts.id)
        except NotFoundError as error:
            raise SnapshotDamagedError(f"the disk of snapshot {facts.id} is gone") from error
        with self._sealed.workshop() as folder:
            made = await worker.run(upper, folder / "layer")
            if made.skipped:
                logger.info("not in the sealed disk of %s: %s", facts.id, made.skipped)
            await asyncio.to_thread(note.write_text, made.digest)
            return await self._sealed.add(folder / "layer", made.digest, note)

    def _require_room(self, folder: Path, copy: ColdCopy) -> None:
        lacking = [ref for key, ref in copy.layers.items() if not self._sealed.has(key)]
        need = sum(ref.length for ref in copy.memory.values())
        free = free_bytes(folder)
        if free < need + SPARE:
            raise DiskFullError(
                f"snapshot {copy.snapshot_id} takes {need >> 20} MiB and {len(lacking)} layers, "
                f"and {free >> 20} MiB of disk are left, of which {SPARE >> 20} MiB are kept in "
                "reserve; free some"
            )

    async def _fetch_layer(self, key: str, ref: BlobRef, blobs: BlobStore, draft: Draft) -> None:
        if self._sealed.has(key):
            return
        with self._sealed.workshop() as folder:
            try:
                await blobs.fetch(ref, folder / "layer")
            except (BlobDamagedError, BlobMissingError) as error:
                await blobs.require()
                raise SnapshotDamagedError(
                    f"the disk of snapshot {draft.id} cannot be read from the blob store: "
                    f"{error.message}. Nothing can start from it until that is mended: aenv store "
                    "verify tells the extent"
                ) from error
            if key_of(ref.digest) != key:
                raise SnapshotDamagedError(f"layer {key} of snapshot {draft.id} is another one")
            await self._sealed.add(folder / "layer", ref.digest, self._snapshots.place(draft.id))

    async def _fetch_memory(
        self, files: Mapping[str, BlobRef], blobs: BlobStore, draft: Draft
    ) -> None:
        for name, ref in files.items():
            path = draft.memory / PurePosixPath(name)
            await asyncio.to_thread(path.parent.mkdir, mode=0o700, parents=True, exist_ok=True)
            try:
                await blobs.fetch(ref, path)
            except (BlobDamagedError, BlobMissingError) as error:
                await blobs.require()
                logger.error("the memory of snapshot %s is lost: %s", draft.id, error)
                return


class _Putting:
    """Files of one snapshot, and what putting them came to."""

    def __init__(self, blobs: BlobStore, holder: str) -> None:
        self._blobs = blobs
        self._holder = holder
        self._done: list[Uploaded] = []

    async def file(self, path: Path) -> BlobRef:
        done = await self._blobs.put(path, holder=self._holder)
        self._done.append(done)
        return done.ref

    def kept(self, copy: ColdCopy) -> Kept:
        def total(value: Callable[[Uploaded], int]) -> int:
            return sum(map(value, self._done))

        return Kept(
            copy,
            bytes_new=total(lambda one: one.bytes_new),
            bytes_shared=total(lambda one: one.bytes_shared),
            bytes_zero=total(lambda one: one.bytes_zero),
            bytes_sent=total(lambda one: one.bytes_sent),
        )


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
