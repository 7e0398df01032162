"""Proves the proof: every planted bug is caught, and the worlds that catch them are clean without them.

`python -m tests.simulation.prove` runs, over J processes: each mutant over seeds until an invariant catches it, the
seed that is known to (`mutants/seeds.json`) first; the campaign of fixed seeds over everything, and one of seeds that
the commit's hash names; the unit tests with new examples; attacks that nobody has seen, the tests of real processes
that `make test` leaves out, and beside them, at the lowest priority, the worlds of every mutant without it, each over
twenty seeds that the commit's hash names, which must be clean. It prints the table (mutant, rule, caught by, after how
many seeds and steps, seconds) and ends with 1 if a mutant survives, a mutant never differed from the right code, or a
clean world is not clean.
`--quick` leaves out what takes long: it is what `.ci/run` runs. `--clean N` runs N seeds of each mutant's world without
it and nothing else: what a change of core, store or driver should see before it lands. Each phase has its line at the
end.

A run is a pure function of mutant, seed and steps: any line of the table is run again with `--only NAME`.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from tests.simulation.broker.campaign import run_seed as serve
from tests.simulation.campaign import EXIT_NEVER_OCCURRED, run_seed
from tests.simulation.driver.campaign import run_seed as drive
from tests.simulation.ha.campaign import run_seed as follow
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.observer import Violation
from tests.simulation.report import SeedResult

SEEDS_PER_MUTANT = 200
SEEDS_PER_WORLD = 20
WORLDS_AT_ONCE = 10
PIECES_PER_LINE = 25
LOWEST_PRIORITY = 19  # nice's
FIXED_MOST = 100_000  # the fixed seeds, and those of a campaign by hand, are below
KNOWN_SEEDS = Path(__file__).parent / "mutants" / "seeds.json"
STEPS = 2_000
DRIVER_STEPS = 4  # steps of the driver's world for one of the core's
DRIVER_HUNT_STEPS = 2  # and where a mutant is hunted, which most show early
BROKER_STEPS = 3  # and of the broker's
PAIR_SHARE = 5  # of the core's steps, one of a master's and its slaves'
DRIVER_SHARE = 10  # of so many seeds one runs in the driver's world as well
BROKER_SHARE = 100  # and one in the broker's, where it takes longest
# Longer than the runs in the tests; five members, and the ways without privileges.
PROCESS_RUNS = (
    "--seconds 120 --seed 1", "--seconds 60 --seed 2 --members 5", "--seconds 60 --seed 3 --mode proxy --disk quota",
)  # fmt: skip
LONG_ONES = ("tests/simulation", "tests/process", "tests/api", "tests/audit", "tests/browser")
MEASURES = "tests/bench"  # alone, as whoever measures runs them
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
class Worlds:
    """The worlds of one mutant, or of several that share them, without it."""

    mutant: str
    seeds: int
    violation: str | None
    seed: int


def known_seeds() -> dict[str, int]:
    """The seed that caught each mutant last. Only a hint: what a seed does depends on the version."""
    value = json.loads(KNOWN_SEEDS.read_text(encoding="utf-8")) if KNOWN_SEEDS.exists() else {}
    return {str(name): int(seed) for name, seed in value.items()}


def hunt(name: str, *, seeds: int = SEEDS_PER_MUTANT, steps: int = STEPS, first: int | None = None) -> Catch:
    """One mutant over seeds until it is caught: a violation that the same world without it does not have.

    `first`: the seed to try before all others.
    """
    mutant = MUTANTS[name]
    began = time.monotonic()
    differed = tried = 0
    hint = [] if first is None else [first]
    for seed in (*hint, *(seed for seed in range(seeds) if seed != first)):
        tried += 1
        with mutant.plant() as tally:
            outcome = _run_world(mutant, seed, steps)
        differed += tally.differed
        violation = outcome.violation
        if violation is not None and tally.differed and _without(mutant, seed, steps) is None:
            return Catch(
                name, mutant.rule, violation.invariant, violation.detail, tried, seed, outcome.steps, differed,
                time.monotonic() - began,
            )  # fmt: skip
    return Catch(name, mutant.rule, None, "", tried, -1, -1, differed, time.monotonic() - began)


def _hunt_known(name_and_seed: tuple[str, int | None], *, seeds: int, steps: int) -> Catch:
    name, first = name_and_seed
    return hunt(name, seeds=seeds, steps=steps, first=first)


def _run_world(mutant: Mutant, seed: int, steps: int) -> SeedResult:
    """In the world that this mutant belongs to; the driver's takes more steps for as much simulated time.

    Without state machines, brokers, followers and members that change, unless it is about them: other trouble.
    """
    profile = {"applier": False, "read_ways": False, **mutant.profile}
    steps *= mutant.lasts
    if mutant.world == "pair":
        return follow(seed, steps // PAIR_SHARE, mutant.profile)
    if mutant.world == "broker":
        return serve(seed, BROKER_STEPS * steps, mutant.profile)
    if mutant.world == "driver":
        del profile["read_ways"]  # its clients ask as the product's do
        return drive(seed, DRIVER_HUNT_STEPS * steps, {"followers": 0, "broker": False, **profile})
    return run_seed(seed, steps, {"membership": 0.0, "broker": False, **profile})


def _without(mutant: Mutant, seed: int, steps: int) -> Violation | None:
    """What the same world finds without the bug."""
    with mutant.plant_cause():
        return _run_world(mutant, seed, steps).violation


def check_worlds(name_and_seeds: tuple[str, range], *, steps: int = STEPS) -> Worlds:
    """Some of a mutant's worlds, on clean code."""
    name, seeds = name_and_seeds
    for number, seed in enumerate(seeds, 1):
        violation = _without(MUTANTS[name], seed, steps)
        if violation is not None:
            return Worlds(name, number, f"{violation.invariant}: {violation.detail}", seed)
    return Worlds(name, len(seeds), None, -1)


