"""Brokers and engines of two releases in one group, each beside each, under load: upgraded one by one, and back.

The older release is built from this repository's own history, as in test_mixed_versions.py. Its engines do not know
reads that wait for a commit (AWAITED_READ). A supervisor starts again what ends, so after an upgrade of the files alone
a broker of the new release may run beside an engine of the old one, and the other way round.
"""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import sys
import tarfile
from contextlib import suppress
from pathlib import Path

import pytest

from node.children import apart
from node.client import LedgerClient, LedgerError
from node.message_client import ClientError, MessageConsumer, MessageProducer, OutgoingMessage
from tests.process.broker_group import BrokerGroup
from tests.process.group import ROOT, Group
from tests.unit.engine_kit import until

pytestmark = [pytest.mark.process, pytest.mark.long]
OLD = "150ee7e"  # the last commit whose engines know no AWAITED_READ
TOPIC = "mixed"
SENDERS = 4
QUIET = (  # somebody is elected only where a leader goes
    "--set", "timing.election_timeout_min_ms=4000", "--set", "timing.election_timeout_max_ms=6000",
)  # fmt: skip
MORE = 20  # messages that are acknowledged in each state
Place = tuple[int, int]


@pytest.fixture(scope="module")
def old_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the older release."""
    made = subprocess.run(["git", "-C", str(ROOT), "archive", OLD, "node"], capture_output=True, check=False)
    assert made.returncode == 0, f"this needs the repository's history back to {OLD}: {made.stderr.decode()}"
    directory = tmp_path_factory.mktemp(OLD)
    with tarfile.open(fileobj=io.BytesIO(made.stdout)) as archive:
        archive.extractall(directory, filter="data")
    return directory


class MixedBrokers(BrokerGroup):
    """Engines and brokers, each of the release that `runs` names; all begin with the older one."""

    def __init__(self, directory: Path, old: Path) -> None:
        super().__init__(directory)
        self.roots = {"old": old, "new": ROOT}
        self.runs = {(member, module): "old" for member in self.peers for module in ("node.server", "node.broker")}

    def arguments(self, node_id: str, *more: str) -> list[str]:
        return super().arguments(node_id, *QUIET, *more)

    def spawn(self, arguments: list[str], module: str | None = None) -> subprocess.Popen[str]:
        module = module or self.module
        root = self.roots[self.runs[arguments[1], module]]
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments], cwd=root, env=os.environ | {"PYTHONPATH": str(root)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=apart(signal.SIGKILL),
        )  # fmt: skip

    def change_broker(self, member: str, release: str) -> None:
        self.end_broker(member, signal.SIGTERM)
        self.runs[member, "node.broker"] = release
        self.start_broker(member)

    def change_engine(self, member: str, release: str) -> None:
        """Its broker runs on, and finds another engine."""
        self.kill(member, signal.SIGTERM)
        self.runs[member, "node.server"] = release
        Group.start(self, member)


class Load:
    """Sends all the time, and remembers where what was acknowledged lies."""

    def __init__(self, producer: MessageProducer) -> None:
        self._producer = producer
        self.acknowledged: dict[bytes, Place] = {}
        self._tried = 0

    async def send(self) -> None:
        while True:
            self._tried += 1
            body = b"%d" % self._tried
            with suppress(ClientError):
                sent = await self._producer.send(OutgoingMessage(TOPIC, body))
                self.acknowledged[body] = sent.queue_id, sent.queue_offset

    async def goes_on(self) -> None:
        wanted = len(self.acknowledged) + MORE
        await until(lambda: len(self.acknowledged) >= wanted)


async def lead(client: LedgerClient, member: str) -> None:
    """Asks for it until it is so."""
    while (await client.state(member))["role"] != "LEADER":
        with suppress(LedgerError):
            await client.transfer(member)
        await asyncio.sleep(0.05)


async def places(group: MixedBrokers, wanted: set[bytes]) -> dict[bytes, list[Place]]:
    """Where a group of consumers finds each message, until it has seen all that are wanted."""
    found: dict[bytes, list[Place]] = {}
    missing = set(wanted)
    async with MessageConsumer(group.name_servers.split(";"), "readers", TOPIC) as consumer:
        async for message in consumer:
            place, body = (message.record.queue_id, message.record.queue_offset), bytes(message.record.body)
            if place not in found.setdefault(body, []):
                found[body].append(place)
            missing.discard(body)
            if not missing:
                break
    return found


@pytest.mark.timeout(900)
def test_each_release_beside_each_and_nothing_acknowledged_is_lost(tmp_path: Path, old_release: Path) -> None:
    """First the brokers alone are of the new release, then the engines alone are of the old one again."""

    async def story(client: LedgerClient, load: Load) -> None:
        await load.goes_on()
        for member in group.peers:
            await asyncio.to_thread(group.change_broker, member, "new")
            await lead(client, member)  # a new broker, an old engine
            await load.goes_on()
            await asyncio.to_thread(group.change_engine, member, "new")
            await load.goes_on()
        await asyncio.to_thread(group.change_broker, "n0", "old")
        await lead(client, "n0")  # an old broker, a new engine
        await load.goes_on()
        await asyncio.to_thread(group.change_engine, "n0", "old")
        await load.goes_on()

    async def play() -> Load:
        client = group.client()
        async with MessageProducer(group.name_servers.split(";")) as producer:
            load = Load(producer)
            sending = [asyncio.create_task(load.send()) for _ in range(SENDERS)]
            try:
                await story(client, load)
            finally:
                for one in sending:
                    one.cancel()
                await asyncio.gather(*sending, return_exceptions=True)
                await client.close()
        return load

    async def all_of_it() -> None:
        load = await play()
        found = await places(group, set(load.acknowledged))
        for body, place in load.acknowledged.items():
            assert found[body] == [place]
        assert max(map(len, found.values())) == 1, "none is stored twice, known or not"

    group = MixedBrokers(tmp_path, old_release)
    try:
        group.start_all()
        asyncio.run(all_of_it())
    finally:
        group.close()
