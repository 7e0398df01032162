"""Proves the proof: every planted bug is caught, and the worlds that catch them are clean without them.

`python -m tests.simulation.prove` runs, over J processes: each mutant over seeds until an invariant catches it
(bounded); the same seeds and profiles without it, which must be clean; the campaign of many seeds over everything; the
tests of real processes. It prints the table (mutant, rule, caught by, after how many seeds and steps, seconds) and ends
with 1 if a mutant survives, a mutant never differed from the right code, or a clean world is not clean.

A run is a pure function of mutant, seed and steps: any line of the table is run again with `--only NAME`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any, TypeVar

from tests.simulation.campaign import run_seed
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.observer import Violation

SEEDS_PER_MUTANT = 200
STEPS = 2_000
# Longer than the runs in the tests; five members, and the ways without privileges.
PROCESS_RUNS = (
    "--seconds 120 --seed 1", "--seconds 60 --seed 2 --members 5", "--seconds 60 --seed 3 --mode proxy --disk quota",
)  # fmt: skip
T = TypeVar("T")
A = TypeVar("A")


@dataclass(slots=True, frozen=True)
class Catch:
    """How one mutant fared. `invariant` None: nothing caught it."""

    mutant: str
    rule: str
    invariant: str | None
    detail: str
    seeds: int  # how many were run, the one that caught it included
    seed: int
    steps: int  # of the seed that caught it
    differed: int  # how often the planted code was not the right one
    seconds: float


@dataclass(slots=True, frozen=True)
class Clean:
    """The same worlds without the mutant."""

    mutant: str
    seeds: int
    violation: str | None
    seed: int
    seconds: float


def hunt(name: str, *, seeds: int = SEEDS_PER_MUTANT, steps: int = STEPS) -> Catch:
    """One mutant over seeds until it is caught: a violation that the same world without it does not have."""
    mutant = MUTANTS[name]
    began = time.monotonic()
    differed = 0
    for seed in range(seeds):
        with mutant.plant() as tally:
            outcome = run_seed(seed, steps, mutant.profile)
        differed += tally.differed
        violation = outcome.violation
        if violation is not None and tally.differed and _without(mutant, seed, steps) is None:
            return Catch(
                name, mutant.rule, violation.invariant, violation.detail, seed + 1, seed, outcome.steps, differed,
                time.monotonic() - began,
            )  # fmt: skip
    return Catch(name, mutant.rule, None, "", seeds, -1, -1, differed, time.monotonic() - began)


def _without(mutant: Mutant, seed: int, steps: int) -> Violation | None:
    """What the same world finds without the bug."""
    with mutant.plant_cause():
        return run_seed(seed, steps, mutant.profile).violation


def check_clean(name: str, *, seeds: int, steps: int = STEPS) -> Clean:
    """The mutant's worlds, as many as it took to catch it, without it."""
    began = time.monotonic()
    for seed in range(seeds):
        violation = _without(MUTANTS[name], seed, steps)
        if violation is not None:
            return Clean(name, seed + 1, f"{violation.invariant}: {violation.detail}", seed, time.monotonic() - began)
    return Clean(name, seeds, None, -1, time.monotonic() - began)


def _clean_of(catch: Catch, steps: int) -> Clean:
    return check_clean(catch.mutant, seeds=catch.seeds, steps=steps)


def _over(jobs: int, work: Callable[[A], T], items: Sequence[A]) -> Iterable[T]:
    """In the order of completion."""
    if jobs <= 1:
        yield from map(work, items)
        return
    with get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(work, items)


# --- the table ----------------------------------------------------------------------------------------------------
HEAD = f"{'mutant':34}{'rule':18}{'caught by':28}{'seeds':>6}{'steps':>7}{'differed':>9}{'seconds':>9}"


def line_of(catch: Catch) -> str:
    """One row."""
    caught_by = catch.invariant or ("NEVER DIFFERED" if not catch.differed else "SURVIVED")
    steps = catch.steps if catch.invariant else ""
    return (
        f"{catch.mutant:34}{catch.rule:18}{caught_by:28}{catch.seeds:>6}{steps:>7}{catch.differed:>9}"
        f"{catch.seconds:>9.1f}"
    )


def prove_mutants(names: Sequence[str], *, seeds: int, steps: int, jobs: int) -> list[Catch]:
    """Prints the rows as they come, worst of all the survivors at the end."""
    print(HEAD, flush=True)
    catches: list[Catch] = []
    for catch in _over(jobs, partial(hunt, seeds=seeds, steps=steps), names):
        catches.append(catch)
        print(line_of(catch), flush=True)
    return sorted(catches, key=lambda one: list(MUTANTS).index(one.mutant))


def prove_clean(catches: Sequence[Catch], *, steps: int, jobs: int) -> list[Clean]:
    """The profiles without their mutants."""
    found = list(_over(jobs, partial(_clean_of, steps=steps), catches))
    for clean in found:
        if clean.violation is not None:
            print(f"NOT CLEAN without {clean.mutant}, seed {clean.seed}: {clean.violation}", flush=True)
    print(f"{sum(one.seeds for one in found)} worlds without a mutant: {'clean' if _all_clean(found) else 'NOT clean'}")
    return found


def _all_clean(found: Iterable[Clean]) -> bool:
    return all(one.violation is None for one in found)


def _run(*command: str) -> bool:
    print(" ".join(command), flush=True)
    return subprocess.run([sys.executable, *command], check=False).returncode == 0


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.prove", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, help="seeds of the campaign without a mutant; 0: no campaign")
    parser.add_argument("--mutant-seeds", type=int, default=SEEDS_PER_MUTANT, help="at most so many per mutant")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", action="append", choices=sorted(MUTANTS), help="these mutants, and nothing else")
    parser.add_argument("--no-processes", action="store_true", help="leave the tests of real processes out")
    parser.add_argument("--json", metavar="FILE", help="the table as JSON")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    names = options.only or list(MUTANTS)
    catches = prove_mutants(names, seeds=options.mutant_seeds, steps=options.steps, jobs=options.jobs)
    caught = [one for one in catches if one.invariant is not None]
    print(f"{len(caught)} of {len(catches)} mutants caught in {time.monotonic() - began:.0f} s", flush=True)
    cleans = prove_clean(caught, steps=options.steps, jobs=options.jobs)
    sound = len(caught) == len(catches) and _all_clean(cleans)
    if not options.only and options.seeds:
        jobs, seeds, steps = str(options.jobs), str(options.seeds), str(options.steps)
        sound &= _run("-m", "tests.simulation", "--seeds", seeds, "--steps", steps, "--jobs", jobs)
    if not options.only and not options.no_processes:
        sound &= _run("-m", "pytest", "-q", "-n0", "tests/process")
        for words in PROCESS_RUNS:
            sound &= _run("-m", "tests.process.chaos", *words.split())
    took_s = time.monotonic() - began
    print(f"{'proved' if sound else 'NOT proved'} in {took_s:.0f} s")
    if options.json:
        value: dict[str, Any] = {
            "mutants": [asdict(one) for one in catches],
            "clean": [asdict(one) for one in cleans],
            "sound": sound,
            "seconds": round(took_s, 1),
        }
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(value, file, indent=1)
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
