"""The waterline: every replica's begin, applied, committed, durable and end on one scale. Pure geometry, no drawing.

x is the distance behind the leader's end, log10(1 + lag), anchored right, so that every decade keeps its width and a
moving log does not slide; right of 0 is a gutter for what is ahead of the leader. All x are percent of the lane's
width. A second, linear strip corrects what a log scale exaggerates. Invariants: nothing unknown is drawn as a mark, and
bytes and seconds only where members' own figures say how many an entry is; a bar's right edge is the position of its
last entry; widths are never negative.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from app.console import format as fmt
from app.console.aggregate import first_known
from app.console.troubles import Trouble, trouble_of
from app.health.group_view import GroupView, Marks, MemberView
from node.views.replication import WatermarkView
from node.views.state import LogView

ZERO_X: Final = 93.0  # percent: lag 0
UNITS: Final = {"entries": 9, "bytes": 12, "seconds": 9}  # decades shown (seconds count in ms)
TICKS: Final = {
    "entries": ("−10", "−100", "−1k", "−10k", "−100k", "−1M", "−10M", "−100M", "−1G"),
    "bytes": ("−10 B", "−100 B", "−1 kB", "−10 kB", "−100 kB", "−1 MB", "−10 MB", "−100 MB", "−1 GB", "", "", "−1 TB"),
    "seconds": ("−10 ms", "−100 ms", "−1 s", "−10 s", "−100 s", "", "", "−1 d", ""),
}
SLOW_STATE_S: Final = 2.0
NO_SCALE: Final = {
    "bytes": "How many bytes an entry has is unknown: only what is level with the leader is drawn.",
    "seconds": "No member is behind by a known time: only what is level with the leader is drawn.",
}


@dataclass(slots=True, frozen=True)
class Bar:
    """A horizontal piece of a lane: `kind` is its class, x and width are percent."""

    kind: str
    x: float
    width: float


@dataclass(slots=True)
class Lane:
    """One replica's row: marks for the picture, words for the cells."""

    id: str
    role: str
    role_class: str
    reach: str
    sub: str
    sub_class: str
    end_text: str
    behind_text: str
    bytes_text: str
    ack_text: str
    bars: list[Bar] = field(default_factory=list)
    not_durable: Bar | None = None
    end_x: float | None = None
    applied_x: float | None = None
    begin_x: float | None = None
    to_now: Bar | None = None
    linear: Bar | None = None
    never: bool = False
    trouble: Trouble | None = None


@dataclass(slots=True, frozen=True)
class Tick:
    """A decade's line; `minor` ones are hidden where the lanes are narrow."""

    x: float
    label: str
    minor: bool


@dataclass(slots=True)
class Waterline:
    """The whole picture."""

    unit: str
    ticks: list[Tick]
    quorum_x: float | None
    lanes: list[Lane]
    leader_end: str
    note: str = ""  # why marks are missing in this unit


class Scale:
    """From a lag in entries to percent, in the chosen unit."""

    def __init__(self, unit: str, per_entry: float) -> None:
        self.decades = UNITS[unit]
        self.per_entry = per_entry

    def x(self, lag_entries: float) -> float:
        """Percent from the left; ahead of the leader is right of ZERO_X."""
        value = abs(lag_entries) * self.per_entry
        share = min(1.0, math.log10(1 + value) / self.decades)
        if lag_entries < 0:
            return round(ZERO_X + (100 - ZERO_X) * max(0.25, min(1.0, share * 3)), 3)
        return round(ZERO_X * (1 - share), 3)


def waterline(view: GroupView, unit: str = "entries") -> Waterline:
    """GroupView -> geometry; an unknown unit counts as entries."""
    unit = unit if unit in UNITS else "entries"
    leader_end = reference_end(view)
    each = per_entry(view, unit)
    scale = None if each is None else Scale(unit, each)
    ticks = [
        Tick(round(ZERO_X * (1 - number / UNITS[unit]), 3), label, number % 3 != 0)
        for number, label in enumerate(TICKS[unit], start=1)
        if label
    ]
    quorum = view.quorum_index
    quorum_x = None
    if quorum is not None and quorum >= 0 and leader_end is not None:
        quorum_x = position(scale, max(0, leader_end - quorum))
    logs = [level_log(view, member) for member in view.members]
    begins = [log.begin_index for log in logs if log.begin_index is not None]
    ends = [log.end_index for log in logs if log.end_index is not None]
    whole = (min(begins, default=0), max(ends, default=-1))
    lanes = [lane(view, member, leader_end, scale, whole, unit) for member in view.members]
    note = NO_SCALE[unit] if scale is None else ""
    return Waterline(unit, ticks, quorum_x, lanes, fmt.index(view.leader_end_index), note)


def position(scale: Scale | None, lag_entries: int) -> float | None:
    """What is level with the leader is at its end in every unit; None where the scale is unknown."""
    return ZERO_X if lag_entries == 0 else None if scale is None else scale.x(lag_entries)


