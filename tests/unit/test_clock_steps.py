"""Somebody sets the console's clock: problems stay, keep their age, and new ones are shown as soon as ever."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from app.health.clock_steps import WallClock
from app.health.group_view import GroupView, Problem
from app.health.openings import Openings
from app.times import EARLIEST, time_of, utc_now
from tests.unit.console_kit import Kit, run, running

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def test_a_step_is_what_wall_time_did_beyond_the_time_that_passed() -> None:
    clock = WallClock()
    assert clock.look(NOON, 100.0) is None
    assert clock.look(NOON + timedelta(seconds=500), 600.0) is None, "a long look, or a suspend"
    assert clock.look(NOON + timedelta(seconds=500.9), 600.5) is None, "an adjustment"
    step = clock.look(NOON - HOUR, 601.0)
    assert step is not None and abs(step.by + HOUR + timedelta(seconds=501.4)) < timedelta(seconds=0.01)
    assert step.moved(NOON) == NOON + step.by and step.moved(None) is None
    noticed_since = NOON - HOUR - timedelta(seconds=0.2)
    assert step.moved(noticed_since) == noticed_since
    assert step.moved(EARLIEST) == EARLIEST, "a member may report a time in no year that there is an hour earlier"


def shown(view: GroupView, code: str, node_id: str) -> Problem | None:
    return next((one for one in view.problems if (one.code, one.node_id) == (code, node_id)), None)


@pytest.mark.parametrize("by", [-HOUR, HOUR], ids=["back", "forward"])
def test_an_hour_either_way_hides_no_problem_and_makes_none_older(
    by: timedelta, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            await set_the_clock(kit, by, monkeypatch)

    run(work())


async def set_the_clock(kit: Kit, by: timedelta, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = kit.console.watch_of("demo")
    kit.group.nodes["n2"].alive = False
    before = await kit.until(lambda: shown(watch.view, "replica_silent", "n2"))
    for module in ("watch", "sampler"):
        monkeypatch.setattr(f"app.console.{module}.utc_now", lambda: utc_now() + by)
    view = watch.assemble()
    after = shown(view, "replica_silent", "n2")
    assert after is not None, "it has stood all the time"
    assert all(one.reach == "ok" for one in view.members if one.id != "n2"), "nobody fell silent by that"
    since_then, since_now = time_of(before.since), time_of(after.since)
    assert since_then is not None and since_now is not None
    assert abs(since_now - since_then - by) < timedelta(seconds=2), "as old as it was"
    # What begins now has its grace, and is shown after that.
    kit.group.lead(None)
    found = await kit.until(lambda: shown(watch.view, "no_leader", None))  # type: ignore[arg-type]
    assert "1 h" not in found.text and "60 min" not in found.text
    kit.group.lead("n0")
    kit.group.nodes["n2"].alive = True
    await kit.until(lambda: not watch.recall.openings.ids)


def test_what_was_gone_when_the_clock_was_set_back_closes_with_its_own_duration() -> None:
    one = Problem.model_validate(
        {
            "id": "a:n1", "code": "a", "severity": "critical", "text": "a.", "what": "a.", "next_step": "",
            "since": "2026-01-01T12:00:00.000Z",
        }
    )  # fmt: skip
    view = GroupView.model_construct(problems=(one,), members=(), leader_id="n0")
    gone = GroupView.model_construct(problems=(), members=(), leader_id="n0")
    openings, clock = Openings(), WallClock()
    openings.observe(view, {}, NOON)
    at = NOON + timedelta(seconds=10)
    openings.observe(gone, {}, at)
    assert clock.look(at, 0.0) is None
    step = clock.look(at - HOUR + timedelta(seconds=4), 4.0)
    assert step is not None
    openings.move(step)
    openings.observe(gone, {}, at - HOUR + timedelta(seconds=4))
    ((closed, until),) = openings.closed
    since = time_of(closed.since)
    assert since is not None and until - since == timedelta(seconds=10)
