"""The console's tables (audits have their own module).

Ways in are stored as SHA-256 of a random 256-bit token: whoever reads the database can neither log in nor call the API.
Passwords, which people choose, go through argon2; what the console itself shows to others is sealed (tokens for control
planes, keys of webhooks, passwords of mail servers), and so are the secrets of second factors.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Text,
    UniqueConstraint,
    false,
)
from sqlalchemy.orm import Mapped, mapped_column, relationship

from app.db.base import Base
from app.times import utc_now


def name_key_of(context: Any) -> str:
    return str(context.get_current_parameters()["name"]).lower()


class User(Base):
    __tablename__ = "users"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(64), unique=True)
    # The name without case: by which a user is found (app.security.people).
    name_key: Mapped[str] = mapped_column(String(64), unique=True, default=name_key_of)
    role: Mapped[str] = mapped_column(String(16))
    # Group -> role, where it is not `role` (app.security.grants).
    cluster_roles: Mapped[dict[str, Any]] = mapped_column(default=dict)
    password_hash: Mapped[str | None] = mapped_column(String(255))
    disabled_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    # The second factor (app.security.second_factor): its secret, since when it counts, the last step that was used.
    totp_sealed: Mapped[bytes | None] = mapped_column(LargeBinary)
    totp_confirmed_at: Mapped[datetime | None]
    totp_last_step: Mapped[int | None] = mapped_column(BigInteger)
    second_factor_required: Mapped[bool] = mapped_column(Boolean, default=False, server_default=false())
    # Whom an OpenID provider vouches for, and when it did last (app.security.oidc); None: a local user.
    oidc_issuer: Mapped[str | None] = mapped_column(String(512))
    oidc_subject: Mapped[str | None] = mapped_column(String(255))
    oidc_confirmed_at: Mapped[datetime | None]
    __table_args__ = (Index("ix_users_oidc", "oidc_issuer", "oidc_subject", unique=True),)

    @property
    def local(self) -> bool:
        return self.oidc_subject is None


class RecoveryCode(Base):
    """In place of the second factor, once; stored as a hash."""

    __tablename__ = "recovery_codes"
    id: Mapped[int] = mapped_column(primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    code_hash: Mapped[str] = mapped_column(String(64))
    used_at: Mapped[datetime | None]


class LoginSession(Base):
    __tablename__ = "sessions"
    id: Mapped[int] = mapped_column(primary_key=True)
    token_hash: Mapped[str] = mapped_column(String(64), unique=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    seen_at: Mapped[datetime] = mapped_column(default=utc_now)
    expires_at: Mapped[datetime] = mapped_column(index=True)
    address: Mapped[str] = mapped_column(String(64), default="")
    agent: Mapped[str] = mapped_column(String(200), default="")
    # The session at the OpenID provider, so that it can end this one; of a local user there is none.
    oidc_sid: Mapped[str | None] = mapped_column(String(255), index=True)
    user: Mapped[User] = relationship(lazy="joined")


class ApiToken(Base):
    __tablename__ = "api_tokens"
    id: Mapped[int] = mapped_column(primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    name: Mapped[str] = mapped_column(String(64))
    # The first characters, for people to recognise a token by; never enough to use it.
    prefix: Mapped[str] = mapped_column(String(16))
    token_hash: Mapped[str] = mapped_column(String(64), unique=True)
    role: Mapped[str] = mapped_column(String(16))
    # Group -> role, where it is not `role`; never more than the owner has today.
    cluster_roles: Mapped[dict[str, Any]] = mapped_column(default=dict)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    expires_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    user: Mapped[User] = relationship(lazy="joined")


class LoginLink(Base):
    __tablename__ = "login_links"
    id: Mapped[int] = mapped_column(primary_key=True)
    token_hash: Mapped[str] = mapped_column(String(64), unique=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    issued_at: Mapped[datetime] = mapped_column(default=utc_now)
    expires_at: Mapped[datetime]
    used_at: Mapped[datetime | None]
    user: Mapped[User] = relationship(lazy="joined")


class Cluster(Base):
    __tablename__ = "clusters"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(String(128))
    group: Mapped[str] = mapped_column(String(128))
    group_id: Mapped[str | None] = mapped_column(String(64))  # None: the group has none, or no member reported it yet
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    # The token for this group's control planes (app.security.sealed); None: the one that the console was started with.
    node_token_sealed: Mapped[bytes | None] = mapped_column(LargeBinary)
    nodes: Mapped[list[ClusterNode]] = relationship(
        lazy="selectin", cascade="all, delete-orphan", order_by="ClusterNode.node_id"
    )


class ClusterNode(Base):
    __tablename__ = "cluster_nodes"
    cluster_id: Mapped[str] = mapped_column(ForeignKey("clusters.id", ondelete="CASCADE"), primary_key=True)
    node_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    address: Mapped[str] = mapped_column(String(255), default="")
    control_url: Mapped[str | None] = mapped_column(String(512))


class ClusterAddress(Base):
    """An address of a group's control planes that may be asked (app.console.addresses)."""

    __tablename__ = "cluster_addresses"
    cluster_id: Mapped[str] = mapped_column(ForeignKey("clusters.id", ondelete="CASCADE"), primary_key=True)
    control_url: Mapped[str] = mapped_column(String(512), primary_key=True)
    # An admin's name, or "the configuration".
    approved_by: Mapped[str] = mapped_column(String(64))
    approved_at: Mapped[datetime] = mapped_column(default=utc_now)


