"""Rules about the last audits. `audit` is never set in a view where nobody knows of audits; None: there was none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from app.health.facts import CRITICAL, INFO, Facts, Finding, seconds_since, spell
from app.health.group_view import AuditView, GroupView
from app.times import time_of


def audited(facts: Facts) -> Iterator[Finding]:
    """A finding stays open until an audit at least as deep of at least that range has found nothing."""
    audit = facts.view.audit
    if audit is None:
        return
    at = time_of(audit.finished_at)
    if audit.verdict == "divergent":
        where = f": {audit.first}" if audit.first else ""
        text = f"An audit {{age}} ago found replicas that differ{where}; none has shown since that they agree"
        yield Finding(
            "audit_divergent", CRITICAL, text, audit.node_id, at, from_index=audit.found_from, to_index=audit.found_to
        )
    elif audit.verdict == "unauditable":
        text = "The last audit, {age} ago, could not compare everything: what it did not read is not known to agree"
        yield Finding("audit_incomplete", INFO, text, None, at)


def audit_phrase(view: GroupView) -> str:
    """What the sentence says of audits where all is well."""
    if not view.knows_audits:
        return ""
    audit, now = view.audit, time_of(view.as_of)
    if audit is not None and audit.verdict == "unauditable":
        return ""  # a note says it
    at = None if audit is None else time_of(audit.finished_at)
    if audit is None or at is None or now is None:
        return "Never audited."
    found = "equal logs, and states that differ" if audit.states_differ else "no difference"
    return f"The last audit, {spell(seconds_since(at, now))} ago, found {found}."


def open_audit(audits: Sequence[AuditView]) -> AuditView | None:
    """Of a group's audits, newest first: the one that counts. An open finding outweighs what is newer."""
    done = [one for one in audits if one.state == "done" and one.verdict]
    for place, one in enumerate(done):
        if one.verdict == "divergent" and not any(settles(newer, one) for newer in done[:place]):
            return one
    return done[0] if done else None


DEPTHS = ("chain", "digest", "bytes")


def settles(newer: AuditView, older: AuditView) -> bool:
    """Whether a later audit that found nothing has looked, as deeply, where the older one found something.

    Where not all its findings are listed: at all that the older one had looked at.
    """
    known = older.found_from is not None and older.found_to is not None
    low, high = (older.found_from, older.found_to) if known else (older.from_index, older.to_index)
    first, last = (newer.from_index, low), (newer.to_index, high)
    covers = (first[0] is None or (first[1] is not None and first[0] <= first[1])) and (
        last[0] is None or (last[1] is not None and last[0] >= last[1])
    )
    deep = DEPTHS.index(newer.depth or DEPTHS[0]) >= DEPTHS.index(older.depth or DEPTHS[-1])
    return newer.verdict == "consistent" and covers and deep
