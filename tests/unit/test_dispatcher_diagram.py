"""The dispatcher's picture is the engine's own table, and says what is slow, flapping or unknown."""

from __future__ import annotations

import re
from typing import Any

import pytest

from app.console.dispatcher_diagram import BOXES, EDGES, HEIGHT, PATHS, WIDTH, Diagram, diagram, diagrams
from node.protocol.codes import DispatcherState
from node.protocol.dispatcher import TRANSITIONS
from node.views.reading import read
from node.views.replication import DispatcherView
from tests.unit import views
from tests.unit.views import NOW, dispatcher, transition

AS_OF = NOW.isoformat()


def drawn(state: str = "APPEND", age_s: float = 8040, *steps: dict[str, Any], reign: str | None = None) -> Diagram:
    return diagram(read(DispatcherView, dispatcher("n1", state, age_s, *steps)), AS_OF, reign)


def test_each_edge_of_the_engines_table_has_a_path_and_no_other() -> None:
    assert set(PATHS) == {(str(before), str(after)) for (before, _), after in TRANSITIONS.items()} == set(EDGES)


def test_each_state_has_a_box_and_the_boxes_do_not_touch() -> None:
    assert {str(state) for state in DispatcherState if str(state) != "COMMIT"} == set(BOXES)
    boxes = list(BOXES.values())
    for place, one in enumerate(boxes):
        assert min(one.x, one.y) >= 0 and one.x + one.width <= WIDTH and one.y + one.height <= HEIGHT
        for other in boxes[place + 1 :]:
            apart = one.x + one.width < other.x or other.x + other.width < one.x
            assert apart or one.y + one.height < other.y or other.y + other.height < one.y


@pytest.mark.parametrize("edge", EDGES)
def test_a_path_leads_from_its_box_to_its_box(edge: tuple[str, str]) -> None:
    numbers = [float(one) for one in re.findall(r"-?\d+(?:\.\d+)?", PATHS[edge][0])]
    start = numbers[0], numbers[1]
    last = re.search(r"([HV])(-?\d+)$", PATHS[edge][0])
    if last is None:
        end = numbers[-2], numbers[-1]
    else:
        end = (float(last[2]), start[1]) if last[1] == "H" else (start[0], float(last[2]))
    for name, (x, y) in zip(edge, (start, end), strict=True):
        box = BOXES[name]
        assert box.x - 2 <= x <= box.x + box.width + 2 and box.y - 2 <= y <= box.y + box.height + 2, (name, x, y)


def test_the_current_state_is_filled_and_shows_its_age() -> None:
    boxes = {one.name: one for one in drawn().boxes}
    assert boxes["APPEND"].css == "now" and boxes["APPEND"].age == "2 h 14 min"
    assert [name for name, one in boxes.items() if one.css] == ["APPEND"]
    assert "DIVERGED" not in boxes, "only where it applies"


@pytest.mark.parametrize(
    ("state", "age_s", "tone"),
    [
        ("APPEND", 0.1, ""),
        ("COMPARE", 1.9, ""),
        ("COMPARE", 2.1, "attention"),
        ("INSTALL_SNAPSHOT", 38, "attention"),
        ("DIVERGED", 0.1, "critical"),
    ],
)
def test_everything_but_append_turns_amber_after_two_seconds(state: str, age_s: float, tone: str) -> None:
    assert drawn(state, age_s).tone == tone


def test_counts_are_of_ten_minutes_and_the_last_edge_is_thick() -> None:
    steps = [transition(700, "APPEND", "COMPARE"), transition(300, "COMPARE", "TRUNCATE")]
    steps += [transition(250, "TRUNCATE", "APPEND"), transition(100, "APPEND", "COMPARE")]
    edges = {one.name: one for one in drawn("COMPARE", 100, *steps).edges}
    assert edges["APPEND-COMPARE"].count == "1" and edges["APPEND-COMPARE"].css == "last used"
    assert edges["COMPARE-TRUNCATE"].css == "used" and edges["COMPARE-APPEND"].count == ""


def test_fifty_transitions_inside_ten_minutes_count_as_at_least() -> None:
    steps = [transition(n, "COMPARE", "COMPARE", "mismatched") for n in range(50)]
    edges = {one.name: one for one in drawn("COMPARE", 0.1, *steps).edges}
    assert edges["COMPARE-COMPARE"].count == "≥50"


@pytest.mark.parametrize(("trips", "critical"), [(3, False), (4, True)])
def test_more_than_three_snapshot_round_trips_a_minute_are_critical(trips: int, critical: bool) -> None:
    steps = []
    for n in range(trips):
        steps += [transition(50 - 10 * n, "COMPARE", "INSTALL_SNAPSHOT")]
        steps += [transition(45 - 10 * n, "INSTALL_SNAPSHOT", "COMPARE")]
    steps.append(transition(300, "COMPARE", "INSTALL_SNAPSHOT"))
    one = drawn("COMPARE", 1, *steps)
    assert (one.tone == "critical") == critical
    assert (f"{trips} times in the last minute" in one.loop) == critical
    assert any("critical" in edge.css for edge in one.edges) == critical


def test_the_ribbon_covers_the_hour_and_calls_unknown_what_nobody_told() -> None:
    steps = [transition(1800, "APPEND", "COMPARE"), transition(1700, "COMPARE", "APPEND")]
    pieces = drawn("APPEND", 1700, *steps, reign=views.ago(2700)).ribbon
    assert [one.state for one in pieces] == ["unknown", "APPEND", "COMPARE", "APPEND"]
    assert pieces[0].x == 0 and pieces[0].width == 25 and pieces[1].x == 25
    assert sum(one.width for one in pieces) == pytest.approx(100, abs=0.1)


def test_without_any_transition_the_ribbon_knows_the_present_state_only() -> None:
    assert [(one.state, one.x) for one in drawn("APPEND", 900).ribbon] == [("unknown", 0), ("APPEND", 75)]


def test_the_last_five_transitions_newest_first_with_their_reasons() -> None:
    steps = [transition(n, "COMPARE", "COMPARE", f"reason {n}") for n in range(9)]
    shown = drawn("COMPARE", 1, *steps).steps
    assert [one.reason for one in shown] == [f"reason {n}" for n in range(5)]


def test_a_view_has_a_diagram_for_each_dispatcher_that_the_leader_tells() -> None:
    assert [one.peer_id for one in diagrams(views.degraded())] == ["n1", "n2", "n4"]
    assert diagrams(views.no_leader()) == []


def test_a_snapshot_that_is_sent_shows_how_far_it_is() -> None:
    sent = {"index": 1_000_000, "held_bytes": 400 * 1024**2, "total_bytes": 1024**3}
    reported = read(DispatcherView, dispatcher("n1", "INSTALL_SNAPSHOT", 4) | {"snapshot": sent})
    assert dict(diagram(reported, AS_OF).facts)["snapshot"] == "up to 1,000,000: 419 MB of 1.1 GB"
    assert "snapshot" not in dict(drawn().facts)