class OperationRow(Base):
    __tablename__ = "operations"
    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    cluster_id: Mapped[str] = mapped_column(String(64), index=True)
    node_id: Mapped[str | None] = mapped_column(String(64))
    kind: Mapped[str] = mapped_column(String(32))
    state: Mapped[str] = mapped_column(String(16), index=True)
    progress: Mapped[dict[str, Any] | None]
    outcome: Mapped[dict[str, Any] | None]
    problem: Mapped[dict[str, Any] | None]
    requested_by: Mapped[str] = mapped_column(String(64))
    idempotency_key: Mapped[str | None] = mapped_column(String(128))
    # Of caller, kind and body: the key stands for this and nothing else (app.db.idempotency).
    fingerprint: Mapped[str | None] = mapped_column(String(64))
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    updated_at: Mapped[datetime] = mapped_column(default=utc_now)
    __table_args__ = (UniqueConstraint("requested_by", "idempotency_key"),)


class EventRow(Base):
    __tablename__ = "events"
    id: Mapped[int] = mapped_column(primary_key=True)
    cluster_id: Mapped[str] = mapped_column(String(64))
    node_id: Mapped[str | None] = mapped_column(String(64))
    # The node's own `<boot>-<seq>`; the console's own events have none.
    source_id: Mapped[str | None] = mapped_column(String(64))
    at: Mapped[datetime]
    kind: Mapped[str] = mapped_column(String(48))
    severity: Mapped[str] = mapped_column(String(16))
    text: Mapped[str] = mapped_column(Text, default="")
    detail: Mapped[dict[str, Any] | None]
    __table_args__ = (
        UniqueConstraint("cluster_id", "node_id", "source_id", name="uq_events_source"),
        Index("ix_events_cluster_at", "cluster_id", "at"),
    )


class HistoryHour(Base):
    """One replica's samples of one hour in one tier, packed by columns (app.console.packing)."""

    __tablename__ = "history_hours"
    cluster_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    node_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    tier_s: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    hour: Mapped[datetime] = mapped_column(primary_key=True)
    samples: Mapped[int] = mapped_column(Integer)
    packed: Mapped[bytes] = mapped_column(LargeBinary)


class TrailRow(Base):
    """Who changed what, and who read customers' data. Rows are only ever added and completed with their outcome."""

    __tablename__ = "admin_trail"
    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[datetime] = mapped_column(default=utc_now, index=True)
    user_name: Mapped[str] = mapped_column(String(64))
    role: Mapped[str] = mapped_column(String(16))
    via: Mapped[str] = mapped_column(String(32))
    address: Mapped[str] = mapped_column(String(64))
    action: Mapped[str] = mapped_column(String(64))
    method: Mapped[str] = mapped_column(String(8))
    path: Mapped[str] = mapped_column(String(512))
    # What it was done to, such as users/ann.
    target: Mapped[str] = mapped_column(String(200), default="")
    # Through which session or token, by its number.
    credential: Mapped[str] = mapped_column(String(64), default="")
    # None while it runs (or when the console died meanwhile): the attempt is written before the change.
    status: Mapped[int | None] = mapped_column(Integer)
    # What was before and after, and what else belongs to it.
    detail: Mapped[dict[str, Any] | None]


