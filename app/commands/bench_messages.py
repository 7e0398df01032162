"""`bench messages`: the broker's rounds."""

from __future__ import annotations

from typing import Annotated

import typer

from app.bench.report import messages_table
from app.commands.bench_options import (
    BodyOption,
    DataOption,
    FlushOption,
    RoundsOption,
    SecondsOption,
    directory_of,
    flush_mode,
    measured,
    show,
)
from app.commands.endings import Exit
from app.commands.output import JsonOption


def messages(
    flush: FlushOption = "async",
    body_bytes: BodyOption = 256,
    in_flight: Annotated[int, typer.Option(metavar="N", min=1, max=8192, help="Single sends at once.")] = 512,
    batch: Annotated[int, typer.Option(metavar="N", min=2, max=1000, help="Messages in a batch.")] = 100,
    seconds: SecondsOption = 3.0,
    rounds: RoundsOption = 3,
    kills: Annotated[int, typer.Option(metavar="N", min=0, max=100, help="How often the master is killed.")] = 5,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> int:
    """What three brokers take and pass on, and the CPU of a message in each process.

    Sends (binary and JSON headers), batches, pulls, one at a time beside the engine's appends; a waiting consumer; an
    even load of 60 %; the master killed. Ends with 1 where the leader changed under that load, or where an
    acknowledged message was lost.
    """
    from app.bench.messages import MessagesOptions, run

    options = MessagesOptions(
        flush=flush_mode(flush), body_bytes=body_bytes, in_flight=in_flight, batch=batch, seconds=seconds,
        rounds=rounds, kills=kills, directory=directory_of(data),
    )  # fmt: skip
    result = measured(lambda: run(options))
    show(result, as_json, messages_table)
    lost = (result["failover"] or {}).get("lost_acknowledged")
    return Exit.FINDING if lost or result["at_part_of_load"]["leader_changes"] else Exit.FINE


def register(commands: typer.Typer) -> None:
    """Adds it to the family's."""
    commands.command()(messages)
