"""Small builders for the core's unit tests: a member with a given log, and one replica with hand-made peers."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from node.consensus.api import MS, Outcome, Proposal, ReplicaConfig, TransferOutcome
from node.consensus.effects import OpenSnapshot, ReadSnapshot, TakePart
from node.consensus.leadership import Leadership
from node.consensus.member_state import MemberState
from node.consensus.progress import VERSION_MAX
from node.consensus.replica import Replica
from node.protocol.codes import FlushMode, ResponseCode, Role, VoteResult, VoterState
from node.protocol.entry import Slab
from node.protocol.group_id import group_id_of
from node.protocol.group_settings import SaidSettings
from node.protocol.messages import (
    Hello,
    Message,
    PushKind,
    PushRequest,
    PushResponse,
    VoteRequest,
    VoteResponse,
)
from node.protocol.slab_encode import encode_slab
from node.store.file_store import FileStore
from node.store.log_store import HardState
from node.store.memory_store import MemoryStore

PEERS = {"n0": "127.0.0.1:20911", "n1": "127.0.0.1:20912", "n2": "127.0.0.1:20913"}
GROUP_ID = group_id_of("unit", "g")
NOW = 10_000 * MS


def alone(store: FileStore, peers: Mapping[str, str]) -> Replica:
    """n0 over a real store, without anybody to talk to: it campaigns, saves and syncs for ten simulated seconds."""
    now = 10**12
    config = ReplicaConfig("g", "n0", peers, flush=FlushMode.SYNC)
    replica = Replica(config, store, random.Random(1), now)
    for _ in range(100):
        now += 10**8
        replica.tick(now)
        effects = replica.take_effects()
        if effects.hard_state is not None:
            store.save_hard_state(effects.hard_state)
            replica.disk.hard_state_saved(effects.hard_state, now)
        ticket = store.prepare_sync()
        if ticket is not None:
            replica.disk.flushed(replica.log_epoch, store.finish_sync(ticket), now)
    return replica


def store_of(terms: Sequence[int] = (), *, term: int | None = None, **hard: Any) -> MemoryStore:
    """A durable log whose entries have these terms."""
    hard.setdefault("voter_state", VoterState.VOTER)
    hard.setdefault("group_id", GROUP_ID)  # None: its leader gives it one (C9)
    state = HardState(term=term if term is not None else (terms[-1] if terms else 0), **hard)
    store = MemoryStore(store_id="s0", hard_state=state)
    for number, one in enumerate(terms):
        store.append_as_leader([b"%d.%d" % (one, number)], one)
    ticket = store.prepare_sync()
    if ticket is not None:
        store.finish_sync(ticket)
    return store


def config_of(flush: FlushMode = FlushMode.SYNC, **changes: Any) -> ReplicaConfig:
    return ReplicaConfig("g", "n0", changes.pop("peers", PEERS), flush=flush, **changes)


def member_of(store: MemoryStore, **changes: Any) -> MemberState:
    return MemberState(config_of(**changes), store, random.Random(7), NOW)


class Solo:
    """Replica n0 alone; the test plays n1 and n2."""

    def __init__(self, store: MemoryStore | None = None, *, connect: bool = True, **changes: Any) -> None:
        self.store = store or store_of()
        self.now = NOW
        self.replica = Replica(config_of(**changes), self.store, random.Random(7), self.now)
        self.sent: list[tuple[str, Message]] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.hard_states: list[HardState] = []
        self.snapshots: list[OpenSnapshot | ReadSnapshot | TakePart] = []  # ordered, and not taken up by the test
        self.looks_at_once = True  # a disk that answers before anything else happens
        self.take()
        if connect:
            for peer in ("n1", "n2"):
                self.connect(peer)
        self.hard_states.clear()  # what follows is the test's own doing

    def take(self) -> list[tuple[str, Message]]:
        """Carries out the effects; gives what was sent by this step."""
        effects = self.replica.take_effects()
        if effects.hard_state is not None:
            self.hard_states.append(effects.hard_state)
            self.store.save_hard_state(effects.hard_state)
            self.replica.disk.hard_state_saved(effects.hard_state, self.now)
        self.effects = effects
        sent = [(send.to, send.message) for send in effects.sends]
        self.sent += sent
        self.snapshots += effects.snapshots
        self.events += [(event.kind, event.detail) for event in effects.events]
        if effects.hard_state is not None and self.replica.has_effects:  # what followed from its being durable
            sent += self.take()
            self.effects = effects
        if effects.looks and self.looks_at_once:
            for look in effects.looks:
                self.replica.disk.looked(look, self.store.meta(look.index), self.now)
            sent += self.take()
            self.effects.reads[:0] = effects.reads
        return sent

    def hello_of(self, peer: str, *, seq: int = 1, **changes: Any) -> Hello:
        store = self.store
        fields: dict[str, Any] = {
            "group": "g", "node_id": peer, "store_id": f"store-{peer}", "voter_state": VoterState.VOTER,
            "end_index": store.end_index, "sealed_from": 0, "peers_hash": self.replica.config.peers_hash,
            "data_file_size": store.data_file_size, "index_file_size": store.index_file_size,
            "flush": self.replica.config.flush, "lease_reads": self.replica.config.lease_reads, "answer": True,
            "version_max": VERSION_MAX, "proven": True, "settings": self.said_by(peer),
        }  # fmt: skip
        return Hello(seq=seq, **{**fields, **changes})

    def said_by(self, peer: str) -> SaidSettings:
        """The same as ours, by a peer that knows nothing of ours yet."""
        timing = self.replica.config.timing
        return SaidSettings(timing.heartbeat_ns // MS, timing.election_min_ns // MS, f"{peer}.0", "")

    def connect(self, peer: str, **changes: Any) -> None:
        self.replica.receive(peer, self.hello_of(peer, **changes), self.now)
        self.replica.links.connected(peer, self.now)
        self.take()

    def receive(self, peer: str, message: Message) -> list[tuple[str, Message]]:
        self.replica.receive(peer, message, self.now)
        return self.take()

    def tick(self, milliseconds: int) -> list[tuple[str, Message]]:
        """So much time passes for a member that runs: its timer fires when it is due, until it asks for votes."""
        until, sent = self.now + milliseconds * MS, []
        while (at := self.replica.next_deadline()) < until:
            self.now = max(at, self.now + MS)
            self.replica.tick(self.now)
            sent += self.take()
            if any(isinstance(message, VoteRequest) for _to, message in sent):
                self.now = until
                return sent
        self.now = until
        return sent + self.late_tick(0)

    def late_tick(self, milliseconds: int) -> list[tuple[str, Message]]:
        """One tick after so much time: the member stood still until then."""
        self.now += milliseconds * MS
        self.replica.tick(self.now)
        return self.take()

    def grant(self, sent: list[tuple[str, Message]], peers: Sequence[str] = ("n1",)) -> list[tuple[str, Message]]:
        """Every vote that was asked of these peers is given; what that brings about."""
        out: list[tuple[str, Message]] = []
        for to, message in sent:
            if to in peers and isinstance(message, VoteRequest):
                answer = VoteResponse(message.seq, self.replica.term, VoteResult.ACCEPT, pre=message.pre)
                out += self.receive(to, answer)
        return out

    def lead(self) -> list[tuple[str, Message]]:
        """n0 wins an election with n1's vote; gives what it then sends."""
        sent = self.grant(self.grant(self.tick(1100)))
        assert self.replica.role is Role.LEADER
        return sent

    def sync(self) -> list[tuple[str, Message]]:
        ticket = self.store.prepare_sync()
        if ticket is not None:
            epoch = self.replica.log_epoch
            self.replica.disk.flushed(epoch, self.store.finish_sync(ticket), self.now)
        return self.take()

    def ack(self, peer: str, push: PushRequest, upto: int, *, durable: int | None = None, **changes: Any) -> list[Any]:
        """A peer's answer to a push of ours."""
        fields: dict[str, Any] = {
            "seq": push.seq, "code": ResponseCode.SUCCESS, "dispatch_epoch": push.dispatch_epoch, "term": push.term,
            "verified_index": upto, "durable_index": upto if durable is None else durable, "end_index": upto,
        }  # fmt: skip
        return self.receive(peer, PushResponse(**{**fields, **changes}))

    def follow(self, term: int = 1) -> None:
        """n1 leads `term`, and n0 has matched nothing yet."""
        self.push(PushKind.COMMIT, term=term)

    def push(self, kind: PushKind, sender: str = "n1", *, term: int = 1, **changes: Any) -> PushResponse | None:
        """One push to n0; its answer, if there is one."""
        fields: dict[str, Any] = {"seq": 77, "leader_id": sender, "dispatch_epoch": 1, "commit_index": -1}
        sent = self.receive(sender, PushRequest(kind=kind, term=term, **{**fields, **changes}))
        answers = [message for _to, message in sent if isinstance(message, PushResponse)]
        return answers[-1] if answers else None

    def compare(self, index: int, **changes: Any) -> PushResponse | None:
        """COMPARE at our own entry `index`, which matches unless the changes say otherwise."""
        meta = self.store.meta(index)
        assert meta is not None
        fields = {"prev_index": index, "prev_term": meta.term, "prev_chain": meta.chain}
        return self.push(PushKind.COMPARE, **{**fields, **changes})

    def append(self, slab: Slab, prev_term: int, **changes: Any) -> PushResponse | None:
        fields: dict[str, Any] = {
            "prev_index": slab.first_index - 1, "prev_term": prev_term, "prev_chain": slab.prev_chain,
            "first_index": slab.first_index, "slab": slab,
        }  # fmt: skip
        return self.push(PushKind.APPEND, **{**fields, **changes})

    def append_synced(self, slab: Slab, prev_term: int, **changes: Any) -> PushResponse | None:
        """The same, and a disk that syncs at once; the last of its answers."""
        answer = self.append(slab, prev_term, **changes)
        answers = [message for _to, message in self.sync() if isinstance(message, PushResponse)]
        return answers[-1] if answers else answer

    def slab(self, after: int, bodies: Sequence[bytes] = (b"x",), *, term: int = 1) -> Slab:
        """A slab that follows our own entry `after`."""
        meta = self.store.meta(after)
        assert meta is not None and meta.chain is not None
        last = self.store.get(after)
        pos = 0 if last is None else last.pos + last.size
        return encode_slab(bodies, after + 1, term, pos, meta.chain)


