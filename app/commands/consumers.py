"""`consumer`: the groups that consume, how far each is behind, and where it is to go on.

Invariant: offsets are moved after a confirmation only (`--yes`), and never while consumers of the group run.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from app.commands.broker_calls import all_items, change, look, path_of
from app.commands.endings import Exit, Failure
from app.commands.members import YesOption, confirmed
from app.commands.messages import in_columns
from app.commands.output import JsonOption, say, show_json, show_lines, terminal_width, wrapped
from app.commands.targets import I32_MAX, I64_MAX, Target, in_group

Json = dict[str, Any]
commands = typer.Typer(help="Groups that consume messages.", no_args_is_help=True, rich_markup_mode=None)
ConsumerGroup = Annotated[str, typer.Argument(metavar="GROUP")]


class To(StrEnum):
    """Where a group goes on."""

    EARLIEST = "earliest"
    LATEST = "latest"
    TIME = "time"
    OFFSET = "offset"


def lag_text(one: Json) -> str:
    """Messages, and for how long; queues where nothing is committed yet count in no lag, and are named."""
    if one["lag_messages"] is None:
        return "not known"
    lag = f"{one['lag_messages']:,} ({one['lag_ms'] / 1000:.1f} s)" if one["lag_messages"] else "0"
    unread = one.get("queues_without_offset")
    return f"{lag}, nothing committed in {unread} queue{'s' if unread > 1 else ''}" if unread else lag


def client_text(one: Json) -> str:
    """Whose a queue is; an older node does not say."""
    client_id = one.get("client_id")
    if client_id is None:
        return "-"
    return str(client_id) + (" (locked)" if one["assigned_by"] == "lock" else "")


@commands.command("list")
@in_group
def list_groups(
    target: Target,
    system: Annotated[bool, typer.Option("--system", help="Also RocketMQ's own.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Print every group: its members, its topics, how many messages it is behind, and for how long."""
    items = all_items(target, "consumer-groups", system=str(system).lower())
    if as_json:
        show_json({"items": items})
        return Exit.FINE
    rows = [("GROUP", "MEMBERS", "LAG", "TOPICS")]
    rows += [(one["group"], str(len(one["members"])), lag_text(one), ", ".join(one["topics"]) or "-") for one in items]
    show_lines(in_columns(rows) if items else ["no group consumes here"])
    return Exit.FINE


@commands.command("describe")
@in_group
def describe_group(target: Target, consumer_group: ConsumerGroup, as_json: JsonOption = False) -> int:
    """Print one group: its members, how far it is in each queue, and whose the queue is."""
    one = look(target, path_of("consumer-groups", consumer_group))
    if as_json:
        show_json(one)
        return Exit.FINE
    people = len(one["members"])
    head = f"group {one['group']}: {people} member{'' if people == 1 else 's'}, lag {lag_text(one)}"
    lines = [head + (f", since {one['lag_since']}" if one["lag_since"] else "")]
    lines += [f"member {each['client_id']} at {each['address']}, heard {each['heard_at']}"
              for each in one["members"]]  # fmt: skip
    lines += [f"wants {each['topic']}: {each['expression']}" for each in one["subscriptions"]]
    lines = wrapped(lines, terminal_width())
    rows = [("TOPIC", "QUEUE", "COMMITTED", "END", "LAG", "CLIENT")]
    rows += [
        (
            each["topic"], str(each["queue_id"]),
            "none" if each["committed_offset"] is None else f"{each['committed_offset']:,}",
            f"{each['max_offset']:,}", lag_text(each), client_text(each),
        )
        for each in one["queues"]
    ]  # fmt: skip
    lines += in_columns(rows) if one["queues"] else ["it has committed nothing yet"]
    if one["queues_left_out"]:
        lines.append(f"{one['queues_left_out']} more queues, less behind than these")
    show_lines(lines)
    return Exit.FINE


@commands.command("reset")
@in_group
def reset_group(
    target: Target,
    consumer_group: ConsumerGroup,
    topic: Annotated[str, typer.Option("--topic", metavar="NAME", help="In which topic.")],
    to: Annotated[To, typer.Option("--to", help="Where it goes on.")],
    time: Annotated[str | None, typer.Option("--time", metavar="RFC3339", help="With --to time.")] = None,
    offset: Annotated[
        int | None, typer.Option("--offset", metavar="N", min=0, max=I64_MAX, help="With --to offset.")
    ] = None,
    queue: Annotated[
        int | None, typer.Option("--queue", metavar="Q", min=0, max=I32_MAX, help="One queue only.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be set, and set nothing.")] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> int:
    """Set where a group goes on; its consumers must not run."""
    if (time is not None) != (to is To.TIME) or (offset is not None) != (to is To.OFFSET):
        raise Failure(Exit.USAGE, "--time goes with --to time, --offset with --to offset")
    asked = {"topic": topic, "to": to.value, "time": time, "offset": offset, "queue_id": queue}
    body: Json = {name: value for name, value in asked.items() if value is not None}
    path = path_of("consumer-groups", consumer_group, "reset")
    would = change(target, "POST", path, body | {"dry_run": True})
    if dry_run:
        shown(would, as_json)
        return Exit.FINE
    words = f"set {len(would['items'])} offsets of {consumer_group} in {topic} to {to.value}"
    if not yes:
        for line in reset_lines(would):
            say(line)
        if not confirmed(words):
            raise Failure(Exit.USAGE, f"nothing was changed: give --yes to {words}")
    shown(change(target, "POST", path, body), as_json)
    return Exit.FINE


def shown(done: Json, as_json: bool) -> None:
    if as_json:
        show_json(done)
    else:
        show_lines(reset_lines(done))


def reset_lines(done: Json) -> list[str]:
    verb = "would go on" if done["dry_run"] else "goes on"
    rows = [("QUEUE", "BEFORE", "AFTER")]
    rows += [
        (str(one["queue_id"]), "none" if one["before"] is None else f"{one['before']:,}", f"{one['after']:,}")
        for one in done["items"]
    ]
    return [f"{done['group']} {verb} in {done['topic']}:", *in_columns(rows)]


def register(app: typer.Typer) -> None:
    """Adds this family's commands."""
    app.add_typer(commands, name="consumer")
