"""Snapshots in the blob store."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "cold_copies",
        sa.Column("snapshot_id", sa.String(32), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("copy", sa.JSON),
        sa.Column("bytes", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("bytes_new", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("bytes_sent", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("error", sa.Text),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("snapshot_id", name="pk_cold_copies"),
        sa.ForeignKeyConstraint(
            ["snapshot_id"],
            ["snapshots.id"],
            name="fk_cold_copies_snapshot_id_snapshots",
            ondelete="CASCADE",
        ),
    )


def downgrade() -> None:
    op.drop_table("cold_copies")
