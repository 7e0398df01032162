"""Same seed, same trace, byte for byte: also in another process, with another hash seed (a seed is a run)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.simulation.world import World

SEEDS = range(900, 912)
STEPS = 1200

PROGRAM = f"""
from tests.simulation.test_determinism import traces
print("\\n".join(traces(range({SEEDS.start}, {SEEDS.stop}), {STEPS})))
"""


def traces(seeds: range, steps: int) -> list[str]:
    """One hash per seed."""
    hashes = []
    for seed in seeds:
        world = World.from_seed(seed)
        world.run(steps)
        world.heal_and_settle()
        hashes.append(f"{seed} {world.trace.sha256()} {world.trace.count} {world.now}")
    return hashes


def in_another_process(hash_seed: str) -> list[str]:
    root = Path(__file__).resolve().parents[2]
    environment = dict(os.environ, PYTHONHASHSEED=hash_seed)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=root, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.split("\n")[:-1]


def test_a_seed_gives_the_same_trace_in_every_process() -> None:
    one, other = in_another_process("1"), in_another_process("4242")
    assert len(one) == len(SEEDS)
    assert one == other
    assert one == traces(SEEDS, STEPS)  # and whatever ran in this process before


def test_seeds_differ() -> None:
    hashes = [line.split()[1] for line in traces(range(3), 200)]
    assert len(set(hashes)) == 3


def test_a_kept_trace_hashes_as_one_that_is_not_kept() -> None:
    kept, bare = World.from_seed(4, keep_trace=True), World.from_seed(4)
    kept.run(300)
    bare.run(300)
    assert kept.trace.sha256() == bare.trace.sha256()
    assert len(kept.trace.lines) == kept.trace.count
    assert kept.trace.lines[0].startswith("0 swarm Swarm(")
