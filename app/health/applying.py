"""Whether members apply what is committed: a state machine that hangs answers no command, however well its log is.

A log alone applies in the turn that commits. Invariants: what waits is as old as the look that first saw it committed,
so that a busy state machine, a little behind all the time, is no problem; who does not answer us is judged elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from app.health.facts import ATTENTION, CRITICAL, Facts, Finding, moment
from app.health.group_view import MemberView

APPLIED_WITHIN_S: Final = 2.0
WATCHED_S: Final = 1.0  # whoever was watched for less may be behind for a moment, or for long


def not_applying(facts: Facts) -> Iterator[Finding]:
    for one in facts.members:
        count, waits_s = unapplied(one), waiting_s(facts, one)
        if not count or waits_s is None or waits_s < APPLIED_WITHIN_S:
            continue
        moves = facts.recall.applying[one.id].moves
        entries = "entry waits" if count == 1 else "entries wait"
        text = (
            f"The state machine of {one.id} is {count:,} entries behind what is committed, for {{age}}"
            if moves
            else f"The state machine of {one.id} applies nothing: {count:,} committed {entries}, for {{age}}"
        )
        severity = CRITICAL if one.id == facts.view.leader_id and not moves else ATTENTION
        yield Finding("not_applying", severity, text, one.id, moment(facts.now, waits_s))


def unapplied(one: MemberView) -> int:
    """How many committed entries it has not applied, by its own word; 0 also where it says nothing."""
    committed, applied = one.log.committed_index, one.log.applied_index
    if one.reach != "ok" or committed is None or applied is None:
        return 0
    return max(0, committed - applied)


def waiting_s(facts: Facts, one: MemberView) -> float | None:
    """For how long the oldest of these has waited, as far as it was seen; None: it was not watched for long enough."""
    known = facts.recall.applying.get(one.id)
    if not unapplied(one) or known is None:
        return 0.0
    since_s = known.waits_since_s()
    if since_s is None:
        return 0.0
    waits_s = known.committed.points[-1][0] - since_s
    return None if waits_s < WATCHED_S and known.watched_s() < WATCHED_S else waits_s


def doubt_of(facts: Facts, one: MemberView) -> str | None:
    """What keeps a member from being called in step."""
    count, waits_s = unapplied(one), waiting_s(facts, one)
    entries = "a committed entry" if count == 1 else f"{count:,} committed entries"
    if waits_s is None:
        return f"{one.id} has {entries} to apply, since when is unknown"
    return f"{one.id} has not applied {entries}, for {waits_s:.1f} s" if waits_s >= WATCHED_S else None
