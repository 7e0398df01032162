"""Who belongs to the group, by what is in each member's log: SAFETY M1 to M7, seen from outside.

The entries about the members are read here, by nobody's word: who is a voter for whom follows from the log that each
holds, and all that others (`Logs`, `Elections`, `Quorums`) say of quorums is judged by that.

Invariants: a member's configuration is the last one in its log, or that of its start; each entry is judged once, when
it is first seen anywhere, against the one before it in the same log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from node.consensus.configuration import Configuration
from node.consensus.member_changes import Kind
from node.protocol.codes import ResponseCode, Role, VoteResult, VoterState
from node.protocol.group_members import GroupMembers, members_in
from node.protocol.messages import TransferRequest, VoteRequest, VoteResponse
from tests.simulation.mirror import NEVER, Held, Mirror, Mirrors
from tests.simulation.observer import Observer, Violation

if TYPE_CHECKING:
    from node.consensus.effects import Event
    from node.consensus.member_changes import ChangeOutcome, MemberChange
    from node.consensus.replica import Replica
    from node.protocol.messages import Message
    from tests.simulation.entry_list import EntryList
    from tests.simulation.member import Member
    from tests.simulation.world import World

LEAVES_WITHIN_TIMEOUTS = 8  # longest election time-outs; a hand-over takes four at most


@dataclass(slots=True, frozen=True)
class Seats:
    """One configuration; `index` -1 and `named` None: that of a member's start."""

    index: int
    key: tuple[int, int]
    voters: frozenset[str]
    learners: frozenset[str]
    named: GroupMembers | None = None

    @property
    def members(self) -> frozenset[str]:
        return self.voters | self.learners

    @property
    def majority(self) -> int:
        return len(self.voters) // 2 + 1