class Leader:
    """n0 leads with everything matched and committed up to its NOOP (entry 0)."""

    def __init__(self, **changes: object) -> None:
        self.solo = Solo(**changes)
        sent = self.solo.lead()
        self.done: list[Outcome] = []
        for peer in ("n1", "n2"):
            compare = next(m for to, m in sent if to == peer and isinstance(m, PushRequest))
            append = next(m for _to, m in self.solo.ack(peer, compare, -1) if isinstance(m, PushRequest))
            self.solo.ack(peer, append, 0)
        self.solo.sync()
        assert self.solo.replica.committed_index == 0

    @property
    def leadership(self) -> Leadership:
        assert self.solo.replica.leadership is not None
        return self.solo.replica.leadership

    def propose(self, *batches: list[bytes], expected: int | None = None) -> list[PushRequest]:
        proposals = [Proposal(batch, self.done.append, expected) for batch in batches]
        self.solo.replica.propose_many(proposals, self.solo.now)
        return [m for to, m in self.solo.take() if to == "n1" and isinstance(m, PushRequest)]

    def transfer(self, to: str | None, **changes: int) -> list[TransferOutcome]:
        outcomes: list[TransferOutcome] = []
        self.solo.replica.transfer(to, self.solo.now, on_done=outcomes.append, **changes)
        self.sent = self.solo.take()
        return outcomes
