"""A machine that stands still costs no leader: every engine is stopped for a while, and all go on (SAFETY E6)."""

from __future__ import annotations

import asyncio
import signal

import pytest

from node.client import LedgerClient
from tests.process.group import START_WITHIN_S, Group, all_vote, append_surely

pytestmark = pytest.mark.process

# How long all stand still, and by how much they go on apart.
STALLS_S = ((1.3, 0.0), (2.5, 0.03))
SETTLE_S = 0.4
TRIES = 6


async def leadership(client: LedgerClient, group: Group) -> set[tuple[int, str | None]]:
    """What every member takes for the leader and its term; one thing, where nothing is going on."""
    states = [await client.state(member) for member in group.peers]
    return {(int(state["term"]), state["leader_id"]) for state in states}


async def agreed(client: LedgerClient, group: Group) -> set[tuple[int, str | None]]:
    """The same, once all say one thing: who joined last, or lost its leader, has not heard yet."""
    async with asyncio.timeout(START_WITHIN_S):
        while True:
            found = await leadership(client, group)
            if len(found) == 1:
                return found
            await asyncio.sleep(0.05)


async def stall(group: Group, stalled_s: float, apart_s: float) -> None:
    """All stop, and all go on."""
    for number, pause_s in ((signal.SIGSTOP, 0.0), (signal.SIGCONT, apart_s)):
        for member in group.peers:
            group.signal(member, number)
            await asyncio.sleep(pause_s)
        await asyncio.sleep(stalled_s if number == signal.SIGSTOP else SETTLE_S)


async def keeps_its_leader(client: LedgerClient, group: Group, stalled_s: float, apart_s: float) -> bool:
    await append_surely(client, b"settled")
    before = await agreed(client, group)
    await stall(group, stalled_s, apart_s)
    return await agreed(client, group) == before


def test_engines_that_stand_still_together_keep_their_leader(group: Group) -> None:
    """A busy machine may let one stand still for longer than the others, which may cost a leader: not every time."""

    async def work() -> None:
        client = group.client()
        try:
            await append_surely(client, b"begin")
            await all_vote(client, group.peers)
            for stall_s in STALLS_S:
                for _ in range(TRIES):
                    if await keeps_its_leader(client, group, *stall_s):
                        break
                else:
                    raise AssertionError(f"{TRIES} times {stall_s} cost a leader")
            await append_surely(client, b"goes on")
            gaps_ms = [(await client.state(member))["tick_gap_max_ms"] for member in group.peers]
            assert min(gaps_ms) > 1000 * max(stalled_s for stalled_s, _ in STALLS_S) - 100
        finally:
            await client.close()

    group.start_all()
    asyncio.run(work())
