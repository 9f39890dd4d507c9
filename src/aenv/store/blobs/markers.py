"""One store belongs to one catalog: what another one put there would be garbage to us."""

from __future__ import annotations

import json
import secrets

from sqlalchemy import Connection, func, insert, select, update

from aenv.models.errors import BlobMissingError, BlobStoreUnreachableError, HostSetupError
from aenv.store.blob_tables import blobs, stores
from aenv.store.blobs.inventory import MARKER
from aenv.store.blobs.ledger import Ledger
from aenv.store.blobs.objects import Objects

_LARGEST = 4096


async def claim(objects: Objects, ledger: Ledger) -> None:
    """Make the store ours, or see that it is. Raises HostSetupError."""
    here = objects.location
    marker, before, holds = await ledger.write(lambda db: _register(db, here))
    found = await _read(objects)
    if found is None:
        if holds:
            raise HostSetupError(
                f"there is no blob store at {here}, but this server's {holds} blobs are in one, "
                f"last seen at {before}; correct the settings (store.*) or mount what is missing"
            )
        content = json.dumps({"format": 1, "store": marker}).encode()
        if await objects.create(MARKER, content):
            found = marker
        else:
            found = await _read(objects)
    if found != marker:
        raise HostSetupError(
            f"the blob store at {here} belongs to another server's catalog; name another folder or "
            "prefix (store.folder, store.prefix), or, if that catalog is lost for good, delete all "
            "objects there"
        )
    await ledger.write(lambda db: db.execute(update(stores).values(location=here)).rowcount)


async def require(objects: Objects, ledger: Ledger) -> None:
    """See that the store is still there: a folder whose file system was unmounted looks empty.

    Raises BlobStoreUnreachableError.
    """
    expected = await ledger.read(lambda db: db.scalar(select(stores.c.marker)))
    if await _read(objects) != expected:
        raise BlobStoreUnreachableError(
            f"this server's blob store is no longer at {objects.location}: mount it again"
        )


def _register(db: Connection, location: str) -> tuple[str, str, int]:
    """The marker of this catalog's store, where it was last, and how many blobs it holds."""
    row = db.execute(select(stores)).first()
    if row is None:
        marker = secrets.token_hex(16)
        db.execute(insert(stores).values(id=1, marker=marker, location=location, epoch=0))
        return marker, location, 0
    return row.marker, row.location, int(db.scalar(select(func.count()).select_from(blobs)) or 0)


async def _read(objects: Objects) -> str | None:
    try:
        content = await objects.get(MARKER, _LARGEST)
    except BlobMissingError:
        return None
    try:
        return str(json.loads(content)["store"])
    except (ValueError, KeyError, TypeError):
        return ""
