"""Which problems are open: from the first look that shows one until it is known to be over. Pure.

A problem that is not seen is over only where somebody looked: its member answers, a leader is known where only leaders
tell, and no other problem of that member explains it. And only once it has stayed away for `QUIET_S`: one that comes
and goes is one problem, with one opening, one closing and one duration. Invariant: `opened` and `closed` are of the
newest look, each problem at most once; the first look opens nothing, for what was there before is no event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from app.health.clock_steps import ClockStep
from app.health.group_view import GroupView, Problem

QUIET_S: Final = 3.0  # what is seen again within so long was not over
# What the leader alone tells of its followers.
LEADERS_WORD: Final = frozenset(
    {
        "cut_off", "one_way", "slow_link", "engine_late", "resends", "lagging", "catching_up", "not_catching_up",
        "not_append", "dispatcher_loop", "diverged", "commit_stalled", "closures_full", "closures_piling",
        "closures_slow", "wrong_address",
    }
)  # fmt: skip
# Whether a member answers is seen without its word.
OUR_EYES: Final = frozenset({"replica_silent", "engine_down", "never_reached", "member_unreachable"})


@dataclass(slots=True)
class Openings:
    """One group's. `closed`: each problem with the time of the first look without it."""

    open: dict[str, Problem] = field(default_factory=dict)
    gone_at: dict[str, datetime] = field(default_factory=dict)
    opened: tuple[Problem, ...] = ()
    closed: tuple[tuple[Problem, datetime], ...] = ()
    looked: bool = False

    @property
    def ids(self) -> set[str]:
        return set(self.open)

    def move(self, step: ClockStep) -> None:
        """The wall clock was set."""
        self.gone_at = step.each(self.gone_at)
        self.open = {
            key: one.model_copy(update={"since": step.moved_text(one.since)}) for key, one in self.open.items()
        }

    def observe(self, view: GroupView, explains: Mapping[str, frozenset[str]], now: datetime) -> None:
        shown = {one.id: one for one in view.problems}
        self.opened = tuple(one for key, one in shown.items() if key not in self.open) if self.looked else ()
        self.looked = True
        self.open |= shown
        closed = []
        for key, one in list(self.open.items()):
            if key in shown or not is_over(one.code, one.node_id, view, explains):
                self.gone_at.pop(key, None)
                continue
            gone_at = self.gone_at.setdefault(key, now)
            if (now - gone_at).total_seconds() >= QUIET_S:
                del self.open[key], self.gone_at[key]
                closed.append((one, gone_at))
        self.closed = tuple(closed)


def code_and_member(problem_id: str) -> tuple[str, str | None]:
    code, _, member = problem_id.partition(":")
    return code, member or None


def is_over(code: str, member: str | None, view: GroupView, explains: Mapping[str, frozenset[str]]) -> bool:
    """Whether it is known that a problem which is not shown is over."""
    if any(code in explains.get(one.code, ()) and one.node_id == member for one in view.problems):
        return False
    if code in LEADERS_WORD and view.leader_id is None:
        return False
    one = view.member(member)
    if one is None or one.reach == "ok":
        return True
    # An engine that went down was silent before; it is said otherwise now.
    return code in OUR_EYES and any(two.code in OUR_EYES and two.node_id == one.id for two in view.problems)
