"""Rules about members that run, and that the others do not let in: another secret, another group.

Both ends of such a connection raise an alarm, so that one member with a wrong secret raises as many as the group has
members, twice. Invariant: the cause is said once, of the member that its leader, or several, do not let in; that it is
out of touch with them is the consequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from app.health.facts import ATTENTION, CRITICAL, Facts, Finding, join, natural
from app.health.group_view import MemberView
from app.times import time_of
from node.views.state import AlarmView

CODES: Final = frozenset({"unproven_member", "hello_refused"})


def kept_out(facts: Facts) -> Iterator[Finding]:
    """Who is not let in, by whom, and why, as its leader says, or the first of the others."""
    for node_id, refusals in outsiders(facts).items():
        first = refusals.get(facts.view.leader_id or "") or next(iter(refusals.values()))
        since = min((at for one in refusals.values() if (at := time_of(one.since))), default=None)
        severity = CRITICAL if facts.stands is False else ATTENTION
        who = join(sorted(refusals, key=natural))
        text = f"{node_id} is not let in by {who}, for {{age}}: {first.text}"
        yield Finding("kept_out", severity, text, node_id, since)


def outsiders(facts: Facts) -> dict[str, dict[str, AlarmView]]:
    """Whom the leader, or two members and more, do not let in: by whom, with the alarm of each."""
    found: dict[str, dict[str, AlarmView]] = {}
    for one in facts.members:
        for alarm in refusals_of(facts, one):
            found.setdefault(alarm.peer_id or "", {})[one.id] = alarm
    leader_id = facts.view.leader_id
    return {
        node_id: by
        for node_id, by in found.items()
        if node_id != leader_id and (leader_id in by or len(by) > 1)
    }  # fmt: skip


def refusals_of(facts: Facts, one: MemberView) -> list[AlarmView]:
    """What a member that answers says of other members of its group that it does not let in. Where no proof is asked
    for yet (`secret = "optional"`) it warns of those that it did let in, too."""
    if one.reach != "ok" or one.state is None:
        return []
    ids = {other.id for other in facts.members} - {one.id}
    apart = {peer.id for peer in one.state.peers or () if peer.id in ids and peer.connected is False}
    return [alarm for alarm in one.state.alarms or () if alarm.code in CODES and alarm.peer_id in apart]


def says_kept_out(facts: Facts, one: MemberView) -> list[AlarmView]:
    """Those of a member's alarms that `kept_out` says: of an outsider, and an outsider's own of those that keep it
    out."""
    found = outsiders(facts)
    return [
        alarm
        for alarm in refusals_of(facts, one)
        if one.id in found.get(alarm.peer_id or "", ()) or alarm.peer_id in found.get(one.id, ())
    ]


def refusing(facts: Facts) -> frozenset[frozenset[str]]:
    """Pairs of members of which one does not let the other in: that they are not connected is known, and why."""
    return frozenset(
        frozenset((one.id, alarm.peer_id or "")) for one in facts.members for alarm in refusals_of(facts, one)
    )
