"""A dispatcher's state diagram: boxes at fixed places, edges from the very table that the engine obeys.

Pure. Every state change of node.protocol.dispatcher.TRANSITIONS has a path here, and a test holds that; a state that
stays the same (COMPARE looking further back) has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from app.console import format as fmt
from node.protocol.dispatcher import TRANSITIONS

Json = dict[str, Any]

WIDTH, HEIGHT = 280, 120
# Top left corner of each 74 x 24 box.
BOXES: Final = {
    "COMPARE": (4, 48),
    "TRUNCATE": (103, 4),
    "APPEND": (202, 48),
    "INSTALL_SNAPSHOT": (103, 92),
    "DIVERGED": (103, 48),
}
BOX_W, BOX_H = 74, 24
LABELS: Final = {"INSTALL_SNAPSHOT": "SNAPSHOT"}
EDGES: Final[dict[tuple[str, str], str]] = {
    ("COMPARE", "TRUNCATE"): "M41 48 C41 20 70 16 103 16",
    ("TRUNCATE", "COMPARE"): "M103 22 C80 24 58 32 52 48",
    ("TRUNCATE", "APPEND"): "M177 16 C210 16 239 20 239 48",
    ("COMPARE", "APPEND"): "M78 54 C100 40 180 40 202 54",
    ("APPEND", "COMPARE"): "M202 66 C180 80 100 80 78 66",
    ("COMPARE", "INSTALL_SNAPSHOT"): "M41 72 C41 100 70 104 103 104",
    ("INSTALL_SNAPSHOT", "COMPARE"): "M103 98 C80 96 58 88 52 72",
    ("APPEND", "INSTALL_SNAPSHOT"): "M239 72 C239 100 210 104 177 104",
    ("COMPARE", "DIVERGED"): "M78 58 L103 58",
    ("DIVERGED", "COMPARE"): "M103 64 L78 64",
    ("TRUNCATE", "DIVERGED"): "M140 28 L140 48",
    ("APPEND", "DIVERGED"): "M202 60 L177 60",
}
COUNTED: Final = timedelta(minutes=10)
RIBBON: Final = timedelta(hours=1)
RIBBON_W: Final = 300
LOOPS_PER_MINUTE_MAX: Final = 3
SLOW_S: Final = 2.0


def edges_of_table() -> set[tuple[str, str]]:
    """Every change of state that the engine's table allows."""
    return {(before.value, to.value) for (before, _event), to in TRANSITIONS.items() if before is not to}


@dataclass(slots=True, frozen=True)
class Box:
    state: str
    label: str
    x: int
    y: int
    css: str
    age: str


@dataclass(slots=True, frozen=True)
class Edge:
    path: str
    css: str
    title: str
    count: int


@dataclass(slots=True, frozen=True)
class Piece:
    """A stretch of the one-hour ribbon."""

    css: str
    x: float
    width: float


@dataclass(slots=True, frozen=True)
class Diagram:
    peer_id: str
    state: str
    tone: str
    summary: str
    boxes: list[Box]
    edges: list[Edge]
    ribbon: list[Piece]
    recent: list[Json]
    error: str | None
    facts: list[tuple[str, str]]


