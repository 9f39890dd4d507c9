"""Volumes, who holds them, and which ones sandboxes and snapshots have."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_HAVING = ("sandboxes", "snapshots")


def upgrade() -> None:
    for table in _HAVING:
        op.add_column(table, sa.Column("volumes", sa.JSON, nullable=False, server_default="[]"))
    op.create_table(
        "volumes",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("team", sa.String(64), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("size_mb", sa.Integer, nullable=False),
        sa.Column("mode", sa.String(16), nullable=False),
        sa.Column("digest", sa.String(80)),
        sa.Column("token", sa.String(128), nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_volumes"),
        sa.UniqueConstraint("team", "name", name="uq_volumes_team_name"),
    )
    op.create_table(
        "volume_claims",
        sa.Column("volume_id", sa.String(32), nullable=False),
        sa.Column("sandbox_id", sa.String(32), nullable=False),
        sa.Column("read_only", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("volume_id", "sandbox_id", name="pk_volume_claims"),
        sa.ForeignKeyConstraint(
            ["volume_id"],
            ["volumes.id"],
            name="fk_volume_claims_volume_id_volumes",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["sandbox_id"],
            ["sandboxes.id"],
            name="fk_volume_claims_sandbox_id_sandboxes",
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_volume_claims_sandbox_id", "volume_claims", ["sandbox_id"])


def downgrade() -> None:
    op.drop_table("volume_claims")
    op.drop_table("volumes")
    for table in _HAVING:
        with op.batch_alter_table(table) as batch:
            batch.drop_column("volumes")
