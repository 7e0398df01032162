"""Audits that the console starts by itself, every so often."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010_audit_schedules"
down_revision = "0009_provider_sessions"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "audit_schedules",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("cluster_id", sa.String(length=64), nullable=False),
        sa.Column("depth", sa.String(length=16), nullable=False),
        sa.Column("every_s", sa.Integer(), nullable=False),
        sa.Column("next_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_audit_id", sa.String(length=36), nullable=True),
        sa.Column("skipped", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["cluster_id"], ["clusters.id"], name="fk_audit_schedules_cluster_id_clusters", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_audit_schedules"),
    )
    op.create_index("ix_audit_schedules_cluster_id", "audit_schedules", ["cluster_id"])


def downgrade() -> None:
    """An older version starts no audit by itself."""
    op.drop_table("audit_schedules")
