"""`bench ha`: a classic master and its slave."""

from __future__ import annotations

from typing import Annotated

import typer

from app.bench.report import ha_table
from app.commands.bench_options import (
    BodyOption,
    DataOption,
    FlushOption,
    SecondsOption,
    directory_of,
    flush_mode,
    measured,
    show,
)
from app.commands.endings import Exit
from app.commands.output import JsonOption


def ha(
    flush: FlushOption = "async",
    body_bytes: BodyOption = 256,
    in_flight: Annotated[int, typer.Option(metavar="N", min=1, max=8192, help="Single sends at once.")] = 512,
    rate: Annotated[float, typer.Option(metavar="N", min=1, help="Sends a second of the even load, at most.")] = 15_000,
    fill_mb: Annotated[int, typer.Option(metavar="MB", min=1, max=100_000, help="What an empty slave gets.")] = 512,
    fill_body_bytes: Annotated[int, typer.Option(metavar="N", min=1, max=1024 * 1024, help="Its bodies.")] = 1024,
    seconds: SecondsOption = 3.0,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> int:
    """A classic master and its slave: sends that wait for it, its lag under load, and how an empty one catches up."""
    from app.bench.ha import HaOptions, run

    options = HaOptions(
        flush=flush_mode(flush), body_bytes=body_bytes, in_flight=in_flight, rate_per_s=rate, seconds=seconds,
        fill_mb=fill_mb, fill_body_bytes=fill_body_bytes, directory=directory_of(data),
    )  # fmt: skip
    show(measured(lambda: run(options)), as_json, ha_table)
    return Exit.FINE


def register(commands: typer.Typer) -> None:
    """Adds it to the family's."""
    commands.command()(ha)
