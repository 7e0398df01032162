"""Runs of the broker's world: one seed, or many.

`python -m tests.simulation.broker.campaign --seeds 50` prints a line for each; `--seed S --steps N` does one again.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.simulation.broker.checks import broker_checks
from tests.simulation.broker.swarm import BrokerSwarm
from tests.simulation.broker.world import BrokerWorld
from tests.simulation.driver.campaign import run_campaign
from tests.simulation.report import SeedResult
from tests.simulation.settling import run_world
from tests.simulation.trace import Trace

STEPS = 8_000


def run_seed(
    seed: int, steps: int = STEPS, overrides: Mapping[str, Any] | None = None, *, trace_to: Path | None = None
) -> SeedResult:
    """One world: so many steps of trouble, then peace. Never raises what the product raised."""
    trace = Trace(keep=trace_to is not None)
    book, checks = broker_checks()
    world = BrokerWorld(seed, BrokerSwarm.from_seed(seed, **(overrides or {})), [trace, *checks], book)
    result = run_world(world, steps, trace, lambda: world.workload.counts)
    world.timeline.end()
    if trace_to is not None:
        trace_to.write_text("".join(trace.lines))
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module's docstring; 1 where a promise was broken."""
    return run_campaign("tests.simulation.broker.campaign", __doc__, "broker's", STEPS, run_seed, arguments)


if __name__ == "__main__":
    sys.exit(main())
