"""`python -m tests.simulation`: many seeds, one seed, or real processes; `quorumscope simulate` runs this.

Exit codes: 0 no violation; 1 a violation (its seed and the line that reproduces it are printed); 2 a campaign in which
something never occurred; 64 a wrong command line; 130 interrupted before anything was found.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NoReturn

from tests.simulation.swarm import CALM, Swarm

EXIT_USAGE = 64
SEEDS, STEPS = 60, 2000


class Parser(argparse.ArgumentParser):
    """Ends with 64 on a wrong command line."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"quorumscope simulate: {message}\n")


def field_value(word: str) -> tuple[str, Any]:
    """`field=value` of a swarm. Raises ValueError on a field that there is not, or a value of another type."""
    name, separator, text = word.partition("=")
    kind = type(getattr(CALM, name, None))
    if not separator or name not in (one.name for one in fields(Swarm)):
        raise ValueError(f"{word!r} is not field=value with a field of the swarm")
    if kind is bool:
        if text not in ("true", "false"):
            raise ValueError(f"{name} is true or false, not {text!r}")
        return name, text == "true"
    try:
        return name, kind(text)
    except ValueError:
        raise ValueError(f"{name} takes a number ({kind.__name__}), not {text!r}") from None


def parser() -> Parser:
    """The command line."""
    made = Parser(prog="python -m tests.simulation", description="Simulated groups under faults, one seed each.")
    add = made.add_argument
    add("--seeds", type=int, default=SEEDS, metavar="N", help=f"how many seeds (default {SEEDS})")
    add("--first", type=int, default=0, metavar="S", help="the first seed (default 0)")
    add("--seed", type=int, metavar="S", help="this seed only")
    add("--steps", type=int, default=STEPS, metavar="M", help=f"steps of each seed (default {STEPS})")
    add("--mutant", metavar="NAME", help="plants this bug first")
    add("--forever", action="store_true", help="goes on until a violation, then shrinks it")
    add("--jobs", type=int, default=os.cpu_count() or 1, metavar="J", help="processes (default: one per core)")
    add("--json", action="store_true", help="one JSON object at the end")
    add("--trace", metavar="FILE", help="writes everything that happened; with one seed only")
    add("--without", action="append", default=[], metavar="A,B", help="turns these fields of the swarm off")
    add("--set", action="append", default=[], metavar="FIELD=VALUE", help="sets a field of the swarm")
    add("--processes", action="store_true", help="real processes instead; its own options follow")
    return made


def options_of(words: Sequence[str]) -> Any:
    """What the campaign wants to know."""
    from tests.simulation.campaign import Options

    reader = parser()
    given = reader.parse_args(words)
    names = [one.name for one in fields(Swarm)]
    without = tuple(name for group in given.without for name in group.split(",") if name)
    for name in without:
        if name not in names:
            reader.error(f"--without {name}: the swarm has no such field; it has {', '.join(names)}")
    try:
        overrides = dict(field_value(word) for word in given.set)
    except ValueError as error:
        reader.error(f"--set: {error}")
    if given.seeds < 1 or given.steps < 1 or given.jobs < 1:
        reader.error("--seeds, --steps and --jobs are at least 1")
    first, seeds = (given.first, given.seeds) if given.seed is None else (given.seed, 1)
    if given.trace is not None and seeds != 1:
        reader.error("--trace writes one run: name it with --seed")
    return Options(
        first=first, seeds=seeds, steps=given.steps, jobs=given.jobs, mutant=given.mutant, forever=given.forever,
        json=given.json, trace=given.trace, overrides=overrides, without=without,
    )  # fmt: skip


def main(words: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if words is None else words)
    if "--processes" in given:
        from tests.process.chaos import main as processes

        given.remove("--processes")
        return int(processes(given))
    from tests.simulation.campaign import run

    return int(run(options_of(given)))


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):  # it ends in order, as at a Ctrl-C
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # before the campaign, which ends in order, had begun
        sys.exit(130)