def different_worlds(names: Iterable[str]) -> list[str]:
    """One mutant for each profile and cause, of those that share them one whose world lasts longest."""
    found: dict[str, str] = {}
    for name in sorted(names, key=lambda name: -MUTANTS[name].lasts):
        mutant = MUTANTS[name]
        found.setdefault(repr((mutant.world, sorted(mutant.profile.items()), mutant.cause)), name)
    return list(found.values())


def commit_seeds(commit: str, count: int) -> range:
    """The seeds that a commit's hash names; none of them is one of the fixed ones."""
    first = FIXED_MOST + int(commit[:12], 16) % 10**9
    return range(first, first + count)


def world_seeds(options: argparse.Namespace) -> range:
    """Of each mutant's world without it: `--clean N` the first ones, otherwise those that the commit names."""
    if options.clean is not None:
        return range(options.clean)
    commit = options.commit or head()
    return range(options.world_seeds) if commit is None else commit_seeds(commit, options.world_seeds)


def head() -> str | None:
    """The commit that is checked out; None outside of a repository."""
    command = ("git", "rev-parse", "HEAD")
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _over(jobs: int, work: Callable[[A], T], items: Sequence[A], *, niceness: int = 0) -> Iterable[T]:
    """In the order of completion. With `niceness` above 0 other processes that have work go first."""
    if jobs <= 1:
        yield from map(work, items)
        return
    with get_context("spawn").Pool(jobs, os.nice, (niceness,)) as pool:
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
    """Prints the rows as they come; a known seed that does not catch its mutant any more is named."""
    print(HEAD, flush=True)
    known = known_seeds()
    catches: list[Catch] = []
    items = [(name, known.get(name)) for name in names]
    for catch in _over(jobs, partial(_hunt_known, seeds=seeds, steps=steps), items):
        catches.append(catch)
        stale = catch.invariant is not None and catch.seed != known.get(catch.mutant)
        print(line_of(catch) + (f"  (now seed {catch.seed})" if stale else ""), flush=True)
    return sorted(catches, key=lambda one: list(MUTANTS).index(one.mutant))


