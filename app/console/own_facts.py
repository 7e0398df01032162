"""What a console knows of itself at one moment; None is unknown. The rules over it: `app.console.own_rules`."""

from __future__ import annotations

from datetime import datetime

from node.views.base import View


class DatabaseFacts(View):
    """The last attempt to write to it. `failing_since`: since when every attempt has failed, `error` says how."""

    write_ms: float | None = None
    size_bytes: int | None = None
    failing_since: datetime | None = None
    error: str | None = None
    place: str = ""


class DiskFacts(View):
    path: str
    free_bytes: int
    total_bytes: int


class CertificateFacts(View):
    """`what`: the console's own, or the authorities of control planes; `ends_at`: None where it cannot be read."""

    what: str
    path: str
    ends_at: datetime | None = None
    error: str | None = None


class TokenFacts(View):
    """An API token of the console that ends soon, or has just ended."""

    id: int
    name: str
    user: str
    ends_at: datetime
    used_at: datetime | None = None


class ClockFacts(View):
    """A member's clock less this console's; the truth lies within `margin_ms` of it."""

    scope: str
    group: str
    node_id: str
    offset_ms: float
    margin_ms: float


class OwnFacts(View):
    as_of: datetime
    database: DatabaseFacts = DatabaseFacts()
    disk: DiskFacts | None = None
    certificates: tuple[CertificateFacts, ...] = ()
    tokens: tuple[TokenFacts, ...] = ()
    clocks: tuple[ClockFacts, ...] = ()
    # What could not be read again on SIGHUP, and since when.
    not_reread: str | None = None
    not_reread_since: datetime | None = None
    # Keys of the configuration that differ since the last SIGHUP, and take a restart.
    restart_needed: tuple[str, ...] = ()
