"""The catalog's tables of the blob store: what is in it, who needs it, who uploads."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    Text,
    false,
)

from aenv.store.metadata import metadata

stores = Table(
    "blob_store",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("marker", String(64), nullable=False),
    Column("location", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
)
"""One row. ``marker``: the id that the store itself holds, too. ``epoch`` counts the uploads."""

leases = Table(
    "blob_leases",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("epoch", BigInteger, index=True),
    Column("node", String(64), nullable=False),
    Column("expires_at", BigInteger, nullable=False, index=True),
)
"""Who uploads or reads now. ``epoch`` as it was at its begin; NULL: it only reads."""

chunks = Table(
    "blob_chunks",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("digest", String(64), nullable=False, index=True),
    Column("suffix", String(32), nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("stored_bytes", BigInteger),
    Column("lease_id", String(32)),
    Column("touched", BigInteger, nullable=False),
    Column("damaged", Boolean, nullable=False, server_default=false()),
    sqlite_autoincrement=True,
)
"""Written before the object is. ``stored_bytes`` NULL: being uploaded under ``lease_id``.
``touched``: the epoch in which an upload last counted on it.
"""

blobs = Table(
    "blobs",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("id", String(64), nullable=False, unique=True),
    Column("digest", String(64), nullable=False, index=True),
    Column("bytes", BigInteger, nullable=False),
    Column("stored_bytes", BigInteger, nullable=False),
    Column("lease_id", String(32)),
    Column("created_at", BigInteger, nullable=False),
    Column("damaged", Boolean, nullable=False, server_default=false()),
    sqlite_autoincrement=True,
)
"""Written before the manifest is. ``lease_id`` NULL: it is whole. ``stored_bytes``: of the
manifest.
"""

parts = Table(
    "blob_parts",
    metadata,
    Column("blob", ForeignKey("blobs.seq", ondelete="CASCADE"), primary_key=True),
    Column("chunk", ForeignKey("blob_chunks.id"), primary_key=True),
    Index(None, "chunk"),
)

holders = Table(
    "blob_holders",
    metadata,
    Column("blob", ForeignKey("blobs.seq", ondelete="CASCADE"), primary_key=True),
    Column("holder", String(128), primary_key=True),
    Index(None, "holder"),
)
"""Who needs a blob, as they call themselves; ``lease:<id>`` as long as that lease lasts."""

garbage = Table(
    "blob_garbage",
    metadata,
    Column("key", String(160), primary_key=True),
    Column("bytes", BigInteger, nullable=False),
)
"""Objects that nobody will count on again: to be deleted."""
