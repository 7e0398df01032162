"""Runs of the driver's world: one seed, or many, and what they came to.

`python -m tests.simulation.driver.campaign --seeds 50` prints a line for each; `--seed S --steps N` does one again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.simulation.driver.checks import driver_checks
from tests.simulation.driver.swarm import DriverSwarm
from tests.simulation.driver.world import DriverWorld
from tests.simulation.observer import Violation
from tests.simulation.report import SECOND, SeedResult
from tests.simulation.trace import Trace

STEPS = 6_000


def run_seed(
    seed: int, steps: int = STEPS, overrides: Mapping[str, Any] | None = None, *, trace_to: Path | None = None
) -> SeedResult:
    """One world: so many steps of trouble, then peace. Never raises what the product raised."""
    began = time.perf_counter()
    trace = Trace(keep=trace_to is not None)
    world = DriverWorld(seed, DriverSwarm.from_seed(seed, **(overrides or {})), [trace, *driver_checks()])
    violation: Violation | None = None
    try:
        world.run(steps)
        world.heal_and_settle()
    except Violation as found:
        violation = found
    except Exception as error:
        violation = Violation("no_exception", f"{type(error).__name__}: {error}")
        violation.__cause__ = error
    if trace_to is not None:
        trace.sha256()
        trace_to.write_text("".join(trace.lines))
    done = [one for one in world.history if one.result == "ok"]
    appends = sum(one.kind == "append" for one in done)
    return SeedResult(
        seed, min(world.steps, steps), world.now / SECOND, violation, trace.sha256(), dict(world.workload.counts),
        appends, len(done) - appends, time.perf_counter() - began,
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module's docstring; 1 where a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.driver.campaign", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--seed", type=int, help="this one only")
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--trace", metavar="FILE", help="writes what happened there, line by line")
    parser.add_argument("--mutant", help="with this bug planted")
    options = parser.parse_args(arguments)
    overrides = {name: json.loads(value) for name, _, value in (one.partition("=") for one in options.set)}
    seeds = [options.seed] if options.seed is not None else range(options.first, options.first + options.seeds)
    broken = 0
    for seed in seeds:
        result = run_seed(seed, options.steps, overrides, trace_to=options.trace and Path(options.trace))
        broken += result.violation is not None
        told = "" if result.violation is None else f" {result.violation}"
        counts = " ".join(f"{name}={number}" for name, number in sorted(result.coverage.items()))
        print(
            f"seed {seed}: {result.steps} steps, {result.simulated_s:.1f} s simulated in {result.seconds:.1f} s,"
            f" {result.acknowledged} appends {result.reads} reads {result.trace_sha256[:8]} [{counts}]{told}",
            flush=True,
        )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
