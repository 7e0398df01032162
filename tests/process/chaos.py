"""`quorumscope simulate --processes`: real nodes, real disks, real clients, and everything that goes wrong with them.

    python -m tests.process.chaos [--seconds N] [--seed S] [--members 3|5] [--mode auto|netns|proxy]
                                  [--plan random|each] [--disk auto|quota] [--flush sync|async]
                                  [--lease-reads] [--brokers] [--keep] [--json]

Exit codes: 0 everything held; 1 a violation, with the directory that shows it; 2 the group never came up; 64 usage; 130
interrupted. The same seed gives the same plan, not the same run: real processes are not deterministic.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.process.chaos_plan import KINDS
from tests.process.chaos_run import NotStarted, Options, Report, Run
from tests.process.net import enter, isolation

EXIT_VIOLATION: Final = 1
EXIT_UNDETERMINED: Final = 2
EXIT_USAGE: Final = 64
EXIT_INTERRUPTED: Final = 130
MODULE: Final = "tests.process.chaos"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        print(f"simulate --processes: {message}", file=sys.stderr)
        sys.exit(EXIT_USAGE)


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The command line; exits with 64 where it is wrong."""
    parser = _Parser(prog="quorumscope simulate --processes", description="Real nodes under real faults.")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long faults go on (default 60)")
    parser.add_argument("--seed", type=int, help="of the plan; random where absent, and printed")
    parser.add_argument("--members", type=int, choices=(3, 5), default=3)
    parser.add_argument("--mode", choices=("auto", "netns", "proxy"), default="auto")
    parser.add_argument("--plan", choices=("random", "each"), default="random", help="each: every kind of fault once")
    parser.add_argument("--disk", choices=("auto", "quota"), default="auto", help="quota: fill it by RLIMIT_FSIZE")
    parser.add_argument("--flush", choices=("sync", "async"), default="sync")
    parser.add_argument("--lease-reads", action="store_true", help="of the group; some reads then use the lease")
    parser.add_argument(
        "--brokers", action="store_true", help="a broker beside each engine; messages instead of appends"
    )
    parser.add_argument("--keep", action="store_true", help="keep the directory of a run in which everything held")
    parser.add_argument("--json", action="store_true", help="the report as one JSON object on stdout")
    parser.add_argument("--inside", choices=("netns", "proxy"), help=argparse.SUPPRESS)
    parser.add_argument("--mounts", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.seconds < 3:
        parser.error("--seconds: 3 at the least")
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1_000_000)
    return options


def go_inside(options: argparse.Namespace) -> None:
    """Starts this program anew in namespaces of its own, or settles for what is permitted; exits 64 without."""
    found = isolation(network=options.mode != "proxy")
    if options.mode == "netns" and not found.network:
        print("simulate --processes: no network namespace may be made here: use --mode proxy", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    words = [
        "--seconds", str(options.seconds), "--seed", str(options.seed), "--members", str(options.members),
        "--plan", options.plan, "--flush", options.flush, "--inside", "netns" if found.network else "proxy",
    ]  # fmt: skip
    words += ["--lease-reads"] * options.lease_reads + ["--brokers"] * options.brokers
    words += ["--json"] * options.json + ["--keep"] * options.keep
    words += ["--mounts"] * (found.mount and options.disk == "auto")
    if found.command:
        enter(found, MODULE, words)
    options.inside = "proxy"


def reproduce(options: argparse.Namespace) -> str:
    """The line that runs the same plan again."""
    words = f"--seed {options.seed} --seconds {options.seconds:g} --members {options.members} --mode {options.inside}"
    words += " --plan each" * (options.plan == "each") + " --flush async" * (options.flush == "async")
    words += " --lease-reads" * options.lease_reads + " --brokers" * options.brokers
    return f"quorumscope simulate --processes {words}"


def tell(report: Report) -> None:
    """The end of a run, for a reader."""
    outcomes = ", ".join(
        f"{sum(counts.values())} {kind}s ({counts['ok']} ok, {counts['fail']} refused, {counts['unknown']} unknown)"
        for kind, counts in report.operations.items()
    )
    why = ", ".join(f"{name} {count}" for name, count in report.refusals.items())
    did = ", ".join(f"{kind} {count}" for kind, count in report.faults.items())
    print(f"seed {report.options.seed}, {report.options.mode}: {outcomes or 'nothing was asked'}")
    print(f"refused because: {why or 'nothing was'}")
    print(f"faults: {did or 'none'}")
    print(f"disk of {report.small}: {report.disk}; slow lines: {report.slow_by or 'none, no shaper here'}")
    if report.settled_s is not None:
        print(
            f"log: {report.acknowledged_entries} entries acknowledged, {report.committed_index + 1} committed, term"
            f" {report.term}; settled within {report.settled_s} s"
        )
    if report.options.brokers:
        print(f"{report.came_again} messages came again to their group")
    for one in report.violations:
        print(f"VIOLATION {one.rule}: {one.detail}")
    if not report.violations:
        print("everything that was promised is there, on every member")


async def supervised(run: Run) -> Report | None:
    """The run; None where a signal ended it. A second signal does not hurry it: what was started has to be ended."""
    task = asyncio.ensure_future(run.run())
    loop = asyncio.get_running_loop()
    interrupted = asyncio.Event()

    def interrupt() -> None:
        if not interrupted.is_set():
            interrupted.set()
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt)
    try:
        return await task
    except asyncio.CancelledError:
        for number in (signal.SIGINT, signal.SIGTERM):  # files are still to be removed
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)
        return None


def main(words: Sequence[str] | None = None) -> int:
    options = parse(sys.argv[1:] if words is None else words)
    if options.inside is None:
        go_inside(options)
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {line}", file=sys.stderr, flush=True)

    directory = Path(tempfile.mkdtemp(prefix="quorumscope-chaos-"))
    keep = options.keep
    say(f"{reproduce(options)}   ({len(KINDS)} kinds of faults; files in {directory})")
    wanted = Options(
        options.seed, options.seconds, options.members, options.inside, options.mounts, options.plan == "each",
        options.flush, options.lease_reads, options.brokers,
    )  # fmt: skip
    try:
        report = asyncio.run(supervised(Run(wanted, directory, say)))
        if report is None:
            print("simulate --processes: interrupted; every process is ended", file=sys.stderr)
            return EXIT_INTERRUPTED
        keep = keep or bool(report.violations)
        if options.json:
            print(json.dumps(report.as_json() | ({"directory": str(directory)} if keep else {})))
        else:
            tell(report)
        if report.violations:
            print(f"again: {reproduce(options)}   files: {directory}", file=sys.stderr)
            return EXIT_VIOLATION
        return 0
    except NotStarted as error:
        keep = True
        print(f"simulate --processes: {error}; see {directory}", file=sys.stderr)
        return EXIT_UNDETERMINED
    except BaseException:
        keep = True
        print(f"simulate --processes: a mistake of this program; files: {directory}", file=sys.stderr)
        raise
    finally:
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
