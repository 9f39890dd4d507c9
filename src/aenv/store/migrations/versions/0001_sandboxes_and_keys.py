"""Sandboxes, idempotency keys, API keys, uses of templates."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "sandboxes",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("team", sa.String(64), nullable=False),
        sa.Column("key_id", sa.String(32), nullable=False),
        sa.Column("template_id", sa.String(64), nullable=False),
        sa.Column("template", sa.String(255), nullable=False),
        sa.Column("engine", sa.String(32), nullable=False),
        sa.Column("cpu", sa.Float, nullable=False),
        sa.Column("memory_mb", sa.Integer, nullable=False),
        sa.Column("disk_mb", sa.Integer, nullable=False),
        sa.Column("access_token", sa.String(128), nullable=False),
        sa.Column("host_secret", sa.String(128), nullable=False),
        sa.Column("traffic_token", sa.String(128)),
        sa.Column("labels", sa.JSON, nullable=False),
        sa.Column("network", sa.JSON, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("started_at", sa.BigInteger, nullable=False),
        sa.Column("end_at", sa.BigInteger, nullable=False),
        sa.Column("ended_at", sa.BigInteger),
        sa.Column("end_kind", sa.String(32)),
        sa.Column("end_reason", sa.Text),
        sa.Column("exit_code", sa.Integer),
        sa.PrimaryKeyConstraint("id", name="pk_sandboxes"),
    )
    op.create_index("ix_sandboxes_state_end_at", "sandboxes", ["state", "end_at"])
    op.create_index(
        "ix_sandboxes_team_state_started_at_id", "sandboxes", ["team", "state", "started_at", "id"]
    )
    op.create_table(
        "sandbox_labels",
        sa.Column("sandbox_id", sa.String(32), nullable=False),
        sa.Column("key", sa.String(1024), nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("sandbox_id", "key", name="pk_sandbox_labels"),
        sa.ForeignKeyConstraint(
            ["sandbox_id"],
            ["sandboxes.id"],
            name="fk_sandbox_labels_sandbox_id",
            ondelete="CASCADE",
        ),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("api_key_id", sa.String(32), nullable=False),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("sandbox_id", sa.String(32), nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("api_key_id", "key", name="pk_idempotency_keys"),
        sa.ForeignKeyConstraint(
            ["sandbox_id"],
            ["sandboxes.id"],
            name="fk_idempotency_keys_sandbox_id",
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_idempotency_keys_created_at", "idempotency_keys", ["created_at"])
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("mask", sa.String(32), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("origin", sa.String(16), nullable=False),
        sa.Column("team", sa.String(64), nullable=False),
        sa.Column("admin", sa.Boolean, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("revoked_at", sa.BigInteger),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
        sa.UniqueConstraint("hash", name="uq_api_keys_hash"),
    )
    op.create_table(
        "template_uses",
        sa.Column("template", sa.String(255), nullable=False),
        sa.Column("count", sa.Integer, nullable=False),
        sa.Column("last_used_at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("template", name="pk_template_uses"),
    )


def downgrade() -> None:
    for table in ("template_uses", "api_keys", "idempotency_keys", "sandbox_labels", "sandboxes"):
        op.drop_table(table)
