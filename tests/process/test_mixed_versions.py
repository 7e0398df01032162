"""Members of older releases and of this one in one group, under load: upgraded one by one, and back again.

The older releases are built from this repository's own history; where that is not there, these tests fail. What they
show is the policy of docs/operations.md ("Upgrades"): HELLO version 1 and 2 side by side, the same files on disk, one
member at a time with the group serving meanwhile, the way back to those releases, and that what they do not know is
refused while one of them takes part. Time-outs are long here: somebody is elected only where a leader goes.
"""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from node.children import apart
from node.client import LedgerClient, LedgerError
from node.protocol.codes import ResponseCode
from node.protocol.entry import Magic
from node.store.file_store import FileStore
from node.store.files.hard_state import read_hard_state
from node.store.reader import StoreReader
from tests.process.group import ROOT, Group, all_vote, append_surely

pytestmark = pytest.mark.process
FIRST = "c9725aa"  # the last commit that speaks HELLO version 1
BEFORE = "36af407"  # the release before this one
NEW = "new"
QUIET = (
    "--set", "timing.election_timeout_min_ms=4000", "--set", "timing.election_timeout_max_ms=6000",
)  # fmt: skip


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The files of each release."""
    found = {NEW: ROOT}
    for commit in (FIRST, BEFORE):
        made = subprocess.run(["git", "-C", str(ROOT), "archive", commit, "node"], capture_output=True, check=False)
        assert made.returncode == 0, f"this needs the repository's history back to {commit}: {made.stderr.decode()}"
        found[commit] = tmp_path_factory.mktemp(commit)
        with tarfile.open(fileobj=io.BytesIO(made.stdout)) as archive:
            archive.extractall(found[commit], filter="data")
    return found


class MixedGroup(Group):
    """A group in which each member runs one of these releases; all begin with `first`."""

    def __init__(self, directory: Path, releases: dict[str, Path], first: str) -> None:
        super().__init__(directory)
        self.releases = releases
        self.token = ()  # a word that the first release does not know; the group gets its id from a leader
        self.release = dict.fromkeys(self.peers, first)

    def arguments(self, node_id: str, *more: str) -> list[str]:
        return super().arguments(node_id, *QUIET, *more)

    def spawn(self, arguments: list[str], module: str = "node.server") -> subprocess.Popen[str]:
        root = self.releases[self.release[arguments[1]]]
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments], cwd=root, env=os.environ | {"PYTHONPATH": str(root)},
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, preexec_fn=apart(signal.SIGKILL),
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
    """One member stops, the two others serve; it comes back as the other release, and votes, before the next one.

    Somebody is elected if it led, and else nobody.
    """
    led, term = await leadership(client, group)
    assert await asyncio.to_thread(group.kill, member, signal.SIGTERM) == 0
    await load.goes_on()
    group.release[member] = release
    process = group.processes[member] = group.spawn(group.arguments(member))  # it lives as long as this thread
    assert process.stdout is not None
    assert await asyncio.to_thread(process.stdout.readline), f"{member} does not start as {release}"
    await all_vote(client, group.peers)
    await load.goes_on()
    leads, after = await leadership(client, group)
    assert (leads != led and after > term) if led == member else (leads, after) == (led, term), (member, release)


async def leadership(client: LedgerClient, group: MixedGroup) -> tuple[str, int]:
    """Who leads which term, once all members say one thing."""
    deadline = asyncio.get_running_loop().time() + 60
    while True:
        states = [await client.state(member) for member in group.peers]
        found = {(state["leader_id"], int(state["term"])) for state in states}
        if len(found) == 1 and (only := found.pop())[0] is not None:
            return only
        assert asyncio.get_running_loop().time() < deadline, f"no agreement: {states}"
        await asyncio.sleep(0.05)


async def everywhere(group: MixedGroup, client: LedgerClient, index: int) -> None:
    """Returns once every member has committed that entry."""
    deadline = asyncio.get_running_loop().time() + 60
    for member in group.peers:
        while (await client.state(member))["log"]["committed_index"] < index:
            assert asyncio.get_running_loop().time() < deadline, f"{member} does not get entry {index}"
            await asyncio.sleep(0.05)


async def led_by(group: MixedGroup, client: LedgerClient, member: str) -> None:
    """Asks for it until it is so: under load a transfer may not end in time."""
    deadline = asyncio.get_running_loop().time() + 60
    while (await leadership(client, group))[0] != member:
        assert asyncio.get_running_loop().time() < deadline, f"{member} never leads"
        with suppress(LedgerError):
            await client.transfer(member)


async def refused(client: LedgerClient, leader: str) -> None:
    """What a member of an older release would not understand; this client may still take another one for the leader."""
    change = {"what": "members", "kind": "add", "id": "n3", "address": "127.0.0.1:9"}
    answer = await client.order(leader, change, 30.0)
    assert answer["code"] == ResponseCode.ILLEGAL_MEMBER_STATE, answer
    assert "is of a release that knows no changes of members: upgrade it first" in answer["detail"]


def check(group: MixedGroup, directory: Path, acknowledged: dict[int, bytes]) -> None:
    """All have all, whole."""
    assert len(acknowledged) > 10
    for member in group.peers:
        reader = StoreReader(directory / member / f"dledger-{member}")
        assert not reader.verify().problems
        for index, body in acknowledged.items():
            entry = reader.entry(index)
            assert entry is not None, f"{member} lacks acknowledged entry {index}"
            assert (entry.body, entry.magic) == (body, Magic.NORMAL), f"{member} holds something else at {index}"


def played(
    directory: Path, releases: dict[str, Path], first: str, story: Callable[[MixedGroup, LedgerClient, Load], Any]
) -> None:
    """A story under load, of a group that begins with `first`; nothing that was acknowledged in it is lost."""

    async def play() -> dict[int, bytes]:
        async with under_load(group) as (client, load):
            await load.goes_on()
            await story(group, client, load)
            await load.stop()
            await everywhere(group, client, max(load.acknowledged))
            return load.acknowledged

    group = MixedGroup(directory, releases, first)
    try:
        group.start_all()
        acknowledged = asyncio.run(play())
    finally:
        for member in list(group.processes):
            group.kill(member, signal.SIGTERM)
        group.close()
    check(group, directory, acknowledged)


def test_upgraded_one_by_one_and_back_nothing_acknowledged_is_lost(tmp_path: Path, releases: dict[str, Path]) -> None:
    """And in the end one member of each release is in the group."""

    async def story(group: MixedGroup, client: LedgerClient, load: Load) -> None:
        for member in group.peers:
            await change(group, client, load, member, NEW)
        for member in group.peers:
            state = read_hard_state(tmp_path / member / f"dledger-{member}")
            assert state is not None and state.life_ids and state.kept, "all are of this release by now"
        await change(group, client, load, "n0", BEFORE)
        await change(group, client, load, "n1", FIRST)
        await led_by(group, client, "n2")
        await refused(client, "n2")

    played(tmp_path, releases, BEFORE, story)


def as_release(root: Path, *words: str) -> tuple[int, str]:
    """A Python of that release; its exit code, and all that it printed."""
    done = subprocess.run(
        [sys.executable, *words], cwd=root, env=os.environ | {"PYTHONPATH": str(root)}, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


OPENS = """
import sys
from node.store.file_store import FileStore
store = FileStore.open(sys.argv[1], group="g", node_id="n0", data_file_size=4096, index_file_size=3200)
print(store.begin_index, store.end_index, store.get(store.begin_index).body[:7])
"""


def test_what_the_release_before_makes_of_a_member_that_goes_back(tmp_path: Path, releases: dict[str, Path]) -> None:
    """It opens a log whose front was removed, and refuses a state machine's, and keys that it does not know."""
    before, sizes = releases[BEFORE], {"data_file_size": 4096, "index_file_size": 3200}
    trimmed = FileStore.open(tmp_path / "trimmed", group="g", node_id="n0", init=True, serving=True, **sizes)
    trimmed.append_as_leader([b"%06d" % number + bytes(400) for number in range(40)], 1)
    for prepare in (trimmed.prepare_sync, trimmed.prepare_checkpoint):
        ticket = prepare()
        assert ticket is not None
        ticket.run()
        trimmed.finish_sync(ticket)
    trimmed.note_progress(39, 39)
    trimmed.remove_prefix(20)
    begin_index = trimmed.begin_index
    trimmed.close()
    assert begin_index > 0
    code, said = as_release(before, "-c", OPENS, str(tmp_path / "trimmed"))
    assert (code, said.split()[:2]) == (0, [str(begin_index), "39"]), said

    machines = tmp_path / "machines" / "dledger-n0"
    machines.parent.mkdir()
    FileStore.open(machines, group="g", node_id="n0", init=True, serving=True, kind="kv", **sizes).close()
    words = ["-m", "node.server", "--id", "n0", "--peers", "n0-127.0.0.1:9", "--group", "g"]
    for key, value in (("entry_data", 4096), ("entry_index", 3200)):
        words += ["--set", f"store.mapped_file_size_for_{key}_bytes={value}"]
    code, said = as_release(before, *words, "--data", str(machines.parent))
    assert code == 3 and "kind" in said, (code, said)
    code, said = as_release(before, *words, "--set", "retention.enabled=true")
    assert code == 64 and "unknown key retention.enabled" in said, (code, said)


@pytest.mark.long
@pytest.mark.parametrize("first", [FIRST, BEFORE])
def test_each_release_there_and_back_again(tmp_path: Path, releases: dict[str, Path], first: str) -> None:
    async def story(group: MixedGroup, client: LedgerClient, load: Load) -> None:
        for release in (NEW, first, NEW):
            for member in group.peers:
                await change(group, client, load, member, release)

    played(tmp_path, releases, first, story)
