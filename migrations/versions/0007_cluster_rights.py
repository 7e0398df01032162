"""Rights per group: what a user or a token may do on single groups, where it is not their role."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007_cluster_rights"
down_revision = "0006_people"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("users", "api_tokens"):
        op.add_column(table, sa.Column("cluster_roles", sa.JSON(), nullable=False, server_default="{}"))


def downgrade() -> None:
    shut_out()
    for table in ("users", "api_tokens"):
        op.drop_column(table, "cluster_roles")


def shut_out() -> None:
    """The older version knows one role for all groups: nobody may have more there than before."""
    connection = op.get_bind()
    order = ("none", "viewer", "operator", "admin")
    now = sa.func.now()
    for name, end in (("users", "disabled_at"), ("api_tokens", "revoked_at")):
        table = sa.table(
            name, sa.column("id"), sa.column("role"), sa.column("cluster_roles", sa.JSON()),
            sa.column(end, sa.DateTime(timezone=True)),
        )  # fmt: skip
        asked = sa.select(table.c.id, table.c.role, table.c.cluster_roles)
        for number, role, on in connection.execute(asked).all():
            least = min([role, *(on or {}).values()], key=order.index)
            if least == "none":
                change = table.update().values(role="viewer", **{end: sa.func.coalesce(table.c[end], now)})
            else:
                change = table.update().values(role=least)
            connection.execute(change.where(table.c.id == number))
