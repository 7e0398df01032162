"""What a run and a campaign come to, as values: results, sums, JSON, and the line that does a failing run again."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from hashlib import sha256
from typing import Any, Final

from tests.simulation.coverage import SCARCE_FROM_SEEDS, missing
from tests.simulation.observer import Violation
from tests.simulation.swarm import CALM, Swarm

SECOND: Final = 1_000_000_000
_FIELDS: Final = tuple(one.name for one in fields(Swarm))


@dataclass(frozen=True)
class SeedResult:
    """One run. `steps` counts those before the faults stopped; `coverage` is a counter by stable names."""

    seed: int
    steps: int
    simulated_s: float
    violation: Violation | None
    trace_sha256: str
    coverage: dict[str, int]
    acknowledged: int = 0
    reads: int = 0
    seconds: float = 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        """Exceptions with two arguments do not survive pickling by themselves."""
        reported = None if self.violation is None else (self.violation.invariant, self.violation.detail)
        numbers = (self.acknowledged, self.reads, self.seconds)
        return _restored, (
            self.seed,
            self.steps,
            self.simulated_s,
            reported,
            self.trace_sha256,
            self.coverage,
            *numbers,
        )


def _restored(seed: int, steps: int, simulated_s: float, reported: tuple[str, str] | None, *rest: Any) -> SeedResult:
    return SeedResult(seed, steps, simulated_s, None if reported is None else Violation(*reported), *rest)


def counted(number: int, noun: str) -> str:
    """1 seed, 2 seeds."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def repeat_line(seed: int, steps: int, overrides: Mapping[str, Any], mutant: str | None = None) -> str:
    """The one line that does it again: what was made calm by `--without`, the rest by `--set`."""
    words = [f"quorumscope simulate --seed {seed} --steps {steps}"]
    calm = [name for name in _FIELDS if name in overrides and overrides[name] == getattr(CALM, name)]
    if calm:
        words.append(f"--without {','.join(calm)}")
    for name in _FIELDS:
        if name in overrides and name not in calm:
            value = overrides[name]
            words.append(f"--set {name}={str(value).lower() if isinstance(value, bool) else value}")
    if mutant is not None:
        words.append(f"--mutant {mutant}")
    return " ".join(words)


@dataclass
class Tally:
    """The sum of many runs of the same settings."""

    steps_each: int
    overrides: Mapping[str, Any]
    mutant: str | None = None
    coverage_wanted: bool = True
    keep_traces: bool = True
    seeds: int = 0
    steps: int = 0
    simulated_ns: int = 0
    acknowledged: int = 0
    reads: int = 0
    busy_s: float = 0.0
    failures: list[SeedResult] = field(default_factory=list)
    coverage: dict[str, int] = field(default_factory=dict)
    traces: dict[int, str] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    def add(self, result: SeedResult) -> None:
        """One more run."""
        self.seeds += 1
        self.steps += result.steps
        self.simulated_ns += int(result.simulated_s * SECOND)
        self.acknowledged += result.acknowledged
        self.reads += result.reads
        self.busy_s += result.seconds
        if result.violation is not None:
            self.failures.append(result)
        for name, number in result.coverage.items():
            self.coverage[name] = self.coverage.get(name, 0) + number
        if self.keep_traces:
            self.traces[result.seed] = result.trace_sha256

    @property
    def simulated_s(self) -> float:
        return self.simulated_ns / SECOND

    def trace_sha256(self) -> str:
        """One run: its own; many: of theirs, in the order of their seeds."""
        if len(self.traces) == 1:
            return next(iter(self.traces.values()))
        return sha256("".join(self.traces[seed] for seed in sorted(self.traces)).encode()).hexdigest()

    def missing(self) -> list[str]:
        """What never occurred and should have."""
        if not self.coverage_wanted:
            return []
        return missing(self.coverage, scarce=self.seeds >= SCARCE_FROM_SEEDS)

    def as_json(self) -> dict[str, Any]:
        """INTERFACES, `simulate`; beyond it: speed, and what never occurred."""
        return {
            "seeds": self.seeds,
            "steps": self.steps,
            "simulated_s": round(self.simulated_s, 3),
            "simulated_per_real_s": round(self.simulated_s / max(self.busy_s, 1e-9), 2),
            "violations": [self._failure(result) for result in sorted(self.failures, key=lambda one: one.seed)],
            "coverage": dict(sorted(self.coverage.items())),
            "missing": self.missing(),
            "trace_sha256": self.trace_sha256(),
        }

    def _failure(self, result: SeedResult) -> dict[str, Any]:
        assert result.violation is not None
        reported = {"invariant": result.violation.invariant, "detail": result.violation.detail}
        line = repeat_line(result.seed, self.steps_each, self.overrides, self.mutant)
        return {"seed": result.seed, "step": result.steps, **reported, "reproduce": line}

    def progress(self) -> str:
        """One line of progress."""
        real_s = max(time.monotonic() - self.began, 1e-9)
        return (
            f"{counted(self.seeds, 'seed')}, {self.steps} steps, {self.simulated_s:.0f} simulated seconds in "
            f"{real_s:.0f} s ({self.simulated_s / real_s:.1f} a second), {self.acknowledged} acknowledged appends, "
            f"{self.reads} reads, {counted(len(self.failures), 'violation')}, "
            f"{counted(len(self.missing()), 'thing')} not covered yet"
        )
