"""`bench …`: real groups on loopback, measured; the work is done in app.bench. Progress goes to stderr."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from app.bench.report import (
    append_table,
    attacked_table,
    busy_text,
    failover_text,
    latency_text,
    memory_table,
    sentences_table,
    slow_follower_table,
    slow_network_table,
    stalls_text,
    undisturbed_table,
)
from app.commands import bench_ha, bench_kv, bench_messages
from app.commands.bench_options import (
    AgainstOption,
    BodyOption,
    DataOption,
    FlushOption,
    OnlyOption,
    RateOption,
    RoundsOption,
    SecondsOption,
    directory_of,
    flush_mode,
    known_peer,
    measured,
    one_of,
    parts_of,
    show,
)
from app.commands.endings import Exit, Failure
from app.commands.output import JsonOption

HELP: Final = """Measure real engines in a temporary directory, removed afterwards.

A figure says little without its machine, so each run prints what it ran on: cores, Python, kernel, file system, the
disk's own fdatasync time, and the load when it began. On a machine that does other things trust the ratios."""
EXAMPLES: Final = """\b
Examples:
  quorumscope bench append --flush async
  quorumscope bench append --flush async --against pysyncobj --json
  quorumscope bench append --members 5 --batch 1000 --body-bytes 1024
  quorumscope bench append --via rest
  quorumscope bench kv --rounds 7
  quorumscope bench messages --rounds 5
  quorumscope bench ha --fill-mb 5000
  quorumscope bench snapshot --state-mb 100 --rounds 3
  quorumscope bench retention --files 3 --file-mb 64
  quorumscope bench failover --runs 20 --load
  quorumscope bench failover --how partition
  quorumscope bench members --rounds 10
  quorumscope bench slow-follower --how throttled
  quorumscope bench slow-network
  quorumscope bench undisturbed
  quorumscope bench latency
  quorumscope bench stalls --runs 100
  quorumscope bench busy --seconds 600
  quorumscope bench memory --minutes 60
  quorumscope bench sentences --runs 20 --only leader
  quorumscope bench attacked --seconds 60 --only frames"""

commands = typer.Typer(help=HELP, epilog=EXAMPLES, no_args_is_help=True, rich_markup_mode=None)


@commands.command()
def append(
    flush: FlushOption = "sync",
    body_bytes: BodyOption = 256,
    in_flight: Annotated[int, typer.Option(metavar="N", min=1, max=8192, help="Single appends at once.")] = 2048,
    batch: Annotated[
        list[int] | None,
        typer.Option(metavar="N", min=2, max=10_000, help="Entries in a batch; repeatable (default 100 and 1000)."),
    ] = None,
    members: Annotated[int, typer.Option(metavar="3|5", min=1, max=9, help="Size of the group.")] = 3,
    seconds: SecondsOption = 3.0,
    rounds: RoundsOption = 3,
    against: AgainstOption = None,
    via: Annotated[
        str,
        typer.Option(
            metavar="client|tasks|json|rest",
            help="Our client, which submits singles; the same with a task for each; DLedger's JSON; REST.",
        ),
    ] = "client",
    data: DataOption = None,
    as_json: JsonOption = False,
) -> int:
    """Appends a second, their latency, and the CPU that they cost.

    Four cases in turn: one at a time, singles in flight, and two sizes of batches. Medians over the rounds.
    """
    from app.bench.append import AppendOptions, run
    from app.bench.appenders import APPENDERS

    options = AppendOptions(
        flush=flush_mode(flush), body_bytes=body_bytes, in_flight=in_flight, batches=tuple(batch or (100, 1000)),
        seconds=seconds, rounds=rounds, against=known_peer(against), members=members,
        via=one_of("--via", via, APPENDERS), directory=directory_of(data),
    )  # fmt: skip
    show(measured(lambda: run(options)), as_json, append_table)
    return Exit.FINE


@commands.command()
def failover(
    runs: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="How often the leader is taken away.")] = 10,
    how: Annotated[
        str,
        typer.Option(
            metavar="kill|partition|transfer|stop",
            help="SIGKILL; SIGSTOP, which closes no connection; a planned transfer, or SIGTERM: the pause of a writer.",
        ),
    ] = "kill",
    load: Annotated[bool, typer.Option("--load", help="Appends go on meanwhile.")] = False,
    flush: FlushOption = "sync",
    members: Annotated[int, typer.Option(metavar="3|5", min=3, max=9, help="Size of the group.")] = 3,
    against: AgainstOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> int:
    """Seconds without a leader when it is gone, and what was lost.

    Counted to the next acknowledged append; at the end every acknowledged entry is read back and compared.
    """
    from app.bench.failover import FailoverOptions, run

    if against is not None and how != "kill":
        raise Failure(Exit.USAGE, f"--against {against}: only --how kill is measured of both")
    options = FailoverOptions(
        against=known_peer(against), runs=runs, load=load, flush=flush_mode(flush), members=members,
        how=one_of("--how", how, ("kill", "partition", "transfer", "stop")), directory=directory_of(data),
    )  # fmt: skip
    result = measured(lambda: run(options))
    show(result, as_json, failover_text)
    return Exit.FINDING if result["lost_acknowledged"] else Exit.FINE


