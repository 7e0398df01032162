"""Groups that no protocol may bring back, and the operator's commands that do: real members, the real command line."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.cli import run as quorumscope
from node.client import LedgerClient
from node.protocol.entry import HEAD_BYTES
from node.store.file_store import FileStore
from node.store.log_store import TruncationRecord
from node.store.reader import StoreReader
from tests.process.group import append_surely
from tests.process.test_repair import IDS, WITHIN_S, Repairing, level, until

pytestmark = pytest.mark.process


class Settled(Repairing):
    """Members that may be started without `--init`."""

    new = frozenset(IDS)  # who is started with it

    def arguments(self, node_id: str, *more: str) -> list[str]:
        return [word for word in super().arguments(node_id, *more) if word != "--init" or node_id in self.new]

    def stop(self) -> None:
        for node_id in list(self.processes):
            assert self.kill(node_id, signal.SIGTERM) == 0


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Settled]:
    made = Settled(tmp_path)
    try:
        yield made
    finally:
        made.close()


class Hand:
    """An operator at the command line."""

    def __init__(self, group: Settled, capsys: pytest.CaptureFixture[str]) -> None:
        self.group, self.capsys = group, capsys

    def repair(self, node_id: str, *arguments: str, code: int = 0) -> dict[str, Any]:
        """One `store repair --json`, and what it said."""
        self.capsys.readouterr()
        assert quorumscope(["store", "repair", str(self.group.store(node_id)), *arguments, "--json"]) == code
        reported: dict[str, Any] = json.loads(self.capsys.readouterr().out)
        return reported


async def all_are(client: LedgerClient, what: str, holds: Callable[[dict[str, Any]], bool]) -> None:
    for node_id in IDS:

        async def so(one: str = node_id) -> bool:
            return holds(await client.state(one))

        await until(f"{node_id} is {what}", so)


async def written(group: Settled, count: int) -> dict[int, bytes]:
    """`count` acknowledged entries that every member holds; then all are stopped."""
    client = group.client(deadline_s=WITHIN_S)
    made = {await append_surely(client, b"entry %d" % number): b"entry %d" % number for number in range(count)}
    await level(client, max(made))
    await client.close()
    group.stop()
    return made


def kept(group: Settled, made: dict[int, bytes], below_index: int) -> None:
    """Every member has what was acknowledged below an index, and all of its log is sound."""
    indexes = [index for index in made if index < below_index]
    for node_id in IDS:
        assert StoreReader(group.store(node_id)).verify().problems == []
        assert group.bodies(node_id, indexes) == [made[index] for index in indexes]


async def goes_on(group: Settled) -> None:
    """It takes writes again, all members vote again, and all hold the new entry."""
    client = group.client(deadline_s=WITHIN_S)
    index = await append_surely(client, b"after", within_s=60.0)
    await level(client, index)
    await all_are(client, "a voter without damage", lambda one: one["voter_state"] == "VOTER" and not one["faults"])
    await client.close()
    group.stop()


def lose_the_tail(group: Settled, node_id: str, from_index: int) -> None:
    """The disk forgot everything from an entry on."""
    reader = StoreReader(group.store(node_id))
    entry = reader.entry(from_index)
    assert entry is not None
    (path,) = (group.store(node_id) / "data").glob("[0-9]*")
    with path.open("r+b") as file:
        file.seek(entry.pos)
        file.write(bytes(path.stat().st_size - entry.pos))


@pytest.mark.long
def test_a_group_whose_members_all_lost_history_comes_back_when_a_person_accepts_the_loss(
    group: Settled, capsys: pytest.CaptureFixture[str]
) -> None:
    """One lost its tail, two lost everything, one of them is started with --init: nobody may vote (SAFETY E8)."""
    hand = Hand(group, capsys)

    async def stays_down() -> None:
        client = group.client(deadline_s=WITHIN_S)
        await all_are(client, "rejoining", lambda one: one["voter_state"] == "REJOINING" and one["leader_id"] is None)
        await client.close()
        group.stop()

    group.start_all()
    made = asyncio.run(written(group, 50))
    lost_from = sorted(made)[40]
    lose_the_tail(group, "n0", lost_from)
    for node_id in ("n1", "n2"):
        shutil.rmtree(group.store(node_id))
    group.new = frozenset({"n1"})
    group.start_all()
    asyncio.run(stays_down())
    looks = {node_id: hand.repair(node_id, code=1) for node_id in IDS}
    assert all(look["problems"][0]["what"] == "This member is REJOINING" for look in looks.values())
    assert [looks[node_id]["state"]["end_index"] for node_id in IDS] == [lost_from - 1, -1, -1]
    highest = str(max(look["state"]["term"] for look in looks.values()))
    assert "only lost stores had" in hand.repair("n0", "--accept-loss", "--dry-run")["may_be_lost"][0]
    assert hand.repair("n0", code=1)["state"]["voter_state"] == "REJOINING"
    assert hand.repair("n0", "--accept-loss")["state"]["voter_state"] == "VOTER"
    assert quorumscope(["store", "repair", str(group.store("n1")), "--accept-loss"]) == 1
    assert "--term N" in capsys.readouterr().err
    assert hand.repair("n1", "--accept-loss", "--term", highest)["state"]["vote_floor"] == int(highest)
    group.start_all()  # n2 rejoins by itself
    asyncio.run(goes_on(group))
    kept(group, made, lost_from)
    said = [record.reason for record in StoreReader(group.store("n0")).truncations()]
    assert said[-1] == "repair: accept-loss by hand"


@pytest.mark.long
@pytest.mark.parametrize("at", [30, 49])
def test_an_entry_that_nobody_holds_whole_is_discarded_by_an_operator(
    group: Settled, capsys: pytest.CaptureFixture[str], at: int
) -> None:
    hand = Hand(group, capsys)

    async def stands_still(index: int) -> None:
        client = group.client(deadline_s=WITHIN_S)
        await all_are(
            client,
            "damaged, loudly",
            lambda one: (
                [fault["first_index"] for fault in one["faults"]] == [index]
                and one["role"] != "LEADER"
                and bool(one["alarms"])
            ),
        )
        await client.close()
        group.stop()

    group.start_all()
    made = asyncio.run(written(group, 50))
    lost = sorted(made)[at]
    for node_id in IDS:
        group.flip(node_id, lost, HEAD_BYTES + 2)
    group.start_all()
    asyncio.run(stands_still(lost))
    others = [word for other in ("n1", "n2") for word in ("--from", str(group.store(other)))]
    assert "No directory has entry" in hand.repair("n0", *others, code=1)["done"][0]
    for node_id in IDS:
        (problem,) = hand.repair(node_id, code=1)["problems"]
        assert f"--discard-from {lost}" in problem["ways"][-1]
        reported = hand.repair(node_id, "--discard-from", str(lost))
        assert (reported["state"]["end_index"], reported["state"]["voter_state"]) == (lost - 1, "REJOINING")
        assert (reported["archived"][0]["from_index"], reported["problems"]) == (lost, [])
    for node_id in IDS:
        hand.repair(node_id, "--accept-loss")
    group.start_all()
    asyncio.run(goes_on(group))
    kept(group, made, lost)


def fork(group: Settled, node_id: str, from_index: int) -> None:
    """From an entry on this member holds, sound and committed, what the others never had."""
    group_name, sizes = group.group, StoreReader(group.store(node_id))
    store = FileStore.open(
        group.store(node_id), group=group_name, node_id=node_id, data_file_size=sizes.data_file_size,
        index_file_size=sizes.index_file_size,
    )  # fmt: skip
    end, term = store.end_index, store.end_term
    store.truncate(from_index, TruncationRecord(node_id, None, term, from_index, end, "a test", -1))
    store.append_as_leader([b"another history"] * (end - from_index + 1), term)
    store.note_progress(end, end)
    store.close()


@pytest.mark.long
def test_a_fork_ends_when_an_operator_discards_its_wrong_side(
    group: Settled, capsys: pytest.CaptureFixture[str]
) -> None:
    hand = Hand(group, capsys)

    async def forks(made: dict[int, bytes]) -> None:
        client = group.client(deadline_s=WITHIN_S)
        index = await append_surely(client, b"only here")
        made[index] = b"only here"
        group.start("n2")

        async def loud() -> bool:
            states = [await client.state(node_id) for node_id in IDS]
            return any(alarm["code"] in ("fork", "diverged") for one in states for alarm in one["alarms"])

        await until("a fork is said", loud)
        assert (await client.state("n2"))["log"]["end_index"] < index, "nothing was cut, nothing was added"
        await client.close()
        group.stop()

    group.start_all()
    made = asyncio.run(written(group, 50))
    wrong_from = sorted(made)[40]
    fork(group, "n2", wrong_from)
    group.start("n0", "n1")
    asyncio.run(forks(made))
    reported = hand.repair("n2", "--discard-from", str(wrong_from))
    assert "COMMITTED" in reported["may_be_lost"][0] and reported["state"]["voter_state"] == "REJOINING"
    group.start_all()
    asyncio.run(goes_on(group))
    kept(group, made, max(made) + 1)
    assert b"another history" in b"".join(
        entry.body for entry in StoreReader(group.store("n2")).truncation_entries(reported["archived"][0]["seq"])
    )
