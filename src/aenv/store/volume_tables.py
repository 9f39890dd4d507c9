"""The catalog's tables of volumes, and of the sandboxes that hold them."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Integer,
    String,
    Table,
    UniqueConstraint,
)

from aenv.store.metadata import metadata

volumes = Table(
    "volumes",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("team", String(64), nullable=False),
    Column("name", String(128), nullable=False),
    Column("size_mb", Integer, nullable=False),
    Column("mode", String(16), nullable=False),
    Column("digest", String(80)),
    Column("token", String(128), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    UniqueConstraint("team", "name"),
)
"""``token`` opens the content; it is given out again, so it is no hash. ``digest``: of the tree, of
a sealed one.
"""

claims = Table(
    "volume_claims",
    metadata,
    Column("volume_id", ForeignKey("volumes.id", ondelete="CASCADE"), primary_key=True),
    Column(
        "sandbox_id", ForeignKey("sandboxes.id", ondelete="CASCADE"), primary_key=True, index=True
    ),
    Column("read_only", Boolean, nullable=False),
)
"""Who holds a volume: from a sandbox's first row to the end of its machine, paused or not."""
