"""`produce` and `consume`: messages to and from a topic, by RocketMQ's remoting protocol, of our brokers and of Java's.

Invariants: each message that was sent is one line of output, with where it lies; what is not known to be stored ends
the command with 75; a consumed message counts as done when its line was written.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final

import typer

from app.commands.common import Exit, Failure, JsonOption, demo_meant, show_json
from node.printable import escaped

if TYPE_CHECKING:
    from node.message_client import MessageProducer, OutgoingMessage, Received, Sent

DEFAULT_NAME_SERVER: Final = "127.0.0.1:9876"
TOGETHER: Final = 512  # lines of standard input that travel together
LINE_BYTES_MAX: Final = 4 * 1024 * 1024
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
    bodies: Annotated[list[str] | None, typer.Argument(metavar="BODY…", help="None: a line of stdin each.")] = None,
    name_server: NameServerOption = None,
    keys: Annotated[list[str] | None, typer.Option("--key", metavar="KEY", help="Found by it; repeatable.")] = None,
    tag: Annotated[str | None, typer.Option(metavar="TAG", help="What consumers choose by.")] = None,
    shard: Annotated[str | None, typer.Option(metavar="TEXT", help="Same text, same queue.")] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="TIME", help="Seen only so long after: 1s 5s 10s 30s 1m … 10m 20m 30m 1h 2h.")
    ] = None,
    group: Annotated[str, typer.Option(metavar="NAME", help="The group of producers.")] = "quorumscope",
    deadline: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="For each message.")] = 10.0,
    as_json: JsonOption = False,
) -> int:
    """Send messages to a topic of RocketMQ's or ours."""
    from node.message_client import OutgoingMessage

    lines = (one.encode("utf-8", "surrogateescape") for one in bodies) if bodies else _lines()
    level = delay_level(delay)
    messages = (OutgoingMessage(topic, body, tuple(keys or ()), tag, (), shard, level) for body in lines)
    return asyncio.run(_produce(_name_servers(name_server), messages, group, deadline, as_json))


def delay_level(text: str | None) -> int:
    """RocketMQ's level for a time that is one of its 18; 0: at once. Raises Failure."""
    from node.message_store.delay_levels import DEFAULT_DELAY_LEVELS

    levels = DEFAULT_DELAY_LEVELS.split()
    if text is None:
        return 0
    if text not in levels:
        raise Failure(Exit.USAGE, f'--delay "{text}": it is one of {DEFAULT_DELAY_LEVELS}')
    return levels.index(text) + 1


def _lines() -> Iterable[bytes]:
    while line := sys.stdin.buffer.readline(LINE_BYTES_MAX):
        yield line.removesuffix(b"\n")


async def _produce(
    name_servers: list[str], messages: Iterable[OutgoingMessage], group: str, deadline_s: float, as_json: bool
) -> int:
    from node.message_client import ClientError, MessageProducer

    each = iter(messages)
    try:
        async with MessageProducer(name_servers, group, deadline_s) as producer:
            while together := list(islice(each, TOGETHER)):
                await _send_all(producer, together, as_json)
    except ClientError as error:
        raise _failure(error) from error
    return Exit.FINE


async def _send_all(producer: MessageProducer, messages: list[OutgoingMessage], as_json: bool) -> None:
    """Shows what was stored; raises the first error of the others, once all have ended."""
    found = await asyncio.gather(*(producer.send(one) for one in messages), return_exceptions=True)
    errors: list[BaseException] = []
    for one in found:
        if isinstance(one, BaseException):
            errors.append(one)
        else:
            _show_sent(one, as_json)
    if errors:
        raise errors[0]


def _show_sent(sent: Sent, as_json: bool) -> None:
    if as_json:
        show_json({"message_id": sent.message_id, "queue_id": sent.queue_id, "queue_offset": sent.queue_offset})
    else:
        print(f"{sent.message_id} {sent.queue_id} {sent.queue_offset}")


def _failure(error: Exception) -> Failure:
    from node.message_client import NotSent, SendUnknown, Unavailable

    if isinstance(error, SendUnknown):
        return Failure(Exit.UNKNOWN_OUTCOME, f"it may be stored: {error}")
    if isinstance(error, Unavailable):
        return Failure(Exit.UNREACHABLE, str(error))
    return Failure(Exit.FINDING if isinstance(error, NotSent) else Exit.USAGE, str(error))


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
    return asyncio.run(_consume(_name_servers(name_server), topic, group, tags, count, from_last, as_json, ack=ack))


async def _consume(
    name_servers: list[str], topic: str, group: str, tags: str, count: int, from_last: bool, as_json: bool, *, ack: bool
) -> int:
    from node.message_client import ClientError, MessageConsumer

    seen = 0
    try:
        async with MessageConsumer(name_servers, group, topic, tags=tags, from_first=not from_last) as consumer:
            while not count or seen < count:
                message = await consumer.receive()
                _show_received(message, as_json)
                if ack:
                    consumer.done(message)
                seen += 1
    except ClientError as error:
        raise _failure(error) from error
    return Exit.FINE


def _show_received(message: Received, as_json: bool) -> None:
    from node.message_store.bodies import opened_body
    from node.message_store.errors import MessageStoreError

    record = message.record
    try:
        body = opened_body(record) or b""
    except MessageStoreError:
        body = record.body
    if as_json:
        show_json(
            {
                "topic": record.topic, "queue_id": record.queue_id, "queue_offset": record.queue_offset,
                "message_id": record.message_id, "keys": record.properties.get("KEYS", ""), "tags": record.tags or "",
                "body": body.decode("utf-8", "replace"),
            }
        )  # fmt: skip
    else:
        print(f"{record.queue_id} {record.queue_offset} {escaped(body.decode('utf-8', 'replace'))}", flush=True)


def register(app: typer.Typer) -> None:
    """Adds this family's commands."""
    app.command()(produce)
    app.command()(consume)
