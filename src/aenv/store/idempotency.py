"""Rows of idempotency keys: which sandbox a caller's key already made."""

from __future__ import annotations

from sqlalchemy import Connection, delete, insert, select

from aenv.store.records import IdempotencyRecord
from aenv.store.tables import idempotency


def add(db: Connection, api_key_id: str, key: str, record: IdempotencyRecord) -> None:
    db.execute(
        insert(idempotency).values(
            api_key_id=api_key_id,
            key=key,
            fingerprint=record.fingerprint,
            sandbox_id=record.sandbox_id,
            created_at=record.created_at,
        )
    )


def get(db: Connection, api_key_id: str, key: str) -> IdempotencyRecord | None:
    row = (
        db.execute(
            select(
                idempotency.c.fingerprint, idempotency.c.sandbox_id, idempotency.c.created_at
            ).where(idempotency.c.api_key_id == api_key_id, idempotency.c.key == key)
        )
    ).first()
    return IdempotencyRecord(row[0], row[1], row[2]) if row else None


def release(db: Connection, sandbox_id: str) -> None:
    """Free the key of a sandbox that was never made."""
    db.execute(delete(idempotency).where(idempotency.c.sandbox_id == sandbox_id))


def purge(db: Connection, before: int) -> None:
    db.execute(delete(idempotency).where(idempotency.c.created_at < before))
