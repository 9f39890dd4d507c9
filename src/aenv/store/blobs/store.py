"""The face of the blob store.

    store = await BlobStore.open(settings, catalog)
    done = await store.put(path, holder="snapshot:abc")   # done.ref, done.bytes_new, …
    reader = await store.reader(done.ref.id)               # reader.read(offset, length)
    await store.fetch(done.ref, path)                      # the whole, into a file
    await store.release("snapshot:abc")                    # from here on it may be collected

A blob stays as long as somebody holds it. Holders are texts that their owners make up; a blob that
was put is held from the moment it is whole.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

from aenv.models.blobs import BlobRef, Collected, Progress, StoreUsage, Uploaded, Verified
from aenv.models.settings import Settings
from aenv.store.blobs import collecting, inventory, markers, places, reads, verifying
from aenv.store.blobs.groups import unwrapped
from aenv.store.blobs.ledger import Ledger
from aenv.store.blobs.objects import Objects
from aenv.store.blobs.reads import BlobReader
from aenv.store.blobs.sources import Source
from aenv.store.blobs.uploads import Upload
from aenv.store.catalog import Catalog

Report = Callable[[Progress], None]


def _quiet(_: Progress) -> None:
    return


class BlobStore:
    """Holds no files and no connections that need closing. Every method raises DiskFullError and
    BlobStoreError with its kinds; what was called off is garbage at worst.
    """

    def __init__(self, objects: Objects, ledger: Ledger) -> None:
        """Of parts; use :meth:`open`."""
        self.objects = objects
        self.ledger = ledger

    @classmethod
    async def open(cls, settings: Settings, catalog: Catalog) -> BlobStore:
        """The store that the settings name. HostSetupError when it is another catalog's."""
        objects = await places.open_objects(settings)
        ledger = Ledger(catalog, settings.folders.instance)
        await markers.claim(objects, ledger)
        return cls(objects, ledger)

    async def put(self, source: Source, *, holder: str, report: Report = _quiet) -> Uploaded:
        """Store a file or a stream; what is there already is not sent. Atomic: the blob is there
        when this returns, held by ``holder``, or it is not. After a failure or a crash the same put
        goes on with what lacks.
        """
        await markers.require(self.objects, self.ledger)
        with unwrapped():
            async with self.ledger.upload() as lease:
                return await Upload(self.objects, self.ledger, lease, report).run(source, holder)

    async def reader(self, blob_id: str) -> BlobReader:
        """For ranges of a blob that somebody holds."""
        return await reads.open_reader(self.objects, blob_id)

    @asynccontextmanager
    async def reading(self, blob_id: str) -> AsyncIterator[BlobReader]:
        """As :meth:`reader`, and the blob stays meanwhile, whoever releases it. NotFoundError."""
        async with self.ledger.reading(blob_id):
            yield await self.reader(blob_id)

    async def fetch(self, ref: BlobRef, path: Path, *, report: Report = _quiet) -> None:
        """The whole blob into a file, sparse; the file is complete or not there."""
        await reads.fetch(self.objects, ref, path, report)

    async def require(self) -> None:
        """See that the store is where it was. Raises BlobStoreUnreachableError."""
        await markers.require(self.objects, self.ledger)

    async def hold(self, blob_id: str, holder: str) -> None:
        """One more needs it. Idempotent. Raises NotFoundError when it is gone."""
        await self.ledger.hold(blob_id, holder)

    async def release(self, holder: str, blob_id: str | None = None) -> int:
        """``holder`` needs a blob, or all it held, no more; how many those were. Idempotent."""
        return await self.ledger.release(holder, blob_id)

    async def gc(
        self, *, unknown_after: timedelta = collecting.UNKNOWN_AFTER, report: Report = _quiet
    ) -> Collected:
        """Free what nobody holds. Any number at once, beside all else."""
        await markers.require(self.objects, self.ledger)
        return await collecting.collect(
            self.objects, self.ledger, report, unknown_after=unknown_after
        )

    async def verify(self, *, report: Report = _quiet) -> Verified:
        """Read and compare everything."""
        await markers.require(self.objects, self.ledger)
        return await verifying.verify(self.objects, self.ledger, report)

    async def usage(self, *, report: Report = _quiet) -> StoreUsage:
        """What every byte is for."""
        await markers.require(self.objects, self.ledger)
        return await inventory.usage(self.objects, self.ledger, report)
