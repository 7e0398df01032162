"""Real members with a key-value store: engines and state machines are killed, and each key stays one register."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest

from node.client import LedgerClient
from tests.process.group import Group, all_vote
from tests.simulation.key_linearizability import KeyOperation, keys_at_fault
from tests.unit.kv_history import CALLS, use

ROUNDS = 6
CLIENTS = 4


def state_machine_of(group: Group, member_id: str) -> int | None:
    """The child of that member's engine that runs its state machine; None: there is none at the moment."""
    engine = str(group.processes[member_id].pid)
    for path in Path("/proc").iterdir():
        if not path.name.isdigit():
            continue
        try:
            parent = (path / "stat").read_text().rpartition(") ")[2].split()[1]
            if parent == engine and b"node.state_machine" in (path / "cmdline").read_bytes():
                return int(path.name)
        except OSError:
            continue
    return None


async def trouble(group: Group, client: LedgerClient) -> int:
    """One process is killed at a time: an engine, which is started again, or a state machine; how many of those."""
    rng, count = random.Random("kv trouble"), 0
    for number in range(ROUNDS):
        member_id = rng.choice(list(group.peers))
        pid = state_machine_of(group, member_id)
        if number % 2 and pid is not None:
            os.kill(pid, signal.SIGKILL)
            count += 1
        else:
            await asyncio.to_thread(group.kill, member_id)
            await asyncio.to_thread(group.start, member_id)
        await all_vote(client, group.peers)
    return count


@pytest.mark.long
def test_each_key_is_one_register_whatever_is_killed(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.token += ("--state-machine", "kv", "--set", "node.snapshot_entries=40")

    async def work() -> None:
        history: list[KeyOperation] = []
        clients = [group.client(deadline_s=60.0) for _ in range(CLIENTS + 1)]
        await all_vote(clients[-1], group.peers)
        users = [use(name, list(group.peers), client, history) for name, client in enumerate(clients[:-1])]
        killed, *_ = await asyncio.gather(trouble(group, clients[-1]), *users)
        for client in clients:
            await client.close()
        assert killed > 0 and len(history) > CALLS
        assert keys_at_fault(history) == [], sorted(history, key=lambda one: one.invoked)

    group.start_all()
    try:
        asyncio.run(work())
        snapshots = list(tmp_path.glob("*/dledger-*/snapshot/snapshot_*/quorumscope-meta"))
        assert snapshots, "no member has saved a snapshot"
    finally:
        group.close()
