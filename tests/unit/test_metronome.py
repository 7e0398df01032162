"""The engine's timer on the loop that engines run on: a late tick comes after everything that waited to be read."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable

import pytest
import uvloop

from node.engine.metronome import PUT_OFF_TIMES, WORTH_NS, Metronome

MS = 1_000_000
SOCKETS = 40


class Reader(asyncio.Protocol):
    """Notes what it reads; the one that reads "stall" keeps the loop until every other has something to read."""

    def __init__(self, seen: list[str], others: list[socket.socket]) -> None:
        self._seen, self._others = seen, others

    def data_received(self, data: bytes) -> None:
        if data == b"stall":
            for one in self._others:
                one.send(b"x")
            time.sleep(0.05)
        else:
            self._seen.append("read")


async def stalled(with_metronome: bool) -> list[str]:
    """A loop that stands still past its timer while it reads, in the order of what it does then."""
    loop, seen, ended = asyncio.get_running_loop(), list[str](), asyncio.Event()

    def tick(_now: int = 0) -> None:
        seen.append("tick")
        loop.call_later(0.02, ended.set)

    pairs = [socket.socketpair() for _ in range(SOCKETS + 1)]
    others = [theirs for _, theirs in pairs[1:]]
    transports = [(await loop.create_connection(lambda: Reader(seen, others), sock=ours))[0] for ours, _ in pairs]
    await asyncio.sleep(0.01)  # every socket is polled
    now = time.monotonic_ns()
    if with_metronome:
        Metronome(tick, time.monotonic_ns, 1000 * MS).arm(now + 20 * MS, now)
    else:
        loop.call_later(0.02, tick)
    pairs[0][1].send(b"stall")
    await ended.wait()
    for transport in transports:
        transport.close()
    for _, theirs in pairs:
        theirs.close()
    return seen


def test_the_loop_itself_runs_a_late_timer_before_it_reads() -> None:
    """Why there is a metronome: without it a tick would judge before it has heard."""
    assert uvloop.run(stalled(False)) == ["tick", *["read"] * SOCKETS]


@pytest.mark.parametrize("factory", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def test_a_late_tick_comes_after_one_poll_of_every_socket(factory: object) -> None:
    for _ in range(10):
        with asyncio.Runner(loop_factory=factory) as runner:  # type: ignore[arg-type]
            assert runner.run(stalled(True)) == [*["read"] * SOCKETS, "tick"]


def test_a_loop_that_stood_still_says_so_before_its_tick_and_after_it() -> None:
    async def run() -> tuple[int, int, int]:
        ticked = asyncio.Event()
        metronome = Metronome(lambda _now: ticked.set(), time.monotonic_ns, 1000 * MS)
        began = time.monotonic_ns()
        metronome.arm(began + 10 * MS, began)
        time.sleep(0.1)  # noqa: ASYNC251 - this is what it is about
        before = metronome.late_ns(began, time.monotonic_ns())
        await ticked.wait()
        ended = time.monotonic_ns()
        return before, metronome.late_ns(began, ended), metronome.late_ns(ended, ended)

    before, after, later = asyncio.run(run())
    assert 90 * MS <= before <= after and later == 0


def test_one_timer_the_earliest_wins_and_none_is_later_than_allowed() -> None:
    async def run() -> tuple[list[int], int, int, int]:
        ticks: asyncio.Queue[int] = asyncio.Queue()
        began = time.monotonic_ns()
        metronome = Metronome(ticks.put_nowait, time.monotonic_ns, 30 * MS)
        metronome.arm(began + 10_000 * MS, began)
        metronome.arm(began + 20_000 * MS, began)
        first = await ticks.get()
        armed = time.monotonic_ns()
        metronome.arm(0, armed)
        second = await ticks.get()
        gap_ns = metronome.gap_ns
        metronome.arm(0, time.monotonic_ns())
        metronome.stop()
        metronome.arm(0, time.monotonic_ns())
        await asyncio.sleep(0.02)
        assert ticks.empty()
        return [first, second], armed, gap_ns, began

    (first, second), armed, gap_ns, began = asyncio.run(run())
    assert first >= began + 29 * MS
    assert gap_ns == max(armed - first, second - armed)  # whichever took longer: what armed it, or its timer


class Clock:
    """A loop whose timer the test fires, at a time of its own."""

    def __init__(self) -> None:
        self.now, self.ticks, self.woken = 1000 * MS, list[int](), 0
        self.metronome = Metronome(self.ticks.append, lambda: self.now, 100 * MS, self.wake)

    def wake(self) -> None:
        self.woken += 1

    @property
    def armed_for(self) -> int:
        return self.metronome._timer_at

    def fires(self) -> None:
        """The timer, and the poll behind it."""
        assert self.metronome._timer is not None
        self.metronome._timer.cancel()
        self.metronome._fired()
        self.metronome._after_poll()


def with_clock(story: Callable[[Clock], None]) -> None:
    async def run() -> None:
        clock = Clock()
        try:
            story(clock)
        finally:
            clock.metronome.stop()

    asyncio.run(run())


def test_a_tick_is_put_off_where_that_is_worth_it_and_not_for_ever() -> None:
    def story(clock: Clock) -> None:
        metronome = clock.metronome
        metronome.arm(clock.now + 50 * MS, clock.now)
        metronome.arm(clock.now + 50 * MS + WORTH_NS - 1, clock.now)
        assert clock.armed_for == clock.now + 50 * MS
        metronome.arm(clock.now + 50 * MS + WORTH_NS, clock.now)
        assert clock.armed_for == clock.now + 50 * MS + WORTH_NS
        metronome.arm(clock.now + 10 * MS, clock.now)
        assert clock.armed_for == clock.now + 10 * MS
        clock.now += 10 * MS
        clock.fires()
        ticked_at = clock.now
        for _ in range(100):
            metronome.arm(clock.now + 100 * MS, clock.now)
            if clock.armed_for <= clock.now + 50 * MS:
                break
            clock.now += 50 * MS
        assert ticked_at < clock.armed_for <= ticked_at + PUT_OFF_TIMES * 100 * MS
        assert clock.armed_for > ticked_at + (PUT_OFF_TIMES - 1) * 100 * MS
        assert clock.ticks == [ticked_at] and clock.woken == 1

    with_clock(story)


def test_a_loop_that_arms_its_timer_stands_not_still() -> None:
    def story(clock: Clock) -> None:
        metronome = clock.metronome
        metronome.arm(clock.now + 100 * MS, clock.now)
        for _ in range(8):
            clock.now += 90 * MS
            metronome.arm(clock.now + 100 * MS, clock.now)
        clock.now += 100 * MS
        clock.fires()
        assert metronome.gap_max_ns == 100 * MS
        metronome.arm(clock.now + 100 * MS, clock.now)
        clock.now += 700 * MS
        clock.fires()
        assert metronome.gap_ns == metronome.gap_max_ns == 700 * MS

    with_clock(story)


def test_a_loop_that_stood_still_and_arms_its_timer_first_stood_still_all_the_same() -> None:
    """What arrived meanwhile is handled before the tick that is owed."""

    def story(clock: Clock) -> None:
        metronome = clock.metronome
        metronome.arm(clock.now + 100 * MS, clock.now)
        clock.now += 700 * MS
        metronome.arm(clock.now + 100 * MS, clock.now)
        assert metronome.gap_max_ns == 700 * MS
        clock.now += 100 * MS
        clock.fires()
        assert metronome.gap_ns == metronome.gap_max_ns == 700 * MS
        metronome.arm(clock.now + 100 * MS, clock.now)
        clock.now += 100 * MS
        clock.fires()
        assert (metronome.gap_ns, metronome.gap_max_ns) == (100 * MS, 700 * MS)

    with_clock(story)


def test_a_timer_that_gives_way_too_late_was_late() -> None:
    def story(clock: Clock) -> None:
        began = clock.now
        clock.metronome.arm(clock.now + 50 * MS, clock.now)
        clock.now += 250 * MS
        clock.metronome.arm(clock.now + 50 * MS, clock.now)
        assert clock.metronome.late_ns(began, clock.now) == 200 * MS

    with_clock(story)
