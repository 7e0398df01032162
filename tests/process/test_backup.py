"""A group under load is backed up and restored: as another group, which the old one's members stay out of, and as one
of its own members, which lost its disk.

Invariants: whatever was acknowledged before a run began is in the back-up; the two groups share no id and no store.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from app.command_line import run
from node.client import LedgerClient, LedgerError
from tests.ports import free_ports
from tests.process.group import START_WITHIN_S, Group, all_hold, all_vote, append_surely

pytestmark = [pytest.mark.process, pytest.mark.long]
LOOK_S = 0.05
TOKEN = "of-the-new-group"
Json = dict[str, Any]


async def command(capsys: pytest.CaptureFixture[str], *words: str | Path) -> Json:
    """One command in this process, which is to go well: its result."""
    code = await asyncio.to_thread(run, [*map(str, words), "--json"])
    written = capsys.readouterr()
    assert code == 0, written.err
    result: Json = json.loads(written.out)
    return result


async def until(fact: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(START_WITHIN_S):
        while True:
            try:
                if await fact():
                    return
            except LedgerError:
                pass
            await asyncio.sleep(LOOK_S)


async def append_on_and_on(client: LedgerClient, acknowledged: list[tuple[int, bytes]]) -> None:
    while True:
        body = b"entry %d" % len(acknowledged)
        acknowledged.append((await append_surely(client, body), body))


async def bodies_of(client: LedgerClient, end_index: int) -> dict[int, bytes]:
    held: dict[int, bytes] = {}
    while max(held, default=-1) < end_index:
        held |= {entry.index: entry.body for entry in await client.read(max(held, default=-1) + 1, 1000)}
    return held


def test_a_group_is_backed_up_and_restored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    group = Group(tmp_path / "old", size=3)
    control = f"127.0.0.1:{free_ports(1)[0]}"
    again = Group(tmp_path / "new", size=3)
    try:
        group.start_all()
        group.processes["control"] = group.spawn(group.arguments("n0", "--control", control), "node.control")
        asyncio.run(work(tmp_path, group, again, control, capsys))
    finally:
        group.close()
        again.close()


async def work(place: Path, group: Group, again: Group, control: str, capsys: pytest.CaptureFixture[str]) -> None:
    client = group.client()
    acknowledged: list[tuple[int, bytes]] = []
    load = asyncio.create_task(append_on_and_on(client, acknowledged))

    async def answers() -> bool:
        return len(acknowledged) > 20 and await asyncio.to_thread(run, ["status", "--node", control]) in (0, 1, 2)

    try:
        await until(answers)
        capsys.readouterr()
        first = await taken(capsys, place, control, acknowledged)

        async def went_on() -> bool:
            return acknowledged[-1][0] > first["end_index"]

        await until(went_on)
        second = await taken(capsys, place, control, acknowledged, "--verify")
        assert second["verified"] and second["end_index"] > first["end_index"]
        assert 0 < second["new_entries"] <= second["end_index"] - first["end_index"]
        rows = (group.directory / "n0/operator-trail.jsonl").read_text()
        assert "pins/backup-" in rows and "DELETE" in rows
        await restored_as_a_group(place, group, again, acknowledged[: second["end_index"] // 2], capsys)
        await restored_as_a_member(place, group, client, capsys)
    finally:
        load.cancel()
        await asyncio.wait([load])
        await client.close()


async def taken(
    capsys: pytest.CaptureFixture[str], place: Path, control: str, acknowledged: list[tuple[int, bytes]], *more: str
) -> Json:
    """A run that begins once the member that is read knows what was acknowledged until now."""
    known = acknowledged[-1][0]
    while True:
        result = await command(capsys, "backup", place / "backup", "--node", f"http://{control}", *more)
        if result["end_index"] >= known:
            return result


async def restored_as_a_group(
    place: Path, group: Group, again: Group, sure: list[tuple[int, bytes]], capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(again.directory, ignore_errors=True)
    made = await command(
        capsys, "restore", place / "backup", "--into", again.directory, "--group", "g", "--group-token", TOKEN
    )
    assert set(made["start"]) == {"n0", "n1", "n2"}
    again.token = ()
    group.kill("n2")
    shutil.copytree(group.directory / "n2", place / "stray" / "n2")  # an old member that believes the new group its own
    group.start("n2")
    start(again, "n0", "n1")
    client = again.client()
    try:
        await all_vote(client, ("n0", "n1"))
        index = await append_surely(client, b"of the new group")
        held = await bodies_of(client, index)
        assert [(at, held[at]) for at, _body in sure] == sure and held[index] == b"of the new group"
        end = made["restored"][0]["end_index"]
        assert index > end
        state = await client.state("n0")
        assert state["group_id"] == made["group_id"]
        old = group.client()
        was = await old.state("n0")
        await old.close()
        assert was["group_id"] not in (None, state["group_id"]) and was["store_id"] != state["store_id"]
        stray = Group(place / "stray")
        stray.peers, stray.token = again.peers, ()
        try:
            start(stray, "n2")

            async def refused() -> bool:
                events = (await client.introspect("n0", "events"))["items"]
                return any("another group" in json.dumps(one) for one in events)

            await until(refused)
            assert not (await client.state("n0"))["peers"][2]["connected"]
        finally:
            stray.close()
        start(again, "n2")
        await all_hold(client, again.peers, index)
    finally:
        await client.close()


def start(group: Group, *node_ids: str) -> None:
    """Without --init: their directories are there."""
    for node_id in node_ids:
        words = [word for word in group.arguments(node_id) if word != "--init"]
        process = group.processes[node_id] = group.spawn(words)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line and json.loads(line)["event"] == "ready", process.communicate()[1]


async def restored_as_a_member(
    place: Path, group: Group, client: LedgerClient, capsys: pytest.CaptureFixture[str]
) -> None:
    group.kill("n1")
    shutil.rmtree(group.directory / "n1")
    made = await command(capsys, "restore", place / "backup", "--into", group.directory / "n1", "--as", "n1")
    group.token = ()
    start(group, "n1")
    await all_vote(client, ["n1"])
    index = await append_surely(client, b"with n1 again")
    await all_hold(client, ["n1"], index)
    state = await client.state("n1")
    assert state["log"]["begin_index"] == 0 and state["store_id"] == made["restored"][0]["store_id"]
