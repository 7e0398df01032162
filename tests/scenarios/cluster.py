"""A group of replicas on one clock and one simulated network, for scenario scripts and the fuzz test.

It does what a driver does: hard state first, then sends; syncs, cuts and reads happen when the test says so. A
connection is made by a HELLO that goes through the network like any other message.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from node.consensus.api import MS, ReplicaConfig, Timing
from node.consensus.effects import (
    ApplyLog,
    BeginBehind,
    Effects,
    Event,
    FetchLog,
    MendLog,
    OpenSnapshot,
    ReadSlab,
    ReadSnapshot,
    TakePart,
    TruncateLog,
)
from node.consensus.replica import Replica
from node.message_store.broker_kind import BrokerKind
from node.protocol.codes import FlushMode, ResponseCode, VoterState
from node.protocol.entry import SLAB_BYTES_MAX, EntryError, Slab
from node.protocol.group_id import group_id_of
from node.protocol.group_kind import PLAIN
from node.protocol.messages import Hello, Message
from node.store.errors import StoreCorrupt, StoreFull
from node.store.faults.results import Mended
from node.store.log_store import ORIGIN, EntryMeta, HardState, SyncTicket
from node.store.memory_store import MemoryStore

GROUP_ID = group_id_of("scenario", "g")
BORN_MS = 1_800_000_000_000  # what all clocks of a broker group show


@dataclass(slots=True, frozen=True)
class Packet:
    """A message under way; `link` numbers the pair's connection, a new one drops what was in the old."""

    sender: str
    to: str
    message: Message
    link: int


def _nobody(*_of: object) -> None:
    """Nothing comes of it."""


class SimNode:
    """One member: its store survives a crash, its replica does not."""

    def __init__(self, config: ReplicaConfig, store: MemoryStore, rng: random.Random, now: int) -> None:
        self.config = config
        self.store = store
        self.replica = Replica(config, store, rng, now)
        self.up = True
        self.sync: tuple[int, SyncTicket] | None = None
        self.sync_wanted = False
        self.cut: TruncateLog | BeginBehind | None = None
        self.reads: list[ReadSlab | FetchLog] = []
        self.snapshots: list[OpenSnapshot | ReadSnapshot | TakePart] = []
        self.mend: MendLog | None = None
        self.apply: ApplyLog | None = None
        self.scrub_wanted = False
        self.connected: set[str] = set()


