"""Snapshots; what a sandbox needs to be paused, resumed and forked."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def _new() -> tuple[sa.Column[object], ...]:
    return (
        sa.Column("env_vars", sa.JSON, nullable=False, server_default="{}"),
        sa.Column("secret_env", sa.JSON, nullable=False, server_default="[]"),
        sa.Column("timeout", sa.Integer, nullable=False, server_default="300"),
        sa.Column("auto_pause", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("auto_pause_memory", sa.Boolean, nullable=False, server_default=sa.true()),
        sa.Column("auto_resume", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("snapshot_id", sa.String(32)),
        sa.Column("pause_mode", sa.String(16)),
        sa.Column("unresponsive_at_pause", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("restored", sa.String(16)),
        sa.Column("note", sa.Text),
        sa.Column("parent_sandbox", sa.String(32)),
        sa.Column("parent_snapshot", sa.String(32)),
    )


def upgrade() -> None:
    for column in _new():
        op.add_column("sandboxes", column)
    op.create_table(
        "snapshots",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("team", sa.String(64), nullable=False),
        sa.Column("template_id", sa.String(64)),
        sa.Column("name", sa.String(128)),
        sa.Column("tag", sa.String(128), nullable=False),
        sa.Column("sandbox_id", sa.String(32), nullable=False),
        sa.Column("parent", sa.String(32)),
        sa.Column("base_id", sa.String(64), nullable=False),
        sa.Column("base", sa.String(255), nullable=False),
        sa.Column("engine", sa.String(32), nullable=False),
        sa.Column("cpu", sa.Float, nullable=False),
        sa.Column("memory_mb", sa.Integer, nullable=False),
        sa.Column("disk_mb", sa.Integer, nullable=False),
        sa.Column("has_memory", sa.Boolean, nullable=False),
        sa.Column("disk_bytes", sa.BigInteger, nullable=False),
        sa.Column("memory_bytes", sa.BigInteger, nullable=False),
        sa.Column("own_bytes", sa.BigInteger, nullable=False),
        sa.Column("env_vars", sa.JSON, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_snapshots"),
    )
    op.create_index("ix_snapshots_team_created_at_id", "snapshots", ["team", "created_at", "id"])
    op.create_index("ix_snapshots_sandbox_id", "snapshots", ["sandbox_id"])
    op.create_index("ix_sandboxes_snapshot_id", "sandboxes", ["snapshot_id"])


def downgrade() -> None:
    op.drop_index("ix_sandboxes_snapshot_id", "sandboxes")
    op.drop_table("snapshots")
    with op.batch_alter_table("sandboxes") as batch:
        for column in _new():
            batch.drop_column(column.name)
