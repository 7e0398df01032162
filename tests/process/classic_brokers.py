"""Brokers in classic mode as processes on loopback, each reaching each other one's HA port through a relay of its own.

Invariants: every process ends with this one; a body that is in `acknowledged` was answered SUCCESS once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from app.demo.relay import Links
from node.broker.classic.control_key import read_key
from node.children import apart, environment, python
from node.message_client.errors import Unavailable
from node.message_client.link import Link
from node.message_store.local_records import walk
from node.message_store.record import decode_record
from node.rocketmq.codes import Answer, Request
from node.rocketmq.command import Command
from tests.ports import free_ports
from tests.unit.broker_kit import pull_fields, send_fields

INTROSPECT: Final = 29_101
PROMOTE: Final = 29_102
FILE_BYTES: Final = 262_144  # so that the log rolls over files
WITHIN_S: Final = 60.0
SETTINGS: Final = {
    "store.mapped_file_size_for_entry_data_bytes": str(FILE_BYTES), "ha.reconnect_ms": "200",
    "ha.slave_timeout_ms": "500", "ha.cuts_back": "true",
}  # fmt: skip


class ClassicBrokers:
    """See the module's docstring."""

    def __init__(self, directory: Path, *names: str, **settings: str) -> None:
        self.directory, self.names, self.settings = directory, names, SETTINGS | settings
        ports = free_ports(2 * len(names))
        self.clients = dict(zip(names, ports[::2], strict=True))
        self.ha = dict(zip(names, ports[1::2], strict=True))
        self.links = Links({name: ("127.0.0.1", port) for name, port in self.ha.items()})
        self.running: dict[str, Process] = {}
        self._asking: dict[str, Link] = {}

    async def __aenter__(self) -> ClassicBrokers:
        await self.links.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        for name in list(self.running):
            await self.kill(name)
        await self.links.stop()

    # --- processes ------------------------------------------------------------------------------------------------
    def arguments(self, name: str, role: str) -> list[str]:
        peers = [f"127.0.0.1:{self.links.relays[name, other].port}" for other in self.names if other != name]
        set_to = (word for key, value in self.settings.items() for word in ("--set", f"{key}={value}"))
        return [
            "--id", name, "--group", "pair", "--data", str(self.directory / name), "--role", role,
            "--broker", f"127.0.0.1:{self.clients[name]}", "--ha", f"127.0.0.1:{self.ha[name]}",
            "--ha-peers", ";".join(peers), *set_to,
        ]  # fmt: skip

    async def start(self, name: str, role: str) -> None:
        """Returns when clients reach it."""
        with (self.directory / f"{name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *python("-m", "node.broker", *self.arguments(name, role)), stdout=PIPE, stderr=log, env=environment(),
                preexec_fn=apart(signal.SIGKILL),
            )  # fmt: skip
        self.running[name] = process
        assert process.stdout is not None
        async with asyncio.timeout(WITHIN_S):
            line = await process.stdout.readline()
        assert line, (self.directory / f"{name}.log").read_text()[-2000:]

    async def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        process = self.running.pop(name)
        process.send_signal(signal.SIGCONT)
        process.send_signal(number)
        await process.wait()
        link = self._asking.pop(name, None)
        if link is not None:
            await link.close()

    def signal(self, name: str, number: int) -> None:
        self.running[name].send_signal(number)

    # --- what clients do ------------------------------------------------------------------------------------------
    async def ask(
        self, name: str, code: int, fields: dict[str, str], body: bytes = b"", within_s: float = 5.0
    ) -> Command:
        """Raises Unavailable, AssertionError where that broker ended by itself."""
        link = self._asking.get(name)
        if link is None:
            link = self._asking[name] = Link(f"127.0.0.1:{self.clients[name]}")
        try:
            return await link.ask(code, fields, body, within_s)
        except Unavailable:
            process = self.running.get(name)
            if process is not None and process.returncode is not None:
                said = (self.directory / f"{name}.log").read_text()[-2000:]
                raise AssertionError(f"{name} ended by itself with {process.returncode}: {said}") from None
            raise

    async def send(self, name: str, body: bytes, within_s: float = 5.0) -> int:
        """The answer's code. Raises Unavailable."""
        answer = await self.ask(name, Request.SEND_MESSAGE_V2, send_fields(), body, within_s)
        return answer.code

    async def pulled(self, name: str, offset: int) -> tuple[list[bytes], int]:
        """Bodies from there on, and the next offset."""
        answer = await self.ask(name, Request.PULL_MESSAGE, pull_fields(offset))
        assert answer.code in (Answer.SUCCESS, Answer.PULL_NOT_FOUND), (answer.code, answer.remark)
        data, found = bytes(answer.body) if answer.code == Answer.SUCCESS else b"", []
        while data:
            record = decode_record(data)
            found.append(record.body)
            data = data[record.total_size :]
        return found, offset + len(found)

    async def commit(self, name: str, offset: int) -> None:
        fields = {"consumerGroup": "G", "topic": "TopicTest", "queueId": "0", "commitOffset": str(offset)}
        answer = await self.ask(name, Request.UPDATE_CONSUMER_OFFSET, fields)
        assert answer.code == Answer.SUCCESS, answer.remark

    async def committed(self, name: str) -> int:
        fields = {"consumerGroup": "G", "topic": "TopicTest", "queueId": "0"}
        answer = await self.ask(name, Request.QUERY_CONSUMER_OFFSET, fields)
        return int((answer.fields or {}).get("offset", -1))

    # --- what operators see and do ----------------------------------------------------------------------------------
    async def view(self, name: str) -> dict[str, Any]:
        """Raises Unavailable."""
        answer = await self.ask(name, INTROSPECT, {}, b'{"ask": "ha"}')
        said: dict[str, Any] = json.loads(bytes(answer.body))
        return said

    async def until(self, name: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Its view once it is so."""
        said: dict[str, Any] = {}
        try:
            async with asyncio.timeout(WITHIN_S):
                while True:
                    with contextlib.suppress(Unavailable):
                        said = await self.view(name)
                        if holds(said):
                            return said
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"{name}: {json.dumps(said, indent=1)}") from None

    async def served(self, master: str, *slaves: str) -> None:
        await self.until(master, lambda said: acked_by(said) >= set(slaves))

    async def promote(self, name: str, *accept: str) -> tuple[int, set[str]]:
        """The epoch that began, 0 where something stopped it, and what was found."""
        said = await self._promotion(name, accept, is_trial=False)
        return said["epoch"] or 0, {one["code"] for one in said["findings"] if one["stops"]}

    async def look(self, name: str) -> list[dict[str, Any]]:
        """What a promotion of it would find."""
        found: list[dict[str, Any]] = (await self._promotion(name, (), is_trial=True))["findings"]
        return found

    async def _promotion(self, name: str, accept: Sequence[str], *, is_trial: bool) -> dict[str, Any]:
        asked = {
            "key": read_key(self.directory / name), "by": "test", "accept": accept, "role": None, "dry_run": is_trial,
        }  # fmt: skip
        answer = await self.ask(name, PROMOTE, {}, json.dumps(asked).encode(), 30.0)
        assert answer.code == Answer.SUCCESS, answer.remark
        said: dict[str, Any] = json.loads(bytes(answer.body))
        return said

    async def in_step(self, master: str) -> None:
        """Every other broker that runs has all of it, and says so."""
        others = set(self.running) - {master}

        def all_have_it(said: dict[str, Any]) -> bool:
            return {
                one["peer_id"] for one in said["connections"] if one["acked_offset"] == said["end_offset"]
            } >= others  # fmt: skip

        await self.until(master, all_have_it)

    # --- what is on disk ------------------------------------------------------------------------------------------
    def log_of(self, name: str) -> bytes:
        """Its commit log without the zeros behind it."""
        files = sorted((self.directory / name / "commitlog").iterdir())
        return b"".join(path.read_bytes() for path in files).rstrip(b"\0")

    def aside_of(self, name: str) -> bytes:
        """All that was cut from its log."""
        folder = self.directory / name / "quorumscope" / "cut"
        return b"".join(path.read_bytes() for path in folder.iterdir()) if folder.exists() else b""

    def bodies_of(self, name: str) -> Counter[bytes]:
        """Every message in its commit log."""
        data, place = self.log_of(name), 0
        data += bytes(-len(data) % FILE_BYTES)
        found: Counter[bytes] = Counter()
        while place < len(data):
            walked = walk(data[place : place - place % FILE_BYTES + FILE_BYTES], place, FILE_BYTES)
            for start, size in zip(walked.starts, walked.sizes, strict=True):
                found[decode_record(data[place + start : place + start + size]).body] += 1
            place += walked.at
            if not walked.at or place % FILE_BYTES:
                break
        return found


def acked_by(said: dict[str, Any]) -> set[str]:
    """The slaves that a master serves."""
    return {
        one["peer_id"] for one in said["connections"] if one["state"] == "transfer" and one["acked_offset"] is not None
    }


class Senders:
    """Clients that send all the time, each to one broker after the other until one takes its message."""

    def __init__(self, brokers: ClassicBrokers, count: int = 8) -> None:
        self._brokers = brokers
        self.to = list(brokers.names)  # in this order
        self.acknowledged: list[bytes] = []
        self.codes: Counter[int] = Counter()
        self._number = 0
        self._answered = asyncio.Event()
        self._tasks = [asyncio.create_task(self._run()) for _ in range(count)]

    async def _run(self) -> None:
        while True:
            for name in list(self.to):
                self._number += 1
                body = b"%d of %s" % (self._number, name.encode())
                try:
                    code = await self._brokers.send(name, body)
                except Unavailable:
                    await asyncio.sleep(0.01)
                    continue
                self.codes[code] += 1
                if code == Answer.SUCCESS:
                    self.acknowledged.append(body)
                self._answered.set()
                if code == Answer.SUCCESS:
                    break
            await asyncio.sleep(0.005)

    async def more(self, count: int = 20) -> None:
        """So many more are acknowledged."""
        wanted = len(self.acknowledged) + count
        await self._until(lambda: len(self.acknowledged) >= wanted)

    def acknowledged_by(self, name: str) -> int:
        return sum(body.endswith(b" of " + name.encode()) for body in self.acknowledged)

    async def refused(self, *codes: int, count: int = 20) -> None:
        """So many more get one of these answers."""
        wanted = sum(self.codes[one] for one in codes) + count
        await self._until(lambda: sum(self.codes[one] for one in codes) >= wanted)

    async def _until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(WITHIN_S):
            while not is_so():
                self._answered.clear()
                await self._answered.wait()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        found = await asyncio.gather(*self._tasks, return_exceptions=True)
        for one in found:
            if isinstance(one, Exception):
                raise one


async def sending_pair(brokers: ClassicBrokers) -> Senders:
    """`a`, a SYNC_MASTER, and its slave `b`, which it serves; clients send to `a`, and some of it was taken."""
    await asyncio.gather(brokers.start("a", "sync_master"), brokers.start("b", "slave"))
    await brokers.served("a", "b")
    senders = Senders(brokers)
    senders.to = ["a"]
    await senders.more()
    return senders
