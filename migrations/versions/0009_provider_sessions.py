"""The provider's session that a login by OpenID belongs to, so that the provider can end it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009_provider_sessions"
down_revision = "0008_ways_in"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sessions", sa.Column("oidc_sid", sa.String(length=255), nullable=True))
    op.create_index("ix_sessions_oidc_sid", "sessions", ["oidc_sid"])


def downgrade() -> None:
    """An older version knows no logout of the provider's; those sessions end by their time, as they did before."""
    op.drop_index("ix_sessions_oidc_sid", "sessions")
    with op.batch_alter_table("sessions") as sessions:
        sessions.drop_column("oidc_sid")
