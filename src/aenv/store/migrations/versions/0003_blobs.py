"""The blob store: its chunks, blobs, who needs and who uploads them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

TABLES = (
    "blob_garbage",
    "blob_holders",
    "blob_parts",
    "blobs",
    "blob_chunks",
    "blob_leases",
    "blob_store",
)


def upgrade() -> None:
    op.create_table(
        "blob_store",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("marker", sa.String(64), nullable=False),
        sa.Column("location", sa.Text, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_blob_store"),
    )
    op.create_table(
        "blob_leases",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("epoch", sa.BigInteger),
        sa.Column("node", sa.String(64), nullable=False),
        sa.Column("expires_at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_blob_leases"),
    )
    op.create_index("ix_blob_leases_epoch", "blob_leases", ["epoch"])
    op.create_index("ix_blob_leases_expires_at", "blob_leases", ["expires_at"])
    op.create_table(
        "blob_chunks",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("suffix", sa.String(32), nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("stored_bytes", sa.BigInteger),
        sa.Column("lease_id", sa.String(32)),
        sa.Column("touched", sa.BigInteger, nullable=False),
        sa.Column("damaged", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.PrimaryKeyConstraint("id", name="pk_blob_chunks"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_blob_chunks_digest", "blob_chunks", ["digest"])
    op.create_table(
        "blobs",
        sa.Column("seq", sa.Integer, nullable=False),
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("stored_bytes", sa.BigInteger, nullable=False),
        sa.Column("lease_id", sa.String(32)),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("damaged", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.PrimaryKeyConstraint("seq", name="pk_blobs"),
        sa.UniqueConstraint("id", name="uq_blobs_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_blobs_digest", "blobs", ["digest"])
    _links()
    op.create_table(
        "blob_garbage",
        sa.Column("key", sa.String(160), nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_blob_garbage"),
    )


def _links() -> None:
    op.create_table(
        "blob_parts",
        sa.Column("blob", sa.Integer, nullable=False),
        sa.Column("chunk", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("blob", "chunk", name="pk_blob_parts"),
        sa.ForeignKeyConstraint(
            ["blob"], ["blobs.seq"], name="fk_blob_parts_blob", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["chunk"], ["blob_chunks.id"], name="fk_blob_parts_chunk"),
    )
    op.create_index("ix_blob_parts_chunk", "blob_parts", ["chunk"])
    op.create_table(
        "blob_holders",
        sa.Column("blob", sa.Integer, nullable=False),
        sa.Column("holder", sa.String(128), nullable=False),
        sa.PrimaryKeyConstraint("blob", "holder", name="pk_blob_holders"),
        sa.ForeignKeyConstraint(
            ["blob"], ["blobs.seq"], name="fk_blob_holders_blob", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_blob_holders_holder", "blob_holders", ["holder"])


def downgrade() -> None:
    for table in TABLES:
        op.drop_table(table)
