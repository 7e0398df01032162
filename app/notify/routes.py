"""Routes: what an admin writes down, checked, and what may be shown of one.

Invariants: a secret (a webhook's key, a mail server's password) is in no answer but the one that made it; where a route
leads never changes, so that a stored secret cannot be sent elsewhere: another target is another route.
"""

from __future__ import annotations

import json
import re
import secrets
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, model_validator

from app.db.models import AlertRoute
from app.notify.rules import Route
from app.notify.webhook import checked_url, host_of
from app.security.sealed import Seal
from app.times import rfc3339
from node.config import is_loopback
from node.views.request_body import RequestBody

Json = dict[str, Any]
ROUTES_MAX: Final = 50
RECIPIENTS_MAX: Final = 20
NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
ADDRESS: Final = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
HOST: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.:-]{0,251}[A-Za-z0-9])?")
KEY_CHARS_MIN: Final = 16


def mail_address(text: str) -> str:
    if ADDRESS.fullmatch(text.strip()) is None:
        raise ValueError(f"{text[:80]!r} is no mail address")
    return text.strip()


def mail_host(text: str) -> str:
    if HOST.fullmatch(text.strip()) is None:
        raise ValueError(f"{text[:80]!r} is no name or address of a host")
    return text.strip()


MailAddress = Annotated[str, Field(max_length=320), AfterValidator(mail_address)]


class WebhookTarget(RequestBody):
    url: Annotated[str, Field(max_length=1000), AfterValidator(checked_url)]


class MailTarget(RequestBody):
    """`security`: starttls and tls check the server's certificate; plain is for a server on this machine or network."""

    host: Annotated[str, Field(max_length=253), AfterValidator(mail_host)]
    port: Annotated[int, Field(ge=1, le=65535)] = 587
    security: Literal["starttls", "tls", "plain"] = "starttls"
    user: Annotated[str | None, Field(min_length=1, max_length=256)] = None
    sender: MailAddress
    recipients: Annotated[list[MailAddress], Field(min_length=1, max_length=RECIPIENTS_MAX)]

    @model_validator(mode="after")
    def no_password_in_the_clear(self) -> MailTarget:
        if self.user is not None and self.security == "plain" and not is_loopback(self.host):
            raise ValueError("a password would cross the network in the clear: use starttls or tls")
        return self


class RouteRules(RequestBody):
    """When a route gets a message: from which severity, after how long, and how often again."""

    severity: Literal["critical", "attention", "info"] = "attention"
    hold_s: Annotated[int, Field(ge=0, le=86_400)] = 60
    reminder_s: Annotated[int | None, Field(ge=60, le=7 * 86_400)] = None
    enabled: bool = True


class RoutePatch(RequestBody):
    severity: Literal["critical", "attention", "info"] | None = None
    hold_s: Annotated[int | None, Field(ge=0, le=86_400)] = None
    reminder_s: Annotated[int | None, Field(ge=60, le=7 * 86_400)] = None
    enabled: bool | None = None


class NewRoute(RouteRules):
    """Either `webhook` or `mail`; `secret` is the key (made where it is absent) or the password."""

    name: Annotated[str, Field(pattern=NAME)]
    webhook: WebhookTarget | None = None
    mail: MailTarget | None = None
    secret: Annotated[str | None, Field(min_length=1, max_length=256)] = None

    @model_validator(mode="after")
    def one_target(self) -> NewRoute:
        if (self.webhook is None) == (self.mail is None):
            raise ValueError("a route has either a webhook or a mail")
        if self.webhook is not None and self.secret is not None and len(self.secret) < KEY_CHARS_MIN:
            raise ValueError(f"a webhook's key has at least {KEY_CHARS_MIN} characters; without one, one is made")
        if self.mail is not None and (self.mail.user is None) != (self.secret is None):
            raise ValueError("a mail server wants a user and a password together, or neither")
        return self

    @property
    def kind(self) -> str:
        return "webhook" if self.webhook is not None else "mail"

    @property
    def settings(self) -> Json:
        target = self.webhook or self.mail
        assert target is not None
        return target.model_dump(mode="json")


def new_row(asked: NewRoute, seal: Seal, now: datetime) -> tuple[AlertRoute, str | None]:
    """The row, and the key where one was made. Raises SealError."""
    made = secrets.token_urlsafe(32) if asked.kind == "webhook" and asked.secret is None else None
    secret = asked.secret or made
    sealed = None if secret is None else seal.seal(secret, purpose_of(asked.name, asked.settings))
    row = AlertRoute(
        name=asked.name, kind=asked.kind, severity=asked.severity, hold_s=asked.hold_s, reminder_s=asked.reminder_s,
        enabled=asked.enabled, settings=asked.settings, secret_sealed=sealed, created_at=now, delivered_at=None,
        failing_since=None, error=None,
    )  # fmt: skip
    return row, made


def purpose_of(name: str, settings: Json) -> str:
    """What the sealed secret is for: this route to this target, so that a changed row does not send it elsewhere."""
    return f"alert route {name} {json.dumps(settings, sort_keys=True)}"


def secret_of(row: AlertRoute, seal: Seal) -> str | None:
    """Raises SealError where the key file is away, or the row is not as it was written."""
    return None if row.secret_sealed is None else seal.open(row.secret_sealed, purpose_of(row.name, row.settings))


def rule_of(row: AlertRoute) -> Route:
    return Route(row.id, row.severity, float(row.hold_s), None if row.reminder_s is None else float(row.reminder_s))


def target_of(row: AlertRoute) -> str:
    """Where it leads, as anybody may read it."""
    if row.kind == "webhook":
        return host_of(row.settings["url"])
    mail = row.settings
    return f"{', '.join(mail['recipients'])} through {mail['host']}:{mail['port']} ({mail['security']})"


def route_json(row: AlertRoute, waiting: int, *, whole: bool = False) -> Json:
    """`whole`: with the target as it was written down, for admins."""
    return {
        "name": row.name,
        "kind": row.kind,
        "target": target_of(row),
        "severity": row.severity,
        "hold_s": row.hold_s,
        "reminder_s": row.reminder_s,
        "enabled": row.enabled,
        "has_secret": row.secret_sealed is not None,
        "created_at": rfc3339(row.created_at),
        "delivered_at": rfc3339(row.delivered_at) if row.delivered_at else None,
        "failing_since": rfc3339(row.failing_since) if row.failing_since else None,
        "error": row.error,
        "waiting": waiting,
        **({"settings": row.settings} if whole else {}),
    }
