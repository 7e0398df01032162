"""The topics of a running group: listed, described, made and deleted through its control planes.

`topic list` and `topic describe` read a store's files with `--store` instead (app/commands/messages.py).
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from app.commands.broker_calls import all_items, change, look, path_of
from app.commands.endings import Exit, Failure
from app.commands.members import YesOption, confirmed
from app.commands.messages import in_columns, topic_commands
from app.commands.output import JsonOption, show, show_json, show_lines, terminal_width, wrapped
from app.commands.targets import Target, in_group

Json = dict[str, Any]
TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC")]


def show_topics(target: Target, *, system: bool, as_json: bool) -> int:
    """`topic list` of a running group."""
    items = all_items(target, "topics", system=str(system).lower())
    if as_json:
        show_json({"items": items})
        return Exit.FINE
    rows = [("QUEUES", "MESSAGES", "BYTES", "A SECOND", "OLDEST", "NEWEST", "TOPIC")]
    rows += [
        (
            str(max(one["read_queues"], one["write_queues"])), f"{one['messages']:,}", bytes_of(one),
            "-" if one["messages_per_s"] is None else f"{one['messages_per_s']:,.1f}", one["oldest_at"] or "-",
            one["newest_at"] or "-", one["topic"],
        )
        for one in items
    ]  # fmt: skip
    show_lines(in_columns(rows) if items else ["there is no topic yet"])
    return Exit.FINE


def bytes_of(topic: Json) -> str:
    """An estimated size says so."""
    return f"{'about ' if topic['size_is_estimated'] else ''}{topic['size_bytes']:,}"


def show_topic(target: Target, topic: str, *, as_json: bool) -> int:
    """`topic describe` of a running group."""
    one = look(target, path_of("topics", topic))
    queues = all_items(target, "topics", topic, "queues")
    if as_json:
        show_json({**one, "queues": queues})
        return Exit.FINE
    rows = [("QUEUE", "MIN", "MAX", "MESSAGES", "OLDEST", "NEWEST")]
    rows += [
        (str(each["queue_id"]), str(each["min_offset"]), str(each["max_offset"]), f"{each['messages']:,}",
         each["oldest_at"] or "-", each["newest_at"] or "-")
        for each in queues
    ]  # fmt: skip
    head = (
        f"topic {one['topic']}: {one['messages']:,} messages, {bytes_of(one)} bytes;"
        f" {one['read_queues']} queues to read, {one['write_queues']} to write, permission {one['perm']}"
    )
    show_lines([*wrapped([head], terminal_width()), *in_columns(rows)])
    return Exit.FINE


def perm_of(text: str) -> int:
    """`rw`, `r`, `w`. Raises Failure."""
    if not text or set(text) - {"r", "w"}:
        raise Failure(Exit.USAGE, f'--perm "{text}": r to read, w to write, rw for both')
    return (4 if "r" in text else 0) | (2 if "w" in text else 0)


def create_topic(
    target: Target,
    topic: TopicArgument,
    queues: Annotated[int, typer.Option("--queues", metavar="N", min=1, max=16_384, help="To read and write.")] = 4,
    perm: Annotated[str, typer.Option("--perm", metavar="rw", help="r, w or rw.")] = "rw",
    as_json: JsonOption = False,
) -> int:
    """Make a topic, or give one other queues and permissions."""
    body = {"read_queues": queues, "write_queues": queues, "perm": perm_of(perm)}
    made = change(target, "PUT", path_of("topics", topic), body)
    if as_json:
        show_json(made)
    else:
        show(f"topic {made['topic']} has {made['read_queues']} queues, permission {made['perm']}")
    return Exit.FINE


def delete_topic(target: Target, topic: TopicArgument, yes: YesOption = False, as_json: JsonOption = False) -> int:
    """Take a topic away, with its queues and all groups' offsets of it."""
    one = look(target, path_of("topics", topic))
    words = f"delete {topic} with {one['messages']:,} messages"
    if not yes and not confirmed(words):
        raise Failure(Exit.USAGE, f"nothing was changed: give --yes to {words}")
    done = change(target, "DELETE", path_of("topics", topic))
    if as_json:
        show_json(done)
    else:
        show(f"topic {topic} is deleted; its messages lie in the log until they expire")
    return Exit.FINE


def register(_app: typer.Typer) -> None:
    """Adds to the family that `messages` registers."""
    topic_commands.command("create")(in_group(create_topic))
    topic_commands.command("delete")(in_group(delete_topic))
