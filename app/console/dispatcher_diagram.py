"""The picture of one peer's dispatcher: fixed boxes, the engine's own transitions, recent counts. Pure.

Invariants: boxes never move; every edge of `node.protocol.dispatcher.TRANSITIONS` has a path here (a test asserts it);
a count is what the node reported, of its last fifty transitions, and says "at least" when those do not reach back ten
minutes; the time before the oldest known transition is drawn as unknown, never as a state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from app.console import format as fmt
from app.health.group_view import GroupView
from node.protocol.codes import DispatcherState
from node.protocol.dispatcher import TRANSITIONS
from node.views.replication import DispatcherView, SnapshotSentView, TransitionView

Edge = tuple[str, str]

WIDTH: Final = 280
HEIGHT: Final = 120
COUNT_WINDOW_S: Final = 600.0
RIBBON_S: Final = 3600.0
LOOP_WINDOW_S: Final = 60.0
LOOP_TRIPS_MAX: Final = 3
SLOW_STATE_S: Final = 2.0
TRANSITIONS_SHOWN: Final = 5
TRANSITIONS_REPORTED: Final = 50
DIVERGED: Final = str(DispatcherState.DIVERGED)

# The table's events do not matter to the eye, only which state can follow which.
EDGES: Final[tuple[Edge, ...]] = tuple(
    dict.fromkeys((str(before), str(after)) for (before, _), after in TRANSITIONS.items())
)
LOOP_EDGES: Final[frozenset[Edge]] = frozenset({("COMPARE", "INSTALL_SNAPSHOT"), ("INSTALL_SNAPSHOT", "COMPARE")})


@dataclass(frozen=True, slots=True)
class Box:
    x: int
    y: int
    width: int
    height: int

    @property
    def middle(self) -> tuple[float, float]:
        return self.x + self.width / 2, self.y + self.height / 2


BOXES: Final[dict[str, Box]] = {
    "COMPARE": Box(1, 46, 78, 26),
    "TRUNCATE": Box(101, 1, 78, 26),
    "APPEND": Box(201, 46, 78, 26),
    "INSTALL_SNAPSHOT": Box(88, 93, 104, 26),
    "DIVERGED": Box(1, 93, 70, 26),
}

# (path, x and y of its count)
PATHS: Final[dict[Edge, tuple[str, float, float]]] = {
    ("COMPARE", "APPEND"): ("M79 54H200", 140, 51),
    ("APPEND", "COMPARE"): ("M201 64H80", 140, 74),
    ("COMPARE", "TRUNCATE"): ("M36 46C38 22 62 9 100 9", 52, 17),
    ("TRUNCATE", "COMPARE"): ("M101 19C82 21 66 30 62 45", 84, 36),
    ("COMPARE", "COMPARE"): ("M10 46C3 27 29 27 22 45", 12, 28),
    ("TRUNCATE", "APPEND"): ("M179 12C216 12 240 24 240 45", 228, 19),
    ("COMPARE", "INSTALL_SNAPSHOT"): ("M50 72C54 90 66 103 87 103", 56, 91),
    ("INSTALL_SNAPSHOT", "COMPARE"): ("M104 93C98 82 86 76 71 73", 104, 85),
    ("APPEND", "INSTALL_SNAPSHOT"): ("M240 72C240 94 218 107 193 107", 229, 99),
    ("INSTALL_SNAPSHOT", "DIVERGED"): ("M88 112H72", 80, 118),
    ("COMPARE", "DIVERGED"): ("M18 72V92", 11, 86),
    ("DIVERGED", "COMPARE"): ("M34 93V73", 41, 86),
    ("TRUNCATE", "DIVERGED"): ("M118 27C116 62 96 92 72 98", 112, 44),
    ("APPEND", "DIVERGED"): ("M212 72C180 92 110 84 72 104", 176, 88),
}


@dataclass(frozen=True, slots=True)
class DrawnBox:
    name: str
    box: Box
    css: str
    age: str


@dataclass(frozen=True, slots=True)
class DrawnEdge:
    name: str
    path: str
    css: str
    count: str
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Stretch:
    """A piece of the ribbon: x and width are percent of the hour."""

    state: str
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class Step:
    at: str
    clock: str
    before: str
    after: str
    reason: str


@dataclass(frozen=True, slots=True)
class Diagram:
    """Everything the template draws for one peer; `state` None: no member reported it."""

    peer_id: str
    state: str | None
    age: str
    tone: str
    label: str
    boxes: tuple[DrawnBox, ...]
    edges: tuple[DrawnEdge, ...]
    ribbon: tuple[Stretch, ...]
    ribbon_text: str
    steps: tuple[Step, ...]
    loop: str
    facts: tuple[tuple[str, str], ...]
    last_error: str | None


def diagrams(view: GroupView) -> list[Diagram]:
    """One for each member that the leader replicates to, in the order of the members."""
    reported = [one.dispatcher for one in view.members if one.dispatcher is not None]
    return [diagram(one, view.as_of, view.leader_since) for one in reported]


def diagram(reported: DispatcherView, as_of: str, leader_since: str | None = None) -> Diagram:
    """`leader_since`: nobody dispatched before it, so the ribbon does not begin earlier."""
    now = fmt.time_of(as_of)
    assert now is not None, "a view has a time"
    state = reported.state
    steps = sorted(reported.transitions or (), key=lambda one: one.at)
    age_s = seconds_since(reported.since, now)
    trips = loop_trips(steps, now)
    tone = tone_of(state, age_s, trips)
    age = fmt.age(reported.since, as_of)
    with_diverged = state == DIVERGED or any(DIVERGED in (one.from_state, one.to_state) for one in steps)
    names = [name for name in BOXES if name != DIVERGED or with_diverged]
    loop = f"COMPARE ⇄ INSTALL_SNAPSHOT {trips} times in the last minute" if trips > LOOP_TRIPS_MAX else ""
    return Diagram(
        peer_id=reported.peer_id,
        state=state,
        age=age,
        tone=tone,
        label=f"Dispatcher of {reported.peer_id}: {state} for {age}" + (f"; {loop}" if loop else ""),
        boxes=tuple(drawn_box(name, state, tone, age) for name in names),
        edges=tuple(drawn_edges(steps, now, names, looping=bool(loop))),
        ribbon=tuple(ribbon(state, reported.since, steps, now, seconds_since(leader_since, now))),
        ribbon_text=ribbon_text(steps, now),
        steps=tuple(drawn_step(one) for one in reversed(steps[-TRANSITIONS_SHOWN:])),
        loop=loop,
        facts=facts(reported),
        last_error=reported.last_error,
    )


def tone_of(state: str, age_s: float | None, trips: int) -> str:
    """Fine is the absence of colour; every state but APPEND is a moment's business."""
    if state == DIVERGED or trips > LOOP_TRIPS_MAX:
        return "critical"
    if state == "APPEND":
        return ""
    return "attention" if age_s is None or age_s > SLOW_STATE_S else ""


