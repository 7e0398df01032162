"""Members come and go while clients append: a new one joins, becomes a voter, and the old leader leaves.

The only test of it with real processes, disks and sockets: `--join`, the command line, and a client that has never
heard of the new member. Invariant: nothing that was acknowledged is lost.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from app.command_line import run
from node.client import LedgerClient, LedgerError
from tests.ports import free_ports
from tests.process.group import START_WITHIN_S, Group, all_hold, append_surely

pytestmark = pytest.mark.process
LOOK_S = 0.05


def command(capsys: pytest.CaptureFixture[str], group: Group, *words: str) -> tuple[int, str]:
    """One `quorumscope members …` in this process: its exit code, and what it wrote."""
    peers = ";".join(f"{member}-{address}" for member, address in group.peers.items())
    code = run(["members", *words, "--peers", peers, "--group", group.group])
    written = capsys.readouterr()
    return code, written.out or written.err


async def until(fact: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(START_WITHIN_S):
        while True:
            if await fact():
                return
            await asyncio.sleep(LOOK_S)


class Load:
    """Appends, one after another, and remembers what was acknowledged."""

    def __init__(self, client: LedgerClient) -> None:
        self.client, self.stopped = client, False
        self.acknowledged: list[tuple[int, bytes]] = []

    async def run(self) -> None:
        number = 0
        while not self.stopped:
            body = b"entry %d" % number
            self.acknowledged.append((await append_surely(self.client, body), body))
            number += 1

    async def goes_on(self) -> None:
        before = len(self.acknowledged)

        async def more() -> bool:
            return len(self.acknowledged) > before

        await until(more)


async def voters_of(client: LedgerClient, member_id: str) -> list[str]:
    try:
        items = (await client.introspect(member_id, "members"))["items"]
    except LedgerError:
        return []
    return sorted(one["id"] for one in items if one["kind"] == "voter")


def test_a_member_is_added_and_the_old_leader_removed_under_load(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    group = Group(tmp_path, size=3)
    address = f"127.0.0.1:{free_ports(1)[0]}"
    birth = dict(group.peers)
    try:
        group.start_all()
        asyncio.run(work(group, birth, address, capsys))
    finally:
        group.close()


async def work(group: Group, birth: dict[str, str], address: str, capsys: pytest.CaptureFixture[str]) -> None:
    client, everybody = group.client(), LedgerClient({**birth, "n3": address}, group=group.group, deadline_s=30.0)
    load = Load(client)
    running = asyncio.create_task(load.run())
    try:
        await load.goes_on()
        await asyncio.to_thread(group.join, "n3", address)
        code, text = await asyncio.to_thread(command, capsys, group, "add", "n3", address, "--yes", "--json")
        assert code == 0 and json.loads(text)["changed"], text

        async def joined() -> bool:
            return await voters_of(everybody, "n3") == ["n0", "n1", "n2", "n3"]

        await until(joined)
        await load.goes_on()
        leader = await everybody.leader()
        code, text = await asyncio.to_thread(command, capsys, group, "remove", leader, "--yes")
        assert code == 0, text
        left = sorted({*birth, "n3"} - {leader})

        async def handed_over() -> bool:
            now = await everybody.leader()
            return now != leader and await voters_of(everybody, now) == left

        await until(handed_over)
        await load.goes_on()
        load.stopped = True
        await running
        held: dict[int, bytes] = {}
        while load.acknowledged[-1][0] not in held:
            found = await everybody.read(max(held, default=-1) + 1, 1000)
            held |= {entry.index: entry.body for entry in found}
        assert [(index, held[index]) for index, _body in load.acknowledged] == load.acknowledged
        code, text = await asyncio.to_thread(command, capsys, group, "list", "--json")
        assert code == 0 and sorted(one["id"] for one in json.loads(text)["items"]) == left
    finally:
        running.cancel()
        await asyncio.wait([running])
        await client.close()
        await everybody.close()


@pytest.mark.long
def test_a_learner_is_promoted_a_member_replaced_and_another_one_moves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    group = Group(tmp_path, size=3)
    ports = free_ports(3)
    try:
        group.start_all()
        asyncio.run(changes(group, [f"127.0.0.1:{port}" for port in ports], capsys))
    finally:
        group.close()


async def changes(group: Group, addresses: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    third, fourth, elsewhere = addresses
    everybody = LedgerClient({**group.peers, "n3": third, "n4": fourth}, group=group.group, deadline_s=30.0)
    load = Load(everybody)
    running = asyncio.create_task(load.run())

    async def says(*words: str) -> tuple[int, str]:
        return await asyncio.to_thread(command, capsys, group, *words)

    async def until_voters(*wanted: str) -> None:
        async def agreed() -> bool:
            try:
                return await voters_of(everybody, await everybody.leader()) == list(wanted)
            except LedgerError:
                return False

        await until(agreed)

    async def surely(*words: str) -> None:
        """Until it is so: an election in between, and the change has to be asked for once more."""

        async def done() -> bool:
            code, text = await says(*words, "--yes")
            return code == 0 or " already" in text

        await until(done)

    async def listed() -> dict[str, dict[str, object]]:
        code, text = await says("list", "--json")
        return {one["id"]: one for one in json.loads(text)["items"]} if code == 0 else {}

    async def preflight_of_a_new_one(*, started: bool) -> None:
        async def known() -> bool:
            code, text = await says("add", "n3", third, "--learner", "--dry-run", "--json")
            found = json.loads(text) if code == 0 else {"before": {}}
            disk = (found.get("free_disk_bytes") or 0) > (found.get("needs_disk_bytes") or 0)
            return found["before"].get("survives") == 1 and disk is started

        await until(known)

    try:
        await load.goes_on()
        await preflight_of_a_new_one(started=False)
        await asyncio.to_thread(group.join, "n3", third)
        await preflight_of_a_new_one(started=True)
        await surely("add", "n3", third, "--learner")

        async def is_learner() -> bool:
            return (await listed()).get("n3", {}).get("kind") == "learner"

        await until(is_learner)
        await surely("promote", "n3")
        await until_voters("n0", "n1", "n2", "n3")
        await asyncio.to_thread(group.join, "n4", fourth)
        await surely("replace", "n1", "n4", fourth)
        await until_voters("n0", "n2", "n3", "n4")
        await asyncio.to_thread(group.kill, "n1")
        del group.peers["n1"]
        await asyncio.to_thread(group.kill, "n2", signal.SIGTERM)
        group.peers["n2"] = elsewhere
        await asyncio.to_thread(group.start, "n2")
        await surely("address", "n2", elsewhere)

        async def there() -> bool:
            found = (await listed()).get("n2", {})
            return found.get("address") == elsewhere and found.get("connected") is True

        await until(there)
        await load.goes_on()
    finally:
        load.stopped = True
        running.cancel()
        await asyncio.wait([running])
        await everybody.close()


def test_a_moved_member_is_reached_after_a_restart_with_the_peers_of_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A service file outlives a move: what [peers] says is where n0 was, what the log says is where everybody looks."""
    group = Group(tmp_path, size=3)
    before, elsewhere = dict(group.peers), f"127.0.0.1:{free_ports(1)[0]}"
    try:
        group.start_all()
        asyncio.run(moved(group, elsewhere, capsys))
        for member in before:
            group.kill(member, signal.SIGTERM)
        group.peers = before
        group.start_all()
        asyncio.run(reached_at(group, elsewhere))
    finally:
        group.close()


