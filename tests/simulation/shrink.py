"""Makes a failing run smaller, so that it can be read: fewer faults, fewer members, fewer steps.

Theory. Every field of a swarm has a calm value. Greedily, one field after the other is made calm, and stays so if the
same invariant still breaks; then the group gets smaller, then the run shorter. A seed with other settings is another
run, so this finds a small failing run, not the smallest; what it finds is as repeatable as any.

Invariants: the result breaks the same invariant as the run that it was made from; at worst it is that run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from tests.simulation.report import SeedResult, repeat_line
from tests.simulation.swarm import CALM, FAULTS, Swarm

WITHIN_S: Final = 120.0
MEMBERS_LEAST: Final = 3
# Not faults: what keeps a run going, or has no calm value that means less.
KEPT: Final = ("members", "clients", "appends", "data_file_size", "index_file_size", "election_ms")

Run = Callable[[int, int, Mapping[str, Any]], SeedResult]


@dataclass(frozen=True)
class Shrunk:
    """The smaller run and how to have it again."""

    result: SeedResult
    steps: int
    overrides: Mapping[str, Any]
    line: str


class Shrinker:
    """One failing run; `run(seed, steps, overrides)` does one more."""

    def __init__(self, failed: SeedResult, steps: int, overrides: Mapping[str, Any], run: Run) -> None:
        assert failed.violation is not None
        self._invariant = failed.violation.invariant
        self._run = run
        self._until = time.monotonic() + WITHIN_S
        self.best = failed
        self.steps = max(1, min(steps, failed.steps + 1))
        self.overrides = dict(overrides)

    def _try(self, steps: int, overrides: Mapping[str, Any]) -> bool:
        """Whether the same invariant breaks; then that is the best run so far."""
        if time.monotonic() > self._until:
            return False
        result = self._run(self.best.seed, steps, overrides)
        if result.violation is None or result.violation.invariant != self._invariant:
            return False
        self.best, self.steps, self.overrides = result, min(steps, result.steps + 1), dict(overrides)
        return True

    def shrink(self) -> None:
        """Until nothing helps any more, or the time is up."""
        self._make_calm()
        self._fewer_members()
        self._make_calm()
        self._fewer_steps()

    def _swarm(self) -> Swarm:
        return Swarm.from_seed(self.best.seed, **self.overrides)

    def _make_calm(self) -> None:
        faults = [name for name, _, _ in FAULTS]
        others = [one.name for one in fields(Swarm) if one.name not in faults and one.name not in KEPT]
        for name in faults + others:
            calm = getattr(CALM, name)
            if getattr(self._swarm(), name) != calm:
                self._try(self.steps, {**self.overrides, name: calm})

    def _fewer_members(self) -> None:
        for members in range(MEMBERS_LEAST, self._swarm().members):
            if self._try(self.steps, {**self.overrides, "members": members}):
                return

    def _fewer_steps(self) -> None:
        """For what breaks only after the faults stopped: less of them before."""
        low = 0
        while self.steps - low > max(10, self.steps // 20):
            middle = (low + self.steps) // 2
            if not self._try(middle, self.overrides):
                low = middle


def shrink(failed: SeedResult, steps: int, overrides: Mapping[str, Any], run: Run, mutant: str | None = None) -> Shrunk:
    """The smallest failing run that is found within two minutes."""
    shrinker = Shrinker(failed, steps, overrides, run)
    shrinker.shrink()
    line = repeat_line(failed.seed, shrinker.steps, shrinker.overrides, mutant)
    return Shrunk(shrinker.best, shrinker.steps, shrinker.overrides, line)
