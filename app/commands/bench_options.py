"""Options that several benches share, and what their values may be. Wrong ones raise Failure, and nothing runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from app.bench.report import on_machine
from app.commands.directories import existing_directory
from app.commands.endings import Exit, Failure
from app.commands.output import show_json

FlushOption = Annotated[str, typer.Option(metavar="sync|async", help="When a write counts.")]
DataOption = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="Put the logs on this directory's disk (default: /tmp's).")
]

AgainstOption = Annotated[
    str | None, typer.Option(metavar="pysyncobj", help="Measure this one too, in turn, in the same run.")
]
BodyOption = Annotated[int, typer.Option(metavar="N", min=1, max=1024 * 1024, help="Size of a body.")]
RoundsOption = Annotated[int, typer.Option(metavar="N", min=1, help="Rounds; medians are reported.")]
SecondsOption = Annotated[
    float, typer.Option(metavar="N", min=0.2, max=86_400, help="How long each case runs in each round.")
]
OnlyOption = Annotated[
    list[str] | None, typer.Option(metavar="TEXT", help="Only those whose name has this in it; repeatable.")
]
RateOption = Annotated[float, typer.Option(metavar="N", min=1, max=50_000, help="Single appends a second.")]


def flush_mode(flush: str) -> str:
    return one_of("--flush", flush, ("sync", "async"))


def one_of(option: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise Failure(Exit.USAGE, f'{option} "{value}": it is {", ".join(known[:-1])} or {known[-1]}')
    return value


def parts_of(only: list[str] | None, what: str, known: Iterable[str]) -> tuple[str, ...]:
    """What `--only` names. Raises Failure where a part is in no name."""
    for part in only or ():
        if not any(part in name for name in known):
            raise Failure(Exit.USAGE, f'--only "{part}" is part of no {what}: {", ".join(known)}')
    return tuple(only or ())


def known_peer(against: str | None) -> str | None:
    if against not in (None, "pysyncobj"):
        raise Failure(Exit.USAGE, f'--against "{against}": pysyncobj is the one that is known')
    return against


def directory_of(data: Path | None) -> Path | None:
    return None if data is None else existing_directory(data, "--data")


def measured(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A bench's result. Raises Failure where the group did not come up."""
    from node.client import LedgerError

    try:
        return dict(work())
    except (LedgerError, RuntimeError, TimeoutError, OSError) as error:
        reason = str(error) or type(error).__name__
        raise Failure(Exit.UNREACHABLE, f"the group did not come up or went away: {reason}") from error


def show(result: dict[str, Any], as_json: bool, lines: Callable[[dict[str, Any]], list[str]]) -> None:
    """As JSON, or the machine and then those lines."""
    if as_json:
        show_json(result)
        return
    print(on_machine(result["machine"]))
    for line in lines(result):
        print(line)
