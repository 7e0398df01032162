"""`bench append` and `bench failover`: real groups on loopback, measured; the work is done in app.bench."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from app.commands.common import Exit, Failure, JsonOption, show_json

commands = typer.Typer(help="Measure on this machine.", no_args_is_help=True, rich_markup_mode=None)
HEADING: Final = (
    f"{'system':<12} {'flush':<6} {'in flight':>9} {'batch':>6} {'entries/s':>12}"
    f" {'MB/s':>8} {'p50 ms':>9} {'p99 ms':>9}"
)
FlushOption = Annotated[str, typer.Option(metavar="sync|async", help="When a write counts.")]


def _flush(flush: str) -> str:
    if flush not in ("sync", "async"):
        raise Failure(Exit.USAGE, f'--flush "{flush}": it is sync or async')
    return flush


def _measured(work: Any) -> dict[str, Any]:
    from node.client import LedgerError

    try:
        return dict(work())
    except (LedgerError, RuntimeError, TimeoutError) as error:
        raise Failure(Exit.UNREACHABLE, f"the group did not come up or went away: {error}") from error


@commands.command()
def append(
    flush: FlushOption = "sync",
    body_bytes: Annotated[int, typer.Option(metavar="N", min=1, max=1024 * 1024, help="Size of a body.")] = 256,
    in_flight: Annotated[int, typer.Option(metavar="N", min=1, max=8192, help="Single appends at once.")] = 2048,
    batch: Annotated[int, typer.Option(metavar="N", min=2, max=10_000, help="Entries in a batch.")] = 1000,
    seconds: Annotated[float, typer.Option(metavar="N", min=0.2, help="How long each case runs in each round.")] = 3.0,
    rounds: Annotated[int, typer.Option(metavar="N", min=1, help="Rounds; medians are reported.")] = 3,
    against: Annotated[
        str | None, typer.Option(metavar="pysyncobj", help="Measure this one too, in turn, in the same run.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Appends a second and their latency, on three engines in a temporary directory."""
    if against not in (None, "pysyncobj"):
        raise Failure(Exit.USAGE, f'--against "{against}": pysyncobj is the one that is known')
    from app.bench.append import AppendOptions, run

    options = AppendOptions(_flush(flush), body_bytes, in_flight, batch, seconds, rounds, against)
    result = _measured(lambda: run(options))
    if as_json:
        show_json(result)
        return Exit.FINE
    print(on_machine(result["machine"]))
    print(HEADING)
    for row in result["results"]:
        print(
            f"{row['system']:<12} {row['flush']:<6} {row['in_flight']:>9,} {row['batch']:>6,}"
            f" {row['entries_per_s']:>12,.0f} {row['mb_per_s']:>8,.1f} {row['p50_ms']:>9.3f} {row['p99_ms']:>9.3f}"
        )
    for name, ratio in result["ratios"].items():
        print(f"{ratio:.1f} times {name}")
    return Exit.FINE


@commands.command()
def failover(
    runs: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="How often the leader is killed.")] = 10,
    load: Annotated[bool, typer.Option("--load", help="Appends go on meanwhile.")] = False,
    flush: FlushOption = "sync",
    as_json: JsonOption = False,
) -> int:
    """Seconds from SIGKILL of the leader to the next acknowledged append; nothing acknowledged may be lost."""
    from app.bench.failover import FailoverOptions, run

    result = _measured(lambda: run(FailoverOptions(runs=runs, load=load, flush=_flush(flush))))
    if as_json:
        show_json(result)
    else:
        print(on_machine(result["machine"]) if "machine" in result else "")
        lost = result["lost_acknowledged"]
        print(
            f"median {result['median_s']:.3f} s, worst {result['max_s']:.3f} s over {len(result['runs_s'])} failovers"
        )
        print(f"{lost} acknowledged entries LOST" if lost else "no acknowledged entry was lost: each was read back")
    return Exit.FINDING if result["lost_acknowledged"] else Exit.FINE


def on_machine(machine: dict[str, Any]) -> str:
    """Where the numbers come from."""
    cpu = machine["cpu"] or "unknown CPU"
    return f"on {machine['cpus']} cores, {cpu}, Python {machine['python']}, {machine['system']}"


def register(app: typer.Typer) -> None:
    """Adds this family's commands."""
    app.add_typer(commands, name="bench")
