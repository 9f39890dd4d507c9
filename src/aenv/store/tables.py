"""The catalog's tables. Times are integer nanoseconds since the epoch (UTC). Secrets are stored as
hashes, but for those that a restart or a resume needs: tokens, and variables of living sandboxes.
``migrations/`` makes these tables; a test proves that both agree.
"""

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
    false,
    true,
)

from aenv.store import (  # noqa: F401 - they belong to the metadata
    blob_tables,
    build_tables,
    cold_tables,
    volume_tables,
)
from aenv.store.metadata import metadata as metadata

HEAD = "0006"
"""The newest migration. Alembic is imported only when a database is behind it."""

sandboxes = Table(
    "sandboxes",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("version", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("team", String(64), nullable=False),
    Column("key_id", String(32), nullable=False),
    Column("template_id", String(64), nullable=False),
    Column("template", String(255), nullable=False),
    Column("engine", String(32), nullable=False),
    Column("cpu", Float, nullable=False),
    Column("memory_mb", Integer, nullable=False),
    Column("disk_mb", Integer, nullable=False),
    Column("access_token", String(128), nullable=False),
    Column("host_secret", String(128), nullable=False),
    Column("traffic_token", String(128)),
    Column("labels", JSON, nullable=False),
    Column("network", JSON, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("end_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Column("end_kind", String(32)),
    Column("end_reason", Text),
    Column("exit_code", Integer),
    Column("env_vars", JSON, nullable=False, server_default="{}"),
    Column("secret_env", JSON, nullable=False, server_default="[]"),
    Column("timeout", Integer, nullable=False, server_default="300"),
    Column("auto_pause", Boolean, nullable=False, server_default=false()),
    Column("auto_pause_memory", Boolean, nullable=False, server_default=true()),
    Column("auto_resume", Boolean, nullable=False, server_default=false()),
    Column("snapshot_id", String(32), index=True),
    Column("pause_mode", String(16)),
    Column("unresponsive_at_pause", Boolean, nullable=False, server_default=false()),
    Column("restored", String(16)),
    Column("note", Text),
    Column("parent_sandbox", String(32)),
    Column("parent_snapshot", String(32)),
    Column("volumes", JSON, nullable=False, server_default="[]"),
    Index(None, "state", "end_at"),
    Index(None, "team", "state", "started_at", "id"),
)

labels = Table(
    "sandbox_labels",
    metadata,
    Column("sandbox_id", ForeignKey("sandboxes.id", ondelete="CASCADE"), primary_key=True),
    Column("key", String(1024), primary_key=True),
    Column("value", Text, nullable=False),
)
"""The user's metadata again, one row per pair, so that lists can be filtered by it."""

snapshots = Table(
    "snapshots",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("team", String(64), nullable=False),
    Column("template_id", String(64)),
    Column("name", String(128)),
    Column("tag", String(128), nullable=False),
    Column("sandbox_id", String(32), nullable=False, index=True),
    Column("parent", String(32)),
    Column("base_id", String(64), nullable=False),
    Column("base", String(255), nullable=False),
    Column("engine", String(32), nullable=False),
    Column("cpu", Float, nullable=False),
    Column("memory_mb", Integer, nullable=False),
    Column("disk_mb", Integer, nullable=False),
    Column("has_memory", Boolean, nullable=False),
    Column("disk_bytes", BigInteger, nullable=False),
    Column("memory_bytes", BigInteger, nullable=False),
    Column("own_bytes", BigInteger, nullable=False),
    Column("env_vars", JSON, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("volumes", JSON, nullable=False, server_default="[]"),
    Index(None, "team", "created_at", "id"),
)
"""Kept images of sandboxes. A row is written when its image is whole; an image without a row is
dropped at the next start.
"""

idempotency = Table(
    "idempotency_keys",
    metadata,
    Column("api_key_id", String(32), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("fingerprint", String(64), nullable=False),
    Column("sandbox_id", ForeignKey("sandboxes.id", ondelete="CASCADE"), nullable=False),
    Column("created_at", BigInteger, nullable=False, index=True),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("hash", String(64), nullable=False, unique=True),
    Column("mask", String(32), nullable=False),
    Column("name", String(255), nullable=False),
    Column("origin", String(16), nullable=False),
    Column("team", String(64), nullable=False),
    Column("admin", Boolean, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("revoked_at", BigInteger),
)

template_uses = Table(
    "template_uses",
    metadata,
    Column("template", String(255), primary_key=True),
    Column("count", Integer, nullable=False),
    Column("last_used_at", BigInteger, nullable=False),
)
