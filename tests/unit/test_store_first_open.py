"""A new store's first moments: whatever ends its first start, the second one leaves nothing that a power cut undoes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from node.protocol.codes import VoterState
from node.store.file_store import FileStore
from node.store.hard_state import HARDSTATE
from node.store.log_store import HardState
from tests.simulation.disk import SimulatedCrash, SimulatedPlatform

DIRECTORY = Path("/data/group/dledger-n0")


def opened(platform: SimulatedPlatform) -> FileStore:
    return FileStore.open(
        DIRECTORY, group="g", node_id="n0", data_file_size=4096, index_file_size=512, init=True, platform=platform
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_a_vote_after_an_interrupted_first_start_survives_a_power_cut(seed: int) -> None:
    """E2, S4: the store's own name, and its parents', are durable before it promises anything."""
    rng = random.Random(seed)
    platform = SimulatedPlatform(rng, lambda: 0, "n0")
    platform.faults.crash_at_op = rng.randrange(1, 12)
    try:
        opened(platform).close()
    except SimulatedCrash:
        platform.crash_process()
    platform.faults.clear()
    store = opened(platform)
    vote = HardState(term=3, voted_for="n1", voter_state=VoterState.VOTER)
    store.save_hard_state(vote)
    assert platform.durable_bytes(DIRECTORY / HARDSTATE)
    platform.lose_power()
    assert opened(platform).hard_state == vote