def drawn_box(name: str, state: str, tone: str, age: str) -> DrawnBox:
    here = name == state
    return DrawnBox(name, BOXES[name], f"now {tone}".strip() if here else "", age if here else "")


def drawn_edges(steps: Sequence[TransitionView], now: datetime, names: list[str], *, looping: bool) -> list[DrawnEdge]:
    recent = [one for one in steps if (seconds_since(one.at, now) or 0.0) <= COUNT_WINDOW_S]
    counts = Counter((one.from_state, one.to_state) for one in recent)
    at_least = "≥" if len(steps) >= TRANSITIONS_REPORTED and len(recent) == len(steps) else ""
    last = (steps[-1].from_state, steps[-1].to_state) if steps else None
    drawn = []
    for edge in EDGES:
        if not set(edge) <= set(names):
            continue
        path, x, y = PATHS[edge]
        css = " ".join(
            word
            for word, holds in (
                ("last", edge == last),
                ("used", counts[edge] > 0),
                ("critical", looping and edge in LOOP_EDGES),
            )
            if holds
        )
        count = f"{at_least}{counts[edge]}" if counts[edge] else ""
        drawn.append(DrawnEdge("-".join(edge), path, css, count, x, y))
    return drawn


def loop_trips(steps: Sequence[TransitionView], now: datetime) -> int:
    """Round trips through INSTALL_SNAPSHOT in the last minute."""
    return sum(
        1
        for one in steps
        if (one.from_state, one.to_state) == ("COMPARE", "INSTALL_SNAPSHOT")
        and (seconds_since(one.at, now) or 0.0) <= LOOP_WINDOW_S
    )


