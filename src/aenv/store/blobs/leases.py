"""Transactions on leases: who uploads or reads at the moment.

An upload's lease keeps what it counts on from being collected; a lease that was not renewed in time
is dropped, and then none of its transactions succeeds any more.
"""

from __future__ import annotations

from sqlalchemy import Connection, delete, insert, select, update

from aenv.models.errors import UploadLapsedError
from aenv.store.blob_tables import holders, leases, stores

LEASE = "lease:"


def begin_upload(db: Connection, lease: str, node: str, expires_at: int) -> None:
    """In an epoch of its own."""
    db.execute(update(stores).values(epoch=stores.c.epoch + 1))
    epoch = db.scalar(select(stores.c.epoch))
    values = {"id": lease, "epoch": epoch, "node": node, "expires_at": expires_at}
    db.execute(insert(leases).values(values))


def begin_reading(db: Connection, lease: str, node: str, expires_at: int) -> None:
    values = {"id": lease, "epoch": None, "node": node, "expires_at": expires_at}
    db.execute(insert(leases).values(values))


def renew(db: Connection, lease: str, expires_at: int) -> None:
    """Raises UploadLapsedError when it is gone."""
    require(db, lease)
    db.execute(update(leases).where(leases.c.id == lease).values(expires_at=expires_at))


def require(db: Connection, lease: str) -> None:
    if db.scalar(select(leases.c.id).where(leases.c.id == lease)) is None:
        raise UploadLapsedError(
            "the lease on the blob store has lapsed: this process stood still, or its clock "
            "jumped; do it again, what was uploaded is found"
        )


def end(db: Connection, lease: str) -> None:
    """Idempotent."""
    db.execute(delete(holders).where(holders.c.holder == LEASE + lease))
    db.execute(delete(leases).where(leases.c.id == lease))


def expire(db: Connection, now: int) -> int:
    """End leases whose time is over; how many."""
    over = db.scalars(select(leases.c.id).where(leases.c.expires_at < now)).all()
    for lease in over:
        end(db, lease)
    return len(over)
