"""Putting a blob: its pieces in batches, several at once; its manifest last."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from aenv.models.blobs import BlobRef, Progress, Uploaded
from aenv.store.blobs import frames, manifests
from aenv.store.blobs.ledger import Ledger
from aenv.store.blobs.manifests import Part
from aenv.store.blobs.objects import Objects
from aenv.store.blobs.sources import Pieces, Source
from aenv.store.blobs.uploading import Claim, Wanted

BATCH_BYTES = 8 << 20
BATCH_PIECES = 64
BATCHES = 3
"""Under way at once: with their frames they are the memory that a put takes, about 50 MiB."""
REQUESTS = 8

Report = Callable[[Progress], None]


@dataclass(slots=True)
class Tally:
    new: int = 0
    shared: int = 0
    zero: int = 0
    sent: int = 0


@dataclass(frozen=True, slots=True)
class _Run:
    """A run of the content; ``digest`` None: zeros."""

    offset: int
    length: int
    digest: str | None


@dataclass(slots=True)
class Upload:
    """One put under one lease."""

    objects: Objects
    ledger: Ledger
    lease: str
    report: Report
    tally: Tally = field(default_factory=Tally)
    _claims: dict[str, Claim] = field(default_factory=dict)
    _requests: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(REQUESTS))

    async def run(self, source: Source, holder: str) -> Uploaded:
        pieces = Pieces(source)
        runs = await self._chunks(pieces)
        parts = [
            Part(run.offset, run.length, self._claims[run.digest].name if run.digest else None)
            for run in runs
        ]
        ref, manifest = manifests.encode(pieces.digest, pieces.length, parts)
        ref = await self._publish(ref, manifest, holder)
        tally = self.tally
        tally.zero = sum(run.length for run in runs if run.digest is None)
        shared = ref.length - tally.zero - tally.new
        return Uploaded(ref, tally.new, shared, tally.zero, tally.sent)

    async def _publish(self, ref: BlobRef, manifest: bytes, holder: str) -> BlobRef:
        chunks = frozenset(claim.chunk for claim in self._claims.values())
        there = await self.ledger.record(self.lease, ref, len(manifest), chunks, holder)
        if there is not None:
            return there
        await self.objects.put(manifests.key_of(ref.id), manifest)
        self.tally.sent += len(manifest)
        return await self.ledger.finish(self.lease, ref, holder)

    async def _chunks(self, pieces: Pieces) -> list[_Run]:
        """What the content is made of, once all its chunks are in the store."""
        runs: list[_Run] = []
        room = asyncio.Semaphore(BATCHES)
        async with asyncio.TaskGroup() as tasks:
            async for batch in _batches(pieces, runs):
                await room.acquire()
                task = tasks.create_task(self._batch(batch))
                task.add_done_callback(lambda _: room.release())
        return runs

    async def _batch(self, batch: dict[str, bytes]) -> None:
        wanted = [Wanted(digest, len(data)) for digest, data in batch.items()]
        claims = await self.ledger.claim(self.lease, wanted)
        self._claims.update({one.digest: claim for one, claim in zip(wanted, claims, strict=True)})
        lacking = [digest for digest in batch if not self._claims[digest].there]
        async with asyncio.TaskGroup() as tasks:
            sent = {
                self._claims[digest].chunk: tasks.create_task(
                    self._send(self._claims[digest], batch[digest])
                )
                for digest in lacking
            }
        if sent:
            stored = {chunk: task.result() for chunk, task in sent.items()}
            await self.ledger.settle(self.lease, stored)
        self.report(Progress("uploading", self.tally.new))

    async def _send(self, claim: Claim, data: bytes) -> int:
        async with self._requests:
            frame = await asyncio.to_thread(frames.compress, data)
            await self.objects.put(manifests.chunk_key(claim.name), frame)
        self.tally.new += len(data)
        self.tally.sent += len(frame)
        return len(frame)


async def _batches(pieces: Pieces, runs: list[_Run]) -> AsyncIterator[dict[str, bytes]]:
    """Chunks by digest, each once; ``runs`` is filled on the way."""
    seen: set[str] = set()
    batch: dict[str, bytes] = {}
    size = 0
    async for piece in pieces:
        if piece.data is None:
            runs.append(_Run(piece.offset, piece.length, None))
            continue
        digest = await asyncio.to_thread(_digest, piece.data)
        runs.append(_Run(piece.offset, piece.length, digest))
        if digest in seen:
            continue
        seen.add(digest)
        batch[digest] = piece.data
        size += piece.length
        if size >= BATCH_BYTES or len(batch) >= BATCH_PIECES:
            yield batch
            batch, size = {}, 0
    if batch:
        yield batch


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
