"""Audits and their findings."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002_audits"
down_revision = "0001_console"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "audits",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("cluster_id", sa.String(length=64), nullable=False),
        sa.Column("cluster_name", sa.String(length=128), nullable=False),
        sa.Column("depth", sa.String(length=16), nullable=False),
        sa.Column("from_index", sa.BigInteger(), nullable=True),
        sa.Column("to_index", sa.BigInteger(), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("verdict", sa.String(length=16), nullable=True),
        sa.Column("pid", sa.Integer(), nullable=True),
        sa.Column("directory", sa.Text(), nullable=False),
        sa.Column("progress", sa.JSON(), nullable=True),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.Column("problem", sa.JSON(), nullable=True),
        sa.Column("requested_by", sa.String(length=64), nullable=False),
        sa.Column("idempotency_key", sa.String(length=128), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_audits"),
        sa.UniqueConstraint("requested_by", "idempotency_key", name="uq_audits_requested_by"),
    )
    op.create_index("ix_audits_number", "audits", ["number"], unique=True)
    op.create_index("ix_audits_cluster_id", "audits", ["cluster_id"])
    op.create_index("ix_audits_state", "audits", ["state"])
    op.create_table(
        "audit_findings",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("audit_id", sa.String(length=36), nullable=False),
        sa.Column("class", sa.String(length=32), nullable=False),
        sa.Column("severity", sa.String(length=16), nullable=False),
        sa.Column("from_index", sa.BigInteger(), nullable=False),
        sa.Column("to_index", sa.BigInteger(), nullable=False),
        sa.Column("finding", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["audit_id"], ["audits.id"], name="fk_audit_findings_audit_id_audits", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_audit_findings"),
    )
    op.create_index("ix_audit_findings_audit_id", "audit_findings", ["audit_id"])


def downgrade() -> None:
    op.drop_table("audit_findings")
    op.drop_table("audits")
