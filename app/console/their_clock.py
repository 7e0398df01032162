"""A member's times on this console's clock: what is compared with "now" and shown beside our times is on one clock.

Members write when something began by their own clocks. Where one differs from ours by more than can be measured, its
times are moved by the difference, so that an age is an age: without that, a leader whose clock is an hour behind has
dispatchers that have been in COMPARE "for 1 h". Invariants: a difference that may be none moves nothing; an end of a
certificate is no reading of a clock and stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, TypeVar

from app.console.sample import Clock, NodeSample
from app.times import CLOCKS_DIFFER, rfc3339, shifted, time_of
from node.views.base import View
from node.views.closures import ClosuresView
from node.views.replication import DispatcherView
from node.views.state import StateView

ANSWER_AGE_MS: Final = 500.0  # how long a control plane may remember its engine's answer, and more
MOVED_FROM_MS: Final = 1000.0  # and what the measuring itself leaves open
V = TypeVar("V", bound=View)


class TheirClock:
    """Moves the times of one member; `clock` None: it never said what time it is."""

    def __init__(self, clock: Clock | None) -> None:
        known = clock is not None and abs(clock.offset_ms) > MOVED_FROM_MS + clock.margin_ms
        self.by_s = -clock.offset_ms / 1000 if clock is not None and known else 0.0

    def at(self, text: str | None) -> str | None:
        at = time_of(text)
        return text if at is None or not self.by_s else rfc3339(shifted(at, self.by_s))

    def moved(self, view: V, *fields: str) -> V:
        """With those of its times on our clock."""
        return view.model_copy(update={name: self.at(getattr(view, name)) for name in fields if getattr(view, name)})

    def each(self, items: tuple[V, ...] | None, *fields: str) -> tuple[V, ...]:
        return tuple(self.moved(one, *fields) for one in items or ())

    def state(self, state: StateView) -> StateView:
        if not self.by_s:
            return state
        alarms, links = self.each(state.alarms, "since"), self.each(state.links, "in_since", "out_since")
        changed = {"alarms": alarms, "links": links, "unknown": self.each(state.unknown, "since")}
        reported = {name: items for name, items in changed.items() if getattr(state, name) is not None}
        return self.moved(state, "role_since").model_copy(update=reported)

    def dispatcher(self, reported: DispatcherView | None) -> DispatcherView | None:
        if not self.by_s or reported is None:
            return reported
        moved = self.moved(reported, "since")
        steps = {"transitions": self.each(moved.transitions, "at")} if moved.transitions is not None else {}
        return moved.model_copy(update=steps)

    def closures(self, reported: ClosuresView | None) -> ClosuresView | None:
        if not self.by_s or reported is None or reported.last_completed is None:
            return reported
        return reported.model_copy(update={"last_completed": self.moved(reported.last_completed, "at")})


def clock_of(state: StateView, asked_at: datetime, took_s: float) -> Clock | None:
    """The node's clock less ours, from the time of its answer: that was written while we waited, or is as old as the
    control plane's memory of it. An engine that does not answer now says nothing of now."""
    at = time_of(state.as_of)
    if at is None or state.engine != "ok":
        return None
    middle = asked_at + timedelta(seconds=took_s / 2)
    return Clock((at - middle).total_seconds() * 1000, took_s * 500 + ANSWER_AGE_MS)


def ours_is_behind(samples: Sequence[NodeSample]) -> bool | None:
    """Whether most members say that it is much later than here: a machine without a battery starts long ago, and is set
    once it has a network. Then what was written before is not of a clock that was ahead. None: no member that is asked
    has said yet what time it is."""
    known = [one.last_clock.offset_ms for one in samples if one.last_clock is not None]
    if not known:
        return None if samples else False
    return 2 * sum(1 for offset_ms in known if timedelta(milliseconds=offset_ms) > CLOCKS_DIFFER) > len(known)
