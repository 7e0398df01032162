"""The measured loss on real engines: a member's older copy comes back, and the others change places (SAFETY E8)."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from node.client import LedgerClient
from tests.process.group import all_vote, append_surely
from tests.process.test_secret import SecretGroup, all_connected, in_a_client, state_of, until_alarms

pytestmark = pytest.mark.process
ENTRIES = 50


def test_an_older_copy_does_not_elect_who_lacks_what_it_acknowledged(tmp_path: Path) -> None:
    async def formed(client: LedgerClient) -> None:
        await append_surely(client, b"before")
        await all_vote(client, group.peers)
        await all_connected(client, group)

    async def filled(client: LedgerClient) -> list[int]:
        return [await append_surely(client, b"entry %d" % number) for number in range(ENTRIES)]

    async def whole(client: LedgerClient) -> list[bytes]:
        await append_surely(client, b"after")
        await all_vote(client, group.peers)
        return [(await client.read(index, 1))[0].body for index in acknowledged]

    group = SecretGroup(tmp_path)
    directory, copy = tmp_path / "n0", tmp_path / "copy of n0"
    try:
        group.start_all()
        in_a_client(group, formed)
        assert group.kill("n0", signal.SIGTERM) == 0
        shutil.copytree(directory, copy)
        group.start("n0")
        in_a_client(group, formed)  # the new life is known to both others
        group.kill("n2")
        acknowledged = in_a_client(group, filled)
        group.kill("n0", signal.SIGTERM)
        group.kill("n1")
        shutil.rmtree(directory)
        copy.rename(directory)
        group.start("n0", "n2")
        until_alarms(group, "n0", ["restored_copy"])
        assert state_of(group, "n0")["voter_state"] == "REJOINING"
        assert state_of(group, "n2")["leader_id"] is None, "n2 lacks them, and is no quorum without n0"
        group.start("n1")
        assert in_a_client(group, whole) == [b"entry %d" % number for number in range(ENTRIES)]
    finally:
        group.close()
