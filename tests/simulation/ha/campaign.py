"""Runs of the world of master and slaves: one seed, or many.

`python -m tests.simulation.ha.campaign --seeds 50` prints a line for each; `--seed S --steps N` does one again.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from tests.simulation.driver.campaign import run_campaign
from tests.simulation.ha.world import World
from tests.simulation.observer import Violation, of_exception
from tests.simulation.report import SeedResult

STEPS = 400


def run_seed(
    seed: int, steps: int = STEPS, overrides: Mapping[str, Any] | None = None, *, trace_to: Path | None = None
) -> SeedResult:
    """One world: so many steps of trouble, then peace. Never raises what the product raised."""
    began = time.monotonic()
    world = World(seed, **(overrides or {}))
    violation: Violation | None = None
    try:
        world.run(steps)
    except Violation as error:
        violation = error
    except Exception as error:
        violation = of_exception("a broker", error)
    lines = [f"{at} {node.name} {kind} {text}\n" for node in world.nodes for at, kind, text in node.notes]
    if trace_to is not None:
        trace_to.write_text("".join(sorted(lines)))
    kinds = Counter(kind for node in world.nodes for _at, kind, _text in node.notes)
    return SeedResult(
        seed, world.steps, world.now_ms / 1000, violation, sha256("".join(lines).encode()).hexdigest(), dict(kinds),
        len(world.acknowledged), 0, time.monotonic() - began,
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module's docstring; 1 where a promise was broken."""
    return run_campaign("tests.simulation.ha.campaign", __doc__, "pair's", STEPS, run_seed, arguments)


if __name__ == "__main__":
    sys.exit(main())
