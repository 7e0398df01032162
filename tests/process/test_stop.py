"""SIGTERM to a leader: leadership has moved before the process ends, and a writer meets no unknown outcome."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest

from node.client import LedgerClient, LedgerError, OutcomeUnknown
from tests.process.group import Group, all_vote, append_surely

pytestmark = pytest.mark.process
TRIES = 5  # a machine that stands still for a second at the wrong moment lets one go by
QUIET = (
    "--set", "timing.election_timeout_min_ms=4000", "--set", "timing.election_timeout_max_ms=6000",
    "--log-format", "json",
)  # fmt: skip


class QuietGroup(Group):
    """Nobody is elected but where a leader goes."""

    def arguments(self, node_id: str, *more: str) -> list[str]:
        return super().arguments(node_id, *QUIET, *more)


class Writer:
    """Appends one after the other."""

    def __init__(self, client: LedgerClient) -> None:
        self._client = client
        self.acknowledged = self.unknown = 0

    async def run(self) -> None:
        while True:
            try:
                await self._client.append(b"entry")
                self.acknowledged += 1
            except OutcomeUnknown:
                self.unknown += 1
            except LedgerError:
                pass  # certainly not appended

    async def goes_on(self) -> None:
        before = self.acknowledged
        deadline = asyncio.get_running_loop().time() + 60
        while self.acknowledged <= before:
            assert asyncio.get_running_loop().time() < deadline, "nothing is acknowledged any more"
            await asyncio.sleep(0.01)


def events_of(text: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


async def stopped(group: Group, client: LedgerClient, writer: Writer) -> bool:
    """Stops the leader; whether it handed over, and how its writer fared is asserted then. It starts again."""
    leader = await client.leader()
    term = (await client.state(leader))["term"]
    await writer.goes_on()
    unknown = writer.unknown
    process = group.processes.pop(leader)
    process.send_signal(signal.SIGTERM)
    _out, text = await asyncio.to_thread(process.communicate)
    events = {one["event"]: one for one in events_of(text)}
    assert process.returncode == 0 and "stopping" in events
    await writer.goes_on()
    handed = events.get("handed_over")
    if handed is not None:  # said before it ended
        assert handed["to"] in group.processes and handed["to"] != leader
        assert (await client.state(handed["to"]))["term"] > term
        assert handed["reason"].startswith(f"leadership is handed over: {handed['to']} leads term ")
    else:
        assert "leadership is not handed over: " in events["not_handed_over"]["reason"]
    await asyncio.to_thread(group.start, leader)
    await all_vote(client, group.peers)
    return handed is not None and writer.unknown == unknown


def test_a_leader_that_is_stopped_hands_over_and_costs_no_unknown_outcome(tmp_path: Path) -> None:
    async def story() -> None:
        client, writing = group.client(), group.client()
        writer = Writer(writing)
        task: asyncio.Task[None] | None = None
        try:
            await append_surely(client, b"first")
            await all_vote(client, group.peers)
            task = asyncio.create_task(writer.run())
            for _ in range(TRIES):
                if await stopped(group, client, writer):
                    return
            raise AssertionError(f"{TRIES} stops, and none of them without an unknown outcome")
        finally:
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await client.close()
            await writing.close()

    group = QuietGroup(tmp_path)
    try:
        group.start_all()
        asyncio.run(story())
    finally:
        group.close()