class TrailLink(Base):
    """An entry of the trail's hash chain (app.security.trail_chain)."""

    __tablename__ = "trail_chain"
    seq: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    at: Mapped[datetime] = mapped_column(default=utc_now)
    row_id: Mapped[int] = mapped_column(Integer, index=True)
    content: Mapped[str] = mapped_column(Text)
    previous_hash: Mapped[str] = mapped_column(String(64))
    hash: Mapped[str] = mapped_column(String(64))


class ConsoleMeta(Base):
    __tablename__ = "console_meta"
    key: Mapped[str] = mapped_column(String(32), primary_key=True)
    value: Mapped[str] = mapped_column(Text)


class AlertRoute(Base):
    """A way on which messages about problems go; `settings` are its kind's (app.notify.routes)."""

    __tablename__ = "alert_routes"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(64), unique=True)
    kind: Mapped[str] = mapped_column(String(16))
    severity: Mapped[str] = mapped_column(String(16))
    hold_s: Mapped[int] = mapped_column(Integer)
    reminder_s: Mapped[int | None] = mapped_column(Integer)
    enabled: Mapped[bool] = mapped_column(Boolean)
    settings: Mapped[dict[str, Any]]
    # The key of a webhook's signature, or the password of a mail server (app.security.sealed); never in an answer.
    secret_sealed: Mapped[bytes | None] = mapped_column(LargeBinary)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    delivered_at: Mapped[datetime | None]
    # Since when every attempt has failed, and why the last one did.
    failing_since: Mapped[datetime | None]
    error: Mapped[str | None] = mapped_column(Text)


class AlertRow(Base):
    """A problem that stands, what was sent of it, and who acknowledged it; gone when it is over."""

    __tablename__ = "alerts"
    scope: Mapped[str] = mapped_column(String(64), primary_key=True)
    problem_id: Mapped[str] = mapped_column(String(255), primary_key=True)
    scope_name: Mapped[str] = mapped_column(String(128))
    problem: Mapped[dict[str, Any]]
    sent: Mapped[dict[str, Any]]
    noticed_at: Mapped[datetime]
    seen_at: Mapped[datetime]
    acknowledged_by: Mapped[str | None] = mapped_column(String(64))
    acknowledged_at: Mapped[datetime | None]


class AlertMute(Base):
    __tablename__ = "alert_mutes"
    scope: Mapped[str] = mapped_column(String(64), primary_key=True)
    problem_id: Mapped[str] = mapped_column(String(255), primary_key=True)
    until: Mapped[datetime]
    by: Mapped[str] = mapped_column(String(64))
    at: Mapped[datetime] = mapped_column(default=utc_now)


class AlertWindow(Base):
    """A maintenance window of one group; of everything where `scope` is None."""

    __tablename__ = "alert_windows"
    id: Mapped[int] = mapped_column(primary_key=True)
    scope: Mapped[str | None] = mapped_column(String(64))
    begin: Mapped[datetime]
    until: Mapped[datetime]
    reason: Mapped[str] = mapped_column(String(200))
    by: Mapped[str] = mapped_column(String(64))
    at: Mapped[datetime] = mapped_column(default=utc_now)


class AlertMessage(Base):
    """A message on one route: while `state` is pending it waits to be delivered, afterwards it is history."""

    __tablename__ = "alert_messages"
    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    route_id: Mapped[int] = mapped_column(Integer, index=True)
    route_name: Mapped[str] = mapped_column(String(64))
    kind: Mapped[str] = mapped_column(String(16))
    payload: Mapped[dict[str, Any]]
    state: Mapped[str] = mapped_column(String(16), index=True)
    attempts: Mapped[int] = mapped_column(Integer)
    created_at: Mapped[datetime] = mapped_column(index=True)
    ended_at: Mapped[datetime | None]
    # What was answered, or why the last attempt failed.
    result: Mapped[str | None] = mapped_column(Text)
