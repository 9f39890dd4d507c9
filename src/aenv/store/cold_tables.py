"""The catalog's table of snapshots in the blob store."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Column, ForeignKey, String, Table, Text

from aenv.store.metadata import metadata

cold_copies = Table(
    "cold_copies",
    metadata,
    Column("snapshot_id", ForeignKey("snapshots.id", ondelete="CASCADE"), primary_key=True),
    Column("state", String(16), nullable=False),
    Column("copy", JSON),
    Column("bytes", BigInteger, nullable=False, server_default="0"),
    Column("bytes_new", BigInteger, nullable=False, server_default="0"),
    Column("bytes_sent", BigInteger, nullable=False, server_default="0"),
    Column("error", Text),
    Column("updated_at", BigInteger, nullable=False),
)
"""``state``: uploading, stored; without a row a snapshot is only where it was taken. ``copy`` holds
secrets of the sandbox. Its blobs are held by ``snapshot:<id>``.
"""
