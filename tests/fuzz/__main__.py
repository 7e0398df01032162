"""`python -m tests.fuzz [--target T]… [--seconds N] [--input HEX] [--list]`: fuzz on, guided by coverage with atheris.

Without atheris (it has wheels for Linux only) the same mutations run unguided, each round from a seed that is printed
with what it breaks. Exit code 1: a target broke a rule; the input is printed.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COUNTED_EVERY = 64  # one input of so many has its memory counted: that costs


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--target", action="append", default=[], metavar="NAME", help="only this one; may be repeated")
    parser.add_argument(
        "--seconds",
        type=float,
        default=60.0,
        help="shared out among the targets; each takes some more to start",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the first round, without coverage")
    parser.add_argument("--input", metavar="HEX", help="run this one input of one target")
    parser.add_argument("--engine", choices=("auto", "atheris", "mutate"), default="auto")
    parser.add_argument("--list", action="store_true", help="the targets' names")
    return parser.parse_args()


def guided(name: str, seconds: float, seed: int) -> int:
    """One target under libFuzzer; does not return."""
    import atheris

    with atheris.instrument_imports(include=["node", "app"]):
        from tests.fuzz.target import run_counted, run_one
        from tests.fuzz.targets import TARGETS
    target = TARGETS[name]
    runs = 0

    def one(data: bytes) -> None:
        nonlocal runs
        runs += 1
        (run_counted if runs % COUNTED_EVERY == 0 else run_one)(target, data)

    with tempfile.TemporaryDirectory() as folder:
        for number, data in enumerate(target.seeds()):
            (Path(folder) / str(number)).write_bytes(data)
        limits = [f"-max_total_time={max(1, round(seconds))}", "-max_len=65536", "-timeout=20", "-rss_limit_mb=2048"]
        options = ["-verbosity=0", "-print_final_stats=1", f"-artifact_prefix={folder}/", f"-seed={seed + 1}"]
        atheris.Setup([sys.argv[0], *limits, *options, folder], one)
        atheris.Fuzz()
    return 0


def unguided(name: str, seconds: float, seed: int) -> int:
    """One target with our own mutations."""
    from tests.fuzz.mutate import mutate
    from tests.fuzz.target import Broken, run_counted, run_one
    from tests.fuzz.targets import TARGETS

    target = TARGETS[name]
    seeds = list(target.seeds())
    until = time.monotonic() + seconds
    rng, runs, decoded = random.Random(seed), 0, 0
    while time.monotonic() < until:
        data = rng.randbytes(rng.randrange(300)) if runs % 20 == 0 else mutate(seeds, rng, target.repair)
        try:
            decoded += (run_counted if runs % COUNTED_EVERY == 0 else run_one)(target, data)
        except Broken as error:
            print(f"run {runs} of seed {seed}: {error}", flush=True)
            return 1
        runs += 1
    print(f"{name}: {runs} inputs, {decoded} decoded, nothing broke", flush=True)
    return 0


def main() -> int:
    options = parse()
    from tests.fuzz.target import Broken, run_counted

    if importlib.util.find_spec("pytest") is None:  # the targets share vectors and helpers with the tests
        print("the fuzz targets need what tests need: make setup installs it", file=sys.stderr)
        return 2
    if options.input is not None or options.list or len(options.target) != 1:
        from tests.fuzz.targets import TARGETS

        names = options.target or list(TARGETS)
        if unknown := [name for name in names if name not in TARGETS]:
            print(f"no target {unknown[0]!r}; there are: {' '.join(TARGETS)}", file=sys.stderr)
            return 2
        if options.list:
            print("\n".join(TARGETS))
            return 0
        if options.input is not None:
            try:
                print("decoded" if run_counted(TARGETS[names[0]], bytes.fromhex(options.input)) else "refused")
            except Broken as error:
                print(error)
                return 1
            return 0
        return every(names, options)
    have = importlib.util.find_spec("atheris") is not None
    way = guided if options.engine == "atheris" or (options.engine == "auto" and have) else unguided
    return way(options.target[0], options.seconds, options.seed)


def every(names: list[str], options: argparse.Namespace) -> int:
    """Each target in a process of its own: libFuzzer ends the one it runs in."""
    broken: list[str] = []
    for name in names:
        share = str(options.seconds / len(names))
        command = [sys.executable, "-m", "tests.fuzz", "--target", name, "--seconds", share]
        ended = subprocess.run([*command, "--seed", str(options.seed), "--engine", options.engine], check=False)
        if ended.returncode:
            broken.append(name)
    print(f"{len(names)} targets, {len(broken)} broke a rule{': ' if broken else ''}{', '.join(broken)}", flush=True)
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
