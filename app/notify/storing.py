"""Alerts and the health of routes as rows of the database, and back."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from app.db.models import AlertRow
from app.health.group_view import Problem
from app.notify.outbox import Health
from app.notify.rules import Alert, Key, OpenProblem, Sent
from app.times import parse_time, rfc3339


def mark(alert: Alert | None) -> object:
    """What of an alert decides whether it has to be stored again."""
    if alert is None:
        return None
    return alert.sent, alert.acknowledged_by, alert.acknowledged_at, alert.open.problem.severity


def health_columns(health: Health) -> dict[str, Any]:
    return {"delivered_at": health.delivered_at, "failing_since": health.failing_since, "error": health.error}


def row_of(alert: Alert) -> AlertRow:
    one = alert.open
    sent = {str(route_id): {"severity": last.severity, "at": rfc3339(last.at)} for route_id, last in alert.sent.items()}
    return AlertRow(
        scope=one.key.scope, problem_id=one.key.problem_id, scope_name=one.scope_name, problem=one.problem.to_json(),
        sent=sent, noticed_at=alert.noticed_at, seen_at=alert.seen_at, acknowledged_by=alert.acknowledged_by,
        acknowledged_at=alert.acknowledged_at,
    )  # fmt: skip


def alert_of(row: AlertRow) -> Alert | None:
    """None for one that another version wrote otherwise: it is noticed anew."""
    try:
        one = OpenProblem(Key(row.scope, row.problem_id), row.scope_name, Problem.model_validate(row.problem))
        sent = {int(key): Sent(last["severity"], parse_time(last["at"])) for key, last in row.sent.items()}
    except (ValidationError, ValueError, KeyError, TypeError):
        return None
    return Alert(one, row.noticed_at, row.seen_at, row.acknowledged_by, row.acknowledged_at, sent)