def ribbon(
    state: str, since: str | None, steps: Sequence[TransitionView], now: datetime, reign_s: float | None = None
) -> list[Stretch]:
    """The last hour as stretches of states; what came before the first known moment is `unknown`."""
    known: list[tuple[float, str]] = [
        (age, one.to_state) for one in steps if (age := seconds_since(one.at, now)) is not None
    ]
    current = seconds_since(since, now)
    if not known and current is not None:
        known = [(current, state)]
    elif known:
        before = steps[0].from_state if len(steps) < TRANSITIONS_REPORTED else ""
        began = known[0][0] + RIBBON_S if reign_s is None else max(known[0][0], reign_s)
        known = [(began, before), *known]
    stretches: list[Stretch] = []
    edge = RIBBON_S
    for place, (age, name) in enumerate(known):
        start = min(RIBBON_S, age)
        end = max(0.0, known[place + 1][0]) if place + 1 < len(known) else 0.0
        if end >= RIBBON_S:
            continue
        if start < edge:
            stretches.append(stretch("unknown", edge, start))
        if start > end:
            stretches.append(stretch(name or "unknown", start, end))
        edge = end
    return stretches or [stretch("unknown", RIBBON_S, 0.0)]


def stretch(state: str, from_age_s: float, to_age_s: float) -> Stretch:
    """A flap of a moment is still seen: at least a sliver."""
    x = 100 * (1 - from_age_s / RIBBON_S)
    return Stretch(state, round(x, 2), round(max(0.3, 100 * (from_age_s - to_age_s) / RIBBON_S), 2))


def ribbon_text(steps: Sequence[TransitionView], now: datetime) -> str:
    inside = sum(1 for one in steps if (seconds_since(one.at, now) or 0.0) <= RIBBON_S)
    if inside >= TRANSITIONS_REPORTED:
        return f"at least {inside} changes in the last hour"
    return f"{inside} change{'' if inside == 1 else 's'} in the last hour"


def drawn_step(one: TransitionView) -> Step:
    return Step(one.at, fmt.clock(one.at), one.from_state, one.to_state, one.reason or "")


def facts(reported: DispatcherView) -> tuple[tuple[str, str], ...]:
    """The numbers beside the picture; what the node does not tell says so."""
    in_flight = fmt.count(reported.in_flight)
    if reported.in_flight is not None:
        in_flight += " frame" if reported.in_flight == 1 else " frames"
    if reported.in_flight_bytes is not None:
        in_flight += f" · {fmt.size(reported.in_flight_bytes)}"
    sent = reported.snapshot
    snapshot = () if sent is None else (("snapshot", snapshot_text(sent)),)
    return (
        ("next to write", fmt.index(reported.write_index)),
        ("matched up to", fmt.index(reported.match_index)),
        ("in flight", in_flight),
        ("resends", fmt.count(reported.resends)),
        *snapshot,
    )


def snapshot_text(sent: SnapshotSentView) -> str:
    """How far one is that the peer is sent, as the peer itself says."""
    return f"up to {fmt.index(sent.index)}: {fmt.size(sent.held_bytes)} of {fmt.size(sent.total_bytes)}"


def seconds_since(at: str | None, now: datetime) -> float | None:
    when = fmt.time_of(at)
    return None if when is None else max(0.0, (now - when).total_seconds())