def reference_end(view: GroupView) -> int | None:
    """Lag 0: the leader's end; without a leader the furthest end that is known."""
    if view.leader_end_index is not None:
        return view.leader_end_index
    ends = [member.log.end_index for member in view.members]
    return max((end for end in ends if end is not None), default=None)


def per_entry(view: GroupView, unit: str) -> float | None:
    """How many units one entry is: its mean size, or the milliseconds that one takes at the present lag."""
    if unit == "entries":
        return 1.0
    for member in view.members:
        mark = member.mark
        wanted = mark.lag_bytes if unit == "bytes" else mark.lag_ms
        if wanted and mark.lag_entries:
            return wanted / mark.lag_entries
    if unit == "bytes":
        for member in view.members:
            log = member.log
            entries = 0 if log.end_index is None or log.begin_index is None else log.end_index - log.begin_index + 1
            if entries > 0 and log.size_bytes:
                return log.size_bytes / entries
    return None


def lane(
    view: GroupView, member: MemberView, leader_end: int | None, scale: Scale | None, whole: tuple[int, int], unit: str
) -> Lane:
    """One member's row."""
    log = level_log(view, member)
    mark = member.mark
    end = log.end_index
    leads = member.id == view.leader_id
    sub, sub_class = subtitle(view, member)
    drawn = Lane(
        id=member.id,
        role=(member.role or ("java" if member.is_java else fmt.UNKNOWN)).lower(),
        role_class="leader" if leads else "",
        reach=member.reach,
        sub=sub,
        sub_class=sub_class,
        end_text=fmt.index(end),
        behind_text=behind(end, view.leader_end_index, mark, unit),
        bytes_text="0 B" if leads else fmt.size(mark.lag_bytes),
        ack_text="—" if leads else fmt.duration_ms(mark.last_ack_ms),
        never=end is None,
        trouble=trouble_of(view, member),
    )
    if end is None or leader_end is None:
        return drawn
    drawn.end_x = position(scale, leader_end - end)
    if scale is not None:
        draw_marks(drawn, log, end, leader_end, scale, unvouched(member, leads))
    first, last = whole
    if last >= first:
        span = last - first + 1
        begin = log.begin_index or 0
        width = max(0, end - begin + 1) / span * ZERO_X
        drawn.linear = Bar("linear", round((begin - first) / span * ZERO_X, 3), round(width, 3))
    return drawn


def level_log(view: GroupView, member: MemberView) -> Marks:
    """A member's marks at the instant of the leader's answer, as the leader tells them.

    Members are sampled one after the other while the log grows, so that their own words are of other instants: they
    stand in the table of members. Only where the leader vouches for nothing (before COMPARE, a Java node) is a
    member's own end drawn, and beyond the leader's only where it was looked at before the leader: then it was ahead.
    Without a leader each one's own sample is drawn, and the picture says that these have no common instant.
    """
    own, leader_end = member.log, view.leader_end_index
    if leader_end is None:
        return consistent(own)
    if member.id == view.leader_id:
        return led(own, view.leader_marks, leader_end)
    mark = member.mark
    end = held_at(mark, own, leader_end)
    if end is None or ahead(view, member):
        return consistent(own) if ahead(view, member) else Marks()
    committed = first_known(view.leader_marks.committed_index, view.quorum_index)
    return Marks(
        begin_index=None if own.begin_index is None else min(own.begin_index, end + 1),
        end_index=end,
        committed_index=None if committed is None or not vouched(mark) else min(committed, end),
        durable_index=None if mark.durable_index is None else min(mark.durable_index, end),
        applied_index=None,
    )


def led(own: LogView, marks: Marks, leader_end: int) -> Marks:
    """The leader's own; the history keeps what it said itself, no marks."""
    if marks.model_fields_set:
        return marks.model_copy(update={"end_index": leader_end})
    return Marks(
        begin_index=own.begin_index,
        applied_index=own.applied_index,
        committed_index=own.committed_index,
        durable_index=own.durable_index,
        end_index=leader_end,
    )


def held_at(mark: WatermarkView, own: LogView, leader_end: int) -> int | None:
    """Up to where a follower holds the log at the leader's instant; None where nobody can tell."""
    if mark.match_index is not None and mark.match_index >= 0:
        return min(mark.match_index, leader_end)
    if mark.lag_entries is not None and mark.match_index is None:
        return leader_end - max(0, mark.lag_entries)  # the history keeps lags only
    return None if own.end_index is None else min(own.end_index, leader_end)


def vouched(mark: WatermarkView) -> bool:
    return mark.match_index is None or mark.match_index >= 0


def ahead(view: GroupView, member: MemberView) -> bool:
    """Whether a member that the leader does not append to held more than the leader, when the leader was asked.

    What it said in an earlier term may have been cut since; what it says in this one stays until it is matched.
    """
    end, leader = member.log.end_index, view.leader
    if end is None or view.leader_end_index is None or leader is None or end <= view.leader_end_index:
        return False
    seen, leader_seen = fmt.time_of(member.last_seen), fmt.time_of(leader.last_seen)
    asked_before = seen is not None and leader_seen is not None and seen <= leader_seen
    appends = member.dispatcher_state == "APPEND"
    return member.reach == "ok" and not appends and member.term == leader.term and asked_before


