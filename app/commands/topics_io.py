"""`produce` and `consume`: messages to and from a topic, by RocketMQ's remoting protocol, of our brokers and of Java's.

Invariants: each message that was stored is one line of output, with where it lies; what is not known to be stored ends
the command with 75; a consumed message counts as done when its line was written.
"""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Annotated, Final

import typer

from app.commands.endings import Exit, Failure
from app.commands.ledger import opened
from app.commands.message_lines import Form, lines_of, messages_of
from app.commands.output import JsonOption, say, show_json
from app.commands.producing import Producing, failure_of_client
from app.commands.targets import demo_meant
from node.client.arguments import SECONDS_MAX
from node.printable import escaped

if TYPE_CHECKING:
    from node.message_client import Received

DEFAULT_NAME_SERVER: Final = "127.0.0.1:9876"
NameServerOption = Annotated[
    list[str] | None,
    typer.Option("--name-server", metavar="HOST:PORT", help="A name server, or a broker of ours; repeatable."),
]
TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC")]


def _name_servers(given: list[str] | None) -> list[str]:
    from node.protocol.peers import split_address

    for one in given or ():
        try:
            split_address(one)
        except ValueError as error:
            raise Failure(Exit.USAGE, f"--name-server: {error}") from error
    return given or _of_the_demo() or [DEFAULT_NAME_SERVER]


def _of_the_demo() -> list[str]:
    """A demo with messages that runs here is meant where no name server is named. Raises Failure."""
    from app.demo.state import running_demos

    if not any(one.name_servers for one in running_demos()):
        return []
    demo = demo_meant("--name-server HOST:PORT")
    return demo.name_servers.split(";") if demo is not None and demo.name_servers else []


def produce(
    topic: TopicArgument,
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="A message a line; - is standard input.")] = "-",
    bodies: Annotated[
        list[str] | None, typer.Option("--body", metavar="TEXT", help="This, and no file; repeatable.")
    ] = None,
    form: Annotated[
        Form, typer.Option("--format", help="Each line is a body, or JSON as `consume --json` prints it.")
    ] = Form.TEXT,
    name_server: NameServerOption = None,
    keys: Annotated[list[str] | None, typer.Option("--key", metavar="KEY", help="Found by it; repeatable.")] = None,
    tag: Annotated[str | None, typer.Option(metavar="TAG", help="What consumers choose by.")] = None,
    shard: Annotated[str | None, typer.Option(metavar="TEXT", help="Same text, same queue.")] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="TIME", help="Seen only so long after: 1s 5s 10s 30s 1m … 10m 20m 30m 1h 2h.")
    ] = None,
    group: Annotated[str, typer.Option(metavar="NAME", help="The group of producers.")] = "quorumscope",
    deadline: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, max=SECONDS_MAX, help="For each message.")
    ] = 10.0,
    as_json: JsonOption = False,
) -> int:
    """Send messages to a topic of RocketMQ's or ours."""
    from node.message_client import OutgoingMessage

    if bodies and file != "-":
        raise Failure(Exit.USAGE, f"--body and {file}: one of the two")
    lines = (one.encode("utf-8", "surrogateescape") for one in bodies) if bodies else lines_of(opened(file))
    plain = OutgoingMessage(topic, b"", tuple(keys or ()), tag, (), shard, delay_level(delay))
    producing = Producing(messages_of(iter(lines), form, plain, delay_level), as_json)
    interrupted = False
    try:
        asyncio.run(producing.run(_name_servers(name_server), group, deadline))
    except KeyboardInterrupt:
        interrupted = True
    if not as_json and (interrupted or producing.needs_words):
        say(producing.summary())
    if interrupted and not producing.unknown:
        return Exit.INTERRUPTED
    if producing.failed or producing.unknown:
        raise producing.failure()
    return Exit.FINE


def delay_level(text: str | None) -> int:
    """RocketMQ's level for a time that is one of its 18; 0: at once. Raises Failure."""
    from node.message_store.delay_levels import DEFAULT_DELAY_LEVELS

    levels = DEFAULT_DELAY_LEVELS.split()
    if text is None:
        return 0
    if text not in levels:
        raise Failure(Exit.USAGE, f'--delay "{text}": it is one of {DEFAULT_DELAY_LEVELS}')
    return levels.index(text) + 1


def consume(
    topic: TopicArgument,
    group: Annotated[str, typer.Option(metavar="NAME", help="Its clients share the topic's queues.")],
    name_server: NameServerOption = None,
    tags: Annotated[str, typer.Option(metavar="'A || B'", help="Only these; all by default.")] = "*",
    count: Annotated[int, typer.Option("-n", metavar="N", min=0, help="End after so many; 0: never.")] = 0,
    ack: Annotated[bool, typer.Option("--ack/--no-ack", help="What is printed is done, or comes again.")] = True,
    from_last: Annotated[bool, typer.Option("--from-last", help="A new group begins at the end.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Print a topic's messages as they come, as one of a group."""
    seen: list[int] = []
    try:
        asyncio.run(_consume(_name_servers(name_server), topic, group, tags, count, from_last, as_json, seen, ack=ack))
    except KeyboardInterrupt:
        done = "their offsets are committed" if ack else "they come again"
        say(f"{len(seen):,} messages printed; {done}")
        return Exit.INTERRUPTED
    return Exit.FINE


async def _consume(
    name_servers: list[str], topic: str, group: str, tags: str, count: int, from_last: bool, as_json: bool,
    seen: list[int], *, ack: bool,
) -> None:  # fmt: skip
    """`seen`: how long each was that has been printed."""
    from node.message_client import ClientError, MessageConsumer

    try:
        async with MessageConsumer(
            name_servers, group, topic, tags=tags, from_first=not from_last,
            report=lambda why: say(f"consume: {why}; waiting"),
        ) as consumer:  # fmt: skip
            while not count or len(seen) < count:
                message = await consumer.receive()
                _show_received(message, as_json)
                if ack:
                    consumer.done(message)
                seen.append(len(message.record.body))
    except ClientError as error:
        raise failure_of_client(error) from error


def _show_received(message: Received, as_json: bool) -> None:
    from node.message_store.bodies import opened_body
    from node.message_store.errors import MessageStoreError

    record = message.record
    try:
        body = opened_body(record) or b""
    except MessageStoreError:
        body = record.body
    if as_json:
        said: dict[str, object] = {
            "topic": record.topic, "queue_id": record.queue_id, "queue_offset": record.queue_offset,
            "message_id": record.message_id, "keys": record.properties.get("KEYS", ""), "tags": record.tags or "",
        }  # fmt: skip
        try:
            show_json(said | {"body": body.decode()})
        except UnicodeDecodeError:
            show_json(said | {"base64": base64.b64encode(body).decode()})
    else:
        print(f"{record.queue_id} {record.queue_offset} {escaped(body.decode('utf-8', 'replace'))}", flush=True)


def register(app: typer.Typer) -> None:
    """Adds this family's commands."""
    app.command()(produce)
    app.command()(consume)
