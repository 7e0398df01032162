"""The time that commands carry: the wall clock's, and never back, and never still."""

from __future__ import annotations

from dataclasses import dataclass

from node.engine.log_clock import LogClock


@dataclass
class Clocks:
    wall_ms: int = 1_000_000
    steady_ns: int = 7

    def log_clock(self) -> LogClock:
        return LogClock(lambda: self.wall_ms, lambda: self.steady_ns)

    def pass_ms(self, milliseconds: float, *, wall_ms: int | None = None) -> None:
        self.steady_ns += int(milliseconds * 1_000_000)
        self.wall_ms += int(milliseconds) if wall_ms is None else wall_ms


def test_it_is_the_wall_clock_and_follows_it_forward() -> None:
    clocks = Clocks()
    clock = clocks.log_clock()
    for step_ms in (0, 1, 500, 3_600_000):
        clocks.pass_ms(step_ms)
        assert clock.now_ms() == clocks.wall_ms
    clocks.wall_ms += 86_400_000
    assert clock.now_ms() == clocks.wall_ms


def test_behind_a_clock_that_was_set_back_it_goes_on_and_ends_in_step_with_it() -> None:
    clocks = Clocks()
    clock = clocks.log_clock()
    assert clock.now_ms() == 1_000_000
    clocks.wall_ms -= 10_000
    assert clock.now_ms() == 1_000_000
    for _ in range(4_000):  # however often it is asked
        clocks.pass_ms(0.5, wall_ms=0)
        clock.now_ms()
    assert clock.now_ms() == 1_002_000
    clocks.wall_ms = 1_002_001
    assert clock.now_ms() == 1_002_001


def test_it_begins_no_earlier_than_the_log_ends() -> None:
    clocks = Clocks()
    clock = clocks.log_clock()
    clock.begin(500)
    assert clock.now_ms() == 1_000_000
    clock.begin(2_000_000)
    clocks.pass_ms(250)
    assert clock.now_ms() == 2_000_250