@commands.command("members")
def members_change(
    rounds: Annotated[int, typer.Option(metavar="N", min=1, max=100, help="How often a member comes.")] = 10,
    flush: FlushOption = "sync",
    members: Annotated[int, typer.Option(metavar="3|5", min=1, max=9, help="Size of the group before.")] = 3,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> int:
    """The longest gap between one writer's acknowledgements while a member is added and becomes a voter."""
    from app.bench.members import MembersOptions, run, text

    options = MembersOptions(rounds=rounds, members=members, flush=flush_mode(flush), directory=directory_of(data))
    show(measured(lambda: run(options)), as_json, text)
    return Exit.FINE


@commands.command("slow-follower")
def slow_follower(
    how: Annotated[str, typer.Option(metavar="stopped|throttled", help="SIGSTOP, or links of 10 MB/s.")] = "stopped",
    flush: FlushOption = "async",
    rate: RateOption = 1000.0,
    body_bytes: BodyOption = 256,
    backlog_mb: Annotated[int, typer.Option(metavar="N", min=1, max=100_000, help="What it misses.")] = 256,
    seconds: SecondsOption = 5.0,
    rounds: RoundsOption = 3,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> int:
    """What one bad member costs the others, and its way back.

    An even load of single appends: with all well, with one follower stopped or throttled, and while it catches up.
    """
    from app.bench.slow_follower import HOWS, SlowFollowerOptions, run

    options = SlowFollowerOptions(
        how=one_of("--how", how, HOWS), flush=flush_mode(flush), rate=rate, body_bytes=body_bytes, seconds=seconds,
        rounds=rounds, backlog_mb=backlog_mb, directory=directory_of(data),
    )  # fmt: skip
    show(measured(lambda: run(options)), as_json, slow_follower_table)
    return Exit.FINE


@commands.command("slow-network")
def slow_network(
    link_mb_per_s: Annotated[
        float, typer.Option("--link", metavar="MB/S", min=0.01, max=10_000, help="What each link carries each way.")
    ] = 5.0,
    in_flight: Annotated[
        int, typer.Option(metavar="N", min=1, max=512, help="Clients, each with one append at a time.")
    ] = 24,
    body_bytes: Annotated[int, typer.Option(metavar="N", min=1, max=4_000_000, help="Size of a body.")] = 1_000_000,
    largest: Annotated[bool, typer.Option(help="Also with bodies of the largest size.")] = True,
    flush: FlushOption = "sync",
    seconds: SecondsOption = 15.0,
    rounds: RoundsOption = 1,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> int:
    """What is acknowledged over links that carry less than is asked.

    The share of one link's rate, outcomes that stay unknown, and elections, of which there should be none.
    """
    from app.bench.slow_network import SlowNetworkOptions, run

    options = SlowNetworkOptions(
        flush=flush_mode(flush), in_flight=in_flight, body_bytes=body_bytes, largest=largest,
        link_mb_per_s=link_mb_per_s, seconds=seconds, rounds=rounds, directory=directory_of(data),
    )  # fmt: skip
    show(measured(lambda: run(options)), as_json, slow_network_table)
    return Exit.FINE


@commands.command()
def undisturbed(
    flush: FlushOption = "async",
    rate: RateOption = 1000.0,
    body_bytes: BodyOption = 256,
    seconds: SecondsOption = 5.0,
    rounds: RoundsOption = 3,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> int:
    """What a polling console and a reader of data files cost.

    An even load of single appends, with nobody looking, a console, a reader at 50 MB/s, and both; rounds interleave.
    """
    from app.bench.undisturbed import UndisturbedOptions, run

    options = UndisturbedOptions(
        flush=flush_mode(flush), rate=rate, body_bytes=body_bytes, seconds=seconds, rounds=rounds,
        directory=directory_of(data),
    )  # fmt: skip
    show(measured(lambda: run(options)), as_json, undisturbed_table)
    return Exit.FINE


@commands.command()
def latency(
    body_bytes: BodyOption = 256,
    seconds: SecondsOption = 0.5,
    rounds: RoundsOption = 20,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> int:
    """One append at a time: what waiting for disks costs.

    Rounds of a sync group, an async group and of one bare fdatasync interleave.
    """
    from app.bench.latency import LatencyOptions, run

    options = LatencyOptions(body_bytes=body_bytes, seconds=seconds, rounds=rounds, directory=directory_of(data))
    show(measured(lambda: run(options)), as_json, latency_text)
    return Exit.FINE


@commands.command()
def stalls(
    runs: Annotated[int, typer.Option(metavar="N", min=1, max=10_000, help="How many stalls.")] = 100,
    longest: Annotated[float, typer.Option(metavar="S", min=0.2, max=9.0, help="The longest of them.")] = 5.0,
    skew_ms: Annotated[float, typer.Option(metavar="MS", min=0, max=1000, help="They go on so far apart.")] = 50.0,
    load: Annotated[bool, typer.Option("--load", help="Appends go on meanwhile.")] = False,
    flush: FlushOption = "sync",
    members: Annotated[int, typer.Option(metavar="3|5", min=3, max=9, help="Size of the group.")] = 3,
    seed: Annotated[int, typer.Option(metavar="N", help="Draws moments and lengths.")] = 1,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> int:
    """Every engine stands still at once, again and again.

    From 0.2 s to the longest, at random moments; no leadership may end of it.
    """
    from app.bench.stalls import StallsOptions, run

    options = StallsOptions(
        runs=runs, longest_s=longest, skew_s=skew_ms / 1000, load=load, flush=flush_mode(flush), members=members,
        seed=seed, directory=directory_of(data),
    )  # fmt: skip
    result = measured(lambda: run(options))
    show(result, as_json, stalls_text)
    return Exit.FINDING if result["leader_changes"] else Exit.FINE


@commands.command()
def busy(
    seconds: Annotated[float, typer.Option(metavar="N", min=1, max=100_000, help="How long.")] = 600.0,
    burners: Annotated[int, typer.Option(metavar="N", min=0, max=256, help="Processes that burn CPU.")] = 4,
    cores: Annotated[int, typer.Option(metavar="N", min=1, max=256, help="Cores for everything together.")] = 2,
    flush: FlushOption = "sync",
    data: DataOption = None,
    as_json: JsonOption = False,
) -> int:
    """A load beside busy processes, all on a few cores.

    Each engine's longest gap between two ticks; no leadership may end while all are below the election time-out.
    """
    from app.bench.busy import BusyOptions, run

    options = BusyOptions(
        seconds=seconds, burners=burners, cores=cores, flush=flush_mode(flush), directory=directory_of(data)
    )
    result = measured(lambda: run(options))
    show(result, as_json, busy_text)
    return Exit.FINDING if result["leader_changes"] and result["all_gaps_below_election_min"] else Exit.FINE


@commands.command()
def memory(
    minutes: Annotated[float, typer.Option(metavar="N", min=0.1, max=10_000, help="How long.")] = 60.0,
    rate: Annotated[float, typer.Option(metavar="N", min=1, max=1_000_000, help="Entries a second.")] = 5000.0,
    body_bytes: BodyOption = 256,
    flush: FlushOption = "async",
    data: DataOption = None,
    as_json: JsonOption = False,
) -> int:
    """Private memory of every process under an even load.

    Engines, control planes and a polling console; the growth is that of the second half of the time.
    """
    from app.bench.memory import MemoryOptions, run

    options = MemoryOptions(
        minutes=minutes, flush=flush_mode(flush), rate=rate, body_bytes=body_bytes, directory=directory_of(data)
    )
    show(measured(lambda: run(options)), as_json, memory_table)
    return Exit.FINE


@commands.command()
def sentences(
    runs: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="How often each break is done.")] = 20,
    only: OnlyOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> int:
    """What the console says of a broken group, and how soon.

    Every break of the demo, of a follower and of the leader; each look is judged. Ends with 1 after a false sentence.
    """
    from app.bench.sentences import CASES, SentencesOptions, run

    cases = parts_of(only, "break", [one.name for one in CASES])
    options = SentencesOptions(runs=runs, cases=cases, directory=directory_of(data))
    result = measured(lambda: run(options))
    show(result, as_json, sentences_table)
    return Exit.FINDING if result["false"] else Exit.FINE


@commands.command()
def attacked(
    seconds: SecondsOption = 60.0,
    rate: Annotated[float, typer.Option(metavar="N", min=1, max=100_000, help="Appends a second.")] = 1000.0,
    only: OnlyOption = None,
    cores: Annotated[int, typer.Option(metavar="N", min=1, max=256, help="Cores for everything together.")] = 2,
    flush: FlushOption = "async",
    data: DataOption = None,
    as_json: JsonOption = False,
) -> int:
    """A paced client while a stranger attacks the leader's port.

    Beside a control that burns the same CPU: the same attack on another group. Ends with 1 beyond a bound.
    """
    from app.bench.attacked import AttackedOptions, run
    from app.bench.attacker import ATTACKS

    options = AttackedOptions(
        seconds=seconds, rate_per_s=rate, attacks=parts_of(only, "attack", ATTACKS), cores=cores,
        flush=flush_mode(flush), directory=directory_of(data),
    )  # fmt: skip
    result = measured(lambda: run(options))
    show(result, as_json, attacked_table)
    return Exit.FINDING if result["beyond"] else Exit.FINE


def register(app: typer.Typer) -> None:
    """Adds this family's commands."""
    bench_kv.register(commands)
    bench_messages.register(commands)
    bench_ha.register(commands)
    app.add_typer(commands, name="bench", short_help="Measure on this machine.")