class Cluster:
    """See the module's docstring."""

    def __init__(
        self, count: int, seed: int = 1, flush: FlushMode = FlushMode.SYNC, timing: Timing | None = None,
        group_id: str | None = GROUP_ID, applies: bool = False, base: EntryMeta = ORIGIN, file_bytes: int = 1 << 30,
        broker: bool = False,
    ) -> None:  # fmt: skip
        self.kind = BrokerKind(lambda: BORN_MS) if broker else PLAIN
        self.file_bytes = file_bytes
        self.group_id, self.applies, self.base = group_id, applies, base
        self.rng = random.Random(seed)
        self.now = 1_000 * MS
        self.ids = [f"n{number}" for number in range(count)]
        self.peers = {node_id: f"127.0.0.1:{20911 + number}" for number, node_id in enumerate(self.ids)}
        self.learners: dict[str, dict[str, str]] = {node_id: {} for node_id in self.ids}  # whom each takes for one
        self.flush = flush
        self.timing = timing or Timing()
        self.packets: list[Packet] = []
        self.links: dict[frozenset[str], int] = {}
        self.cut_links: set[frozenset[str]] = set()
        self.dialling: set[tuple[str, str]] = set()
        # What moves snapshots, and what hears that a log begins anew: see `snapshots.py`.
        self.on_snapshot: Callable[[str, SimNode, OpenSnapshot | ReadSnapshot | TakePart], None] = _nobody
        self.on_begun: Callable[[str, BeginBehind], None] = _nobody
        self.on_event: Callable[[str, Event], None] = lambda _node, _event: None
        self.on_send: Callable[[Packet], None] = lambda _packet: None
        self.stores_made = 0
        self.nodes: dict[str, SimNode] = {}
        for node_id in self.ids:
            self.nodes[node_id] = SimNode(self.config_of(node_id), self.new_store(node_id), self.rng, self.now)
        for node_id in self.ids:
            self.carry_out(node_id)

    def config_of(self, node_id: str) -> ReplicaConfig:
        return ReplicaConfig(
            "g", node_id, self.peers, self.learners[node_id], flush=self.flush, timing=self.timing,
            applies=self.applies, kind=self.kind,
        )  # fmt: skip

    def new_store(self, node_id: str, *, forming: bool = True, base: EntryMeta | None = None) -> MemoryStore:
        """Empty; it begins where the group was born, or behind `base`."""
        self.stores_made += 1
        state = VoterState.FORMING if forming else VoterState.REJOINING
        hard = HardState(voter_state=state, group_id=self.group_id)
        return MemoryStore(
            store_id=f"{node_id}-s{self.stores_made}",
            hard_state=hard,
            base=base or self.base,
            data_file_size=self.file_bytes,
            kind=self.kind.name,
        )

    # --- the driver's part --------------------------------------------------------------------------------------
    def carry_out(self, node_id: str) -> Effects:
        """One batch of effects, in the order of duty."""
        node = self.nodes[node_id]
        effects = node.replica.take_effects()
        if effects.hard_state is not None:
            node.store.save_hard_state(effects.hard_state)
            node.replica.disk.hard_state_saved(effects.hard_state, self.now)
        for send in effects.sends:
            self.post(node_id, send.to, send.message)
        if effects.truncate is not None:
            assert node.cut is None, "one truncation at a time"
            node.cut = effects.truncate
        if effects.begin_behind is not None:
            assert node.cut is None, "one truncation at a time"
            node.cut = effects.begin_behind
        for snapshot in effects.snapshots:
            node.snapshots.append(snapshot)
        node.reads.extend(effects.reads)
        node.reads.extend(effects.fetches)
        if effects.mend is not None:
            assert node.mend is None, "one mend at a time"
            node.mend = effects.mend
        node.apply = effects.apply or node.apply
        node.scrub_wanted |= effects.scrub_wanted
        node.sync_wanted |= effects.sync_wanted
        for event in effects.events:
            self.on_event(node_id, event)
        for look in effects.looks:  # a disk that answers at once
            node.replica.disk.looked(look, node.store.meta(look.index), self.now)
        # What followed from a look, or from the hard state's being durable.
        if effects.looks or (effects.hard_state is not None and node.replica.has_effects):
            self.carry_out(node_id)
        return effects

    def post(self, sender: str, to: str, message: Message) -> None:
        pair = frozenset((sender, to))
        if pair in self.cut_links or to not in self.nodes or not self.nodes[to].up:
            return
        packet = Packet(sender, to, message, self.links.get(pair, 0))
        self.packets.append(packet)
        self.on_send(packet)

    def deliver(self, packet: Packet) -> None:
        """One message arrives, unless its connection is gone."""
        pair = frozenset((packet.sender, packet.to))
        node = self.nodes[packet.to]
        if not node.up or pair in self.cut_links or packet.link != self.links.get(pair, 0):
            return
        message = packet.message
        if isinstance(message, Hello):
            message = replace(message, proven=True)
        node.replica.receive(packet.sender, message, self.now)
        if isinstance(message, Hello) and message.answer:
            self.dialling.discard((packet.to, packet.sender))
            peer = node.replica.peers.of.get(packet.sender)
            taken = message.code is ResponseCode.SUCCESS and peer is not None and peer.hello is message
            if taken and packet.sender not in node.connected:
                node.connected.add(packet.sender)
                node.replica.links.connected(packet.sender, self.now)
        self.carry_out(packet.to)

    def dial(self) -> None:
        """Every node calls every peer that it has no connection to."""
        for node_id in self.ids:
            node = self.nodes[node_id]
            for peer_id in self.ids:
                pair = frozenset((node_id, peer_id))
                reachable = peer_id in node.replica.peers.of and self.nodes[peer_id].up and pair not in self.cut_links
                if node.up and reachable and peer_id not in node.connected:
                    self.dialling.add((node_id, peer_id))
                    self.post(node_id, peer_id, node.replica.hello(0, peer_id))

    def drop_link(self, one: str, other: str) -> None:
        """Both connections of a pair close; what was in them is lost."""
        pair = frozenset((one, other))
        self.links[pair] = self.links.get(pair, 0) + 1
        self.packets = [packet for packet in self.packets if frozenset((packet.sender, packet.to)) != pair]
        for node_id, peer_id in ((one, other), (other, one)):
            node = self.nodes[node_id]
            self.dialling.discard((node_id, peer_id))
            if node.up and peer_id in node.connected:
                node.connected.discard(peer_id)
                node.replica.links.lost(peer_id, self.now)
                self.carry_out(node_id)
            node.connected.discard(peer_id)

    def start_sync(self, node_id: str) -> None:
        node = self.nodes[node_id]
        if node.sync is None and node.sync_wanted:  # also while a cut waits for the same thread
            node.sync_wanted = False
            ticket = node.store.prepare_sync()
            if ticket is not None:
                node.sync = (node.replica.log_epoch, ticket)

    def finish_sync(self, node_id: str) -> None:
        node = self.nodes[node_id]
        if node.sync is not None:
            log_epoch, ticket = node.sync
            node.sync = None
            durable = node.store.finish_sync(ticket)
            node.replica.disk.flushed(log_epoch, durable, self.now)
            self.carry_out(node_id)

    def finish_cut(self, node_id: str) -> None:
        node = self.nodes[node_id]
        if node.cut is not None:
            cut, node.cut = node.cut, None
            if isinstance(cut, BeginBehind):
                self.begin_behind(node, cut)
                self.carry_out(node_id)
                return
            try:
                node.store.truncate(cut.cut_index, cut.record)
            except StoreFull:
                node.replica.disk.truncate_failed(cut.log_epoch, self.now)
            else:
                node.replica.disk.truncated(cut.log_epoch, cut.cut_index, self.now)
            self.carry_out(node_id)

    def begin_behind(self, node: SimNode, order: BeginBehind) -> None:
        error = None
        try:
            node.store.begin_behind(order.base, order.record)
        except StoreFull as full:
            error = str(full)
        node.replica.disk.begun_behind(order, error, self.now)
        if error is None and self.applies:
            self.on_begun(node.config.self_id, order)

    def finish_reads(self, node_id: str) -> None:
        node = self.nodes[node_id]
        reads, node.reads = node.reads, []
        for request in reads:
            slab: Slab | None = None
            try:
                slab = node.store.read_slab(request.first_index, request.max_bytes)
            except KeyError:
                pass
            except StoreCorrupt as error:
                node.replica.disk.log_damaged(error.faults, self.now)
            if isinstance(request, ReadSlab):
                node.replica.disk.slab_read(request, slab, self.now)
            else:
                node.replica.disk.fetched(request, slab, self.now)
        if reads:
            self.carry_out(node_id)

    def move_snapshots(self, node_id: str) -> None:
        node = self.nodes[node_id]
        while node.snapshots:
            self.on_snapshot(node_id, node, node.snapshots.pop(0))
            self.carry_out(node_id)

    def finish_mend(self, node_id: str) -> None:
        node = self.nodes[node_id]
        if node.mend is not None:
            order, node.mend = node.mend, None
            result: Mended | None = None
            text = ""
            try:
                result = order.carry_out(node.store)
            except (StoreFull, EntryError) as error:
                text = str(error)
            node.replica.disk.mended(order.log_epoch, result, text, self.now)
            self.carry_out(node_id)

    def scrub(self, node_id: str) -> None:
        """The whole log is read once."""
        node = self.nodes[node_id]
        node.scrub_wanted = False
        index = node.store.begin_index
        while index <= node.store.end_index:
            step = node.store.scrub(index, SLAB_BYTES_MAX)
            index = step.next_index
            if step.faults:
                node.replica.disk.log_damaged(step.faults, self.now)
        node.replica.disk.scrubbed(self.now)
        self.carry_out(node_id)

    def settle_disks(self, node_id: str) -> None:
        """Everything the disk was asked for is done."""
        node = self.nodes[node_id]
        if node.up:
            self.finish_sync(node_id)
            self.finish_cut(node_id)
            self.start_sync(node_id)
            self.finish_sync(node_id)
            self.finish_reads(node_id)
            self.move_snapshots(node_id)
            self.finish_mend(node_id)
            if self.nodes[node_id].scrub_wanted:
                self.scrub(node_id)

    def tick(self, node_id: str) -> None:
        if self.nodes[node_id].up:
            self.nodes[node_id].replica.tick(self.now)
            self.carry_out(node_id)

    # --- faults -------------------------------------------------------------------------------------------------
    def crash(self, node_id: str) -> None:
        """The process dies; what was not synced goes with it (a machine that lost power)."""
        for peer_id in self.ids:
            if peer_id != node_id:
                self.drop_link(node_id, peer_id)
        node = self.nodes[node_id]
        node.up = False
        node.connected.clear()

    def restart(self, node_id: str, *, store: MemoryStore | None = None) -> None:
        """Opens the store again; async members that lost unsynced history are REJOINING (SAFETY E8)."""
        old = self.nodes[node_id]
        assert not old.up
        if store is None:
            store = old.store
            store.lose_unsynced()
            if self.flush is FlushMode.ASYNC and store.hard_state.voter_state is VoterState.VOTER:
                store.hard_state = replace(store.hard_state, voter_state=VoterState.REJOINING)
        self.nodes[node_id] = SimNode(self.config_of(node_id), store, self.rng, self.now)
        self.carry_out(node_id)

    # --- learners ---------------------------------------------------------------------------------------------------
    def start_learner(self, node_id: str) -> None:
        """A member without a vote starts with a new store; who else takes it for one is said by `tell_of_learner`."""
        if node_id in self.nodes:  # it was one before
            self.crash(node_id)
        else:
            self.ids.append(node_id)
        self.learners[node_id] = {node_id: f"127.0.0.1:{30911 + len(self.ids)}"}
        self.nodes[node_id] = SimNode(self.config_of(node_id), self.new_store(node_id), self.rng, self.now)
        self.carry_out(node_id)

    def tell_of_learner(self, node_id: str, learner: str, *, joins: bool) -> None:
        """One member's driver says that a learner came or is gone; its connections go with it."""
        node = self.nodes[node_id]
        if joins:
            self.learners[node_id][learner] = self.learners[learner][learner]
        else:
            self.learners[node_id].pop(learner, None)
        if node.up and joins:
            node.replica.reconfiguration.add_learner(learner, self.learners[learner][learner], self.now)
        elif node.up:
            node.replica.reconfiguration.remove_learner(learner, self.now)
        if not joins:
            self.drop_link(node_id, learner)
        if node.up:
            self.carry_out(node_id)

    # --- running ------------------------------------------------------------------------------------------------
    def deliver_all(self, limit: int = 10_000) -> None:
        """Delivers until the network and the disks are quiet."""
        while limit > 0:
            packets, self.packets = self.packets, []
            for packet in packets:
                self.deliver(packet)
            for node_id in self.ids:
                self.settle_disks(node_id)
            if not self.packets:
                return
            limit -= len(packets) or 1
        raise AssertionError("the network never gets quiet")

    def run(self, duration_ns: int, step_ns: int = 10 * MS) -> None:
        """Time passes without faults."""
        end = self.now + duration_ns
        while self.now < end:
            self.now += step_ns
            self.dial()
            for node_id in self.ids:
                self.tick(node_id)
            self.deliver_all()

    def leader(self) -> str | None:
        """The leader of the highest term among the living."""
        leaders = [n for n in self.nodes.values() if n.up and n.replica.role.value == "LEADER"]
        best = max(leaders, key=lambda node: node.replica.term, default=None)
        return None if best is None else best.config.self_id
