"""Watches who leads a group and counts the changes, for benches in which leadership must not change."""

from __future__ import annotations

import asyncio
from typing import Final

from app.bench.cluster import BenchCluster
from app.bench.views import state_of
from node.client import LedgerClient, LedgerError

AGREE_WITHIN_S: Final = 30.0
ASK_EVERY_S: Final = 0.05


async def agreed(cluster: BenchCluster, client: LedgerClient) -> tuple[int, str]:
    """Term and leader, once every member names the same. Raises TimeoutError when they do not agree in time."""
    async with asyncio.timeout(AGREE_WITHIN_S):
        while True:
            try:
                states = [await state_of(client, member) for member in cluster.processes]
            except LedgerError:
                states = []
            said = {(state.term, state.leader_id) for state in states}
            if len(said) == 1:
                term, leader_id = said.pop()
                if term is not None and leader_id is not None:
                    return term, leader_id
            await asyncio.sleep(ASK_EVERY_S)


async def tick_gaps_ms(cluster: BenchCluster, client: LedgerClient) -> dict[str, float]:
    """Each engine's longest time between two ticks since it started."""
    gaps = {member: (await state_of(client, member)).tick_gap_max_ms for member in cluster.processes}
    return {member: gap for member, gap in gaps.items() if gap is not None}
