"""Facts and Findings: the input and output of the health rules, and how an age is written.

Invariants: unknown is never called fine; a finding's `since` is when the fact began, as far as anybody can know it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from app.health.group_view import GroupView, MemberView
from app.health.recall import Recall
from app.times import shifted, time_of
from node.views.state import TimingView

CRITICAL, ATTENTION, UNKNOWN, INFO = "critical", "attention", "unknown", "info"
SEVERITY_ORDER: Final = (CRITICAL, UNKNOWN, ATTENTION, INFO)
DIGITS: Final = re.compile(r"(\d+)", re.ASCII)
HEARTBEAT_MS: Final = 2000  # DLedger's, for members that do not tell theirs
ELECTION_TIMEOUT_MAX_MS: Final = 1000
CONNECTING_GRACE_S: Final = 2.5  # a dialler waits for a second at most
ENGINE_GRACE_S: Final = 0.4  # a second look: an engine may come late for one question, on a machine with much to do
SLOW_MS: Final = 100
# So long before a certificate ends it is worth a word, and the last warning.
CERTIFICATE_SOON: Final = timedelta(days=21)
CERTIFICATE_NOW: Final = timedelta(days=3)
SLOW_TIMES: Final = 5  # slower than the others by so much; alone, SLOW_MS decides


@dataclass(frozen=True, slots=True)
class Finding:
    code: str
    severity: str
    text: str
    node_id: str | None = None
    since: datetime | None = None
    # How long it must have stood before it is worth a word.
    grace_s: float = 0.0
    # The entries that it is about.
    from_index: int | None = None
    to_index: int | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """A GroupView, what is remembered of the last minute, and the time.

    `first_look`: nobody has asked before, so that a member that does not answer was not "never reached" for long.
    """

    view: GroupView
    recall: Recall
    now: datetime
    first_look: bool = False

    @property
    def members(self) -> tuple[MemberView, ...]:
        return self.view.members

    @property
    def leader(self) -> MemberView | None:
        return self.view.leader

    @property
    def followers(self) -> list[MemberView]:
        """Those that answer us and do not lead."""
        return [one for one in self.members if one.id != self.view.leader_id and one.reach == "ok"]

    @property
    def stands(self) -> bool | None:
        return self.view.quorum.stands

    @property
    def heartbeat_ms(self) -> int:
        """The leader's own interval."""
        return timing_of(self.leader).heart_beat_time_interval_ms or HEARTBEAT_MS

    @property
    def patience_ms(self) -> int:
        """Members take each other for lost after so long a silence."""
        return timing_of(self.leader).election_timeout_max_ms or ELECTION_TIMEOUT_MAX_MS

    def when(self, one: MemberView, ago_ms: float) -> datetime:
        """`ago_ms` before this member was asked."""
        asked = time_of(one.last_seen) or self.now
        return moment(asked, ago_ms / 1000)


Rule = Callable[[Facts], Iterator[Finding]]


def timing_of(one: MemberView | None) -> TimingView:
    timing = one.state.timing if one is not None and one.state is not None else None
    return timing or TimingView()


def seconds_since(at: datetime, now: datetime) -> float:
    return max(0.0, (now - at).total_seconds())


def moment(now: datetime, ago_s: float) -> datetime:
    return shifted(now, -ago_s)


def natural(name: str) -> tuple[list[tuple[int, str]], str]:
    """The order that people expect: n2 before n10. A number may have more digits than Python makes one of."""
    parts = DIGITS.split(name)  # every second one is a number
    ordered = ((len(each := one.lstrip("0")), each) if at % 2 else (0, one) for at, one in enumerate(parts))
    return list(ordered), name


def join(names: list[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1] if names else ""


def entries_of(count: int) -> str:
    return f"{count:,} {'entry' if count == 1 else 'entries'}"


def spelled_range(first: int, last: int) -> str:
    return f"entry {first:,}" if first == last else f"entries {first:,} to {last:,}"


def spell(seconds: float) -> str:
    """An age as people say it: 38 s, 4 min, 2 h 5 min, 24 h, 3 d."""
    whole = int(max(0.0, seconds))
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min"
    if whole < 2 * 86400:
        return f"{whole // 3600} h" + (f" {minutes} min" if (minutes := whole % 3600 // 60) else "")
    return f"{whole // 86400} d"


def refused(one: MemberView) -> bool:
    """Whether its machine answers, and nothing listens there where its control plane should."""
    return "refused" in (one.problem or "").lower()


def capital(text: str, name: str | None = None) -> str:
    """As a sentence begins; a member's name at its head, which `name` is, too, stays as it is."""
    first = text.partition(" ")[0]
    named = any(one.isdigit() for one in first) or first.removesuffix("'s") == name
    return text if named else text[:1].upper() + text[1:]