def diagram(dispatcher: Json, as_of: str) -> Diagram:
    """One peer's dispatcher as INTERFACES gives it -> what is drawn."""
    now = fmt.time_of(as_of)
    assert now is not None
    steps = [dict(step, when=fmt.time_of(step["at"])) for step in dispatcher.get("transitions") or []]
    state = dispatcher["state"]
    slow = (now - (fmt.time_of(dispatcher.get("since")) or now)).total_seconds() > SLOW_S
    loops = snapshot_loops(steps, now)
    tone = "critical" if state == "DIVERGED" or loops > LOOPS_PER_MINUTE_MAX else ""
    if not tone and state != "APPEND" and slow:
        tone = "attention"
    age = fmt.age(dispatcher.get("since"), as_of)
    summary = f"{state} for {age}"
    if loops > LOOPS_PER_MINUTE_MAX:
        summary += f", going round COMPARE and INSTALL_SNAPSHOT {loops} times a minute"
    return Diagram(
        peer_id=dispatcher["peer_id"],
        state=state,
        tone=tone,
        summary=summary,
        boxes=boxes(state, tone, age, steps),
        edges=edges(steps, now, hot=loops > LOOPS_PER_MINUTE_MAX),
        ribbon=ribbon(state, steps, now),
        recent=[{key: step[key] for key in ("at", "from", "to", "reason")} for step in reversed(steps[-5:])],
        error=dispatcher.get("last_error"),
        facts=[
            ("match", fmt.count(dispatcher.get("match_index"))),
            ("next to write", fmt.count(dispatcher.get("write_index"))),
            ("in flight", f"{dispatcher.get('in_flight')} · {fmt.size(dispatcher.get('in_flight_bytes'))}"),
            ("resends", fmt.count(dispatcher.get("resends"))),
        ],
    )


def boxes(state: str, tone: str, age: str, steps: Sequence[Json]) -> list[Box]:
    """DIVERGED has a box only where it applies."""
    seen = {state, *(step["to"] for step in steps), *(step["from"] for step in steps)}
    shown = [name for name in BOXES if name != "DIVERGED" or "DIVERGED" in seen]
    return [
        Box(name, LABELS.get(name, name), *BOXES[name], f"now {tone}".strip() if name == state else "",
            age if name == state else "")
        for name in shown
    ]  # fmt: skip


def edges(steps: Sequence[Json], now: datetime, *, hot: bool) -> list[Edge]:
    """All edges of the table, the last one thick, with the counts of ten minutes."""
    counts = Counter((step["from"], step["to"]) for step in steps if step["when"] and now - step["when"] <= COUNTED)
    last = (steps[-1]["from"], steps[-1]["to"]) if steps else None
    diverged = any("DIVERGED" in (step["from"], step["to"]) for step in steps)
    drawn = []
    for pair, path in EDGES.items():
        if "DIVERGED" in pair and not diverged:
            continue
        css = "last" if pair == last else ""
        if hot and set(pair) == {"COMPARE", "INSTALL_SNAPSHOT"}:
            css += " hot"
        title = f"{pair[0]} to {pair[1]}: {counts[pair]} in ten minutes"
        drawn.append(Edge(path, css.strip(), title, counts[pair]))
    return drawn


def snapshot_loops(steps: Sequence[Json], now: datetime) -> int:
    """Round trips between COMPARE and INSTALL_SNAPSHOT in the last minute."""
    minute = timedelta(minutes=1)
    return sum(
        1
        for step in steps
        if (step["from"], step["to"]) == ("INSTALL_SNAPSHOT", "COMPARE")
        and step["when"]
        and now - step["when"] <= minute
    )


def ribbon(state: str, steps: Sequence[Json], now: datetime) -> list[Piece]:
    """An hour of states, oldest left; before the first known transition nothing is claimed."""
    begin = now - RIBBON
    pieces: list[Piece] = []
    until, current = now, state
    for step in reversed(steps):
        when = step["when"]
        if when is None:
            continue
        pieces.append(_piece(current, max(when, begin), until, begin))
        until, current = when, step["from"]
        if when <= begin:
            break
    if until > begin:
        pieces.append(_piece("none" if steps else current, begin, until, begin))
    return [piece for piece in reversed(pieces) if piece.width > 0]


def _piece(state: str, start: datetime, until: datetime, begin: datetime) -> Piece:
    per_second = RIBBON_W / RIBBON.total_seconds()
    width = max(0.0, (until - start).total_seconds() * per_second)
    return Piece(state, round((start - begin).total_seconds() * per_second, 2), round(max(width, 0.6), 2))
