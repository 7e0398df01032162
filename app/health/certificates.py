"""Rules about certificates that end: of control planes, of member ports, of the authority behind them, of clients.

The control plane's is seen on the connection to it; the others a member reports in its state. Invariants: one that
serves both ports is said once; of clients only what some member has seen is known, and named once for the group.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from app.health.facts import ATTENTION, CERTIFICATE_NOW, CERTIFICATE_SOON, CRITICAL, Facts, Finding, spell
from app.health.group_view import MemberView
from app.times import time_of

NAMED_MAX: Final = 3
Ends = dict[tuple[str, str | None], datetime]


def certificates(facts: Facts) -> Iterator[Finding]:
    for one in facts.members:
        reported = reported_by(one)
        control, port = time_of(one.certificate_ends), reported.get(("member_port", None))
        both = control is not None and port is not None and abs(control - port) < timedelta(seconds=1)
        ports = "control plane and its member port" if both else "control plane"
        for severity, text, since in ending(facts, f"The certificate of {one.id}'s {ports}", control):
            yield Finding("node_certificate_ends", severity, text, one.id, since)
        whose = f"The certificate of {one.id}'s member port"
        for severity, text, since in ending(facts, whose, None if both else port):
            yield Finding("member_certificate_ends", severity, text, one.id, since)
        whose = f"The authority that {one.id}'s member port trusts"
        for severity, text, since in ending(facts, whose, reported.get(("authority", None))):
            yield Finding("member_authority_ends", severity, text, one.id, since)
    yield from of_clients(facts)


def reported_by(one: MemberView) -> Ends:
    """(what, name) -> when it ends, as the member said last."""
    items = (one.state and one.state.certificates) or ()
    found = {(item.what, item.name): time_of(item.ends_at) for item in items}
    return {key: ends for key, ends in found.items() if ends is not None}


def ending(facts: Facts, whose: str, ends: datetime | None) -> Iterator[tuple[str, str, datetime | None]]:
    """Severity, text and beginning, where it is time for a word."""
    left = timedelta.max if ends is None else ends - facts.now
    if left <= timedelta(0):
        yield CRITICAL, f"{whose} ended {{age}} ago", ends
    elif left <= CERTIFICATE_SOON:
        yield (
            (CRITICAL if left <= CERTIFICATE_NOW else ATTENTION),
            f"{whose} ends in {spell(left.total_seconds())}",
            None,
        )


def of_clients(facts: Facts) -> Iterator[Finding]:
    """One sentence for all clients, whichever member has seen them."""
    known: dict[str, datetime] = {}
    for one in facts.members:
        for (what, name), ends in reported_by(one).items():
            if what == "client" and name is not None:
                known[name] = max(ends, known.get(name, ends))  # the newest one that it has shown
    soon = sorted((ends, name) for name, ends in known.items() if ends - facts.now <= CERTIFICATE_SOON)
    if soon:
        spelled = [f"{name}'s {when(ends, facts.now)}" for ends, name in soon[:NAMED_MAX]]
        more = f", and {len(soon) - NAMED_MAX} more" if len(soon) > NAMED_MAX else ""
        text = f"Certificates of clients end: {', '.join(spelled)}{more}"
        yield Finding("client_certificate_ends", ATTENTION, text)


def when(ends: datetime, now: datetime) -> str:
    left_s = (ends - now).total_seconds()
    return f"ends in {spell(left_s)}" if left_s > 0 else f"ended {spell(-left_s)} ago"
