"""Drawn faults over a real group, and nothing that its consoles, their page or `status` say meanwhile is false."""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from app.bench.observer import Observer
from app.health.group_view import GroupView, SentenceView
from tests.process.sentence_walk import Fault, Status, Walk, bare, walk
from tests.unit.group_story import Story

STEPS = 12


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_no_sentence_is_false_under_drawn_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SENTENCE_SEED names one walk; where it is not set it is drawn, and printed."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    seed = os.environ.get("SENTENCE_SEED") or str(random.SystemRandom().randrange(1 << 32))
    print(f"SENTENCE_SEED={seed}")
    assert asyncio.run(walk(tmp_path, seed, STEPS)) == []


# --- what the walk calls false ----------------------------------------------------------------------------------------
def in_step() -> GroupView:
    story = Story()
    return story.look(4)


def silent() -> GroupView:
    story = Story()
    story.look(4)
    story.node("n2").alive = False
    return story.look(12)


def without_leader() -> GroupView:
    story = Story()
    story.look(4)
    story.group.lead(None)
    return story.look(8)


def walked(*looks: tuple[float, GroupView], faults: tuple[Fault, ...] = (), **seen: Any) -> list[str]:
    observer = Observer(None, None, [], {})  # type: ignore[arg-type]
    observer.looks = list(looks)
    made = Walk(observer, random.Random(1), None, None, faults=list(faults), **seen)
    return made.judge()


def test_in_step_is_false_while_a_break_is_known() -> None:
    cut = Fault("partition", "n2", 10.0, 11.0, 20.0)
    assert walked((12.5, in_step()), (21.0, in_step()), faults=(cut,)) == []
    (found,) = walked((15.0, in_step()), faults=(cut,))
    assert "in step" in found


def test_what_ended_with_another_fault_stands_no_longer() -> None:
    """A member's engine that is paused and killed is another one, and does not stand still."""
    faults = [Fault(kind, node, 1.0, 1.0) for kind in ("pause", "pause_control") for node in ("n1", "n2")]
    made = Walk(Observer(None, None, [], {}), random.Random(1), None, None, faults=faults)  # type: ignore[arg-type]
    made.end_with(frozenset({"pause"}), {"n1"})
    later_s = time.monotonic() + 1.0
    assert [(one.kind, one.node) for one in faults if not one.stands(later_s)] == [("pause", "n1")]


def test_who_was_not_broken_may_not_be_accused() -> None:
    assert walked((15.0, silent()), faults=(Fault("kill", "n2", 10.0, None),)) == []
    (found,) = walked((15.0, silent()), faults=(Fault("kill", "n1", 10.0, None),))
    assert "accuses n2" in found


def test_writes_that_get_through_are_not_stopped() -> None:
    looks = [(15.0 + 0.5 * at, without_leader()) for at in range(5)]
    assert walked(*looks, fed=[(14.0, 100), (18.0, 100)]) == []
    assert walked(*looks[:3], fed=[(14.0, 100), (15.4, 140)]) == [], "it came back just now"
    (found,) = walked(*looks, fed=[(14.0, 100), (15.4, 140)])
    assert "40 writes had got through" in found


def test_status_ends_as_it_says_and_as_the_console_says() -> None:
    quorum = {"answering": 3}
    fine: dict[str, Any] = {"problems": [], "unknown": [], "quorum": quorum}
    worse = {"problems": [{"severity": "attention", "text": "n2 is silent."}], "unknown": [], "quorum": quorum}
    well, broken = (10.0, in_step()), (10.0, silent())
    fault = (Fault("kill", "n2", 5.0, None),)
    assert walked(well, statuses=[Status(9.5, 10.5, 0, fine)]) == []
    assert walked(broken, faults=fault, statuses=[Status(9.5, 10.5, 1, worse)]) == []
    assert walked(well, statuses=[Status(9.5, 10.5, 0, worse)]), "its own output says otherwise"
    assert walked(broken, faults=fault, statuses=[Status(9.5, 10.5, 0, fine)]), "the console says otherwise"
    hangs = (Fault("pause_control", "n2", 5.0, 6.0),)
    assert walked(broken, faults=hangs, statuses=[Status(9.5, 10.5, 0, fine)]) == [], "it asks the engines"


def test_a_page_says_what_its_console_says() -> None:
    said = {"sentence": SentenceView(headline="n2 is silent, for 41 s.").to_json()}
    raw = in_step().to_json() | said
    at_s = time.monotonic()
    views = [(at_s + 0.5 * at, raw) for at in range(-10, 4)]
    assert walked(views=views, pages=[(at_s, "n2 is silent, for 42 s. Quorum stands.")]) == []
    assert walked(views=views, pages=[(at_s, "All 3 replicas are in step.")])
    assert bare("1,234 of  5") == "# of #"