class Memberships(Observer):
    """See the module's docstring. Comes after `Mirrors`, and before every observer that asks it."""

    def __init__(self, mirrors: Mirrors) -> None:
        self._mirrors = mirrors
        self._birth: dict[str, Seats] = {}
        self._in_log: dict[str, list[Seats]] = {}
        self._known: dict[tuple[int, tuple[int, int]], Seats] = {}  # every entry that was ever in a log
        self._before: dict[str, Seats] = {}  # whose configuration became another one in this step, and what it was
        self._agreed: dict[str, tuple[Configuration, Seats]] = {}
        self._reached: dict[str, int] = {}  # the last entry about the members that each ever held, on any disk
        self._committed: dict[str, tuple[int, int]] = {}  # member -> (incarnation, committed), after the step before
        self._accepts: dict[tuple[str, int], set[str]] = {}  # (candidate, term) -> whose votes reached it
        self._asked_voters: set[tuple[str, str, int]] = set()  # (candidate, voter, seq)
        self._untouched: dict[str, tuple[int, int, str]] = {}  # who heard a removed member: (incarnation, term, whom)
        self._voter_since: dict[tuple[str, str], int] = {}  # (member, voter): since when it is one by that log
        self._left_since: dict[tuple[str, int, int], int] = {}  # a leadership of who is no voter any more, for good
        self._world: World | None = None

    def started(self, world: World) -> None:
        self._world = world

    # --- what others ask --------------------------------------------------------------------------------------------
    def seats(self, member_id: str) -> Seats:
        """The configuration in effect there, by its log."""
        held = self._in_log.get(member_id)
        return held[-1] if held else self._birth[member_id]

    def voters(self, member_id: str) -> frozenset[str]:
        return self.seats(member_id).voters

    def voter_since(self, member_id: str, voter_id: str) -> int:
        """When it became one by that member's log; 0: it always was."""
        return self._voter_since.get((member_id, voter_id), 0)

    def judged_by(self, member_id: str) -> list[Seats]:
        """By which of them it may have judged in this step."""
        now = self.seats(member_id)
        before = self._before.get(member_id)
        return [now] if before is None else [now, before]

    def settled(self, committed: EntryList[Held]) -> Seats | None:
        """The newest that is committed; None: the members never changed."""
        for (index, key), seats in sorted(self._known.items(), key=lambda item: item[0], reverse=True):
            if index < committed.end and committed[index].key == key:
                return seats
        return None

    @property
    def ever_changed(self) -> bool:
        """Whether an entry about the members was ever in a log."""
        return bool(self._known)

    def was_voter(self, member_id: str) -> bool:
        """By any configuration that anybody ever held."""
        all_seats = (*self._birth.values(), *self._known.values())
        return any(member_id in seats.voters for seats in all_seats)

    def may_campaign(self, member: Member) -> bool:
        """A voter, or one whose removal is not committed yet (M5)."""
        held = self._in_log.get(member.id, [])
        if member.id in self.voters(member.id):
            return True
        if not held or member.replica is None or held[-1].index <= member.replica.committed_index:
            return False
        before = held[-2] if len(held) > 1 else self._birth[member.id]
        return member.id in before.voters

    # --- M1: what is in the log -------------------------------------------------------------------------------------
    def booted(self, member: Member) -> None:
        assert member.replica is not None
        born = member.replica.config.configuration
        self._birth[member.id] = Seats(-1, (-1, -1), frozenset(born.voters), frozenset(born.learners))
        self._untouched.pop(member.id, None)
        self._agreed.pop(member.id, None)

    def stepped(self, world: World) -> None:
        if self._before:
            self._before = {}
        before = len(self._known)
        for member in world.touched:
            mirror = self._mirrors.of[member.id]
            if mirror.unseen_from != NEVER:
                self._read(mirror)
        # From the first change of the members on, there is more to look for.
        everybody = self._left_since or len(self._known) != before
        for member in world.members.values() if everybody else world.touched:
            replica = member.replica
            if replica is None:
                continue
            if member.id in self._untouched:
                self._judge_untouched(member)
            self._is_in_effect(member, replica)
            self._committed[member.id] = member.incarnation, replica.committed_index
            if self._known:
                _counts_nobody_removed(member, replica)
                self._leaves(member, replica)

    def _read(self, mirror: Mirror) -> None:
        """What came into that log, or went from it, since the step before."""
        first, mirror.unseen_from = mirror.unseen_from, NEVER
        member_id = mirror.member.id
        held = self._in_log.setdefault(member_id, [])
        was = held[-1] if held else self._birth.get(member_id)
        while held and held[-1].index >= first:
            held.pop()
        self._at_base(mirror, held, first)
        for index in range(max(first, mirror.entries.begin), mirror.entries.end):
            entry = mirror.entries[index]
            named = members_in(entry.about) if entry is not None and entry.about is not None else None
            if entry is None or named is None:
                continue
            seats = self._known.get((index, entry.key))
            if seats is None:
                seats = Seats(index, entry.key, frozenset(named.voters), frozenset(named.learners), named)
                self._known[index, entry.key] = seats
                self._made(mirror, seats, held[-1] if held else self._birth[member_id])
            held.append(seats)
            self._reached[member_id] = max(index, self._reached.get(member_id, -1))
        now = held[-1] if held else self._birth.get(member_id)
        if was is not None and now is not None and now is not was:
            self._before[member_id] = was
            assert self._world is not None
            for one in now.voters - was.voters:
                self._voter_since[member_id, one] = self._world.now

    def _at_base(self, mirror: Mirror, held: list[Seats], first: int) -> None:
        """A log that begins behind others' entries was told who belonged to the group there: as some log said once."""
        store = mirror.member.store
        told = None if store is None else store.files.members_at_base
        if told is None or told[0] < first:
            return
        there = mirror.at(told[0])
        if there is not None and there.about is not None:
            return  # the entry itself is in the log
        named = members_in(told[1].encode())
        for (index, _), seats in self._known.items():
            if index == told[0] and seats.named == named:
                held.append(seats)
                self._reached[mirror.member.id] = max(index, self._reached.get(mirror.member.id, -1))
                return
        text = f"the log of {mirror.member.id} begins behind entry {told[0]} about the members, which no log ever held"
        raise Violation("configuration_of_the_log", text)

    def _is_in_effect(self, member: Member, replica: Replica) -> None:
        """As soon as it is in the log, and no longer (M1)."""
        if replica.member.truncating_from is not None:
            return  # the disk has cut, and the core has not heard of it
        seats, shown = self.seats(member.id), replica.configuration
        agreed = self._agreed.get(member.id)
        if agreed is not None and agreed[0] is shown and agreed[1] is seats:
            return
        learners = seats.named is None or shown.learners.keys() == seats.learners  # a driver may name some by itself
        if shown.voters.keys() != seats.voters or not learners:
            text = f"{member.id} goes by {shown}, its log says {sorted(seats.voters)} and {sorted(seats.learners)}"
            raise Violation("configuration_of_the_log", f"{text} (entry {seats.index})")
        self._agreed[member.id] = shown, seats

    # --- M2, M4, M5: what a leader may append -----------------------------------------------------------------------
    def _made(self, mirror: Mirror, seats: Seats, before: Seats) -> None:
        """An entry that nobody has seen before, behind the configuration before it in that log."""
        member = mirror.member
        what = f"entry {seats.index} of {member.id}: voters {sorted(before.voters)} become {sorted(seats.voters)}"
        if seats.majority + before.majority <= len(seats.voters | before.voters):
            raise Violation("quorums_overlap", what)
        joined = seats.members - before.members
        if joined & seats.voters:
            raise Violation("learner_first", f"{what}; {sorted(joined)} never learnt")
        incarnation, committed = self._committed.get(member.id, (-1, -1))
        replica = member.replica
        if replica is None or incarnation != member.incarnation or replica.role is not Role.LEADER:
            return
        if before.index > committed:
            raise Violation("one_change_pending", f"{what}; entry {before.index} is not committed (up to {committed})")
        own = mirror.at(committed)
        if own is not None and own.term != seats.key[0]:
            raise Violation("change_in_own_term", f"{what} in term {seats.key[0]}; committed is one of {own.term}")
        for one in seats.voters & before.learners:
            self._promoted(replica, one, seats, what)

    def _promoted(self, replica: Replica, member_id: str, seats: Seats, what: str) -> None:
        assert seats.named is not None
        joined_at = seats.named.joined.get(member_id, -1)
        if self._reached.get(member_id, -1) < joined_at:
            text = f"{what}; {member_id} never held entry {joined_at}, which made it a member"
            raise Violation("promoted_caught_up", text)
        peer = replica.peers.of.get(member_id)
        hello = None if peer is None else peer.hello
        if hello is not None and seats.named.removed.get(member_id) == hello.store_id:
            raise Violation("removed_store_stays_out", f"{what}; {member_id} has the store with which it left")

    # --- M3: elections ----------------------------------------------------------------------------------------------
    def event(self, member: Member, event: Event) -> None:
        if event.kind == "role" and event.detail["role"] == Role.LEADER.value:
            self._elected(member, event.detail["term"])

    def _elected(self, member: Member, term: int) -> None:
        votes = self._accepts.get((member.id, term), set()) | {member.id}
        if any(len(votes & seats.voters) >= seats.majority for seats in self.judged_by(member.id)):
            return
        text = f"{member.id} leads term {term} by the votes of {sorted(votes)}, of {sorted(self.voters(member.id))}"
        raise Violation("elected_by_quorum", text)

    def delivered(self, sender: str, to: str, message: Message) -> None:
        assert self._world is not None
        if isinstance(message, VoteRequest):
            self._is_asked(sender, self._world.members[to], message)
        if isinstance(message, VoteResponse) and not message.pre and message.result is VoteResult.ACCEPT:
            self._accepts.setdefault((to, message.term), set()).add(sender)
        if self._known and not isinstance(message, TransferRequest):  # a leader that leaves hands over
            self._hears_removed(self._world.members[sender], self._world.members[to])

    def _is_asked(self, sender: str, to: Member, vote: VoteRequest) -> None:
        """A VOTER, by what is durable, that nothing keeps from voting; its log may call it a learner yet."""
        replica, config = to.replica, to.world.config
        self._asked_voters.discard((sender, to.id, vote.seq))  # of a life before
        if replica is None or vote.reform or config.lease_reads or config.retune:  # E9: one that started anew may wait
            return
        states = (replica.member.voter_state, replica.member.durable_hard.voter_state)
        if all(state is VoterState.VOTER for state in states) and not to.is_old_copy:
            self._asked_voters.add((sender, to.id, vote.seq))

    # --- M5: who left -----------------------------------------------------------------------------------------------
    def _hears_removed(self, sender: Member, to: Member) -> None:
        """Whoever knows that a store was removed does not change its term for it."""
        if to.id in self._untouched:
            self._judge_untouched(to)
        seats, replica = self.seats(to.id), to.replica
        named = seats.named
        if named is None or replica is None or sender.replica is None or sender.id in seats.members:
            return
        if seats.index > replica.committed_index:
            return  # it may be cut yet, by the one whom it removes
        if named.removed.get(sender.id) == sender.replica.member.store_id:
            self._untouched[to.id] = to.incarnation, replica.term, sender.id

    def _judge_untouched(self, member: Member) -> None:
        incarnation, term, sender = self._untouched.pop(member.id)
        if member.replica is not None and incarnation == member.incarnation and member.replica.term != term:
            text = f"{member.id} went from term {term} to {member.replica.term} for {sender}, which was removed"
            raise Violation("removed_unseats_nobody", text)

    def _leaves(self, member: Member, replica: Replica) -> None:
        """Who removed itself leads until that is committed, then hands over or steps down (M5)."""
        assert self._world is not None
        seats = self.seats(member.id)
        gone = replica.role is Role.LEADER and member.id not in seats.voters and seats.index <= replica.committed_index
        if not gone or member.paused:
            if self._left_since:
                self._left_since = {life: at for life, at in self._left_since.items() if life[0] != member.id}
            return
        since = self._left_since.setdefault((member.id, member.incarnation, replica.term), self._world.now)
        if self._world.now - since > LEAVES_WITHIN_TIMEOUTS * replica.config.timing.election_max_ns:
            text = f"{member.id} leads term {replica.term}, {self._world.now - since} ns after entry {seats.index}"
            raise Violation("removed_leader_leaves", text)

    # --- M3: who is asked by one that it does not know --------------------------------------------------------------
    def sent(self, member: Member, to: str, message: Message) -> None:
        if not isinstance(message, VoteResponse) or member.replica is None:
            return
        refused = message.result is VoteResult.REJECT_UNKNOWN_LEADER
        if refused and member.replica.member.configurations.knows(to):
            raise Violation("asked_as_a_voter", f"{member.id} let {to} in, and refuses its vote as a stranger's")
        if message.result is VoteResult.UNKNOWN and (to, member.id, message.seq) in self._asked_voters:
            raise Violation("asked_as_a_voter", f"{member.id} has a vote, and gives {to} none")

    # --- what was told ----------------------------------------------------------------------------------------------
    def members_changed(self, asked: Member, change: MemberChange, outcome: ChangeOutcome) -> None:
        """Who is told that it is done finds it done in that very entry."""
        if outcome.code is not ResponseCode.SUCCESS:
            return
        entry = self._mirrors.of[asked.id].at(outcome.entry_index)
        seats = None if entry is None else self._known.get((outcome.entry_index, entry.key))
        if seats is None or (change.member_id in seats.members) is (change.kind is Kind.REMOVE):
            raise Violation("change_is_done", f"{asked.id} reported {change} as done by entry {outcome.entry_index}")


def _counts_nobody_removed(member: Member, replica: Replica) -> None:
    """An id that comes back has another store (M5); who is of another group counts nowhere (M7, C9)."""
    removed, group_id = replica.configuration.named.removed, replica.member.hard.group_id
    for peer_id, peer in replica.peers.of.items():
        hello = peer.hello
        if hello is None or not peer.connected:
            continue
        if removed.get(peer_id) == hello.store_id and peer.counts:
            raise Violation("removed_store_stays_out", f"{member.id} counts {peer_id} with the store that was removed")
        if None not in (group_id, hello.group_id) and group_id != hello.group_id:
            raise Violation("strangers_stay_out", f"{member.id} of {group_id} lets in {peer_id} of {hello.group_id}")
