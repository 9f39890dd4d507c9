"""Templates that are built: their builds, tags, and cached steps."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "templates",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("team", sa.String(64), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("public", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_templates"),
        sa.UniqueConstraint("team", "name", name="uq_templates_team_name"),
    )
    op.create_table(
        "template_builds",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("template_id", sa.String(32), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("tags", sa.JSON, nullable=False),
        sa.Column("cpu", sa.Float, nullable=False),
        sa.Column("memory_mb", sa.Integer, nullable=False),
        sa.Column("disk_mb", sa.Integer, nullable=False),
        sa.Column("snapshot_id", sa.String(32)),
        sa.Column("facts", sa.JSON),
        sa.Column("image", sa.JSON),
        sa.Column("message", sa.Text),
        sa.Column("step", sa.String(16)),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("started_at", sa.BigInteger),
        sa.Column("finished_at", sa.BigInteger),
        sa.PrimaryKeyConstraint("id", name="pk_template_builds"),
        sa.ForeignKeyConstraint(
            ["template_id"],
            ["templates.id"],
            name="fk_template_builds_template_id_templates",
            ondelete="CASCADE",
        ),
    )
    op.create_index(
        "ix_template_builds_template_id_created_at",
        "template_builds",
        ["template_id", "created_at"],
    )
    op.create_index("ix_template_builds_status", "template_builds", ["status"])
    op.create_table(
        "template_tags",
        sa.Column("template_id", sa.String(32), nullable=False),
        sa.Column("tag", sa.String(128), nullable=False),
        sa.Column("build_id", sa.String(36), nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("template_id", "tag", name="pk_template_tags"),
        sa.ForeignKeyConstraint(
            ["template_id"],
            ["templates.id"],
            name="fk_template_tags_template_id_templates",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["build_id"],
            ["template_builds.id"],
            name="fk_template_tags_build_id_template_builds",
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_template_tags_build_id", "template_tags", ["build_id"])
    op.create_table(
        "build_layers",
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("team", sa.String(64), nullable=False),
        sa.Column("snapshot_id", sa.String(32), nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("used_at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_build_layers"),
        sa.UniqueConstraint("snapshot_id", name="uq_build_layers_snapshot_id"),
    )
    op.create_index("ix_build_layers_used_at", "build_layers", ["used_at"])


def downgrade() -> None:
    for table in ("build_layers", "template_tags", "template_builds", "templates"):
        op.drop_table(table)