async def moved(group: Group, elsewhere: str, capsys: pytest.CaptureFixture[str]) -> None:
    first, client = group.client(), LedgerClient({**group.peers, "n0": elsewhere}, group=group.group, deadline_s=30.0)
    try:
        await append_surely(first, b"before")
        await asyncio.to_thread(group.kill, "n0", signal.SIGTERM)
        group.peers["n0"] = elsewhere
        await asyncio.to_thread(group.start, "n0")

        async def told() -> bool:
            code, text = await asyncio.to_thread(command, capsys, group, "address", "n0", elsewhere, "--yes")
            return code == 0 or " already" in text

        await until(told)
        await all_hold(client, group.peers, await append_surely(client, b"behind the move"))
    finally:
        await first.close()
        await client.close()


async def reached_at(group: Group, elsewhere: str) -> None:
    client = LedgerClient({**group.peers, "n0": elsewhere}, group=group.group, deadline_s=30.0)
    try:
        await all_hold(client, group.peers, await append_surely(client, b"whoever leads"))
        for member in sorted(group.peers.keys() - {"n0"}):
            await until(partial(dials, client, member))
    finally:
        await client.close()


async def dials(client: LedgerClient, member: str) -> bool:
    """Whether that member's own connection to n0 stands."""
    try:
        links = (await client.state(member))["links"]
    except LedgerError:
        return False
    return any(one["peer_id"] == "n0" and one["out_since"] is not None for one in links)
