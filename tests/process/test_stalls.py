"""A machine that stands still costs no leader: every engine is stopped for a while, and all go on (SAFETY E6)."""

from __future__ import annotations

import asyncio
import signal

import pytest

from node.client import LedgerClient
from tests.process.group import Group, all_vote, append_surely

pytestmark = pytest.mark.process

# How long all stand still, and by how much they go on apart.
STALLS_S = ((0.6, 0.0), (1.3, 0.0), (1.3, 0.05), (2.5, 0.03))
SETTLE_S = 0.4


async def leadership(client: LedgerClient, group: Group) -> set[tuple[int, str | None]]:
    """What every member takes for the leader and its term; one thing, where nothing is going on."""
    states = [await client.state(member) for member in group.peers]
    return {(int(state["term"]), state["leader_id"]) for state in states}


def test_engines_that_stand_still_together_keep_their_leader(group: Group) -> None:
    async def work() -> None:
        client = group.client()
        try:
            await append_surely(client, b"begin")
            await all_vote(client, group.peers)
            before = await leadership(client, group)
            while len(before) > 1:  # one that joined last has not heard yet
                await asyncio.sleep(0.05)
                before = await leadership(client, group)
            for stalled_s, apart_s in STALLS_S:
                for member in group.peers:
                    group.signal(member, signal.SIGSTOP)
                await asyncio.sleep(stalled_s)
                for member in group.peers:
                    group.signal(member, signal.SIGCONT)
                    await asyncio.sleep(apart_s)
                await asyncio.sleep(SETTLE_S)
                assert await leadership(client, group) == before
                await client.append(b"goes on")
            gaps_ms = [(await client.state(member))["tick_gap_max_ms"] for member in group.peers]
            assert min(gaps_ms) > 1000 * max(stalled_s for stalled_s, _ in STALLS_S) - 100
        finally:
            await client.close()

    group.start_all()
    asyncio.run(work())
