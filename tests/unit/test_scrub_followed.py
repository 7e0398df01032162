"""A scrub that somebody asked for is done when that very pass is, and what it found damaged was replaced."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from node.control import repair
from node.views.state import AlarmView, ScrubPassView, ScrubView, StateView


def seen(last: ScrubPassView | None, running: ScrubPassView | None, damaged: str = "") -> StateView:
    alarms = (AlarmView(code="snapshot_damaged", text=damaged),) if damaged else ()
    return StateView(engine="ok", self_id="n0", scrub=ScrubView(last=last, running=running), alarms=alarms)


def followed(monkeypatch: pytest.MonkeyPatch, *states: StateView) -> tuple[dict[str, Any], dict[str, Any], int]:
    """How pass 4 ended for whoever looks and sees these states; its operation, and how many it did not look at."""
    looks = list(states)

    async def act(*_: Any) -> dict[str, Any]:
        return {"passNumber": 4}

    async def look(_parts: Any) -> StateView:
        return looks.pop(0)

    monkeypatch.setattr(repair, "act", act)
    monkeypatch.setattr(repair, "look", look)
    operation: dict[str, Any] = {}
    ended = asyncio.run(repair.follow_scrub(SimpleNamespace(link=None), operation))  # type: ignore[arg-type]
    return ended, operation, len(looks)


def test_a_pass_before_it_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, operation, left = followed(
        monkeypatch,
        seen(None, ScrubPassView(number=4)),
        seen(ScrubPassView(number=3), ScrubPassView(number=4)),
        seen(ScrubPassView(number=3), ScrubPassView(number=4, next_index=5, last_index=9)),
        seen(ScrubPassView(number=4), None),
    )
    assert (ended["state"], ended["outcome"]["number"], left) == ("done", 4, 0)
    assert operation["progress"] == "entry 5 of 9"


def test_one_that_found_a_damaged_snapshot_is_done_when_the_state_is_saved_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    through = ScrubPassView(number=4, snapshots=3, damaged_snapshots=1)
    reading = ScrubPassView(number=4, next_index=10, last_index=9, snapshots=2)
    damaged = seen(through, None, "snapshot/snapshot_7: its data does not match")
    ended, operation, left = followed(monkeypatch, seen(None, reading), damaged, damaged, seen(through, None))
    assert (ended["state"], ended["outcome"]["damaged_snapshots"], left) == ("done", 1, 0)
    assert operation["progress"] == "damaged snapshots: 1; the state is saved again"

    monkeypatch.setattr(repair, "FOLLOWED_S", -1.0)
    ended, operation, left = followed(monkeypatch, seen(None, reading), damaged, damaged)
    assert ended["state"] == "failed" and "snapshot_7" in ended["problem"]["detail"]
    assert operation["progress"] == "all entries; snapshots read: 2"
