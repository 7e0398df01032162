"""What the API is asked and answers about alerts, as models for its OpenAPI document.

A secret is in no other answer than the one that makes it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from app.health.group_view import Problem
from node.views.request_body import RequestBody

When = Annotated[str, Field(max_length=40, description="RFC 3339")]


class Mute(RequestBody):
    until: When


class NewWindow(RequestBody):
    """`group` absent or null: everything. `begin` absent: now."""

    group: Annotated[str | None, Field(max_length=64)] = None
    begin: When | None = None
    until: When
    reason: Annotated[str, Field(max_length=200)] = ""


class SentView(BaseModel):
    route: str
    severity: str
    at: str


class AlertView(BaseModel):
    """A problem that stands; `silent`: why no message is sent of it, null: one is."""

    scope: str
    group: str | None
    problem: Problem
    since: str
    noticed_at: str
    seen_at: str
    silent: str | None
    acknowledged_by: str | None
    acknowledged_at: str | None
    muted_until: str | None
    muted_by: str | None
    sent: list[SentView]


class AlertList(BaseModel):
    """The worst first."""

    items: list[AlertView]
    next: str | None


class WindowView(BaseModel):
    """A maintenance window; `group` null: of everything."""

    id: int
    group: str | None
    begin: str
    until: str
    state: Literal["over", "open", "announced"]
    reason: str
    by: str


class WindowList(BaseModel):
    items: list[WindowView]
    next: None


class RouteView(BaseModel):
    """Where messages go, and how that goes. `settings`: the target as it was written down, for admins."""

    name: str
    kind: Literal["webhook", "mail"]
    target: str
    severity: str
    hold_s: int
    reminder_s: int | None
    enabled: bool
    has_secret: bool
    created_at: str
    delivered_at: str | None
    failing_since: str | None
    error: str | None
    waiting: int
    settings: dict[str, Any] | None = None


class NewRouteView(RouteView):
    """`secret`: the webhook's key, where the console made one; it is shown this once."""

    secret: str | None = None


class RouteList(BaseModel):
    items: list[RouteView]
    next: None


class TrialView(BaseModel):
    """How the one attempt went."""

    id: str
    route: str
    state: Literal["delivered", "failed"]
    result: str | None
    took_ms: int


class MessageView(BaseModel):
    """`group` and `problem` as they were sent; null in a test."""

    id: str
    route: str
    kind: str
    state: str
    attempts: int
    created_at: str
    ended_at: str | None
    result: str | None
    text: str | None
    group: dict[str, Any] | None
    problem: dict[str, Any] | None
