"""The waterline's geometry: what is drawn where, and that nothing unknown is drawn at all."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from app.console.waterline import UNITS, ZERO_X, Lane, Scale, waterline
from app.health.group_view import GroupView
from tests.unit import views
from tests.unit.views import edited


def lanes(view: GroupView, unit: str = "entries") -> dict[str, Lane]:
    return {one.id: one for one in waterline(view, unit).lanes}


def test_every_decade_has_the_same_width_and_small_lags_are_visible() -> None:
    scale = Scale("entries", 1.0)
    decades = [scale.x(10**n - 1) for n in range(10)]
    widths = [round(left - right, 2) for left, right in pairwise(decades)]
    assert decades[0] == ZERO_X and decades[-1] == 0.0
    assert set(widths) == {round(ZERO_X / 9, 2)}
    assert ZERO_X - scale.x(12) > 10, "a lag of 12 entries is seen"


def test_a_moving_log_does_not_slide() -> None:
    def grown(made: dict[str, Any]) -> None:
        for one in made["members"]:
            marks = one["state"]["log"]
            begin = marks["begin_index"]
            marks |= {name: marks[name] + 1_000_000 for name in marks if name.endswith("_index")}
            marks["begin_index"] = begin
            if one["watermark"]:
                one["watermark"]["match_index"] += 1_000_000
                one["watermark"]["durable_index"] += 1_000_000
        made["leader_marks"] = made["members"][0]["state"]["log"]
        made["leader_end_index"] += 1_000_000
        made["quorum_index"] += 1_000_000

    before, after = views.healthy(), edited(views.healthy(), grown)
    for node_id, lane in lanes(before).items():
        moved = lanes(after)[node_id]
        assert (lane.end_x, lane.applied_x) == (moved.end_x, moved.applied_x)
    assert waterline(before).quorum_x == waterline(after).quorum_x


def test_the_degraded_picture() -> None:
    drawn = waterline(views.degraded())
    by_id = {one.id: one for one in drawn.lanes}
    assert list(by_id) == [f"n{n}" for n in range(7)], "the order is the ids'"
    leader = by_id["n0"]
    assert [bar.kind for bar in leader.bars] == ["committed", "uncommitted"]
    assert leader.end_x == ZERO_X and leader.to_now is None and leader.behind_text == "0"
    assert leader.not_durable is not None and leader.not_durable.kind == "hatch"
    assert by_id["n1"].to_now is not None
    assert by_id["n2"].begin_x is not None and by_id["n2"].sub_class == "attention-text"
    assert by_id["n2"].linear is not None and by_id["n2"].linear.x > 90, "trimmed: it holds only the end"
    assert by_id["n3"].reach == "stale" and "41 s ago" in by_id["n3"].sub and by_id["n3"].bars
    ahead = by_id["n4"]
    assert ahead.end_x is not None and ZERO_X < ahead.end_x <= 100
    assert ahead.behind_text == "37 ahead" and "37 ahead, will be cut at 1,204,772,978" in ahead.sub
    assert [bar.kind for bar in by_id["n5"].bars] == ["unvouched"] and by_id["n5"].applied_x is None
    never = by_id["n6"]
    assert never.never and not never.bars and never.end_x is None
    assert (never.end_text, never.behind_text, never.bytes_text) == ("unknown", "unknown", "unknown")


def test_uncommitted_begins_where_committed_ends() -> None:
    committed, uncommitted = lanes(views.degraded())["n0"].bars
    assert committed.x + committed.width == pytest.approx(uncommitted.x, abs=0.01)
    assert uncommitted.x == pytest.approx(waterline(views.degraded()).quorum_x or 0, abs=0.01)


@pytest.mark.parametrize("unit", list(UNITS))
@pytest.mark.parametrize("name", list(views.ALL))
def test_every_mark_lies_inside_the_lane(name: str, unit: str) -> None:
    drawn = waterline(views.ALL[name](), unit)
    for lane in drawn.lanes:
        bars = [*lane.bars, *(one for one in (lane.not_durable, lane.to_now, lane.linear) if one is not None)]
        for bar in bars:
            assert 0 <= bar.x <= 100 and bar.width >= 0 and bar.x + bar.width <= 100.5, (lane.id, bar)
        for mark in (lane.end_x, lane.applied_x, lane.begin_x):
            assert mark is None or 0 <= mark <= 100
    assert all(0 <= tick.x <= 100 for tick in drawn.ticks)


def test_an_empty_log_is_empty_and_not_unknown() -> None:
    for lane in lanes(views.empty_log()).values():
        assert lane.end_text == "empty" and lane.behind_text == "0" and not lane.bars and not lane.never


def test_without_a_leader_the_furthest_end_is_zero_and_no_quorum_is_drawn() -> None:
    drawn = waterline(views.no_leader())
    by_id = {one.id: one for one in drawn.lanes}
    assert drawn.quorum_x is None and drawn.leader_end == "unknown"
    assert by_id["n0"].end_x == ZERO_X and by_id["n1"].behind_text == "unknown"


def test_nothing_ever_seen_draws_only_empty_lanes() -> None:
    for lane in lanes(views.never_reached()).values():
        assert lane.never and lane.sub.startswith("never reached since")


def test_a_whole_log_that_is_not_durable_is_hatched_over_the_committed_part_too() -> None:
    view = edited(views.healthy(), lambda made: made["members"][1]["watermark"].update(durable_index=1_000_000))
    hatch = lanes(view)["n1"].not_durable
    assert hatch is not None and hatch.kind == "hatch full"


def no_figures(made: dict[str, Any]) -> None:
    """Members that tell how many entries they lack, and neither bytes nor times."""
    for one in made["members"]:
        one["state"]["log"]["size_bytes"] = None
        if one["watermark"]:
            one["watermark"] |= {"lag_bytes": None, "lag_ms": None}


@pytest.mark.parametrize("unit", ["bytes", "seconds"])
def test_a_scale_that_nobody_knows_is_not_made_up(unit: str) -> None:
    drawn = waterline(edited(views.healthy(), no_figures), unit)
    by_id = {one.id: one for one in drawn.lanes}
    assert drawn.note and drawn.quorum_x is None
    assert by_id["n0"].end_x == ZERO_X, "level with itself, in every unit"
    assert by_id["n1"].end_x is None and not by_id["n1"].bars and by_id["n1"].behind_text == "unknown"
    assert waterline(edited(views.healthy(), no_figures)).note == "", "entries are entries"


def test_behind_is_told_in_the_chosen_unit() -> None:
    said = {unit: lanes(views.degraded(), unit)["n2"].behind_text for unit in ("entries", "bytes", "seconds")}
    assert said == {"entries": "48,100", "bytes": "14.6 MB", "seconds": "38 s"}
    assert lanes(views.degraded(), "bytes")["n0"].behind_text == "0 B"
    assert lanes(views.degraded(), "bytes")["n4"].behind_text == "37 entries ahead", "ahead is counted in entries"


def test_an_unknown_unit_counts_as_entries() -> None:
    assert waterline(views.healthy(), "furlongs").unit == "entries"


@pytest.mark.parametrize("reported", [0, 5, None])
def test_a_follower_in_append_is_never_ahead_however_late_it_was_sampled(reported: int | None) -> None:
    end = views.healthy().leader_end_index
    assert end is not None

    def late(made: dict[str, Any]) -> None:
        follower = made["members"][1]
        names = ("end_index", "durable_index", "committed_index", "applied_index")
        follower["state"]["log"] |= dict.fromkeys(names, end + 72)
        follower["watermark"] |= {"lag_entries": reported, "match_index": None if reported is None else end - reported}

    view = edited(views.healthy(), late)
    lane = lanes(view)["n1"]
    assert lane.behind_text == str(reported or 0) and lane.end_text == f"{end - (reported or 0):,}"
    assert lane.end_x is not None and lane.end_x <= ZERO_X
    assert lane.applied_x is None, "what it applied is its own word, of another instant"
    assert "ahead" not in lane.sub
    view = edited(view, lambda made: made["members"][1]["dispatcher"].update(state="COMPARE"))
    assert lanes(view)["n1"].behind_text == "72 ahead" and "72 ahead" in lanes(view)["n1"].sub


def test_of_a_moment_in_the_past_nobody_says_that_the_leader_is_silent() -> None:
    """The history keeps no dispatchers: each follower of a sound group read "no word from the leader"."""

    def without(made: dict[str, Any]) -> None:
        for one in made["members"]:
            one["dispatcher"] = None

    view = edited(views.healthy(), without)
    assert "no word from the leader" in {one.sub for one in lanes(view).values()}
    then = view.model_copy(update={"at": view.as_of})
    assert {one.sub for name, one in lanes(then).items() if name != view.leader_id} == {""}