def rewrite_known(catches: Iterable[Catch]) -> None:
    """Keeps the seeds that caught the mutants this time."""
    known = known_seeds() | {one.mutant: one.seed for one in catches if one.invariant is not None}
    kept = {name: known[name] for name in MUTANTS if name in known}
    KNOWN_SEEDS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def prove_worlds(names: Sequence[str], *, seeds: range, steps: int, jobs: int) -> list[Worlds]:
    """The mutants' own worlds on clean code, in pieces so that no process is left with the longest one."""
    # A part of each world first: what is broken in general shows early.
    pieces = [(name, part) for part in _parts(seeds) for name in different_worlds(names)]
    found: list[Worlds] = []
    began = time.monotonic()
    for one in _over(jobs, partial(check_worlds, steps=steps), pieces, niceness=LOWEST_PRIORITY):
        found.append(one)
        if one.violation is not None:
            print(f"NOT CLEAN: the world of {one.mutant}, seed {one.seed}: {one.violation}", flush=True)
        if len(found) % PIECES_PER_LINE == 0:
            done = f"{sum(one.seeds for one in found)} of {sum(map(len, (part for _, part in pieces)))} worlds"
            print(f"{done} in {time.monotonic() - began:.0f} s, the last of {one.mutant}", flush=True)
    clean = "clean" if _all_clean(found) else "NOT clean"
    print(f"{sum(one.seeds for one in found)} worlds of planted bugs, without them: {clean}", flush=True)
    return found


def _parts(seeds: range) -> list[range]:
    return [seeds[at : at + WORLDS_AT_ONCE] for at in range(0, len(seeds), WORLDS_AT_ONCE)]


def _all_clean(found: Iterable[Worlds]) -> bool:
    return all(one.violation is None for one in found)


def _run(*command: str, sound_codes: Collection[int] = (0,), **variables: str) -> bool:
    print(" ".join(command), flush=True)
    done = subprocess.run([sys.executable, *command], check=False, env={**os.environ, **variables})
    return done.returncode in sound_codes


def _properties(options: argparse.Namespace) -> bool:
    """The unit tests with examples that nobody has seen; `make test` draws the same ones every time."""
    return _run("-m", "pytest", "-q", "-n", str(options.jobs), "tests/unit", DRAW_EXAMPLES="1")


