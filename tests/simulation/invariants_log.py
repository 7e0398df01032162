"""What is committed, by whom, and that it stays: SAFETY R1 to R7, Raft's leader completeness and state machine safety.

`Committed` is the one log of the world: each index as it was first seen committed anywhere. Everything else is held
against it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from node.protocol.codes import FlushMode, ResponseCode, Role, VoterState
from node.protocol.messages import HeartBeatRequest, Message, PushRequest, PushResponse
from node.store.errors import StoreCorrupt, StoreError
from node.store.faults.ranges import fault_at
from node.store.files.identity import Base
from node.store.log_store import EntryMeta, HardState
from tests.simulation.damage import DAMAGE
from tests.simulation.entry_list import EntryList
from tests.simulation.invariants_members import Memberships
from tests.simulation.mirror import Held, Mirror, Mirrors, log_from
from tests.simulation.observer import Observer, Violation

if TYPE_CHECKING:
    from node.consensus.effects import Effects, Event
    from node.consensus.replica import Replica
    from tests.simulation.member import Member
    from tests.simulation.world import World


class Committed:
    """Index -> entry, as first seen committed; and which term's leader had committed how far."""

    def __init__(self) -> None:
        self.begin(None)
        self.by_term: dict[int, int] = {}  # term of the leader that committed -> highest index

    def begin(self, born_at: Base | None) -> None:
        """Nothing is committed yet but what the group was born behind."""
        self.entries: EntryList[Held] = log_from(born_at)
        self.first_index = self.entries.end
        self.reported = self.index  # the highest index that any leader said was committed

    @property
    def index(self) -> int:
        return self.entries.end - 1

    def before_term(self, term: int) -> int:
        """The highest index that leaders of earlier terms committed."""
        return max((index for of, index in self.by_term.items() if of < term), default=self.first_index - 1)


