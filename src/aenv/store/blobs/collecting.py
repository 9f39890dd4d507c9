"""Garbage collection: safe beside uploads, readers and other collections, killed anywhere."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from aenv.models.blobs import Collected, Progress
from aenv.store.blobs import inventory
from aenv.store.blobs.ledger import Ledger
from aenv.store.blobs.objects import Objects

UNKNOWN_AFTER = timedelta(days=1)
"""Nothing can refer to an object that the catalog does not know, but an operator may have put an
older copy of the catalog in place by mistake.
"""
STAGED_SECONDS = 3600.0


async def collect(
    objects: Objects,
    ledger: Ledger,
    report: Callable[[Progress], None],
    *,
    unknown_after: timedelta = UNKNOWN_AFTER,
) -> Collected:
    """Delete what nobody needs, and what is unknown for that long. May be called off anywhere."""
    await ledger.expire()
    blobs = chunks = 0
    while count := await ledger.condemn_blobs():
        blobs += count
    while count := await ledger.condemn_chunks():
        chunks += count
        report(Progress("condemning chunks", chunks))
    deleted, freed = await _delete(objects, ledger, report)
    unknown, unknown_bytes = await _unknown(objects, ledger, report, unknown_after)
    staged, staged_bytes = await _staged(objects)
    return Collected(
        blobs=blobs,
        chunks=chunks,
        objects_deleted=deleted,
        bytes_freed=freed + unknown_bytes + staged_bytes,
        unknown_deleted=unknown + staged,
    )


async def _delete(
    objects: Objects, ledger: Ledger, report: Callable[[Progress], None]
) -> tuple[int, int]:
    deleted = freed = 0
    while doomed := await ledger.condemned():
        keys = [key for key, _ in doomed]
        await objects.delete(keys)
        await ledger.deleted(keys)
        deleted += len(keys)
        freed += sum(size for _, size in doomed)
        report(Progress("deleting objects", deleted))
    return deleted, freed


async def _unknown(
    objects: Objects, ledger: Ledger, report: Callable[[Progress], None], after: timedelta
) -> tuple[int, int]:
    """A row is written before its object and deleted after it: one that has no row never gets it
    back.
    """
    deleted = freed = seen = 0
    limit = datetime.now(UTC) - after
    async for batch in objects.listed():
        old = [one for one in batch if one.modified <= limit]
        kinds = await inventory.classify(ledger, [one.key for one in old])
        doomed = [one for one in old if kinds[one.key] is inventory.Kind.UNKNOWN]
        if doomed:
            await objects.delete([one.key for one in doomed])
        deleted += len(doomed)
        freed += sum(one.size for one in doomed)
        seen += len(batch)
        report(Progress("looking for unknown objects", seen))
    return deleted, freed


async def _staged(objects: Objects) -> tuple[int, int]:
    return await asyncio.to_thread(_remove_old, await objects.staged())


def _remove_old(paths: list[Path]) -> tuple[int, int]:
    removed = freed = 0
    for path in paths:
        try:
            status = path.stat()
            if time.time() - status.st_mtime < STAGED_SECONDS:
                continue
            path.unlink()
        except FileNotFoundError:
            continue
        removed += 1
        freed += status.st_blocks * 512
    return removed, freed
