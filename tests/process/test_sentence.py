"""Every break of the demo, done to real members: the sentence names the right member and cause, or says "not known".

What is asserted at each look: once the break was named, "in step" is not said until it is healed; whoever is accused is
the member that was broken; and in the end all is well again. Breaks last until the test heals them, and nothing is
asserted of how long anything took: a machine with other things to do is slow, and not wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import httpx2
import pytest

from app.bench.observer import LOOK_EVERY_S, STOOD_STILL_MS, Observer, names, observed, says_in_step
from app.bench.sentences import CASES, run_case
from app.commands.group import look_closely, pressing_of
from app.demo.breaks import Broken, CannotBreak
from app.demo.processes import engine_of
from app.demo.run import DemoOptions
from app.health.group_view import GroupView

pytestmark = [pytest.mark.process, pytest.mark.slow]

MEND_AFTER_S = 600.0  # of their own accord; the test heals them before
LOOKS = 5  # at a break that was named
WITHIN_S = 60.0


@asynccontextmanager
async def watched(tmp_path: Path) -> AsyncIterator[Observer]:
    (tmp_path / "demo").mkdir()
    options = DemoOptions(console=False, directory=tmp_path / "demo", mend_after_s=MEND_AFTER_S, rate_per_s=50)
    async with observed(tmp_path / "demo", options) as watcher:
        yield watcher


def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: Callable[[Observer], Awaitable[None]]) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    async def all_of_it() -> None:
        async with watched(tmp_path) as watcher:
            await work(watcher)

    asyncio.run(all_of_it())


async def broken(watcher: Observer, what: str, node: str, codes: set[str]) -> None:
    """Breaks, reads along until the sentence has stood for some looks, heals, and waits until all is well again."""
    breaker = watcher.demo.breaker
    assert breaker is not None
    await breaker.do(what, node)
    named = await watcher.until(f"{what} of {node}", lambda view: names(view, node, codes))
    await watcher.until("looked at again", lambda _view: len(watcher.looks) >= named + LOOKS)
    during = watcher.looks[named : named + LOOKS]
    late = any(after - before > LOOK_EVERY_S + STOOD_STILL_MS / 1000 for (before, _), (after, _) in pairwise(during))
    allowed = watcher.may_be_accused(node)
    for at_s, view in during:
        said = (what, node, round(at_s - during[0][0], 1), view.sentence, view.problems)
        assert not says_in_step(view), said
        assert names(view, node, codes), said
        assert all(one.next_step for one in view.problems), said
        accused = {one.member for one in view.problems if one.severity == "attention"}
        assert late or accused <= allowed, said
    await breaker.heal(node)
    await watcher.in_step()


async def flip(watcher: Observer, node: str) -> Broken:
    """One bit of the follower's log, as soon as there is an entry that nothing else could explain away."""
    assert watcher.demo.breaker is not None
    async with asyncio.timeout(WITHIN_S):
        while True:
            try:
                return await watcher.demo.breaker.do("flip", node)
            except CannotBreak:
                await asyncio.sleep(0.1)


def follower_of(watcher: Observer) -> str:
    return next(one.id for one in reversed(watcher.view.members) if one.id != watcher.view.leader_id)


def test_the_sentence_names_who_is_silent_cut_off_or_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(watcher: Observer) -> None:
        node = follower_of(watcher)
        await broken(watcher, "pause", node, {"replica_silent", "cut_off"})
        await broken(watcher, "slow", follower_of(watcher), {"slow_link"})
        await broken(watcher, "partition", follower_of(watcher), {"cut_off"})
        leader = watcher.view.leader_id
        assert leader is not None
        await broken(watcher, "partition", leader, {"cut_off"})

    run(tmp_path, monkeypatch, work)


@pytest.mark.long
def test_a_way_that_is_cut_and_a_damaged_entry_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(watcher: Observer) -> None:
        for case in (one for one in CASES if one.break_ in ("deafen", "mute", "flip")):
            found = await run_case(watcher, case)
            assert found.right_s is not None, case.name
            assert not [one for one in found.false if "in step" in one], (case.name, found.node, found.false)

    run(tmp_path, monkeypatch, work)


def test_status_says_the_same_and_a_kill_accuses_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(watcher: Observer) -> None:
        assert watcher.demo.breaker is not None
        assert pressing_of(await look_closely(watcher.demo.target)) == []
        node = follower_of(watcher)
        await watcher.demo.breaker.do("slow", node)
        await watcher.until("slow for the console", lambda view: names(view, node, {"slow_link"}))
        summary = await look_closely(watcher.demo.target)
        assert [(one.code, one.member) for one in pressing_of(summary)] == [("slow_link", node)]
        await watcher.demo.breaker.heal(node)
        await watcher.in_step()
        begun, killed = len(watcher.looks), follower_of(watcher)
        supervisor = watcher.demo.members[killed].pid
        pid = engine_of(supervisor)
        await watcher.demo.breaker.do("kill", killed)
        await watcher.until("started again", lambda _view: engine_of(supervisor) not in (pid, None))
        await watcher.in_step()
        for _, view in watcher.looks[begun:]:
            assert {one.member for one in view.problems} <= watcher.may_be_accused(killed), view.problems

    run(tmp_path, monkeypatch, work)


def test_a_flipped_bit_is_told_once_somebody_has_read_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(watcher: Observer) -> None:
        flipped = await flip(watcher, follower_of(watcher))
        begun = len(watcher.looks)
        async with httpx2.AsyncClient(trust_env=False) as client:
            url = watcher.demo.members[flipped.node].control_url
            answer = await client.post(f"{url}/api/v1/scrub", headers={"content-type": "application/json"}, timeout=10)
            assert answer.status_code == 202, answer.text

        def is_read(view: GroupView) -> bool:
            one = view.member(flipped.node)
            scrub = None if one is None or one.state is None else one.state.scrub
            return scrub is not None and scrub.last is not None and scrub.running is None

        await watcher.until("read and repaired", is_read)
        await watcher.in_step()
        for _, view in watcher.looks[begun:]:
            assert {one.member for one in view.problems} <= watcher.may_be_accused(flipped.node), view.problems
            damaged = [one for one in view.members if one.state is not None and one.state.faults]
            assert not (damaged and says_in_step(view)), "a member with a fault that it tells is not in step"

    run(tmp_path, monkeypatch, work)
