"""One attempt on a route of either kind, and the console's own problem when a route does not deliver."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from app.db.models import AlertRoute
from app.health.facts import ATTENTION
from app.health.group_view import Problem
from app.notify import mail, webhook
from app.notify.outbox import Outbox
from app.notify.routes import MailTarget, secret_of, target_of
from app.security.sealed import Seal, SealError
from app.times import rfc3339

Json = dict[str, Any]
CODE: Final = "route_not_delivering"
# One attempt may fail by chance.
FAILURES: Final = 2
DOCS: Final = "docs/notifications.md"


async def send(row: AlertRoute, seal: Seal, payload: Json) -> str:
    """What was answered, in a few words. Raises webhook.NotDelivered."""
    try:
        secret = secret_of(row, seal)
    except SealError as error:
        raise webhook.NotDelivered(f"the route's secret cannot be read: {error}") from None
    if row.kind == "mail":
        return await mail.send(MailTarget.model_validate(row.settings), secret, payload)
    return await webhook.post(row.settings["url"], secret or "", payload)


def minute(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def problem_id(route_name: str) -> str:
    return f"{CODE}:{route_name}"


def problems_of(routes: Iterable[AlertRoute], outbox: Outbox) -> list[Problem]:
    """A route that fails again and again; one that is switched off is none."""
    found = []
    for row in routes:
        health = outbox.health.get(row.id)
        if not row.enabled or health is None or health.failing_since is None or health.failures < FAILURES:
            continue
        waiting = len(outbox.waiting(row.id))
        more = f"{waiting} message{'s wait' if waiting > 1 else ' waits'}, and the route is tried again within 5 min"
        said = more if waiting else "none waits; the next one is tried"
        what = f"The route {row.name} has not delivered since {minute(health.failing_since)}: {health.error}."
        found.append(
            Problem(
                id=problem_id(row.name), code=CODE, severity=ATTENTION, text=what, what=what,
                since=rfc3339(health.failing_since),
                means=f"messages to {target_of(row)} do not arrive; {said}",
                at_stake="nobody is reached on this route about anything that happens now",
                step="mend what the error names, then press Test on the page Notifications",
                next_step="mend what the error names, then press Test on the page Notifications",
                docs=f"{DOCS}#a-route-that-does-not-deliver",
            )
        )  # fmt: skip
    return found