def _campaign(seeds: range, options: argparse.Namespace, sound_codes: Collection[int] = (0,)) -> bool:
    """Everything at once, over these seeds; a part of them also in the driver's and the broker's worlds."""
    if not seeds:
        return True
    words = ("--first", str(seeds.start), "--jobs", str(options.jobs))
    driven = ("--seeds", str(max(1, len(seeds) // DRIVER_SHARE)), "--steps", str(DRIVER_STEPS * options.steps))
    counted = ("--seeds", str(len(seeds)), "--steps", str(options.steps))
    sound = _run("-m", "tests.simulation", *words, *counted, sound_codes=sound_codes)
    served = ("--seeds", str(max(1, len(seeds) // BROKER_SHARE)), "--steps", str(BROKER_STEPS * options.steps))
    sound &= _run("-m", "tests.simulation.driver.campaign", *words, *driven)
    return _run("-m", "tests.simulation.broker.campaign", *words, *served) and sound


def _of_the_commit(options: argparse.Namespace) -> bool:
    """Violations count, and what never occurred does not: a rare event is missing in one drawn campaign and there in
    the next. That the simulator reaches everything is asked of the fixed seeds, where a list of seeds can be mended."""
    commit = options.commit or head()
    if commit is None:
        print("this is no checkout: the seeds of its commit are left out", flush=True)
        return True
    seeds = commit_seeds(commit, options.seeds)
    print(f"commit {commit}: seeds {seeds.start}..{seeds.stop - 1}", flush=True)
    return _campaign(seeds, options, (0, EXIT_NEVER_OCCURRED))


def _processes(options: argparse.Namespace) -> bool:
    """Attacks that nobody has seen, and what `make test` leaves out."""
    attack_seed = str(secrets.randbits(32))
    print(f"ATTACK_SEED={attack_seed}", flush=True)
    several = ("-m", "pytest", "-q", "-n", str(options.jobs), "--dist", "loadfile")
    sound = _run(*several, "tests/attack", ATTACK_SEED=attack_seed)
    sound &= _run(*several, "-m", "long", *LONG_ONES)
    sound &= _run("-m", "pytest", "-q", "-n0", "-m", "long", MEASURES)
    for words in PROCESS_RUNS:
        sound &= _run("-m", "tests.process.chaos", *words.split())
    return sound


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.prove", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, help="fixed seeds, and as many of the commit's; 0: none")
    parser.add_argument("--mutant-seeds", type=int, default=SEEDS_PER_MUTANT, help="at most so many per mutant")
    parser.add_argument("--world-seeds", type=int, default=SEEDS_PER_WORLD, help="of each mutant's world, without it")
    parser.add_argument("--clean", type=int, metavar="N", help="N seeds of each mutant's world without it, no more")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--commit", metavar="HASH", help="whose seeds to run; default: the one that is checked out")
    parser.add_argument(
        "--only",
        action="append",
        choices=sorted(MUTANTS),
        metavar="NAME",
        help="this mutant, and nothing else; may be given again",
    )
    parser.add_argument("--quick", action="store_true", help="the mutants and the fixed seeds only")
    parser.add_argument("--no-mutants", action="store_true", help="leave the mutants and their worlds out")
    parser.add_argument("--no-processes", action="store_true", help="leave the tests of real processes out")
    parser.add_argument("--rewrite-known", action="store_true", help="keep the seeds that catch the mutants now")
    parser.add_argument("--json", metavar="FILE", help="the table as JSON")
    return parser.parse_args(arguments)


class Phases:
    """What was run, how it ended and how long it took: a line of each, at the end."""

    def __init__(self) -> None:
        self.done: list[tuple[str, bool, float]] = []

    def run(self, name: str, work: Callable[[], bool]) -> None:
        """One phase; others run whatever its verdict is."""
        began = time.monotonic()
        sound = work()
        self.done.append((name, sound, time.monotonic() - began))

    @property
    def sound(self) -> bool:
        return all(sound for _, sound, _ in self.done)

    def lines(self) -> list[str]:
        return [f"{name:34}{'ok' if sound else 'NOT ok':8}{took_s:>8.0f} s" for name, sound, took_s in self.done]


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    options = _options(arguments)
    names = [] if options.no_mutants else options.only or list(MUTANTS)
    began = time.monotonic()
    phases = Phases()
    catches: list[Catch] = []
    worlds: list[Worlds] = []

    def mutants() -> bool:
        catches.extend(prove_mutants(names, seeds=options.mutant_seeds, steps=options.steps, jobs=options.jobs))
        caught = sum(one.invariant is not None for one in catches)
        print(f"{caught} of {len(catches)} mutants caught", flush=True)
        if options.rewrite_known:
            rewrite_known(catches)
        return caught == len(catches)

    def clean_worlds() -> bool:
        worlds.extend(prove_worlds(names, seeds=world_seeds(options), steps=options.steps, jobs=options.jobs))
        return _all_clean(worlds)

    if names and options.clean is None:
        phases.run("planted bugs", mutants)
    if not options.only and options.clean is None:
        phases.run("fixed seeds", lambda: _campaign(range(options.seeds), options))
        if not options.quick:
            phases.run("seeds of the commit", lambda: _of_the_commit(options))
            phases.run("properties, new examples", lambda: _properties(options))
    with ThreadPoolExecutor(1) as beside:
        real = not (options.only or options.clean is not None or options.quick or options.no_processes)
        processes = beside.submit(phases.run, "real processes", lambda: _processes(options)) if real else None
        # It begins with what real processes leave of the processors: they wait most of their time.
        if names and not options.quick:
            phases.run("their worlds without them", clean_worlds)
        if processes is not None:
            processes.result()
    took_s = time.monotonic() - began
    print(*phases.lines(), f"{'proved' if phases.sound else 'NOT proved'} in {took_s:.0f} s", sep="\n", flush=True)
    if options.json:
        value: dict[str, Any] = {
            "mutants": [asdict(one) for one in catches],
            "worlds": [asdict(one) for one in worlds],
            "sound": phases.sound,
            "seconds": round(took_s, 1),
        }
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(value, file, indent=1)
    return 0 if phases.sound else 1


if __name__ == "__main__":
    sys.exit(main())
