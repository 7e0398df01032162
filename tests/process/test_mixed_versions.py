"""Members of the release before and of this one in one group, under load: upgraded one by one, and back again.

The older release is built from this repository's own history; where that is not there, this test fails. What it shows
is the policy of docs/operations.md ("Upgrades"): HELLO version 1 and 2 side by side, the same files on disk, one member
at a time with the group serving meanwhile, and the way back to that release.
"""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from node.children import apart
from node.client import LedgerClient, LedgerError
from node.protocol.entry import Magic
from node.store.files.hard_state import read_hard_state
from node.store.reader import StoreReader
from tests.process.group import ROOT, Group, all_vote, append_surely

pytestmark = pytest.mark.process
BEFORE = "c9725aa"  # the last commit that speaks HELLO version 1
OLD, NEW = "old", "new"


@pytest.fixture(scope="module")
def release_before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That release's files."""
    made = subprocess.run(["git", "-C", str(ROOT), "archive", BEFORE, "node"], capture_output=True, check=False)
    assert made.returncode == 0, f"this needs the repository's history back to {BEFORE}: {made.stderr.decode()}"
    directory = tmp_path_factory.mktemp("before")
    with tarfile.open(fileobj=io.BytesIO(made.stdout)) as archive:
        archive.extractall(directory, filter="data")
    return directory


class MixedGroup(Group):
    """A group in which each member runs one of two releases."""

    def __init__(self, directory: Path, before: Path) -> None:
        super().__init__(directory)
        self.before = before
        self.token = ()  # a word that the release before does not know; the group gets its id from a leader
        self.release = dict.fromkeys(self.peers, OLD)

    def spawn(self, arguments: list[str], module: str = "node.server") -> subprocess.Popen[str]:
        root = self.before if self.release[arguments[1]] == OLD else ROOT
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments], cwd=root, env=os.environ | {"PYTHONPATH": str(root)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=apart(signal.SIGKILL),
        )  # fmt: skip


class Load:
    """Appends one after the other all the time, and remembers what was acknowledged."""

    def __init__(self, client: LedgerClient) -> None:
        self._client = client
        self.acknowledged: dict[int, bytes] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        number = 0
        while True:
            number += 1
            body = b"entry %d" % number
            with suppress(LedgerError):
                self.acknowledged[(await self._client.append(body)).first_index] = body

    async def goes_on(self) -> None:
        """Returns once more was acknowledged than now."""
        before = len(self.acknowledged)
        deadline = asyncio.get_running_loop().time() + 60
        while len(self.acknowledged) <= before:
            assert asyncio.get_running_loop().time() < deadline, "nothing is acknowledged any more"
            await asyncio.sleep(0.02)


@asynccontextmanager
async def under_load(group: MixedGroup) -> AsyncIterator[tuple[LedgerClient, Load]]:
    client, writer = group.client(), group.client()
    load = Load(writer)
    try:
        await append_surely(client, b"first")
        await all_vote(client, group.peers)
        load.start()
        try:
            yield client, load
        finally:
            await load.stop()
    finally:
        await client.close()
        await writer.close()


async def change(group: MixedGroup, client: LedgerClient, load: Load, member: str, release: str) -> None:
    """One member stops, the two others serve; it comes back as the other release, and votes, before the next one."""
    assert await asyncio.to_thread(group.kill, member, signal.SIGTERM) == 0
    await load.goes_on()
    group.release[member] = release
    process = group.processes[member] = group.spawn(group.arguments(member))  # it lives as long as this thread
    assert process.stdout is not None
    assert await asyncio.to_thread(process.stdout.readline), f"{member} does not start: {process.communicate()[1]}"
    await all_vote(client, group.peers)
    await load.goes_on()


async def everywhere(group: MixedGroup, client: LedgerClient, index: int) -> None:
    """Returns once every member has committed that entry."""
    deadline = asyncio.get_running_loop().time() + 60
    for member in group.peers:
        while (await client.state(member))["log"]["committed_index"] < index:
            assert asyncio.get_running_loop().time() < deadline, f"{member} does not get entry {index}"
            await asyncio.sleep(0.05)


def test_upgraded_one_by_one_and_back_nothing_acknowledged_is_lost(tmp_path: Path, release_before: Path) -> None:
    async def story(group: MixedGroup) -> dict[int, bytes]:
        async with under_load(group) as (client, load):
            await load.goes_on()
            for member in group.peers:
                await change(group, client, load, member, NEW)
            for member in group.peers:
                state = read_hard_state(tmp_path / member / f"dledger-{member}")
                assert state is not None and state.life_ids, "all are of this release by now"
            for member in ("n0", "n1"):  # and back, to stay mixed
                await change(group, client, load, member, OLD)
            terms = {(await client.state(member))["term"] for member in group.peers}
            assert max(terms) < 100, "elections, and no war of elections"
            await load.stop()
            await everywhere(group, client, max(load.acknowledged))
            return load.acknowledged

    group = MixedGroup(tmp_path, release_before)
    try:
        group.start_all()
        acknowledged = asyncio.run(story(group))
    finally:
        for member in list(group.processes):
            group.kill(member, signal.SIGTERM)
        group.close()
    assert len(acknowledged) > 10
    for member in group.peers:
        reader = StoreReader(tmp_path / member / f"dledger-{member}")
        assert not reader.verify().problems
        for index, body in acknowledged.items():
            entry = reader.entry(index)
            assert entry is not None, f"{member} lacks acknowledged entry {index}"
            assert (entry.body, entry.magic) == (body, Magic.NORMAL), f"{member} holds something else at {index}"
