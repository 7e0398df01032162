"""Two of three members are lost for good: the survivor goes on alone, takes in two new ones, and refuses the old ones.

The only test of `store recover-members` with real processes, disks and sockets. Invariant: nothing of the survivor's
log is lost, and the old members, which are a majority of the old group, make no second one while it can be reached.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from app.command_line import run
from node.client import LedgerClient, LedgerError
from tests.ports import free_ports
from tests.process.group import Group, all_hold, all_vote, append_surely
from tests.process.test_members import command, until, voters_of

pytestmark = [pytest.mark.process, pytest.mark.long]
LOST = ("n1", "n2")


def test_a_survivor_goes_on_alone_and_the_lost_members_make_no_second_group(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    group = Group(tmp_path, size=3)
    try:
        group.start_all()
        asyncio.run(fill(group))
        for node_id in group.peers:
            group.kill(node_id)
        said = recover(tmp_path, capsys)
        assert said["dry_run"] and "n1, n2" in "\n".join(said["may_be_lost"])
        done = recover(tmp_path, capsys, "--yes")
        assert not done["dry_run"] and done["archived"]
        lost = {one: group.peers.pop(one) for one in LOST}
        group.start("n0")
        asyncio.run(goes_on(group, lost, capsys))
    finally:
        group.close()
    trail = (tmp_path / "n0" / "operator-trail.jsonl").read_text()
    assert "store recover-members --keep n0" in trail


def recover(directory: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, list[str]]:
    capsys.readouterr()
    code = run(["store", "recover-members", str(directory / "n0"), "--keep", "n0", "--json", *more])
    written = capsys.readouterr()
    assert code == 0, written.err
    found: dict[str, list[str]] = json.loads(written.out)
    return found


async def fill(group: Group) -> None:
    client = group.client()
    try:
        await all_vote(client, group.peers)  # one that still joins what the others began may not go on for them
        for number in range(20):
            index = await append_surely(client, b"before %d" % number)
        await all_hold(client, group.peers, index)
    finally:
        await client.close()


async def goes_on(group: Group, lost: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    client = group.client()
    try:
        await append_surely(client, b"alone")

        async def alone() -> bool:
            return await voters_of(client, "n0") == ["n0"]

        await until(alone)
        await old_ones_come_back(group, lost)
        for node_id, port in zip(("n3", "n4"), free_ports(2), strict=True):
            address = f"127.0.0.1:{port}"
            await asyncio.to_thread(group.join, node_id, address)

            async def added(new: str = node_id, at: str = address) -> bool:
                """The change before may not be committed yet: then it is asked for once more."""
                code, text = await asyncio.to_thread(command, capsys, group, "add", new, at, "--yes")
                return code == 0 or " already" in text

            async def joined(new: str = node_id) -> bool:
                return new in await voters_of(client, "n0")

            await until(added)
            await until(joined)
        last = await append_surely(client, b"three again")
        held = [entry.body for entry in await client.read(0, last + 1)]
        assert [body for body in held if body.startswith(b"before")] == [b"before %d" % one for one in range(20)]
        assert b"alone" in held and held[-1] == b"three again"

        async def three() -> bool:
            return await voters_of(client, "n0") == ["n0", "n3", "n4"]

        await until(three)
    finally:
        await client.close()


async def old_ones_come_back(group: Group, lost: dict[str, str]) -> None:
    """One after the other, with the directories that they had: each gives up its vote, so they elect nobody."""
    group.peers |= lost
    old = LedgerClient(lost, group=group.group, deadline_s=30.0)
    try:
        for node_id in lost:
            await asyncio.to_thread(group.start, node_id)

            async def gave_up(one: str = node_id) -> bool:
                try:
                    state = await old.state(one)
                except LedgerError:
                    return False
                text = " ".join(alarm["text"] for alarm in state["alarms"])
                return state["voter_state"] == "REJOINING" and f"went on without {one}" in text

            await until(gave_up)

        async def nobody_leads() -> bool:
            try:
                return {(await old.state(one))["role"] for one in lost}.isdisjoint({"LEADER"})
            except LedgerError:
                return False

        await until(nobody_leads)
    finally:
        await old.close()
        for node_id in lost:
            group.kill(node_id)
            del group.peers[node_id]
