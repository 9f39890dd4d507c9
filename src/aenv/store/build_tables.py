"""The catalog's tables of templates that are built, their builds, tags, and cached steps."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
)

from aenv.store.metadata import metadata

templates = Table(
    "templates",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("team", String(64), nullable=False),
    Column("name", String(128), nullable=False),
    Column("public", Boolean, nullable=False, server_default=false()),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    UniqueConstraint("team", "name"),
)

builds = Table(
    "template_builds",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("template_id", ForeignKey("templates.id", ondelete="CASCADE"), nullable=False),
    Column("version", Integer, nullable=False),
    Column("status", String(16), nullable=False),
    Column("tags", JSON, nullable=False),
    Column("cpu", Float, nullable=False),
    Column("memory_mb", Integer, nullable=False),
    Column("disk_mb", Integer, nullable=False),
    Column("snapshot_id", String(32)),
    Column("facts", JSON),
    Column("image", JSON),
    Column("message", Text),
    Column("step", String(16)),
    Column("created_at", BigInteger, nullable=False),
    Column("started_at", BigInteger),
    Column("finished_at", BigInteger),
    Index(None, "template_id", "created_at"),
    Index(None, "status"),
)
"""``snapshot_id``: the finished image, a row of ``snapshots``; it stays while a tag names it, or
while it is the newest.
"""

tags = Table(
    "template_tags",
    metadata,
    Column("template_id", ForeignKey("templates.id", ondelete="CASCADE"), primary_key=True),
    Column("tag", String(128), primary_key=True),
    Column("build_id", ForeignKey("template_builds.id", ondelete="CASCADE"), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Index(None, "build_id"),
)

layers = Table(
    "build_layers",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("team", String(64), nullable=False),
    Column("snapshot_id", String(32), nullable=False, unique=True),
    Column("bytes", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("used_at", BigInteger, nullable=False, index=True),
)
"""Disks after a step, by all that made them. Each is a row of ``snapshots`` too."""
