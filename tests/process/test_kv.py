"""Real members with a key-value store: killed, stopped, with moving leaders, each key stays one register."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from node.client import LedgerClient, LedgerError
from node.client.kv import KvClient
from node.snapshots.directory import FOLDER, newest_index
from tests.process.group import START_WITHIN_S, Group, all_vote
from tests.simulation.key_linearizability import KeyOperation, keys_at_fault
from tests.unit.kv_history import CALLS, use

ROUNDS = 2
CLIENTS = 4
STOPPED_S_MAX = 2.5  # longer than it takes the others to elect another leader
QUIET_S = 0.3
SHORT_DEADLINE_S = 1.0  # of every second client: some of its outcomes are unknown
KINDS = (
    "kill an engine", "kill all engines", "kill a state machine", "stop an engine", "stop a state machine", "transfer",
)  # fmt: skip


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


async def trouble(group: Group, client: LedgerClient, seed: int) -> Counter[str]:
    """One thing at a time, each kind once in a round; how often it came to that."""
    rng, done = random.Random(f"kv trouble {seed}"), Counter[str]()
    for _ in range(ROUNDS):
        for kind in rng.sample(KINDS, len(KINDS)):
            member_id = rng.choice(list(group.peers))
            pid = state_machine_of(group, member_id) if "machine" in kind else group.processes[member_id].pid
            if pid is None:
                continue
            done[kind] += 1
            if kind == "kill a state machine":
                os.kill(pid, signal.SIGKILL)
            elif kind.startswith("stop"):
                os.kill(pid, signal.SIGSTOP)
                await asyncio.sleep(rng.uniform(0.1, STOPPED_S_MAX))
                with suppress(ProcessLookupError):  # its engine may have given up on a state machine
                    os.kill(pid, signal.SIGCONT)
            elif kind == "transfer":
                with suppress(LedgerError):
                    await client.transfer(member_id)
            else:
                members = [member_id] if kind == "kill an engine" else list(group.peers)
                for one in members:
                    await asyncio.to_thread(group.kill, one)
                await asyncio.to_thread(group.start, *members)
            await all_vote(client, group.peers)
            await asyncio.sleep(QUIET_S)
    return done


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_each_key_is_one_register_whatever_is_killed_or_stopped(tmp_path: Path, seed: int) -> None:
    group = Group(tmp_path)
    group.token += ("--state-machine", "kv", "--set", "node.snapshot_entries=40")

    async def work() -> None:
        history: list[KeyOperation] = []
        clients = [group.client(deadline_s=SHORT_DEADLINE_S if n % 2 else 60.0) for n in range(CLIENTS + 1)]
        await all_vote(clients[-1], group.peers)
        troubling = asyncio.ensure_future(trouble(group, clients[-1], seed))
        members, goes_on = list(group.peers), lambda _: not troubling.done()
        await asyncio.gather(*(use(name, members, one, history, goes_on) for name, one in enumerate(clients[:-1])))
        done = await troubling
        for client in clients:
            await client.close()
        assert set(done) == set(KINDS) and len(history) > CALLS
        assert keys_at_fault(history) == [], sorted(history, key=lambda one: one.invoked)

    group.start_all()
    try:
        asyncio.run(work())
        snapshots = list(tmp_path.glob("*/dledger-*/snapshot/snapshot_*/quorumscope-meta"))
        assert snapshots, "no member has saved a snapshot"
    finally:
        group.close()


def test_a_state_that_cannot_be_saved_is_an_alarm_and_is_tried_again_by_itself(tmp_path: Path) -> None:
    group = Group(tmp_path, size=1)
    group.token += ("--state-machine", "kv", "--set", "node.snapshot_entries=5")
    folder = tmp_path / "n0" / "dledger-n0" / FOLDER

    async def until_it(client: LedgerClient, *, stands: bool) -> None:
        async with asyncio.timeout(START_WITHIN_S):
            while True:
                said = await client.introspect("n0", "state")
                if stands == ("snapshot_failed" in {one["code"] for one in said["alarms"]}):
                    return
                await asyncio.sleep(QUIET_S)

    async def work() -> None:
        client = group.client(deadline_s=60.0)
        await all_vote(client, group.peers)
        store = KvClient(client, deadline_s=60.0)
        await store.put(b"key", b"the state machine is there")
        folder.write_text("no directory can be made here")
        for number in range(4):
            await store.put(b"key", b"%d" % number)
        await until_it(client, stands=True)
        folder.unlink()
        await until_it(client, stands=False)
        assert newest_index(folder.parent) >= 4
        await client.close()

    group.start_all()
    try:
        asyncio.run(work())
    finally:
        group.close()
