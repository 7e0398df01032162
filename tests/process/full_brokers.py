"""Brokers on disks that fill up: a story a time, `python -m tests.process.full_brokers pair|group DIRECTORY`.

Each disk is a tmpfs in a mount namespace of this process's own, which its caller entered (`net.isolation`): it ends
with the process. It is filled to the last byte by a file beside the store, and gets its room back.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from node.message_client.errors import Unavailable
from node.message_client.link import Link
from node.message_store.record import decode_record
from node.rocketmq.codes import Answer, Request
from tests.process.broker_group import BrokerGroup
from tests.process.chaos_disk import TmpfsDisk
from tests.process.classic_brokers import ClassicBrokers, sending_pair
from tests.unit.broker_kit import pull_fields, send_fields

WITHIN_S: Final = 90.0
DISK_BYTES: Final = 400 << 20  # a classic broker takes nothing once 256 MiB are left


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while True:
            if await holds():
                return
            await asyncio.sleep(0.05)


async def of_a_pair(directory: Path) -> None:
    """The master's, the slave's, and a disk of its own under the slave's queues."""
    disks = {name: TmpfsDisk(directory / name, DISK_BYTES) for name in ("a", "b")}
    disks["queues"] = TmpfsDisk(directory / "b" / "consumequeue", DISK_BYTES)
    for disk in disks.values():
        await disk.make()
    async with ClassicBrokers(directory, "a", "b") as brokers:
        senders = await sending_pair(brokers)
        await brokers.pulled("a", 0)  # a group that is new needs room
        for name, broker, answer in (
            ("a", "a", Answer.SERVICE_NOT_AVAILABLE), ("b", "b", Answer.SLAVE_NOT_AVAILABLE),
            ("queues", "b", Answer.SLAVE_NOT_AVAILABLE),
        ):  # fmt: skip
            disks[name].fill()
            await brokers.until(broker, lambda said: "disk_full" in {one["code"] for one in said["problems"]})
            await senders.refused(answer)
            before = len(senders.acknowledged)
            await senders.refused(answer)
            assert len(senders.acknowledged) == before, name
            if broker == "b":  # its master knows why
                await brokers.until("a", lambda said: any("disk is full" in one["text"] for one in said["problems"]))
            bodies, _next = await brokers.pulled("a", 0)
            assert bodies, f"no consumer is served while {name} is full"
            disks[name].free()
            await senders.more()
        for number in (signal.SIGKILL, signal.SIGTERM):
            disks["b"].fill()
            await senders.refused(Answer.SLAVE_NOT_AVAILABLE)
            await brokers.kill("b", number)
            disks["b"].free()
            await brokers.start("b", "slave")
            await senders.more()
        await senders.stop()
        await brokers.in_step("a")
        for name in ("a", "b"):
            found = brokers.bodies_of(name)
            assert not [body for body in senders.acknowledged if found[body] != 1], name
        assert brokers.log_of("a") == brokers.log_of("b")


class GroupClient:
    """Of all brokers of a group."""

    def __init__(self, group: BrokerGroup) -> None:
        self._links = {name: Link(f"127.0.0.1:{port}") for name, port in group.ports.items()}
        self.acknowledged: list[bytes] = []

    async def send(self, *names: str) -> str | None:
        """Who took one more message."""
        for name in names or tuple(self._links):
            body = b"%d of %s" % (len(self.acknowledged), name.encode()) + bytes(2000)
            try:
                answer = await self._links[name].ask(Request.SEND_MESSAGE_V2, send_fields(), body, 5.0)
            except Unavailable:
                continue
            if answer.code == Answer.SUCCESS:
                self.acknowledged.append(body)
                return name
        return None

    async def has_sent(self, *names: str) -> bool:
        return await self.send(*names) is not None

    async def read(self, name: str) -> Counter[bytes]:
        """Every message in its queue."""
        found: Counter[bytes] = Counter()
        while True:
            answer = await self._links[name].ask(Request.PULL_MESSAGE, pull_fields(found.total()), b"", 20.0)
            if answer.code != Answer.SUCCESS:
                there_is_no_more = (Answer.PULL_NOT_FOUND, Answer.TOPIC_NOT_EXIST)
                assert answer.code in there_is_no_more, (name, answer.code, answer.remark)
                return found
            data = bytes(answer.body)
            while data:
                record = decode_record(data)
                found[record.body] += 1
                data = data[record.total_size :]

    async def close(self) -> None:
        for link in self._links.values():
            await link.close()


async def of_a_group(directory: Path) -> None:
    """The master's alone: another member takes messages. Then everybody's, also over a kill -9 of all."""
    group = BrokerGroup(directory)
    disks = {name: TmpfsDisk(directory / name, DISK_BYTES) for name in group.peers}
    for disk in disks.values():
        await disk.make()
    client = GroupClient(group)

    async def reads_all(name: str) -> bool:
        found = await client.read(name)
        return all(found[body] == 1 for body in client.acknowledged) and max(found.values(), default=0) == 1

    try:
        await asyncio.to_thread(group.start, *group.peers)
        await until(client.has_sent)
        for name in group.peers:
            await until(lambda name=name: reads_all(name))  # type: ignore[misc]
        full = await client.send()
        assert full is not None
        others = [name for name in group.peers if name != full]
        disks[full].fill()

        async def another_takes_them() -> bool:
            """The first page of a queue has room for 204 messages."""
            return bool({await client.send() for _ in range(50)} & set(others))

        await until(another_takes_them)
        assert (await client.read(full)).total(), "no consumer is served at a full disk"
        disks[full].free()
        for disk in disks.values():
            disk.fill()
        for _ in range(20):
            await client.send()
        for name in group.peers:
            assert (await client.read(name)).total()
        for name in group.peers:
            group.end_broker(name, signal.SIGKILL)
            group.kill(name)
        await asyncio.to_thread(group.start, *group.peers)
        for disk in disks.values():
            disk.free()
        await until(client.has_sent)

        for name in group.peers:
            await until(lambda name=name: reads_all(name))  # type: ignore[misc]
    finally:
        await client.close()
        group.close()


if __name__ == "__main__":
    story = {"pair": of_a_pair, "group": of_a_group}[sys.argv[1]]
    asyncio.run(story(Path(sys.argv[2])))
