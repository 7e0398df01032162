"""Runs of the driver's world: one seed, or many, and what they came to.

`python -m tests.simulation.driver.campaign --seeds 50` prints a line for each; `--seed S --steps N` does one again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tests.simulation.driver.checks import driver_checks
from tests.simulation.driver.swarm import DriverSwarm
from tests.simulation.driver.world import DriverWorld
from tests.simulation.report import SeedResult, counted
from tests.simulation.settling import run_world
from tests.simulation.trace import Trace

STEPS = 6_000
LINES_MAX = 60  # more seeds than this are told of only where a promise was broken


def run_seed(
    seed: int, steps: int = STEPS, overrides: Mapping[str, Any] | None = None, *, trace_to: Path | None = None
) -> SeedResult:
    """One world: so many steps of trouble, then peace. Never raises what the product raised."""
    trace = Trace(keep=trace_to is not None)
    world = DriverWorld(seed, DriverSwarm.from_seed(seed, **(overrides or {})), [trace, *driver_checks()])
    result = run_world(world, steps, trace, lambda: world.workload.counts)
    world.timeline.end()
    if trace_to is not None:
        trace_to.write_text("".join(trace.lines))
    return result


def _planted(mutant: str | None, run: Callable[[int], SeedResult], seed: int) -> SeedResult:
    """With that bug in it, where one is named."""
    if mutant is None:
        return run(seed)
    from tests.simulation.mutants import MUTANTS

    with MUTANTS[mutant].plant():
        return run(seed)


def _over(jobs: int, work: Callable[[int], SeedResult], seeds: Sequence[int]) -> Iterator[SeedResult]:
    if jobs <= 1 or len(seeds) == 1:
        yield from map(work, seeds)
        return
    with get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(work, seeds)


def line_of(result: SeedResult) -> str:
    """What one seed came to."""
    reported = "" if result.violation is None else f" {result.violation}"
    counts = " ".join(f"{name}={number}" for name, number in sorted(result.coverage.items()))
    return (
        f"seed {result.seed}: {result.steps} steps, {result.simulated_s:.1f} s simulated in {result.seconds:.1f} s,"
        f" {result.acknowledged} appends {result.reads} reads {result.trace_sha256[:8]} [{counts}]{reported}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module's docstring; 1 where a promise was broken."""
    return run_campaign("tests.simulation.driver.campaign", __doc__, "driver's", STEPS, run_seed, arguments)


def run_campaign(
    name: str, about: str | None, whose: str, steps: int, run: Callable[..., SeedResult],
    arguments: Sequence[str] | None,
) -> int:  # fmt: skip
    """The command line of a world's runs; 1 where a promise was broken."""
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=about)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--seed", type=int, help="this one only")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--trace", metavar="FILE", help="writes what happened there, line by line")
    parser.add_argument("--mutant", help="with this bug planted")
    options = parser.parse_args(arguments)
    overrides = {name: json.loads(value) for name, _, value in (one.partition("=") for one in options.set)}
    first, count = (options.first, options.seeds) if options.seed is None else (options.seed, 1)
    seeds = range(first, first + count)
    trace_to = options.trace and Path(options.trace)
    one = partial(run, steps=options.steps, overrides=overrides, trace_to=trace_to)
    work = partial(_planted, options.mutant, one)
    broken = 0
    for result in _over(options.jobs, work, seeds):
        broken += result.violation is not None
        if result.violation is not None or len(seeds) <= LINES_MAX:
            print(line_of(result), flush=True)
    print(f"{counted(len(seeds), 'seed')} of the {whose} world: {counted(broken, 'violation')}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
