"""A group's id: two groups of one name are two rows."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003_group_id"
down_revision = "0002_audits"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("clusters", sa.Column("group_id", sa.String(length=64), nullable=True))


def downgrade() -> None:
    op.drop_column("clusters", "group_id")
