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


def test_it_goes_on_from_the_time_that_the_log_has_come_to() -> None:
    clocks = Clocks()
    clock = clocks.log_clock()
    clock.learn(500)
    assert clock.now_ms() == 1_000_000
    clock.learn(2_000_000)
    clocks.pass_ms(250)
    assert clock.now_ms() == 2_000_250


def test_what_passed_since_the_log_came_to_its_time_counts_once_this_member_leads() -> None:
    """However often leadership moves: a key that is to last ten seconds would last ten more behind each leader."""
    clocks = Clocks()
    clock = clocks.log_clock()
    for _ in range(100):
        clock.learn(2_000_000)  # of one entry, again and again, as a follower does
        clocks.pass_ms(100)
    assert clock.now_ms() == 2_010_000


def test_a_follower_whose_own_clock_is_ahead_for_a_while_learns_nothing_of_that() -> None:
    clocks = Clocks(wall_ms=86_400_000)
    clock = clocks.log_clock()
    clock.learn(1_000_000)
    clocks.pass_ms(100, wall_ms=-85_400_000)
    clock.learn(1_000_000)
    assert clock.now_ms() == 1_000_100
