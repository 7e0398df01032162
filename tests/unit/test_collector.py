"""When garbage is collected, by a clock and a collector of the test's own; and that cycles go at last."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from node.collector import (
    ALL,
    FRUITLESS,
    FULL_APART_S,
    FULL_QUIET_S,
    FULL_WITHIN_S,
    GROWTH_BYTES_FRUITLESS,
    GROWTH_BYTES_MAX,
    LONG_NS,
    PAUSE_S_MAX,
    PAUSE_S_MIN,
    QUIET_STEPS,
    REST_S,
    SHORT_NS,
    WORK_NS,
    YOUNG,
    Collector,
    private_bytes,
)


class World:
    """A loop's clock, a processor's, and a collector that takes as long as it is told."""

    def __init__(self) -> None:
        self.now_s, self.cpu_ns, self.memory_bytes = 1000.0, 0, 0
        self.took_ns, self.found = 0, FRUITLESS + 1
        self.collected: list[tuple[float, int]] = []
        self.due: tuple[float, Callable[[], None]] | None = None
        self.pauses_s: list[float] = []
        self.collector = Collector(
            self, self.collect, lambda: self.cpu_ns, lambda: self.memory_bytes  # type: ignore[arg-type]
        )  # fmt: skip

    def time(self) -> float:
        return self.now_s

    def call_later(self, after_s: float, call: Callable[[], None]) -> Any:
        """The timer is this world itself."""
        self.due = self.now_s + after_s, call
        self.pauses_s.append(after_s)
        return self

    def cancel(self) -> None:
        self.due = None

    def collect(self, generation: int) -> int:
        self.collected.append((self.now_s, generation))
        self.cpu_ns += self.took_ns
        return self.found

    def run(self, for_s: float, each: Callable[[], None] = lambda: None) -> None:
        until_s = self.now_s + for_s
        while self.due is not None and self.due[0] <= until_s:
            (self.now_s, call), self.due = self.due, None
            each()
            call()
        self.now_s = until_s

    def run_ticked(self, for_s: float, work_ns: int = 0) -> None:
        """With a tick every 50 ms, and so much work before each."""
        until_s = self.now_s + for_s
        while self.now_s < until_s:
            self.run(0.05)
            self.cpu_ns += work_ns
            self.collector.ticked()

    def all_at_s(self) -> list[float]:
        return [at_s for at_s, generation in self.collected if generation == ALL]


@pytest.fixture
def world() -> Any:
    one = World()
    one.collector.start()
    try:
        assert not gc.isenabled()
        yield one
    finally:
        gc.enable()
        gc.unfreeze()


def test_the_pause_shortens_while_the_young_take_long_and_grows_again(world: World) -> None:
    assert world.collector.pause_s == PAUSE_S_MAX
    world.took_ns = LONG_NS + 1
    world.run(2.0)
    assert world.collector.pause_s == PAUSE_S_MIN
    world.took_ns = (LONG_NS + SHORT_NS) // 2
    world.run(2.0)
    assert world.collector.pause_s == PAUSE_S_MIN
    world.took_ns = 0
    world.run(2.0)
    assert world.collector.pause_s == PAUSE_S_MAX


def test_whatever_happens_the_young_are_looked_at_and_all_in_time(world: World) -> None:
    """A walk through loads that a fixed seed draws."""
    rng = random.Random(12)

    def each() -> None:
        if rng.random() < 0.01:
            world.took_ns = rng.choice([0, SHORT_NS, LONG_NS, 50 * LONG_NS])
        world.memory_bytes = max(0, world.memory_bytes + rng.randrange(-(1 << 20), 1 << 20))

    world.run(3 * FULL_WITHIN_S, each)
    times = [at_s for at_s, _generation in world.collected]
    assert all(later - at_s <= PAUSE_S_MAX + 1e-6 for at_s, later in itertools.pairwise(times))
    alls = world.all_at_s()
    gaps = [later - at_s for at_s, later in itertools.pairwise(alls)]
    assert gaps and all(FULL_APART_S <= gap <= FULL_WITHIN_S + PAUSE_S_MAX for gap in gaps)


def test_all_are_looked_at_when_it_is_quiet_and_not_beside_a_load_before_the_time_is_up(world: World) -> None:
    world.run(FULL_QUIET_S + 1)
    assert len(world.all_at_s()) == 2  # at the start, and now
    world.took_ns = 2 * LONG_NS
    world.run(FULL_WITHIN_S - 1)
    assert len(world.all_at_s()) == 2
    world.run(1 + PAUSE_S_MAX)
    assert len(world.all_at_s()) == 3


def test_cycles_that_fill_memory_are_not_waited_for(world: World) -> None:
    world.took_ns = 2 * LONG_NS
    world.run(FULL_APART_S + 1)
    world.memory_bytes = GROWTH_BYTES_MAX + 1
    world.run(2 * PAUSE_S_MAX)
    assert len(world.all_at_s()) == 2
    world.memory_bytes *= 2  # no sooner than that, whatever grows
    world.run(FULL_APART_S - 1)
    assert len(world.all_at_s()) == 2
    world.run(1 + PAUSE_S_MAX)
    assert len(world.all_at_s()) == 3


def test_memory_that_was_no_garbage_is_looked_through_ever_more_rarely(world: World) -> None:
    world.took_ns, world.found = 2 * LONG_NS, 0
    grown = []
    for _ in range(6):
        world.run(FULL_APART_S)
        count, before = len(world.all_at_s()), world.memory_bytes
        while len(world.all_at_s()) == count:
            world.memory_bytes += 1 << 20
            world.run(PAUSE_S_MAX)
        grown.append((world.memory_bytes - before) >> 20)
    assert grown == sorted(grown) and grown[0] <= 1 + (GROWTH_BYTES_MAX >> 20) < grown[-1]
    assert grown[-1] <= 1 + (GROWTH_BYTES_FRUITLESS >> 20)
    world.found = FRUITLESS + 1
    for _ in range(2):
        world.run(FULL_APART_S)
        world.memory_bytes += GROWTH_BYTES_FRUITLESS + 1
        world.run(2 * PAUSE_S_MAX)
    count = len(world.all_at_s())
    world.run(FULL_APART_S)
    world.memory_bytes += GROWTH_BYTES_MAX + 1
    world.run(2 * PAUSE_S_MAX)
    assert len(world.all_at_s()) == count + 1


def test_the_timer_rests_in_an_idle_process_that_is_woken_anyway(world: World) -> None:
    world.run_ticked(PAUSE_S_MAX * (QUIET_STEPS + 2))
    count = len(world.collected)
    world.run_ticked(10 * REST_S)
    assert world.pauses_s[-1] == REST_S and 9 <= len(world.collected) - count <= 10


def test_work_ends_the_rest_with_the_next_tick(world: World) -> None:
    world.run_ticked(PAUSE_S_MAX * (QUIET_STEPS + 2))
    assert world.pauses_s[-1] == REST_S
    count, at_s = len(world.collected), world.now_s
    world.run_ticked(0.05, WORK_NS)
    assert len(world.collected) == count + 1 and world.pauses_s[-1] == PAUSE_S_MAX
    world.run_ticked(3.0, WORK_NS)
    times = [one_s for one_s, _generation in world.collected if one_s > at_s]
    assert max(later - one_s for one_s, later in itertools.pairwise(times)) <= PAUSE_S_MAX + 1e-6


def test_where_ticks_end_the_timer_rests_no_more(world: World) -> None:
    world.run(PAUSE_S_MAX * 3 * QUIET_STEPS)
    assert world.pauses_s[-1] == PAUSE_S_MAX
    world.run_ticked(PAUSE_S_MAX * 2)
    assert world.pauses_s[-1] == REST_S
    world.run(2 * REST_S)
    assert world.pauses_s[-1] == PAUSE_S_MAX


class Knot:
    """Part of a cycle."""

    def __init__(self) -> None:
        self.itself = self


def test_cycles_go_young_ones_at_once_and_old_ones_with_the_next_look_at_all() -> None:
    async def main() -> None:
        collector = Collector(asyncio.get_running_loop())
        collector.start()
        try:
            old, young = Knot(), Knot()
            was_old, was_young = weakref.ref(old), weakref.ref(young)
            del young
            collector.step()
            assert was_young() is None
            del old
            collector.step()
            assert was_old() is not None  # it has grown old
            gc.collect(ALL)
            assert was_old() is None
        finally:
            collector.stop()
            gc.unfreeze()
        assert gc.isenabled()

    asyncio.run(main())
    assert YOUNG < ALL and private_bytes() > 0
