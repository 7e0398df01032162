"""The brokers of a demo with messages, and the groups that consume from them.

Each member has a broker beside its engine, which is a name server for its own group as well; all of them register at
each other. Two consumer groups read everything that is fed, each in a process of its own, which is started again
should it end.

Invariants: a broker's derived ports (two below for VIP channels, one above for HA) are this demo's as well; consumers
end with the demo, however it ends.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from app.commands.endings import Exit, Failure
from app.demo.message_feed import FLIGHT_TOPICS, LINES_TOPIC
from app.demo.ports import Ports
from app.demo.processes import Processes
from node.children import how_ended
from node.message_client import ClientError, MessageProducer

BROKER_PORT: Final = 10911
APART: Final = 10  # from one broker's port to the next
DERIVED: Final = (-2, 0, 1)  # VIP, the broker's own, HA
MASTER_WITHIN_S: Final = 60.0
AGAIN_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class DemoGroup:
    """One group of consumers; `tags` as consumers say them."""

    name: str
    tags: str
    why: str


GROUPS: Final = (
    DemoGroup("boards", "*", "every flight"),
    DemoGroup("two-carriers", "UA || DL", "flights of United and Delta"),
)


class DemoBrokers:
    """`addresses`: by member. `flights`: what is fed; else it is lines of a file."""

    def __init__(
        self, ids: Sequence[str], ports: Ports, processes: Processes, directory: Path, *, flights: bool
    ) -> None:
        found = ports.claim_apart(BROKER_PORT, len(ids), APART, DERIVED)
        self.addresses: Mapping[str, str] = {
            one: f"127.0.0.1:{port}" for one, port in zip(ids, found, strict=True)
        }  # fmt: skip
        self.topics = FLIGHT_TOPICS if flights else (LINES_TOPIC,)
        self._processes, self._directory = processes, directory

    @property
    def name_servers(self) -> str:
        return ";".join(self.addresses.values())

    def arguments(self, member_id: str) -> list[str]:
        """What a member's node is started with on top."""
        settings = (f"broker.name_servers={self.name_servers}", "broker.vip=true")
        return ["--broker", self.addresses[member_id], *(word for one in settings for word in ("--set", one))]

    def producer(self) -> MessageProducer:
        return MessageProducer(list(self.addresses.values()), "demo")

    async def wait_for_master(self, producer: MessageProducer) -> None:
        """Until a name server knows one that takes messages. Raises Failure."""
        deadline = time.monotonic() + MASTER_WITHIN_S
        while True:
            try:
                await producer.reach(self.topics[0])
            except ClientError as error:
                if time.monotonic() > deadline:
                    text = (
                        f"no broker takes messages within {MASTER_WITHIN_S:.0f} s ({error}); see {self._processes.logs}"
                    )
                    raise Failure(Exit.UNREACHABLE, text) from error
                await asyncio.sleep(0.1)
            else:
                return

    async def keep(self, group: DemoGroup, remark: Callable[[str], None]) -> None:
        """One group's process, for ever."""
        name = f"consumer-{group.name}"
        command = ["-m", "app.demo.consuming", "--group", group.name, "--name-servers", self.name_servers]
        command += ["--topics", ";".join(self.topics), "--tags", group.tags]
        command += ["--report", str(self._report(group))]
        while True:
            process = await self._processes.start(name, command)
            code = await process.wait()
            remark(
                f"consumer group {group.name} {how_ended(code)}: {self._processes.last_words(name)}; it starts again"
            )
            await asyncio.sleep(AGAIN_S)

    def _report(self, group: DemoGroup) -> Path:
        return self._directory / f"consumed-{group.name}.json"

    def consumed(self) -> list[dict[str, Any]]:
        """What each group says it has got."""
        found: list[dict[str, Any]] = []
        for group in GROUPS:
            try:
                said = json.loads(self._report(group).read_text())
            except (OSError, ValueError):  # it only just begins
                said = {"group": group.name, "tags": group.tags, "messages": 0}
            found.append(said)
        return found