class Logs(Observer):
    """See the module's docstring. Comes after `Mirrors`."""

    def __init__(self, mirrors: Mirrors, members: Memberships) -> None:
        self._mirrors, self._members = mirrors, members
        self.committed = Committed()
        self._before_first = -1  # what lies before the first entry of all
        self._seen: dict[str, tuple[int, int]] = {}  # member -> (incarnation, committed index)
        # Who held an entry as safely as the flush mode promises while it could vote: (index, key) -> members.
        self._held_by: dict[tuple[int, tuple[int, int]], set[str]] = {}
        self._held_upto: dict[str, tuple[str, int]] = {}  # member -> (disk, how far `_held_by` knows of it)
        self._rejoin_from: dict[str, int] = {}  # member -> what was committed when its joining began
        self._sync = True
        self._rots = False
        self._led: dict[str, tuple[int, int]] = {}  # who led after the step before: member -> (incarnation, term)
        self._saving: dict[str, tuple[int, int]] = {}  # leaders that save hard state: member -> (term, committed)
        self._safe: dict[str, int] = {}  # member -> how far its log was as safe as the flush mode promises
        self._world: World | None = None

    def started(self, world: World) -> None:
        self._world = world
        self.committed.begin(world.born_at)
        self._before_first = self.committed.index
        self._sync = world.config.always_sync
        self._rots = any(getattr(world.config, kind) for kind in DAMAGE)

    # --- after every step ------------------------------------------------------------------
    def stepped(self, world: World) -> None:
        if world.touched:
            self._look_at(world, world.touched)
        if world.steps % 100 == 0:
            self.full(world)

    def _look_at(self, world: World, touched: list[Member]) -> None:
        for member in touched:
            if member.replica is not None:
                self._note_held(self._mirrors.of[member.id], member.replica)
        leaders = [one for one in world.members.values() if one.replica is not None and one.replica.role is Role.LEADER]
        for member in leaders:  # first: a leader knows of a commit before anybody else does
            if member in touched:
                self._progress(member)
        for member in touched:
            if member.replica is not None and member.replica.role is not Role.LEADER:
                self._progress(member)
        for member in leaders:
            self._watermarks(member, world.members.values() if member in touched else touched)
        self._led = {one.id: (one.incarnation, one.replica.term) for one in leaders if one.replica is not None}

    def persisted(self, member: Member, _hard_state: HardState) -> None:
        self._saving.pop(member.id, None)

    def crashed(self, member: Member, _how: str) -> None:
        if member.id in self._saving:
            self._note_commit(*self._saving.pop(member.id))

    def _note_held(self, mirror: Mirror, replica: Replica) -> None:
        """Remembers what this member holds safely as a voter."""
        store = mirror.member.store
        assert store is not None
        member_id = mirror.member.id
        if replica.member.voter_state is not VoterState.VOTER:
            self._held_upto.pop(member_id, None)
            return
        safe = mirror.end_index if self._may_lack(replica) else min(store.durable_index, mirror.end_index)
        self._safe[member_id] = safe
        disk_id, upto = self._held_upto.get(member_id, ("", self._before_first))
        if disk_id != mirror.member.disk_id:
            upto = self._before_first
        if mirror in self._mirrors.touched:
            upto = min(upto, mirror.changed_from - 1)
        elif upto == safe:
            return
        for index in range(upto + 1, safe + 1):
            held = mirror.entries[index]
            if held is not None:
                self._held_by.setdefault((index, held.key), set()).add(member_id)
        self._held_upto[member_id] = mirror.member.disk_id, safe

    def _may_lack(self, replica: Replica) -> bool:
        """Whether it would rejoin after a power loss: only then may what is not durable count there (R2, E8)."""
        kept = replica.member.hard.kept
        return not self._sync and kept is not None and kept.promises.unsynced

    # --- commit ------------------------------------------------------------------
    def _progress(self, member: Member) -> None:
        replica, store = member.replica, member.store
        assert replica is not None and store is not None
        committed = replica.committed_index
        incarnation, before = self._seen.get(member.id, (-1, self._before_first))
        if incarnation != member.incarnation:
            before = self._before_first
        elif committed == before:
            return
        if committed < before:
            raise Violation("commit_monotonic", f"{member.id} went from committed {before} to {committed}")
        if committed > store.end_index:
            raise Violation("commit_within_end", f"{member.id}: committed {committed}, end {store.end_index}")
        self._seen[member.id] = member.incarnation, committed
        mirror = self._mirrors.of[member.id]
        led_incarnation, led_term = self._led.get(member.id, (-1, -1))
        if led_incarnation == member.incarnation:  # it led until this step at least
            if led_term == replica.term:
                self._leader_commits(member, replica, mirror, committed)
            self._note_commit(led_term, committed)
        elif committed > max(self.committed.reported, self.committed.index):
            text = (
                f"{member.id} has committed {committed}, no leader ever committed more than {self.committed.reported}"
            )
            raise Violation("commit_from_leader", text)
        self._agree(member, mirror, before, committed)

    def _leader_commits(self, member: Member, replica: Replica, mirror: Mirror, index: int) -> None:
        """R3: an entry of the own term, held by a quorum of voters as safely as the group promises."""
        held = mirror.at(index)
        if held is None:
            return
        if held.term != replica.term:
            text = f"{member.id} leads term {replica.term} and commits up to entry {index} of term {held.term}"
            raise Violation("commit_own_term", text)
        holders = self._held_by.get((index, held.key), set())
        if all(len(holders & seats.voters) < seats.majority for seats in self._members.judged_by(member.id)):
            text = f"{member.id} commits entry {index} of term {held.term}, held by {sorted(holders)} only"
            raise Violation("commit_by_quorum", text)

    def _agree(self, member: Member, mirror: Mirror, before: int, committed: int) -> None:
        """State machine safety: what anybody has committed at an index, everybody has."""
        known = self.committed.entries
        for index in range(before + 1, committed + 1):
            held = mirror.at(index)
            if index < known.end:
                if held is not None and held.key != known[index].key:
                    text = (
                        f"{member.id} has committed entry {index} of term {held.term}, "
                        f"committed was one of term {known[index].term}"
                    )
                    raise Violation("state_machine_safety", text)
            elif held is not None and index == known.end:
                known.append(held)

    def _note_commit(self, term: int, index: int) -> None:
        committed = self.committed
        committed.reported = max(committed.reported, index)
        if index > committed.by_term.get(term, -1):
            committed.by_term[term] = index
            assert self._world is not None
            for other in self._world.members.values():
                if other.replica is not None and other.replica.role is Role.LEADER and other.replica.term > term:
                    self._complete(other, other.replica.term)

    # --- leader completeness ------------------------------------------------------------------
    def event(self, member: Member, event: Event) -> None:
        if event.kind == "role" and event.detail["role"] == Role.LEADER.value:
            self._mirrors.of[member.id].update()
            self._complete(member, event.detail["term"])
        elif event.kind == "voter_state":
            self._voter_state(member, event.detail["state"], event.detail["was"])
        elif event.kind == "alarm" and event.detail["code"] == "fork" and not self._rots:
            raise Violation("no_fork", f"{member.id}: {event.detail['text']}")

    def _complete(self, member: Member, term: int) -> None:
        index = self.committed.before_term(term)
        if self.committed.first_index <= index <= self.committed.index:
            mirror, entry = self._mirrors.of[member.id], self.committed.entries[index]
            held = mirror.at(index)
            if held is None and index <= mirror.end_index:
                return  # it cannot be read now: S6 is what has to be said about that
            if held is None or held.key != entry.key:
                text = f"{member.id} leads term {term} without committed entry {index} of term {entry.term}"
                raise Violation("leader_completeness", text)

    # --- E8: what a joining must have brought back ------------------------------------------------------------------
    def booted(self, member: Member) -> None:
        assert member.store is not None
        if member.store.hard_state.voter_state is VoterState.REJOINING:
            self._rejoin_from.setdefault(member.id, self.committed.index)

    def _voter_state(self, member: Member, state: str, was: str) -> None:
        if state == VoterState.REJOINING.value:
            self._rejoin_from[member.id] = self.committed.index
        if state != VoterState.VOTER.value or was != VoterState.REJOINING.value or member.store is None:
            return
        index = self._rejoin_from.pop(member.id, -1)
        mirror = self._mirrors.of[member.id]
        mirror.update()
        safe = member.store.durable_index if self._sync else mirror.end_index
        if index >= 0 and not (index <= safe and self._fits(mirror, index)):
            text = f"{member.id} votes again, safe up to {safe}; when it began to join, {index} was committed"
            raise Violation("rejoined_with_history", text)

    def _fits(self, mirror: Mirror, index: int) -> bool:
        held = mirror.at(index)
        return held is None or held.key == self.committed.entries[index].key

    # --- cuts ------------------------------------------------------------------
    def effects(self, member: Member, effects: Effects) -> None:
        leads = member.replica is not None and member.replica.role is Role.LEADER
        if effects.hard_state is not None and member.replica is not None and leads:
            # Should it die of this save, its checkpoint may tell its next life what it has committed.
            self._saving[member.id] = (member.replica.term, member.replica.committed_index)
        order = effects.truncate
        if order is None or member.replica is None or member.store is None:
            return
        core, cut = member.replica.member, order.cut_index
        if cut <= max(core.committed_index, core.verified_index):
            text = f"{member.id} cuts from {cut}; committed {core.committed_index}, verified {core.verified_index}"
            raise Violation("committed_never_cut", text)
        if core.voter_state is VoterState.REJOINING and fault_at(member.store.faults, cut) is not None:
            return  # damage that nobody can link: given up together with the vote (S6, E8)
        mirror = self._mirrors.of[member.id]
        mirror.update()
        if cut <= self.committed.index and mirror.holds(cut, self.committed.entries[cut].key):
            raise Violation("committed_never_cut", f"{member.id} cuts entry {cut}, which is committed")
        self._conflicts(member, order.record.leader_id, order.record.term, cut)

    def _conflicts(self, member: Member, leader_id: str | None, term: int, cut: int) -> None:
        """R5: nothing is cut that the leader holds too."""
        assert self._world is not None
        leader = self._world.members.get(leader_id or "")
        if leader is None or leader.store is None or leader.replica is None or leader.replica.term != term:
            return
        ours = self._mirrors.of[member.id].at(cut)
        theirs = self._mirrors.of[leader.id].at(cut)
        if ours is not None and theirs is not None and ours.key == theirs.key:
            raise Violation("cut_only_conflicts", f"{member.id} cuts entry {cut}, which {leader.id} holds too")

    # --- what is said of it ------------------------------------------------------------------
    def sent(self, member: Member, to: str, message: Message) -> None:
        if isinstance(message, PushRequest | HeartBeatRequest):
            self.committed.reported = max(self.committed.reported, message.commit_index)
        elif isinstance(message, PushResponse):
            self._claims(member, to, message)

    def _claims(self, member: Member, to: str, answer: PushResponse) -> None:
        """R1: `verified` is what matches that leader's log, now and for as long as it leads."""
        assert self._world is not None and member.store is not None
        leader, index = self._world.members[to], answer.verified_index
        if index < 0 or leader.replica is None or leader.store is None or answer.code is ResponseCode.EXPIRED_TERM:
            return
        if leader.replica.role is not Role.LEADER or leader.replica.term != answer.term:
            return
        try:
            ours, theirs = self._written(member, index), self._written(leader, index)
        except StoreError:
            return
        entries = self.committed.entries
        if index < leader.store.base.index and index in range(entries.begin, entries.end):
            held = entries[index]  # the leader removed it since; also what the group was born behind
            theirs = EntryMeta(index, held.term, held.chain)
        if index < member.store.base.index:
            return  # it removed it since: what was verified is not here to be compared
        if ours is None or ours != theirs:
            text = f"{member.id} says to {to} that it verified {index}; there: {theirs}, here: {ours}"
            raise Violation("verified_matches_leader", text)

    def _written(self, member: Member, index: int) -> EntryMeta | None:
        """What it wrote there, whatever rotted since. Raises StoreError."""
        assert member.store is not None
        has_rotted = member.damage.anywhere or index in member.damage.entries
        try:
            found = member.store.meta(index)
        except StoreCorrupt:
            if not has_rotted:
                raise
        else:
            if found is None or not has_rotted:
                return found
        held = self._mirrors.of[member.id].at(index)
        if held is None:
            raise StoreCorrupt(f"entry {index} of {member.id} rotted before it was seen")
        return EntryMeta(index, held.term, held.chain)

    def _watermarks(self, member: Member, peers: Iterable[Member]) -> None:
        """A leader counts no more than its peers hold (R2)."""
        replica = member.replica
        assert replica is not None and replica.leadership is not None
        for peer in peers:
            known = replica.peers.of.get(peer.id)
            if known is None:
                continue
            mark, peer_id = known.watermark_index, peer.id
            if 0 <= known.faulty_from <= mark:
                text = f"{member.id} counts {peer_id} up to {mark}, but its entry {known.faulty_from} is damaged"
                raise Violation("faulty_watermark", text)
            if mark < 0 or peer.replica is None or peer.store is None or peer.replica.term != replica.term:
                continue
            if peer.replica.member.voter_state is not VoterState.VOTER or peer.is_old_copy:
                continue  # its disk was replaced: the leader hears of it with the next HELLO
            counts_unsynced = replica.config.flush is FlushMode.ASYNC and self._may_lack(peer.replica)
            safe = peer.store.end_index if counts_unsynced else peer.store.durable_index
            held = self._mirrors.of[member.id].at(mark)
            if mark > safe or (held is not None and not self._same(peer_id, mark, held)):
                raise Violation("watermark_held", f"{member.id} counts {peer_id} up to {mark}, safe there up to {safe}")

    def _same(self, peer_id: str, index: int, held: Held) -> bool:
        other = self._mirrors.of[peer_id].at(index)
        return other is None or other.key == held.key

    # --- in full ------------------------------------------------------------------
    def full(self, world: World) -> None:
        """Every log up to its committed index against the committed one; and no committed entry is on no quorum."""
        known = self.committed.entries
        for member in world.members.values():
            if member.replica is None:
                continue
            mirror = self._mirrors.of[member.id]
            for index in range(known.begin, min(member.replica.committed_index + 1, known.end)):
                held = mirror.at(index)
                if held is not None and held.key != known[index].key:
                    raise Violation("state_machine_safety", f"{member.id}: committed entry {index} has changed")
        self._kept(world)

    def _kept(self, world: World) -> None:
        """Nothing acknowledged is lost: whatever quorum will be asked, somebody in it holds the last committed entry.

        The chain makes the last one speak for all before it. Members that may forget (the fences of `nemesis`) are
        believed to: the others are enough.
        """
        index = self.committed.index
        if index < self.committed.first_index:
            return
        key = self.committed.entries[index].key
        settled = self._members.settled(self.committed.entries)
        voters = world.ids if settled is None else sorted(settled.voters)
        holders, excused = [], []
        for member in (world.members[one] for one in voters):  # a learner is in no quorum
            mirror = self._mirrors.of[member.id]
            if mirror.holds(index, key) and self._safe.get(member.id, -1) >= index:
                holders.append(member.id)
            elif not world.nemesis.remembers(member):
                excused.append(member.id)
        # Where members change, the entry may have been committed by a quorum of the next configuration, which counts as
        # soon as it is in the leader's log: a quorum of this one meets it, and that is enough.
        changing = self._members.ever_changed
        needed = len(voters) - len(voters) // 2 if changing else len(voters) // 2 + 1
        if len(holders) + len(excused) < needed or not holders:
            text = f"committed entry {index} is held by {holders} only; {excused} lost their memory"
            raise Violation("acknowledged_kept", text)

    def healed(self, world: World) -> None:
        self.full(world)
