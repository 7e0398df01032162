"""Real engines whose data directory is taken from under them: they end, and count no more (S1)."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from node.client import LedgerClient, LedgerError
from tests.process.group import START_WITHIN_S, Group, all_hold, all_vote, append_surely
from tests.process.test_secret import in_a_client

pytestmark = pytest.mark.process
REFUSED = 3  # an operator has to settle it: started again by itself, it would make another, empty directory


def ended(group: Group, node_id: str) -> str:
    """What an engine says that ends by itself with a refusal."""
    process = group.processes.pop(node_id)
    error = process.communicate(timeout=START_WITHIN_S)[1]
    assert process.returncode == REFUSED, error
    return error


def formed(group: Group) -> tuple[str, list[str]]:
    """The leader and the followers, once all of them hold an entry."""

    async def work(client: LedgerClient) -> str:
        index = await append_surely(client, b"before")
        await all_vote(client, group.peers)
        await all_hold(client, group.peers, index)
        return str(await client.leader())

    group.start_all()
    leader = in_a_client(group, work)
    return leader, [one for one in group.peers if one != leader]


def is_acknowledged(group: Group) -> bool:
    async def work() -> bool:
        client = group.client(deadline_s=3.0)
        try:
            await client.append(b"who counts?")
        except LedgerError:
            return False
        finally:
            await client.close()
        return True

    return asyncio.run(work())


@pytest.mark.parametrize("leads", [False, True])
def test_the_group_goes_on_with_the_other_two(tmp_path: Path, leads: bool) -> None:
    async def work(client: LedgerClient) -> bytes:
        index = await append_surely(client, b"after")
        await all_hold(client, group.processes, index)
        return bytes((await client.read(index, 1))[0].body)

    group = Group(tmp_path)
    try:
        leader, followers = formed(group)
        gone = leader if leads else followers[0]
        shutil.rmtree(tmp_path / gone)
        said = ended(group, gone)
        assert "was removed, renamed or replaced" in said
        assert "without --init" in said
        assert not (tmp_path / gone).exists(), "it made itself no other one"
        assert in_a_client(group, work) == b"after"
    finally:
        group.close()


def test_two_that_are_gone_acknowledge_nothing(tmp_path: Path) -> None:
    """The engines are still there when the append comes: none looks by itself before that."""
    group = Group(tmp_path)
    try:
        leader, followers = formed(group)
        for follower in followers:
            shutil.rmtree(tmp_path / follower)
        assert not is_acknowledged(group)
        for follower in followers:
            ended(group, follower)
        assert group.processes[leader].poll() is None
    finally:
        group.close()


def test_a_leader_does_not_count_what_only_it_would_have(tmp_path: Path) -> None:
    """A copy of its directory lies in the place of the one that it has open; one follower is down."""
    group = Group(tmp_path)
    try:
        leader, followers = formed(group)
        group.kill(followers[0])
        (tmp_path / leader).rename(tmp_path / "elsewhere")
        shutil.copytree(tmp_path / "elsewhere", tmp_path / leader)
        assert not is_acknowledged(group)
        ended(group, leader)
        shutil.rmtree(tmp_path / leader)
        (tmp_path / "elsewhere").rename(tmp_path / leader)  # the way back that it names
        group.start(leader, followers[0])
        in_a_client(group, lambda client: append_surely(client, b"after"))
    finally:
        group.close()
