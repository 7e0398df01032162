"""`simulate`: whole groups under faults, from seeds, or real processes: `python -m tests.simulation` of a checkout.

Invariant: the simulator is a part of the tests, not of what is installed; where there is no source tree, this command
says so and does nothing. Its options, output and exit codes are the simulator's.
"""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Annotated, Final

import typer

from app.commands.endings import Exit, Failure
from app.commands.output import JsonOption
from app.resources import code_root
from node.children import dying_with_parent, environment, python

JOBS_MAX: Final = 1024  # the pool of processes ends with an error of its own at what no `int` holds

EPILOG = (
    "Exit codes: 0 every promise held; 1 one was broken (the line that does it again is printed);"
    " 2 something that has to occur never occurred; 64 usage."
)


def source_tree() -> Path:
    """Where `tests/simulation` is: beside `app`, or in the working directory. Raises Failure."""
    for tree in (code_root(), Path.cwd()):
        if (tree / "tests" / "simulation" / "__main__.py").is_file():
            return tree
    raise Failure(
        Exit.UNDETERMINED,
        "the simulator lies in the source tree (tests/simulation) and is not installed with the package:"
        " run this command in a clone",
    )


def simulate(
    context: typer.Context,
    seeds: Annotated[int | None, typer.Option(metavar="N", min=1, help="How many seeds (default 60).")] = None,
    first: Annotated[int | None, typer.Option(metavar="S", min=0, help="The first of them (default 0).")] = None,
    seed: Annotated[int | None, typer.Option(metavar="S", min=0, help="This one only.")] = None,
    steps: Annotated[int | None, typer.Option(metavar="M", min=1, help="Steps of each (default 2000).")] = None,
    jobs: Annotated[
        int | None, typer.Option(metavar="J", min=1, max=JOBS_MAX, help="Processes (default: one per core).")
    ] = None,
    without: Annotated[list[str] | None, typer.Option(metavar="A,B", help="Turn these faults off; repeatable.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Set a field of the swarm; repeatable.")
    ] = None,
    mutant: Annotated[str | None, typer.Option(metavar="NAME", help="Plant this bug first: is it caught?")] = None,
    forever: Annotated[bool, typer.Option("--forever", help="Go on until something breaks, then shrink it.")] = False,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write down all that happened; with --seed.")
    ] = None,
    processes: Annotated[
        bool, typer.Option("--processes", help="Real nodes and real faults instead; it has options of its own.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Put simulated groups through faults and check every promise.

    A seed is a run: the same seed does the same thing, byte for byte. Everything is checked after every step.
    """
    words: list[str] = ["--processes"] if processes else []
    numbers = {"--seeds": seeds, "--first": first, "--seed": seed, "--steps": steps, "--jobs": jobs}
    for flag, number in numbers.items():
        words += [] if number is None else [flag, str(number)]
    for flag, texts in (("--without", without), ("--set", settings)):
        for text in texts or ():
            words += [flag, text]
    words += [] if mutant is None else ["--mutant", mutant]
    words += ["--forever"] if forever else []
    words += [] if trace is None else ["--trace", str(trace.absolute())]
    words += ["--json"] if as_json else []
    if context.args and not processes:
        raise Failure(Exit.USAGE, f"simulate: no such option or argument: {context.args[0]}")
    return run_tree(source_tree(), [*words, *context.args])


def run_tree(tree: Path, words: list[str]) -> int:
    """`python -m tests.simulation` there, with this terminal; its exit code.

    It has processes and mounts of its own to end: what interrupts this command is passed on, and waited for.
    """
    variables = environment() | {"PYTHONPATH": str(tree)}
    command = python("-m", "tests.simulation", *words)
    process = subprocess.Popen(command, cwd=tree, env=variables, preexec_fn=dying_with_parent(signal.SIGTERM))
    was_interrupted = False
    while True:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            # A Ctrl-C reaches the whole terminal; what was sent to this process alone does not. It is passed on as
            # SIGTERM: a shell's job in the background ignores SIGINT, and so does what it starts.
            was_interrupted = True
            process.send_signal(signal.SIGTERM)
        else:
            return code if code >= 0 else Exit.INTERRUPTED if was_interrupted else Exit.UNDETERMINED


def register(app: typer.Typer) -> None:
    """Adds the command; what it does not know goes to the process runs."""
    loose = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(epilog=EPILOG, context_settings=loose)(simulate)
