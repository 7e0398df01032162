"""`message` and `topic`: what a RocketMQ store holds, read from its files (`topic` of a running group: live_topics.py).

Invariants: nothing is written, and a broker may run on the same directory; what a message says (topic, properties,
body) was written by anybody, so it is escaped before a terminal gets it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from app.commands.directories import existing_directory
from app.commands.endings import Exit, Failure
from app.commands.output import JsonOption, show_json, show_lines, terminal_width, wrapped
from app.commands.targets import Target, in_group
from node.printable import escaped

if TYPE_CHECKING:
    from node.message_store.message_store import MessageStore
    from node.message_store.record import MessageRecord

SHOWN_BODY_CHARS: Final = 2000
BODY_BYTES_MAX: Final = 64 << 20
StoreOption = Annotated[
    Path | None,
    typer.Option("--store", metavar="DIR", help="A broker's store: the directory that storePathRootDir names."),
]
TopicOption = Annotated[str | None, typer.Option("--topic", metavar="NAME", help="The topic.")]

message_commands = typer.Typer(help="Look at single messages of a RocketMQ store.", no_args_is_help=True,
                               rich_markup_mode=None)  # fmt: skip
topic_commands = typer.Typer(help="Topics of a running group, or of a RocketMQ store.", no_args_is_help=True,
                             rich_markup_mode=None)  # fmt: skip


@contextmanager
def opened_store(directory: Path | None) -> Iterator[MessageStore]:
    """The store to read; what keeps it from being read is one line. Raises Failure."""
    from node.message_store.errors import MessageFormatError, MessageStoreError
    from node.message_store.message_store import MessageStore

    if directory is None:
        raise Failure(Exit.USAGE, "which store? give --store DIR, the directory that a broker's storePathRootDir names")
    existing_directory(directory)
    try:
        store = MessageStore(directory)
    except MessageStoreError as error:
        raise Failure(Exit.USAGE, str(error)) from error
    try:
        yield store
    except MessageStoreError as error:
        raise Failure(Exit.FINDING, str(error)) from error
    except (MessageFormatError, OSError) as error:
        raise Failure(Exit.UNDETERMINED, f"{directory}: {error}") from error


@message_commands.command("get")
def get(
    message_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="The id that a broker gave: 32 or 56 hex digits.")
    ] = None,
    store: StoreOption = None,
    offset: Annotated[
        int | None, typer.Option("--offset", metavar="N", min=0, help="By its physical offset in the commit log.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="K", help="By one of its keys, or its unique key; all topics' without --topic."),
    ] = None,
    topic: TopicOption = None,
    queue: Annotated[
        int | None, typer.Option("--queue", metavar="Q", min=0, help="With --topic and --queue-offset.")
    ] = None,
    queue_offset: Annotated[
        int | None, typer.Option("--queue-offset", metavar="N", min=0, help="By its place in a queue.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, max=1000, help="At most so many.")] = 64,
    as_json: JsonOption = False,
) -> int:
    """Print messages: all their fields, properties and body, and where each lies."""
    by_queue = queue is not None or queue_offset is not None
    ways = [name for name, is_given in (
        ("ID", message_id is not None), ("--offset", offset is not None), ("--key", key is not None),
        ("--queue with --queue-offset", by_queue),
    ) if is_given]  # fmt: skip
    if len(ways) != 1:
        raise Failure(Exit.USAGE, f"which message? give one of ID, --offset N, --key K, or --topic T --queue Q"
                                  f" --queue-offset N{'; not ' + ' and '.join(ways) if ways else ''}")  # fmt: skip
    from node.message_store.described import message_json

    with opened_store(store) as reader:
        if message_id is not None:
            _check_id(message_id)
            found = [reader.by_id(message_id)]
        elif offset is not None:
            found = [reader.log.message_at(offset)]
        elif key is not None:
            topics = [topic] if topic is not None else sorted(reader.topics())
            found = [one for name in topics for one in reader.by_key(name, key, limit)][:limit]
        else:
            if topic is None or queue is None or queue_offset is None:
                raise Failure(Exit.USAGE, "a place in a queue is --topic T --queue Q --queue-offset N, all three")
            found = [reader.in_queue(topic, queue, queue_offset)]
        items = [message_json(reader, one, opened) for one in found]
    if not items:
        where = f"topic {topic!r}" if topic is not None else "any topic"
        raise Failure(Exit.FINDING, f"no message of {where} has the key {key!r} in the index of {store}")
    if as_json:
        show_json({"items": items})
    else:
        show_lines(line for at, one in enumerate(items) for line in [*[""] * (at > 0), *message_lines(one)])
    return Exit.FINE


def _check_id(text: str) -> None:
    from node.message_store.errors import MessageFormatError
    from node.message_store.record import parse_message_id

    try:
        parse_message_id(text)
    except MessageFormatError as error:
        raise Failure(Exit.USAGE, f"{error}; --key {text} looks for the unique key that its sender gave it") from error


def list_topics(
    target: Target | None,
    store: StoreOption = None,
    system: Annotated[bool, typer.Option("--system", help="Also RocketMQ's own, of a running group.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Print every topic of a running group, or of a store's files: its queues, how many messages."""
    if target is not None:
        from app.commands.live_topics import show_topics

        return show_topics(target, system=system, as_json=as_json)
    with opened_store(store) as reader:
        items = [topic_json(reader, name) for name in topic_names(reader)]
    if as_json:
        show_json({"items": items})
    else:
        rows = [("QUEUES", "MESSAGES", "NEWEST", "TOPIC")]
        rows += [
            (str(len(one["queues"])), f"{one['messages']:,}", one["newest_at"] or "-", one["topic"]) for one in items
        ]
        show_lines(in_columns(rows) if items else ["no topic has a queue here"])
    return Exit.FINE


