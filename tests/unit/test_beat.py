"""A console that stood still itself calls no member silent for it."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest

from app.console.aggregate import STALE_S, reach_of
from app.console.beat import BEAT_NS, Beat
from app.console.sample import NodeSample
from app.health.clock_steps import boot_ns
from node.background import Background
from node.views.state import StateView
from tests.unit.group_story import T0


def test_time_in_which_the_console_did_nothing_is_no_member_s_silence() -> None:
    one = NodeSample("n1", "", "http://h", last_seen=T0, state=StateView(engine="ok", self_id="n1"))
    late = T0 + timedelta(seconds=STALE_S + 0.6)
    assert reach_of(one, late) == "stale"
    one.stood_still_s = 0.7
    assert reach_of(one, late) == "ok"
    assert reach_of(one, late + timedelta(seconds=0.2)) == "stale", "and no longer than that"
    one.stood_still_s, one.misses = 60.0, 3
    assert reach_of(one, late) == "stale", "it was asked, and did not answer"


def test_a_beat_counts_what_a_loop_stood_still_and_nothing_else() -> None:
    async def work() -> None:
        beat, background = Beat(), Background()
        began = boot_ns()
        assert beat.stood_still_s(began) == 0, "nobody has looked"
        background.keep("the beat", beat.run)
        await asyncio.sleep(0)
        time.sleep(3 * BEAT_NS / 1e9)  # noqa: ASYNC251 - this is what it is about
        at_once = beat.stood_still_s(began)
        await asyncio.sleep(0.01)
        assert 1.9 * BEAT_NS / 1e9 <= at_once <= beat.stood_still_s(began)
        assert beat.stood_still_s(None) == 0 and beat.stood_still_s(boot_ns()) == 0
        await background.stop()

    asyncio.run(work())


def test_a_suspend_of_the_machine_is_no_member_s_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timers stand still with it: for one look after it all members were said to be silent for as long."""
    away_ns = 0
    monkeypatch.setattr("app.console.beat.boot_ns", lambda: boot_ns() + away_ns)

    async def work() -> None:
        nonlocal away_ns
        beat, background, began = Beat(), Background(), boot_ns()
        background.keep("the beat", beat.run)
        await asyncio.sleep(0)
        away_ns = 60_000_000_000
        stood_still_s = beat.stood_still_s(began)
        assert 59.0 <= stood_still_s <= (boot_ns() + away_ns - began) / 1e9
        await background.stop()

    asyncio.run(work())
