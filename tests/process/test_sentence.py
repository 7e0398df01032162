"""Every break of the demo, done to real members: the sentence names the right member and cause, or says "not known".

What is asserted at each look: once the break was named, "in step" is not said until it is healed; whoever is accused is
the member that was broken; and in the end all is well again. Breaks last until the test heals them, and nothing is
asserted of how long anything took: a machine with other things to do is slow, and not wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
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
TRIES = 5
WINDOWS = 10  # of so many looks each, until all that they say is right
WITHIN_S = 60.0
Work = Callable[[Observer], Awaitable[None]]
Look = tuple[float, GroupView]
Run = Callable[[Work], None]


@asynccontextmanager
async def watched(tmp_path: Path) -> AsyncIterator[Observer]:
    (tmp_path / "demo").mkdir()
    options = DemoOptions(console=False, directory=tmp_path / "demo", mend_after_s=MEND_AFTER_S, rate_per_s=50)
    async with observed(tmp_path / "demo", options) as watcher:
        yield watcher


@contextmanager
def demo_in(directory: Path) -> Iterator[Run]:
    """A demo that several tests work with, one after the other, each from a group in step on."""
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner() as runner:
        patch.setenv("XDG_RUNTIME_DIR", str(directory))
        context = watched(directory)
        watcher = runner.run(context.__aenter__())

        async def one(work: Work) -> None:
            assert watcher.demo.breaker is not None
            for node in watcher.demo.members:  # what a test that failed left
                await watcher.demo.breaker.heal(node)
            await watcher.in_step()
            watcher.forget()
            await work(watcher)

        try:
            yield lambda work: runner.run(one(work))
        finally:
            runner.run(context.__aexit__(None, None, None))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with demo_in(tmp_path_factory.mktemp("watched")) as made:
        yield made


def stood_still(looks: Sequence[Look]) -> bool:
    """Whether this process itself was not given the processor for a while."""
    most_s = LOOK_EVERY_S + STOOD_STILL_MS / 1000
    return any(after - before > most_s for (before, _), (after, _) in pairwise(looks))


def wrong(looks: Sequence[Look], node: str, codes: set[str]) -> list[object]:
    """What these looks say of a member that is broken and should not."""
    found: list[object] = []
    for _, view in looks:
        accused = {one.member for one in view.problems if one.severity == "attention"}
        right = names(view, node, codes) and accused <= {node, None} and all(one.next_step for one in view.problems)
        if not right or says_in_step(view):
            found.append((view.sentence, view.problems))
    return found


async def broken(watcher: Observer, what: str, node: str, codes: set[str]) -> None:
    """Breaks, reads along until the sentence has stood for some looks, heals, and waits until all is well again.

    On a busy machine a member that nobody broke may be silent for seconds too, and is said to be: then it is looked at
    for longer. But "in step" is never said, unless the reader itself stood still.
    """
    breaker = watcher.demo.breaker
    assert breaker is not None
    await breaker.do(what, node)
    for _ in range(WINDOWS):
        named = await watcher.until(f"{what} of {node}", lambda view: names(view, node, codes))
        await watcher.until("looked at again", lambda _view, end=named + LOOKS: len(watcher.looks) >= end)
        during = watcher.looks[named : named + LOOKS]
        assert stood_still(during) or not any(says_in_step(view) for _, view in during), (what, node, during)
        if not (said := wrong(during, node, codes)):
            break
    assert not said, (what, node, said)
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


def test_the_sentence_names_who_is_silent_cut_off_or_slow(run: Run) -> None:
    async def work(watcher: Observer) -> None:
        node = follower_of(watcher)
        await broken(watcher, "pause", node, {"replica_silent", "cut_off"})
        await broken(watcher, "slow", follower_of(watcher), {"slow_link"})
        await broken(watcher, "partition", follower_of(watcher), {"cut_off"})
        leader = watcher.view.leader_id
        assert leader is not None
        await broken(watcher, "partition", leader, {"cut_off"})

    run(work)


@pytest.mark.long
def test_a_way_that_is_cut_and_a_damaged_entry_are_named(run: Run) -> None:
    async def work(watcher: Observer) -> None:
        for case in (one for one in CASES if one.break_ in ("deafen", "mute", "flip")):
            found = await run_case(watcher, case)
            assert found.right_s is not None, case.name
            assert not [one for one in found.false if "in step" in one], (case.name, found.node, found.false)

    run(work)


async def pressing(watcher: Observer, wanted: list[tuple[str, str]]) -> None:
    """Until `status` names these and nothing else; on a busy machine a member may be silent for a moment."""

    async def found() -> list[tuple[str, str | None]]:
        return [(one.code, one.member) for one in pressing_of(await look_closely(watcher.demo.target))]

    async with asyncio.timeout(WITHIN_S):
        while await found() != wanted:  # noqa: ASYNC110 - no event
            await asyncio.sleep(LOOK_EVERY_S)


async def accusing_nobody_else(watcher: Observer, story: Callable[[], Awaitable[str]]) -> None:
    """Until the story of one member, from beginning to end, accused no other one; a busy machine may spoil some."""
    for _ in range(TRIES):
        begun = len(watcher.looks)
        node = await story()
        accused = {one.member for _, view in watcher.looks[begun:] for one in view.problems}
        if accused <= watcher.may_be_accused(node):
            return
    raise AssertionError(f"{accused} are accused, {TRIES} times, where {node} was broken")


def test_status_says_the_same_and_a_kill_accuses_nobody_else(run: Run) -> None:
    async def work(watcher: Observer) -> None:
        breaker = watcher.demo.breaker
        assert breaker is not None
        await pressing(watcher, [])
        node = follower_of(watcher)
        await breaker.do("slow", node)
        await watcher.until("slow for the console", lambda view: names(view, node, {"slow_link"}))
        await pressing(watcher, [("slow_link", node)])
        await breaker.heal(node)
        await watcher.in_step()

        async def killed() -> str:
            node = follower_of(watcher)
            supervisor = watcher.demo.members[node].pid
            pid = engine_of(supervisor)
            await breaker.do("kill", node)
            await watcher.until("started again", lambda _view: engine_of(supervisor) not in (pid, None))
            await watcher.in_step()
            return node

        await accusing_nobody_else(watcher, killed)

    run(work)


def scrubs_of(view: GroupView, node: str) -> int:
    """How many times that member has read its whole log, as it says; -1 before the first."""
    member = view.member(node)
    scrub = None if member is None or member.state is None else member.state.scrub
    return -1 if scrub is None or scrub.last is None or scrub.last.number is None else scrub.last.number


@pytest.mark.long  # a scrub that finds it, and the problem's end: test_next_steps.py
def test_a_flipped_bit_is_told_once_somebody_has_read_it(run: Run) -> None:
    async def work(watcher: Observer) -> None:
        async def flipped() -> str:
            node, begun = (await flip(watcher, follower_of(watcher))).node, len(watcher.looks)
            before = scrubs_of(watcher.view, node)
            async with httpx2.AsyncClient(trust_env=False, timeout=WITHIN_S) as client:
                url = f"{watcher.demo.members[node].control_url}/api/v1/scrub"
                answer = await client.post(url, headers={"content-type": "application/json"})
                assert answer.status_code == 202, answer.text
            await watcher.until("read and repaired", lambda view: scrubs_of(view, node) > before)
            await watcher.in_step()
            for _, view in watcher.looks[begun:]:
                damaged = [one for one in view.members if one.state is not None and one.state.faults]
                assert not (damaged and says_in_step(view)), "a member with a fault that it tells is not in step"
            return node

        await accusing_nobody_else(watcher, flipped)

    run(work)
