"""People and what they did: names without case, the trail's chain, and what an Idempotency-Key stands for.

Of two users whose names differ in case only, the younger one's name gets its number as an ending.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006_people"
down_revision = "0005_alerts"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("users", sa.Column("name_key", sa.String(length=64), nullable=True))
    fill_name_keys()
    with op.batch_alter_table("users") as users:
        users.alter_column("name_key", existing_type=sa.String(length=64), nullable=False)
        users.create_unique_constraint("uq_users_name_key", ["name_key"])
    op.add_column("admin_trail", sa.Column("target", sa.String(length=200), nullable=False, server_default=""))
    op.add_column("admin_trail", sa.Column("credential", sa.String(length=64), nullable=False, server_default=""))
    op.create_table(
        "trail_chain",
        sa.Column("seq", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("row_id", sa.Integer(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("previous_hash", sa.String(length=64), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_trail_chain"),
    )
    op.create_index("ix_trail_chain_row_id", "trail_chain", ["row_id"])
    op.add_column("operations", sa.Column("fingerprint", sa.String(length=64), nullable=True))
    op.add_column("audits", sa.Column("fingerprint", sa.String(length=64), nullable=True))


def fill_name_keys() -> None:
    connection = op.get_bind()
    users = sa.table("users", sa.column("id"), sa.column("name"), sa.column("name_key"))
    taken: set[str] = set()
    for number, name in connection.execute(sa.select(users.c.id, users.c.name).order_by(users.c.id)).all():
        key = name.lower()
        if key in taken:
            name = f"{name[:50]}.{number}"
            key = name.lower()
        taken.add(key)
        connection.execute(users.update().where(users.c.id == number).values(name=name, name_key=key))


def downgrade() -> None:
    op.drop_column("audits", "fingerprint")
    op.drop_column("operations", "fingerprint")
    op.drop_index("ix_trail_chain_row_id", "trail_chain")
    op.drop_table("trail_chain")
    op.drop_column("admin_trail", "credential")
    op.drop_column("admin_trail", "target")
    with op.batch_alter_table("users") as users:
        users.drop_constraint("uq_users_name_key", type_="unique")
        users.drop_column("name_key")
