"""Seeded random runs of whole groups: drops, reorder, duplicates, crashes, wipes, partitions, transfers.

One seed is one run; a failure names the seed. `QUORUMSCOPE_FUZZ_SEEDS` runs more of them by hand.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

from node.consensus.api import MS, Outcome, Proposal, ReadOutcome, Timing, TransferOutcome
from node.consensus.effects import Event
from node.protocol.codes import DispatcherState, FlushMode, ResponseCode, Role, VoterState
from tests.scenarios.cluster import Cluster
from tests.scenarios.invariants import Invariants

SEEDS = int(os.environ.get("QUORUMSCOPE_FUZZ_SEEDS", "160"))
FIRST = int(os.environ.get("QUORUMSCOPE_FUZZ_FIRST", "0"))
BATCH = 20
STEPS = 500


# A tenth of the real periods, so that a few hundred steps hold many elections.
FAST = Timing(
    heartbeat_ns=20 * MS,
    election_min_ns=80 * MS,
    election_max_ns=160 * MS,
    vote_round_ns=80 * MS,
    vote_retry_min_ns=10 * MS,
    vote_retry_max_ns=40 * MS,
    push_timeout_ns=120 * MS,
    commit_push_ns=20 * MS,
    diverged_backoff_min_ns=50 * MS,
    diverged_backoff_max_ns=400 * MS,
    closure_timeout_ns=300 * MS,
    read_timeout_ns=300 * MS,
)


class Run:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        size = self.rng.choice((3, 3, 3, 5, 4, 2))
        flush = self.rng.choice((FlushMode.SYNC, FlushMode.SYNC, FlushMode.ASYNC))
        self.cluster = Cluster(size, seed=seed, flush=flush, timing=FAST)
        self.invariants = Invariants(self.cluster)
        self.cluster.on_event = self.event
        self.voted: str | None = None
        self.loss = self.rng.choice((0.0, 0.02, 0.2))
        self.reorder = self.rng.random() < 0.5
        self.calm = self.rng.choice((0.7, 0.9, 0.97))  # the share of steps without a fault
        self.transfers = 0
        self.transfers_done = 0
        self.wiped: str | None = None
        self.small_ring = self.rng.random() < 0.3  # almost everything for a lagging peer comes from the disk

    def event(self, node_id: str, event: Event) -> None:
        self.invariants.event(node_id, event)
        if event.kind == "vote" and self.rng.random() < 0.2:
            self.voted = node_id

    # --- steps --------------------------------------------------------------------------------------------------
    def step(self) -> None:
        cluster, rng = self.cluster, self.rng
        if self.voted is not None:
            node_id, self.voted = self.voted, None
            if cluster.nodes[node_id].up and cluster.flush is FlushMode.SYNC:
                self.stop(node_id)  # who votes and forgets it votes twice (E2)
                cluster.restart(node_id)
                cluster.dial()
        quiet: list[Callable[[], None]] = [self.deliver, self.deliver, self.deliver, self.disk, self.disk]
        quiet += [self.propose, self.time, self.time, self.read]
        faults = [self.crash, self.restart, self.restart, self.cut, self.heal, self.heal, self.isolate, self.isolate]
        faults += [self.reset, self.transfer, self.wipe]
        act = rng.choice(quiet if rng.random() < self.calm else faults)
        act()
        if rng.random() < 0.2:
            cluster.dial()
        self.invariants.check()

    def node(self) -> str:
        return self.rng.choice(self.cluster.ids)

    def deliver(self) -> None:
        cluster, rng = self.cluster, self.rng
        for _ in range(rng.randrange(1, 40)):
            if not cluster.packets:
                return
            at = rng.randrange(len(cluster.packets)) if self.reorder and rng.random() < 0.3 else 0
            packet = cluster.packets.pop(at)
            if rng.random() < self.loss:
                continue
            if rng.random() < self.loss / 2:
                cluster.packets.insert(rng.randrange(len(cluster.packets) + 1), packet)
            cluster.deliver(packet)

    def disk(self) -> None:
        cluster = self.cluster
        for node_id in cluster.ids:
            store = cluster.nodes[node_id].store
            store.recent_from = store.end_index - 2 if self.small_ring else 0
            for act in (cluster.finish_sync, cluster.finish_cut, cluster.start_sync, cluster.finish_reads):
                if self.rng.random() < 0.4 and cluster.nodes[node_id].up:
                    act(node_id)

    def time(self) -> None:
        self.cluster.now += self.rng.choice((1, 5, 10, 20)) * MS
        for node_id in self.cluster.ids:
            if self.rng.random() < 0.9:
                self.cluster.tick(node_id)

    def propose(self) -> None:
        cluster, invariants = self.cluster, self.invariants
        leader = cluster.leader()
        node_id = leader if leader is not None and self.rng.random() < 0.8 else self.node()
        node = cluster.nodes[node_id]
        if not node.up:
            return
        proposals = []
        for _ in range(self.rng.randrange(1, 4)):
            number = invariants.proposed
            invariants.proposed += 1

            def done(outcome: Outcome, number: int = number) -> None:
                invariants.proposal(number, outcome)

            bodies = [b"%d" % number] * self.rng.randrange(1, 4)
            proposals.append(Proposal(bodies, done))
        node.replica.propose_many(proposals, cluster.now)
        cluster.carry_out(node_id)

    def read(self) -> None:
        """A read must see everything that was acknowledged before it began (C1)."""
        cluster, invariants = self.cluster, self.invariants
        node_id = self.node()
        node = cluster.nodes[node_id]
        if not node.up:
            return
        floor = invariants.acknowledged

        def done(outcome: ReadOutcome) -> None:
            invariants.reads += outcome.code is ResponseCode.SUCCESS
            if outcome.code is ResponseCode.SUCCESS:
                assert outcome.read_index >= floor, f"a read at {outcome.read_index} misses entry {floor}"
                assert node.replica.committed_index >= outcome.read_index

        node.replica.read_index(done, cluster.now)
        cluster.carry_out(node_id)

    def transfer(self) -> None:
        leader = self.cluster.leader()
        if leader is None:
            return
        self.transfers += 1

        def done(_outcome: TransferOutcome) -> None:
            self.transfers_done += 1

        to = self.rng.choice([None, *self.cluster.ids])
        self.cluster.nodes[leader].replica.transfer(to, self.cluster.now, on_done=done, deadline_ns=300 * MS)
        self.cluster.carry_out(leader)

    # --- faults -------------------------------------------------------------------------------------------------
    def stop(self, node_id: str) -> None:
        """A crash: the outcome of what waited is unknown to everybody but the checker, who closes the books."""
        self.cluster.crash(node_id)
        self.cluster.nodes[node_id].replica.stop(self.cluster.now)

    def crash(self) -> None:
        """With async a crash is a loss of memory: one at a time, or acknowledged entries are rightly gone."""
        node_id = self.node()
        if self.cluster.nodes[node_id].up and (self.cluster.flush is FlushMode.SYNC or self.all_remember()):
            self.stop(node_id)

    def all_remember(self) -> bool:
        """Whether every member is a voter, and there is a quorum without any one of them (E8)."""
        nodes = self.cluster.nodes.values()
        up = all(n.up and n.store.hard_state.voter_state is VoterState.VOTER for n in nodes)
        return len(nodes) > 2 and up

    def restart(self) -> None:
        node_id = self.node()
        if not self.cluster.nodes[node_id].up:
            self.cluster.restart(node_id)

    def wipe(self) -> None:
        """A disk is replaced, but only when every member is a voter: else a quorum's memory would be gone."""
        if self.rng.random() < 0.7 or not self.all_remember():
            return
        node_id = self.node()
        if self.cluster.nodes[node_id].up:
            self.stop(node_id)
        self.cluster.restart(node_id, store=self.cluster.new_store(node_id, forming=False))

    def cut(self) -> None:
        one, other = self.rng.sample(self.cluster.ids, 2)
        self.cluster.cut_links.add(frozenset((one, other)))
        self.cluster.drop_link(one, other)

    def isolate(self) -> None:
        """The leader alone on its side, with writes that nobody else gets: what a later leader has to cut."""
        leader = self.cluster.leader()
        if leader is None:
            return
        for peer_id in self.cluster.ids:
            if peer_id != leader and self.rng.random() < 0.8:
                self.cluster.cut_links.add(frozenset((leader, peer_id)))
                self.cluster.drop_link(leader, peer_id)
        for _ in range(3):
            self.propose()
            self.cluster.start_sync(leader)
            self.cluster.finish_sync(leader)

    def heal(self) -> None:
        """Some links come back, or all of them."""
        everything = self.rng.random() < 0.3
        for link in sorted(self.cluster.cut_links, key=sorted):
            if everything or self.rng.random() < 0.4:
                self.cluster.cut_links.discard(link)

    def reset(self) -> None:
        self.cluster.drop_link(*self.rng.sample(self.cluster.ids, 2))

    # --- the end ------------------------------------------------------------------------------------------------
    def recover(self) -> None:
        """The faults stop: a leader, everybody in APPEND with the same log, every closure complete."""
        cluster = self.cluster
        cluster.cut_links.clear()
        for node_id in cluster.ids:
            if not cluster.nodes[node_id].up:
                cluster.restart(node_id)
        for _ in range(40):
            cluster.run(200 * MS, 10 * MS)
            self.invariants.check()
            if self.settled():
                break
        assert self.settled(), self.describe()
        for node in cluster.nodes.values():
            node.replica.stop(cluster.now)
        self.invariants.finish()
        assert self.transfers == self.transfers_done, "a transfer's outcome was never reported"

    def settled(self) -> bool:
        cluster = self.cluster
        leader = cluster.leader()
        if leader is None:
            return False
        peers = cluster.nodes[leader].replica.peers.of.values()
        ends = {(n.store.end_index, n.store.end_chain, n.replica.committed_index) for n in cluster.nodes.values()}
        roles = [n.replica.role for n in cluster.nodes.values()]
        return (
            len(ends) == 1
            and roles.count(Role.LEADER) == 1
            and all(peer.state is DispatcherState.APPEND for peer in peers)
            and all(n.replica.member.voter_state is VoterState.VOTER for n in cluster.nodes.values())
        )

    def describe(self) -> str:
        lines = ["the group did not settle:"]
        for node_id, node in self.cluster.nodes.items():
            member = node.replica.member
            lines.append(
                f"{node_id} {member.role} term {member.term} end {node.store.end_index} "
                f"commit {member.committed_index} verified {member.verified_index} "
                f"{member.voter_state} connected {sorted(node.connected)}"
            )
        return "\n".join(lines)


def run_seed(seed: int) -> Run:
    run = Run(seed)
    try:
        run.cluster.run(300 * MS, 10 * MS)
        for _ in range(STEPS):
            run.step()
        run.recover()
    except Exception as error:
        error.add_note(f"seed {seed}")
        raise
    return run


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, BATCH))
def test_random_runs_keep_every_invariant(first: int) -> None:
    """R1-R8, E1-E8, C1, C2 under random faults; and the run must have done something worth checking."""
    runs = [run_seed(seed) for seed in range(first, first + BATCH)]
    assert sum(run.invariants.acknowledged for run in runs) > 0
    assert sum(run.invariants.reads for run in runs) > 0
    assert sum(run.transfers for run in runs) > 0
