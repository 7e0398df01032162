"""Routes of messages about problems, the problems that stand, mutes, maintenance windows, and the messages."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005_alerts"
down_revision = "0004_pinned_addresses"
branch_labels = None
depends_on = None

TABLES = ("alert_routes", "alerts", "alert_mutes", "alert_windows", "alert_messages")


def upgrade() -> None:
    op.create_table(
        "alert_routes",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("severity", sa.String(length=16), nullable=False),
        sa.Column("hold_s", sa.Integer(), nullable=False),
        sa.Column("reminder_s", sa.Integer(), nullable=True),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("secret_sealed", sa.LargeBinary(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("delivered_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("failing_since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_alert_routes"),
        sa.UniqueConstraint("name", name="uq_alert_routes_name"),
    )
    op.create_table(
        "alerts",
        sa.Column("scope", sa.String(length=64), nullable=False),
        sa.Column("problem_id", sa.String(length=255), nullable=False),
        sa.Column("scope_name", sa.String(length=128), nullable=False),
        sa.Column("problem", sa.JSON(), nullable=False),
        sa.Column("sent", sa.JSON(), nullable=False),
        sa.Column("noticed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("acknowledged_by", sa.String(length=64), nullable=True),
        sa.Column("acknowledged_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("scope", "problem_id", name="pk_alerts"),
    )
    create_silence()
    create_messages()


def create_silence() -> None:
    op.create_table(
        "alert_mutes",
        sa.Column("scope", sa.String(length=64), nullable=False),
        sa.Column("problem_id", sa.String(length=255), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=False),
        sa.Column("by", sa.String(length=64), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("scope", "problem_id", name="pk_alert_mutes"),
    )
    op.create_table(
        "alert_windows",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("scope", sa.String(length=64), nullable=True),
        sa.Column("begin", sa.DateTime(timezone=True), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=False),
        sa.Column("reason", sa.String(length=200), nullable=False),
        sa.Column("by", sa.String(length=64), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_alert_windows"),
    )


def create_messages() -> None:
    op.create_table(
        "alert_messages",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("route_id", sa.Integer(), nullable=False),
        sa.Column("route_name", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("result", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_alert_messages"),
    )
    op.create_index("ix_alert_messages_created_at", "alert_messages", ["created_at"])
    op.create_index("ix_alert_messages_route_id", "alert_messages", ["route_id"])
    op.create_index("ix_alert_messages_state", "alert_messages", ["state"])


def downgrade() -> None:
    for table in reversed(TABLES):
        op.drop_table(table)
