"""Which addresses of a group an admin approved, and the group's own token for its control planes, sealed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004_pinned_addresses"
down_revision = "0003_group_id"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("clusters", sa.Column("node_token_sealed", sa.LargeBinary(), nullable=True))
    op.create_table(
        "cluster_addresses",
        sa.Column("cluster_id", sa.String(length=64), nullable=False),
        sa.Column("control_url", sa.String(length=512), nullable=False),
        sa.Column("approved_by", sa.String(length=64), nullable=False),
        sa.Column("approved_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["cluster_id"], ["clusters.id"], name="fk_cluster_addresses_cluster_id_clusters", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("cluster_id", "control_url", name="pk_cluster_addresses"),
    )


def downgrade() -> None:
    op.drop_table("cluster_addresses")
    op.drop_column("clusters", "node_token_sealed")
