"""Ways in: a second factor for local users, and users who come from an OpenID provider."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008_ways_in"
down_revision = "0007_cluster_rights"
branch_labels = None
depends_on = None

COLUMNS = (
    "totp_sealed", "totp_confirmed_at", "totp_last_step", "second_factor_required", "oidc_issuer", "oidc_subject",
    "oidc_confirmed_at",
)  # fmt: skip


def upgrade() -> None:
    at = sa.DateTime(timezone=True)
    op.add_column("users", sa.Column("totp_sealed", sa.LargeBinary(), nullable=True))
    op.add_column("users", sa.Column("totp_confirmed_at", at, nullable=True))
    op.add_column("users", sa.Column("totp_last_step", sa.BigInteger(), nullable=True))
    op.add_column("users", sa.Column("second_factor_required", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("users", sa.Column("oidc_issuer", sa.String(length=512), nullable=True))
    op.add_column("users", sa.Column("oidc_subject", sa.String(length=255), nullable=True))
    op.add_column("users", sa.Column("oidc_confirmed_at", at, nullable=True))
    op.create_index("ix_users_oidc", "users", ["oidc_issuer", "oidc_subject"], unique=True)
    op.create_table(
        "recovery_codes",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("user_id", sa.Integer(), nullable=False),
        sa.Column("code_hash", sa.String(length=64), nullable=False),
        sa.Column("used_at", at, nullable=True),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_recovery_codes_user_id_users", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_recovery_codes"),
    )
    op.create_index("ix_recovery_codes_user_id", "recovery_codes", ["user_id"])


def downgrade() -> None:
    shut_out()
    op.drop_index("ix_recovery_codes_user_id", "recovery_codes")
    op.drop_table("recovery_codes")
    op.drop_index("ix_users_oidc", "users")
    with op.batch_alter_table("users") as users:
        for name in COLUMNS:
            users.drop_column(name)


def shut_out() -> None:
    """The older version asks for no second factor and knows no provider: nobody may get in there with less."""
    users = sa.table(
        "users", sa.column("oidc_subject"), sa.column("totp_confirmed_at"), sa.column("password_hash"),
        sa.column("disabled_at", sa.DateTime(timezone=True)),
    )  # fmt: skip
    from_provider, two_factors = users.c.oidc_subject.is_not(None), users.c.totp_confirmed_at.is_not(None)
    disabled = sa.func.coalesce(users.c.disabled_at, sa.func.now())
    op.execute(users.update().where(from_provider).values(disabled_at=disabled))
    op.execute(users.update().where(two_factors).values(password_hash=None))
