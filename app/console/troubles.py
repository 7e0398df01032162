"""A member's worst problem in a word, beside its name: the eye finds the replica, the link leads to the cause."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.health.facts import INFO
from app.health.group_view import GroupView, MemberView

WORDS: Final = {
    "replica_silent": "silent", "never_reached": "never reached", "cut_off": "cut off", "one_way": "one-way link",
    "wrong_address": "wrong address",
    "log_damaged": "damaged log", "audit_divergent": "differs", "not_append": "not in APPEND",
    "catching_up": "catching up", "not_catching_up": "falls behind", "lagging": "falls behind",
    "voter_restricted": "does not vote", "dispatcher_loop": "goes round", "two_leaders": "second leader",
    "first_leadership_hazard": "never led", "node_certificate_ends": "certificate",
    "member_certificate_ends": "certificate", "member_authority_ends": "authority", "engine_late": "busy machine",
    "not_applying": "does not apply", "alarm_applier_down": "does not apply", "alarm_apply_failed": "does not apply",
    "alarm_applier_silent": "does not answer",
}  # fmt: skip


@dataclass(slots=True, frozen=True)
class Trouble:
    """`anchor`: where the problem is explained on the group's page; `more`: how many others the member has."""

    word: str
    severity: str
    anchor: str
    more: int = 0


def trouble_of(view: GroupView, member: MemberView) -> Trouble | None:
    """Problems are listed worst first."""
    found = [one for one in view.problems if one.node_id == member.id and one.severity != INFO]
    if not found:
        return None
    worst = found[0]
    word = WORDS.get(worst.code, worst.code.removeprefix("alarm_").replace("_", " "))
    return Trouble(word, worst.severity, f"problem-{worst.id.replace(':', '-')}", len(found) - 1)
