"""Many seeds, one verdict: runs worlds with all checks on, counts what they covered, says how to repeat a failure.

Invariants: what a seed does depends on nothing but the seed, the steps and the swarm's overrides; jobs only share out
seeds. Progress goes to stderr, the verdict to stdout.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count, islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from node.children import end_with_parent
from tests.simulation.coverage import Coverage
from tests.simulation.invariants import checks
from tests.simulation.report import SeedResult, Tally, counted
from tests.simulation.settling import run_world
from tests.simulation.shrink import shrink
from tests.simulation.swarm import CALM
from tests.simulation.world import World

STEPS: Final = 2000
PROGRESS_EVERY_S: Final = 10.0
COVERAGE_FROM_SEEDS: Final = 60  # fewer seeds need not see everything
ENDING: Final = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
EXIT_VIOLATION, EXIT_NEVER_OCCURRED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 64, 130


@dataclass(frozen=True)
class Options:
    """What `python -m tests.simulation` was asked for. `without`: fields of the swarm that become calm."""

    first: int = 0
    seeds: int = 60
    steps: int = STEPS
    jobs: int = 1
    mutant: str | None = None
    forever: bool = False
    json: bool = False
    trace: str | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()

    def settings(self) -> dict[str, Any]:
        """The swarm's fields that every seed gets."""
        return {name: getattr(CALM, name) for name in self.without} | dict(self.overrides)


def run_seed(
    seed: int, steps: int = STEPS, overrides: Mapping[str, Any] | None = None, *, trace: Path | None = None
) -> SeedResult:
    """One world from its seed, all checks on: `steps` of trouble, then peace. Never raises what the product raised."""
    coverage = Coverage()
    observers = [coverage, *checks()]
    world = World.from_seed(seed, observers=observers, keep_trace=trace is not None, **(overrides or {}))
    result = run_world(world, steps, world.trace, lambda: coverage.counts, coverage.recording())
    if trace is not None:
        trace.write_text("".join(world.trace.lines))
    return result


def _job(seed: int, steps: int, overrides: Mapping[str, Any], mutant: str | None, trace: str | None) -> SeedResult:
    """In a worker process; a planted bug is planted there."""
    with ExitStack() as stack:
        if mutant is not None:
            from tests.simulation.mutants import MUTANTS

            stack.enter_context(MUTANTS[mutant].plant())
        return run_seed(seed, steps, overrides, trace=None if trace is None else Path(trace))


def _begin_worker() -> None:
    """What interrupts a terminal's processes is for the one that shares out the seeds; without it nobody wants them."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    end_with_parent(signal.SIGKILL)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """What ends a campaign waits for so long: a pool that is left while it begins ends with an error of its own."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_many(seeds: Iterable[int], options: Options) -> Iterator[SeedResult]:
    """Results as they come; with one job in this process, in order."""
    what = (options.steps, options.settings(), options.mutant, options.trace)
    if options.jobs <= 1 or (options.seeds == 1 and not options.forever):
        yield from (_job(seed, *what) for seed in seeds)
        return
    waiting = iter(seeds)
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("fork"), initializer=_begin_worker) as pool:
        with _uninterrupted():
            running: set[Future[SeedResult]] = {
                pool.submit(_job, seed, *what) for seed in islice(waiting, 2 * options.jobs)
            }
        try:
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                running |= {pool.submit(_job, seed, *what) for seed in islice(waiting, len(done))}
                yield from (future.result() for future in done)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def say(text: str) -> None:
    """Progress, to stderr; the verdict alone goes to stdout."""
    print(text, file=sys.stderr, flush=True)


def _run_all(options: Options, tally: Tally) -> None:
    seeds = count(options.first) if options.forever else range(options.first, options.first + options.seeds)
    said_at = time.monotonic()
    for result in run_many(seeds, options):
        tally.add(result)
        if result.violation is not None:
            say(f"seed {result.seed}, step {result.steps}: {result.violation}")
            if options.forever:
                return
        if time.monotonic() - said_at >= PROGRESS_EVERY_S:
            said_at = time.monotonic()
            say(tally.progress())


def run(options: Options) -> int:
    """A campaign with its progress, its verdict and, after a violation, the line of a smaller run. The exit code."""
    if options.mutant is not None:
        from tests.simulation.mutants import MUTANTS

        if options.mutant not in MUTANTS:
            say(f"--mutant {options.mutant}: there is no such planted bug; there are {', '.join(sorted(MUTANTS))}")
            return EXIT_USAGE
        if MUTANTS[options.mutant].world != "core":
            line = f"python -m tests.simulation.prove --only {options.mutant}"
            say(f"--mutant {options.mutant}: this one lives in the driver's world: {line}")
            return EXIT_USAGE
    wanted = options.mutant is None and (options.forever or options.seeds >= COVERAGE_FROM_SEEDS)
    tally = Tally(
        options.steps, options.settings(), options.mutant, coverage_wanted=wanted, keep_traces=not options.forever
    )
    interrupted = False
    try:
        _run_all(options, tally)
    except KeyboardInterrupt:
        interrupted, tally.coverage_wanted = True, False  # what had no time to occur says nothing
        say("interrupted")
    if tally.seeds > 1:
        say(tally.progress())
    if tally.failures:
        first = min(tally.failures, key=lambda one: (one.steps, one.seed))

        def again(seed: int, steps: int, overrides: Mapping[str, Any]) -> SeedResult:
            return _job(seed, steps, overrides, options.mutant, None)

        small = shrink(first, options.steps, options.settings(), again, options.mutant)
        say(f"seed {first.seed} shrunk to {small.steps} steps: {small.result.violation}")
        say(f"reproduce it with: {small.line}")
    never = tally.missing()
    if never:
        say(f"never occurred: {', '.join(never)}")
    _verdict(options, tally, never)
    if tally.failures:
        return EXIT_VIOLATION
    return EXIT_INTERRUPTED if interrupted else EXIT_NEVER_OCCURRED if never else 0


def _verdict(options: Options, tally: Tally, never: list[str]) -> None:
    if options.json:
        print(json.dumps(tally.as_json(), indent=1))
        return
    reported = f"{counted(tally.seeds, 'seed')}, {tally.steps} steps, {tally.simulated_s:.1f} simulated seconds"
    if options.mutant is not None:
        names = sorted({one.violation.invariant for one in tally.failures if one.violation is not None})
        caught = f"caught in {counted(len(tally.failures), 'seed')} by {', '.join(names)}" if names else "not caught"
        print(f"{reported}: planted bug {options.mutant} {caught}")
    else:
        print(f"{reported}: {counted(len(tally.failures), 'violation')}, {counted(len(never), 'thing')} never occurred")
    if tally.traces:
        print(f"trace sha256 {tally.trace_sha256()}")