topic_commands.command("list")(in_group(list_topics, unless="store"))


def describe_topic(
    target: Target | None,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Print one topic's queues, of a running group or of a store's files: first and next offset, messages, times."""
    if target is not None:
        from app.commands.live_topics import show_topic

        return show_topic(target, topic, as_json=as_json)
    with opened_store(store) as reader:
        if topic not in topic_names(reader):
            raise Failure(Exit.FINDING, f"there is no topic {topic!r} in {store}; `topic list` has their names")
        found = topic_json(reader, topic)
    if as_json:
        show_json(found)
    else:
        rows = [("QUEUE", "MIN", "MAX", "MESSAGES", "OLDEST", "NEWEST")]
        rows += [
            (str(one["queue_id"]), str(one["min_offset"]), str(one["max_offset"]), f"{one['messages']:,}",
             one["oldest_at"] or "-", one["newest_at"] or "-")
            for one in found["queues"]
        ]  # fmt: skip
        head = [f"topic {found['topic']}: {found['messages']:,} messages in {len(found['queues'])} queues"]
        if found["perm"] is not None:
            head.append(f"config/topics.json: {found['read_queues']} to read, {found['write_queues']} to write, "
                        f"permission {found['perm']}")  # fmt: skip
        show_lines(wrapped(head, terminal_width()) + in_columns(rows))
    return Exit.FINE


topic_commands.command("describe")(in_group(describe_topic, unless="store"))


def topic_names(store: MessageStore) -> list[str]:
    """Topics that have queues, and those that only the configuration knows."""
    return sorted(set(store.topics()) | set(_configured(store)))


def _configured(store: MessageStore) -> dict[str, Any]:
    from node.message_store.errors import MessageFormatError

    try:
        table = (store.config("topics.json") or {}).get("topicConfigTable")
    except MessageFormatError:
        return {}
    return {name: one for name, one in table.items() if isinstance(one, dict)} if isinstance(table, dict) else {}


def topic_json(store: MessageStore, topic: str) -> dict[str, Any]:
    """One of `topic list --json`."""
    queues = [_queue_json(store, one) for one in store.queues(topic)]
    config = _configured(store).get(topic, {})
    newest = [one["newest_at"] for one in queues if one["newest_at"] is not None]
    return {
        "topic": _clean(topic),
        "messages": sum(one["messages"] for one in queues),
        "newest_at": max(newest, default=None),
        "read_queues": config.get("readQueueNums"),
        "write_queues": config.get("writeQueueNums"),
        "perm": config.get("perm"),
        "queues": queues,
    }


def _queue_json(store: MessageStore, queue: Any) -> dict[str, Any]:
    from node.message_store.described import in_time
    from node.message_store.errors import MessageStoreError

    low, high = queue.min_offset(store.log.min_offset), queue.max_offset()
    times: list[str | None] = []
    for number in (low, high - 1):
        try:
            there = store.in_queue(queue.topic, queue.queue_id, number)
            times.append(in_time(there.record.store_timestamp_ms))
        except MessageStoreError:
            times.append(None)
    return {
        "queue_id": queue.queue_id, "min_offset": low, "max_offset": high, "messages": high - low,
        "oldest_at": times[0], "newest_at": times[1],
    }  # fmt: skip


def opened(record: MessageRecord) -> bytes:
    """LZ4 and Zstandard are pyarrow's, where it is there (the audit extra). Raises MessageFormatError."""
    from node.message_store.bodies import opened_body
    from node.message_store.errors import MessageFormatError
    from node.message_store.record import Compression

    kind = record.compression
    if kind not in (Compression.LZ4, Compression.ZSTD):
        return opened_body(record, BODY_BYTES_MAX)
    try:
        import pyarrow
    except ImportError as error:
        text = f"the body is compressed with {kind.name}: install quorumscope[audit] to have it opened"
        raise MessageFormatError(text) from error
    try:
        stream = pyarrow.input_stream(pyarrow.py_buffer(record.body), compression=kind.name.lower())
        body: bytes = stream.read(BODY_BYTES_MAX + 1)
    except (OSError, pyarrow.ArrowException) as error:
        raise MessageFormatError(f"the body is no {kind.name} stream: {error}") from error
    if len(body) > BODY_BYTES_MAX:
        raise MessageFormatError(f"the body opens to more than {BODY_BYTES_MAX} bytes")
    return body


def message_lines(one: dict[str, Any]) -> list[str]:
    """One message for people."""
    where, body = one["where"], one["body"]
    lines = [
        f"message {one['message_id']}",
        f"topic {one['topic']}, queue {one['queue_id']}, queue offset {one['queue_offset']}"
        + ("" if one["transaction"] == "none" else f", transaction {one['transaction']}"),
        f"stored {one['stored_at']} at {one['store_host']}, born {one['born_at']} at {one['born_host']}",
    ]
    if one["reconsume_times"]:
        lines.append(f"consumed again {one['reconsume_times']} times")
    lines.append("properties:" if one["properties"] else f"properties: {one.get('left_out') or 'none'}")
    lines += [f"  {name}: {value}" for name, value in one["properties"].items()]
    shown = f"{body['stored_bytes']:,} bytes"
    if body["compression"] != "none":
        opened = f"{body['bytes']:,} bytes opened" if body["opened"] else f"not opened: {body['why']}"
        shown += f" of {body['compression']}, {opened}"
    shown += ", in base64 (it is no UTF-8)" if "base64" in body else ""
    lines.append(f"body: {shown}" + ("" if body["crc_ok"] else "; its CRC is WRONG: this is not what was sent"))
    text = body.get("text", body.get("base64", ""))
    rest = len(text) - SHOWN_BODY_CHARS
    lines += [f"  {line}" for line in text[:SHOWN_BODY_CHARS].splitlines()]
    lines += [f"  ... {rest:,} more characters; --json has all"] if rest > 0 else []
    entry = f", entry {where['entry_index']} of the replicated log" if where["entry_index"] is not None else ""
    lines.append(f"lies at offset {where['offset']}: {where['file']} at byte {where['file_position']}, "
                 f"{where['size_bytes']} bytes{entry}")  # fmt: skip
    unit = where["queue_unit"]
    if not where["queued"]:
        lines.append("in no consume queue: half and rolled back messages have no unit")
    elif unit is None:
        lines.append("no consume queue: there is no such directory")
    else:
        fits = "points here" if unit["points_here"] else f"points to {unit['points_to_offset']}: not to this message"
        lines.append(f"unit {unit['queue_offset']} of {unit['file']} {fits}")
    indexed = ", ".join(where["index_files"])
    lines.append(f"indexed in {indexed}" if indexed else "in no index file" if one["keys"] else "has no keys")
    return [escaped(line) for line in lines]


def in_columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Left-aligned, two spaces apart; a cell is one line, and as wide as it is shown. On a terminal that is too narrow
    for that, each row is a paragraph, with the column's name before each cell."""
    rows = [tuple(escaped(cell) for cell in row) for row in rows]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    room = terminal_width()
    if room is None or max(map(len, lines)) <= room:
        return lines

    head, *others = rows
    return wrapped(["  ".join(map(" ".join, zip(head, row, strict=True))) for row in others], room)


def _clean(text: str) -> str:
    from node.message_store.java_text import printable

    return printable(text)


def register(app: typer.Typer) -> None:
    """Adds this family's commands."""
    app.add_typer(message_commands, name="message")
    app.add_typer(topic_commands, name="topic")
