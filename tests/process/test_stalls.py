"""A machine that stands still costs no leader: every engine is stopped for a while, and all go on (SAFETY E6)."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from node.client import LedgerClient
from tests.process.group import START_WITHIN_S, Group, all_vote, append_surely

pytestmark = pytest.mark.process

# How long all stand still, and by how much they go on apart.
STALLS_S = ((0.6, 0.0), (1.3, 0.0), (1.3, 0.05), (2.5, 0.03))
SETTLE_S = 0.4
LATE_S_MAX = 0.15  # of the half second that is the shortest election time-out


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


async def stall(group: Group, stalled_s: float, apart_s: float) -> bool:
    """All stop, and all go on; whether they did so together, as far as this process was given the processor."""
    together = True
    for number, pause_s in ((signal.SIGSTOP, 0.0), (signal.SIGCONT, apart_s)):
        began = time.monotonic()
        for member in group.peers:
            group.signal(member, number)
            await asyncio.sleep(pause_s)
        together = together and time.monotonic() - began < len(group.peers) * pause_s + LATE_S_MAX
        await asyncio.sleep(stalled_s if number == signal.SIGSTOP else SETTLE_S)
    return together


def test_engines_that_stand_still_together_keep_their_leader(group: Group) -> None:
    async def work() -> None:
        client = group.client()
        try:
            await append_surely(client, b"begin")
            await all_vote(client, group.peers)
            before = await agreed(client, group)
            for stalled_s, apart_s in STALLS_S:
                if await stall(group, stalled_s, apart_s):
                    assert await leadership(client, group) == before
                else:  # one was away while the others ran: that may cost a leadership, and is another story
                    await append_surely(client, b"settled")
                    before = await agreed(client, group)
                await client.append(b"goes on")
            gaps_ms = [(await client.state(member))["tick_gap_max_ms"] for member in group.peers]
            assert min(gaps_ms) > 1000 * max(stalled_s for stalled_s, _ in STALLS_S) - 100
        finally:
            await client.close()

    group.start_all()
    asyncio.run(work())
