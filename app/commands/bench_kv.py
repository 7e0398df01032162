"""`bench kv`, `bench snapshot`, `bench retention`: state machines, their snapshots, and a log that is cut short."""

from __future__ import annotations

from typing import Annotated

import typer

from app.bench.report import install_table, kv_table, retention_text, snapshot_table
from app.commands.bench_options import (
    BodyOption,
    DataOption,
    FlushOption,
    RateOption,
    RoundsOption,
    SecondsOption,
    directory_of,
    flush_mode,
    measured,
    show,
)
from app.commands.endings import Exit
from app.commands.output import JsonOption


def kv(
    flush: FlushOption = "async",
    body_bytes: BodyOption = 256,
    in_flight: Annotated[int, typer.Option(metavar="N", min=1, max=8192, help="Requests at once.")] = 2048,
    seconds: SecondsOption = 3.0,
    rounds: RoundsOption = 5,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> int:
    """Puts and linearizable gets of the key-value store, beside single appends.

    Two groups in turn, one a log alone; a ratio is to the single appends of the same round.
    """
    from app.bench.kv import KvOptions, run

    options = KvOptions(
        flush=flush_mode(flush), body_bytes=body_bytes, in_flight=in_flight, seconds=seconds, rounds=rounds,
        directory=directory_of(data),
    )  # fmt: skip
    show(measured(lambda: run(options)), as_json, kv_table)
    return Exit.FINE


def snapshot(
    state_mb: Annotated[int, typer.Option(metavar="N", min=1, max=100_000, help="Values of the state, in MB.")] = 1000,
    value_bytes: Annotated[int, typer.Option(metavar="N", min=1, max=1024 * 1024, help="Size of each.")] = 4096,
    flush: FlushOption = "sync",
    rate: RateOption = 1000.0,
    body_bytes: BodyOption = 256,
    rounds: RoundsOption = 10,
    install: Annotated[
        bool, typer.Option("--install", help="How long an emptied member takes to be a voter with that state.")
    ] = False,
    entries: Annotated[
        int, typer.Option(metavar="N", min=1, max=100_000_000, help="With --install: puts behind the snapshot.")
    ] = 1_000_000,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> int:
    """What saving a large state costs those who write meanwhile.

    An even load of puts, in turn with nobody saving and while every member saves its state. Ends with 1 where a
    leadership was lost. With --install: a member of such a group, trimmed, is emptied, and is sent the snapshot.
    """
    from app.bench.snapshot import SnapshotOptions, run

    if install:
        from app.bench.install import InstallOptions
        from app.bench.install import run as run_install

        wanted = InstallOptions(
            flush=flush_mode(flush), state_mb=state_mb, value_bytes=value_bytes, entries=entries,
            rate=rate, directory=directory_of(data),
        )  # fmt: skip
        show(measured(lambda: run_install(wanted)), as_json, install_table)
        return Exit.FINE
    options = SnapshotOptions(
        flush=flush_mode(flush), state_mb=state_mb, value_bytes=value_bytes, rate=rate, body_bytes=body_bytes,
        rounds=rounds, directory=directory_of(data),
    )  # fmt: skip
    result = measured(lambda: run(options))
    show(result, as_json, snapshot_table)
    return Exit.FINDING if result["leader_changes"] else Exit.FINE


def retention(
    files: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="Full data files to remove.")] = 10,
    file_mb: Annotated[int, typer.Option(metavar="N", min=1, max=2047, help="Size of each, in MiB.")] = 1024,
    flush: FlushOption = "sync",
    rate: RateOption = 1000.0,
    body_bytes: BodyOption = 256,
    seconds: SecondsOption = 20.0,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> int:
    """What removing large data files costs the engine.

    One member; its files are really written (three more than are removed must fit on the disk). The longest gap between
    two ticks of its clock, under an even load, before the removal and after it.
    """
    from app.bench.retention import RetentionOptions, run

    options = RetentionOptions(
        flush=flush_mode(flush), files=files, file_mb=file_mb, rate=rate, body_bytes=body_bytes, seconds=seconds,
        directory=directory_of(data),
    )  # fmt: skip
    show(measured(lambda: run(options)), as_json, retention_text)
    return Exit.FINE


def register(commands: typer.Typer) -> None:
    """Adds these to the family's."""
    commands.command()(kv)
    commands.command()(snapshot)
    commands.command()(retention)
