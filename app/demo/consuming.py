"""`python -m app.demo.consuming`: one of a demo's consumer groups, a process of its own, which counts what it gets.

    python -m app.demo.consuming --group boards --name-servers H:P;H:P --topics A;B --tags "*" --report FILE

Once a second, and at its end, FILE says as JSON what was consumed. In each queue messages come in order of their
offsets, so what comes again and what is left out is seen: without tags nothing may ever be left out.
Invariant: a message counts as done once it is counted here.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from node.background import Background
from node.message_client import MessageConsumer, Received

REPORT_EVERY_S: Final = 1.0


@dataclass(slots=True)
class Consumed:
    """`left_out`: offsets that were passed over; with tags they are those of other tags."""

    group: str
    tags: str = "*"
    messages: int = 0
    again: int = 0
    left_out: int = 0
    topics: dict[str, int] = field(default_factory=dict)
    queues: int = 0


class Counter:
    """What one group has got, since this process began."""

    def __init__(self, group: str, tags: str) -> None:
        self.said = Consumed(group, tags)
        self._next: dict[tuple[str, int], int] = {}

    def count(self, topic: str, queue_id: int, offset: int) -> None:
        key = topic, queue_id
        expected = self._next.get(key, offset)
        if offset < expected:
            self.said.again += 1
            return
        self.said.messages += 1
        self.said.left_out += offset - expected
        self.said.topics[topic] = self.said.topics.get(topic, 0) + 1
        self._next[key] = offset + 1
        self.said.queues = len(self._next)


def write_report(path: Path, said: Consumed) -> None:
    """Whole, or the one before."""
    fresh = path.with_suffix(".tmp")
    fresh.write_text(json.dumps(asdict(said)) + "\n")
    os.replace(fresh, path)


async def consume(group: str, name_servers: list[str], topics: list[str], tags: str, report: Path) -> None:
    """Until SIGTERM."""
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    counter = Counter(group, tags)
    write_report(report, counter.said)
    background = Background()
    async with MessageConsumer(name_servers, group, topics, tags=tags) as consumer:
        background.keep("counting", lambda: _count(consumer, counter))
        while not ending.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ending.wait(), REPORT_EVERY_S)
            write_report(report, counter.said)
        await background.stop()
    write_report(report, counter.said)


async def _count(consumer: MessageConsumer, counter: Counter) -> None:
    message: Received
    async for message in consumer:
        record = message.record
        counter.count(record.topic, record.queue_id, record.queue_offset)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="app.demo.consuming")
    for name in ("--group", "--name-servers", "--topics", "--report"):
        parser.add_argument(name, required=True)
    parser.add_argument("--tags", default="*")
    given = parser.parse_args(arguments)
    asyncio.run(
        consume(given.group, given.name_servers.split(";"), given.topics.split(";"), given.tags, Path(given.report))
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