def consistent(log: LogView) -> Marks:
    """One sample, whose marks may have been read at slightly different moments: none is beyond its end."""

    def within(value: int | None) -> int | None:
        return value if value is None or log.end_index is None else min(value, log.end_index)

    return Marks(
        begin_index=log.begin_index,
        end_index=log.end_index,
        durable_index=within(log.durable_index),
        committed_index=within(log.committed_index),
        applied_index=within(log.applied_index),
    )


def draw_marks(drawn: Lane, log: Marks, end: int, leader_end: int, scale: Scale, dotted: bool) -> None:
    """Bars and marks of a log whose end is known."""
    begin, end_x = log.begin_index or 0, scale.x(leader_end - end)
    if end < leader_end:
        drawn.to_now = Bar("to-now", end_x, round(ZERO_X - end_x, 3))
    if begin > 0:
        drawn.begin_x = scale.x(leader_end - begin)
    applied = log.applied_index
    if applied is not None and applied >= begin:
        drawn.applied_x = scale.x(leader_end - min(applied, end))
    if end < begin:
        return
    left = scale.x(leader_end - begin + 1)
    if dotted:
        drawn.bars.append(piece("unvouched", left, end_x))
        return
    committed, durable = log.committed_index, log.durable_index
    split = left
    if committed is not None and committed >= begin:
        split = scale.x(leader_end - min(committed, end))
        drawn.bars.append(piece("committed", left, split))
    if committed is None or committed < end:
        drawn.bars.append(piece("uncommitted", split, end_x))
    if durable is not None and durable < end:
        from_x = max(left, scale.x(leader_end - max(durable, begin - 1)))
        full = committed is not None and durable < committed
        drawn.not_durable = piece("hatch full" if full else "hatch", from_x, end_x)


def piece(kind: str, left: float, right: float) -> Bar:
    """A bar between two positions; at least a sliver wide, so that one entry is seen."""
    return Bar(kind, left, round(max(0.15, right - left), 3))


def unvouched(member: MemberView, leads: bool) -> bool:
    """Held, but nobody vouches for it yet: before COMPARE succeeded, or a Java node's."""
    if leads:
        return False
    return member.is_java or member.mark.match_index == -1


def behind(end: int | None, leader_end: int | None, mark: WatermarkView, unit: str) -> str:
    """How far behind, in the chosen unit; who is ahead is so by entries."""
    if end is None or leader_end is None:
        return fmt.UNKNOWN
    if unit != "entries" and end <= leader_end:
        level = end == leader_end
        if unit == "bytes":
            return fmt.size(0 if level else mark.lag_bytes)
        return fmt.duration_ms(0 if level else mark.lag_ms)
    if end > leader_end:
        return f"{end - leader_end:,} {'' if unit == 'entries' else 'entries '}ahead"
    return f"{leader_end - end:,}"


def subtitle(view: GroupView, member: MemberView) -> tuple[str, str]:
    """What stands under a member's name, and whether it should catch the eye."""
    now = view.as_of
    if member.reach == "never":
        return f"{'no answer' if member.start else 'never reached'} since {fmt.clock(member.never_reached_since)}", ""
    if member.reach == "stale" and member.unheard_since is not None:
        since = member.unheard_since
        return f"engine silent since {fmt.clock(since)} · {fmt.age(since, now)}", ""
    if member.reach == "stale":
        return f"last seen {fmt.clock(member.last_seen)} · {fmt.age(member.last_seen, now)} ago", ""
    if member.reach == "down":
        return "engine down", "critical-text"
    if member.id == view.leader_id:
        return f"leading for {fmt.age(view.leader_since, now)}" if view.leader_since else "leading", ""
    dispatcher = member.dispatcher
    if dispatcher is None and member.is_java:
        return "DLedger: durable and committed are not reported", ""
    if dispatcher is None and view.at:
        return "", ""  # the history keeps no dispatchers
    if dispatcher is None:
        return ("its leader is unknown" if view.leader_id is None else "no word from the leader"), ""
    text = f"{dispatcher.state} {fmt.age(dispatcher.since, now)}"
    eye = dispatcher.state != "APPEND" and age_s(dispatcher.since, now) > SLOW_STATE_S
    end = level_log(view, member).end_index
    if end is not None and view.leader_end_index is not None and end > view.leader_end_index:
        cut = member.mark.match_index
        where = f", will be cut at {cut + 1:,}" if cut is not None and cut >= 0 else ""
        return f"{text} · {end - view.leader_end_index:,} ahead{where}", "attention-text"
    return text, "attention-text" if eye else ""


def age_s(since: str | None, now: str) -> float:
    begin, end = fmt.time_of(since), fmt.time_of(now)
    return 0.0 if begin is None or end is None else (end - begin).total_seconds()
