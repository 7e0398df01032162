"""Who may lead, who may vote: SAFETY E1 to E8, seen from outside after every step.

`remembered` holds votes by store, not by member: a disk that was replaced has a new identity, and its member's right to
vote is what E8 is about.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from node.consensus.progress import PAUSED
from node.protocol.codes import ResponseCode, Role, VoteResult, VoterState
from node.protocol.entry import TERM_LEAP_MAX
from node.protocol.messages import (
    HeartBeatResponse,
    Hello,
    PushResponse,
    TransferRequest,
    VoteRequest,
    VoteResponse,
)
from tests.simulation.invariants_members import Memberships
from tests.simulation.mirror import Mirrors
from tests.simulation.observer import Observer, Violation
from tests.simulation.swarm import FAULTS

if TYPE_CHECKING:
    from node.consensus.effects import Event
    from node.protocol.messages import Message, TransferTicket
    from node.store.log_store import HardState
    from tests.simulation.member import Member
    from tests.simulation.world import World

# Whatever the swarm can do, but for this, can end a leadership for a good reason; so a new kind of fault counts as one.
SETTLED = ("stall", "slow_disk", "clock_drift", "scrub", "expected_index", "ordered", "client_loss", "narrow_link")
UNSETTLING = (*(name for name, _, _ in FAULTS if name not in SETTLED), "preferred_leader", "retune", "membership")
DRIVERS_OWN = ("unaware",)  # that only the driver's world can do
SILENCE = "no quorum of answers"
SILENT_TICKS = "no quorum of answers for an election time-out"
SILENCE_TIMEOUTS = 4  # a leader that heard no quorum for so many longest election time-outs should have noticed
NEVER_HEARD = (0, 0, False)


class Elections(Observer):
    """One leader a term, one vote a term, and nobody leads or votes who may not."""

    def __init__(self, mirrors: Mirrors, members: Memberships) -> None:
        self._mirrors, self._members = mirrors, members
        self.leaders: dict[int, str] = {}  # term -> who led it
        self.hard: dict[str, HardState] = {}  # as persisted last
        self._foreign: set[str] = set()  # whose record of these is of another group
        self._votes: dict[tuple[str, str, int], str] = {}  # (member, store, term) -> for whom
        self._term_at_boot: dict[str, int] = {}
        self._asked: dict[tuple[str, str, int], VoteRequest] = {}  # (candidate, voter, seq)
        self._newer: set[tuple[str, str, int]] = set()  # of these, those that came from a log at least as new
        self._tickets: set[TransferTicket] = set()
        self._expected_term: dict[str, tuple[int, int, str, str]] = {}  # member -> (incarnation, term, rule, why)
        self._rejoined_floor: dict[tuple[str, str], int] = {}
        self._term_reported: dict[str, int] = {}  # each member's, as its events tell: a turn may go through two terms
        # The same by the leader's own clock, of one that counted for it, when the answer before it came, and whether it
        # is one to a push.
        self._counted: dict[tuple[str, str], tuple[int, int, bool]] = {}
        self._contact: dict[tuple[str, str], int] = {}  # (leader, peer) -> when an answer came
        self._awake_since: dict[str, int] = {}  # since when it leads and runs
        self._leading: dict[str, Member] = {}  # who did so after the last step
        self._last_now = 0  # when that was
        self._world: World | None = None
        self._unsettled = True  # whether anything but a stall can end a leadership in this world
        self._settled_term: int | None = None  # since all members followed one leader, and nothing else happens here

    def started(self, world: World) -> None:
        self._world = world
        self._unsettled = any(getattr(world.config, name, 0) for name in (*UNSETTLING, *DRIVERS_OWN))

    # --- terms ------------------------------------------------------------------
    def booted(self, member: Member) -> None:
        assert member.store is not None and member.replica is not None
        stored = member.store.hard_state
        before = self.hard.get(member.id)
        if before is not None and self._mirrors.of[member.id].disk_id == member.disk_id:
            if stored.term < before.term:
                raise Violation("term_monotonic", f"{member.id} was in term {before.term}, starts in {stored.term}")
            changed = before.voted_for is not None and stored.voted_for != before.voted_for
            if changed and stored.term == before.term and stored.vote_floor < stored.term:
                text = f"{member.id} voted for {before.voted_for} in term {stored.term}, starts with {stored.voted_for}"
                raise Violation("one_vote_per_term", text)
        self.hard[member.id] = stored
        if getattr(member, "is_foreign", False):
            self._foreign.add(member.id)
        else:
            self._foreign.discard(member.id)
        self._term_at_boot[member.id] = self._term_reported[member.id] = stored.term
        self._awake_since[member.id] = self._now
        self._expected_term.pop(member.id, None)

    @property
    def _now(self) -> int:
        assert self._world is not None
        return self._world.now

    def persisted(self, member: Member, hard_state: HardState) -> None:
        self._settle(member)  # what was delivered is carried out; a campaign that waited for this record begins now
        before = self.hard.get(member.id)
        if before is not None and hard_state.term < before.term:
            raise Violation("term_monotonic", f"{member.id} goes from term {before.term} to {hard_state.term}")
        if before is not None and hard_state.term > before.term + TERM_LEAP_MAX:
            raise Violation("term_within_reach", f"{member.id} goes from term {before.term} to {hard_state.term}")
        joined = before is not None and before.voter_state is VoterState.REJOINING
        # A later term may have come in the same turn: the floor is the leader's, under which the joining ended.
        if joined and hard_state.voter_state is VoterState.VOTER and hard_state.vote_floor < before.term:
            text = f"{member.id} rejoined under term {before.term}, its floor is {hard_state.vote_floor}"
            raise Violation("rejoined_vote_floor", text)
        self._same_group(member, before, hard_state)
        self.hard[member.id] = hard_state
        if hard_state.voted_for is not None:
            self._vote(member, hard_state.term, hard_state.voted_for)

    def _same_group(self, member: Member, before: HardState | None, after: HardState) -> None:
        """C9: one group, one id; nobody who has one changes it."""
        if after.group_id is None:
            return
        was = member.id if before is not None and before.group_id not in (None, after.group_id) else None
        others = [
            one for one, state in self.hard.items()
            if state.group_id not in (None, after.group_id) and not self._is_foreign(one)
        ]  # fmt: skip
        if (was is not None or others) and not self._is_foreign(member.id):
            text = f"{member.id} says {after.group_id}, {', '.join(others) or 'before'} something else"
            raise Violation("one_group_id", text)

    def _is_foreign(self, member_id: str) -> bool:
        """Whether what is on record of it was another group's member: the operator may have emptied its disk since."""
        return member_id in self._foreign

    def _vote(self, member: Member, term: int, candidate: str) -> None:
        assert member.store is not None
        key = (member.id, member.disk_id, term)
        if self._votes.setdefault(key, candidate) != candidate:
            text = f"{member.id} voted for {self._votes[key]} and for {candidate} in term {term}"
            raise Violation("one_vote_per_term", text)

    def event(self, member: Member, event: Event) -> None:
        detail: dict[str, Any] = event.detail
        if event.kind == "role" and detail["role"] == Role.LEADER.value:
            self._leads(member, detail["term"])
        elif event.kind == "role" and detail["was"] == Role.LEADER.value and detail["reason"].startswith(SILENCE):
            self._was_silent(member, by_ticks=detail["reason"] == SILENT_TICKS)
        elif event.kind == "dispatcher" and detail["state"] in PAUSED:
            self._is_paused_by(member, detail["peer"])
        elif event.kind == "term":
            self._term_reported[member.id] = detail["term"]
        elif event.kind == "voter_state" and detail["state"] == VoterState.VOTER.value:
            self._becomes_voter(member, detail["was"])
        elif event.kind == "alarm" and detail["code"] == "two_leaders":
            raise Violation("election_safety", f"{member.id}: {detail['text']}")

    def _leads(self, member: Member, term: int) -> None:
        if self.leaders.setdefault(term, member.id) != member.id:
            raise Violation("election_safety", f"{self.leaders[term]} and {member.id} lead term {term}")
        if term <= self._term_at_boot.get(member.id, -1):
            text = f"{member.id} leads term {term}, which it had stored when it started"
            raise Violation("stored_term_led", text)

    def _becomes_voter(self, member: Member, was: str) -> None:
        if was == VoterState.REJOINING.value and member.store is not None and member.replica is not None:
            self._rejoined_floor[member.id, member.disk_id] = self._term_reported[member.id]

    # --- votes ------------------------------------------------------------------
    def sent(self, member: Member, to: str, message: Message) -> None:
        if isinstance(message, VoteRequest):
            self._campaigns(member, to, message)
        elif isinstance(message, VoteResponse):
            self._answers(member, to, message)
        elif isinstance(message, TransferRequest) and message.ticket is not None:
            self._tickets.add(message.ticket)
            self._hands_over(member, to, message)
        else:
            term = getattr(message, "term", -1)
            if term > self.hard[member.id].term:
                text = f"{member.id} says term {term} to {to}, {self.hard[member.id].term} is durable"
                raise Violation("hard_state_first", text)
            if isinstance(message, Hello | HeartBeatResponse):
                self._says_voter(member, message.voter_state)

    def _says_voter(self, member: Member, said: VoterState | None) -> None:
        """A member is counted by what it says that it is: it is that durably (E8)."""
        durable = self.hard[member.id].voter_state
        if said is VoterState.VOTER and durable is not VoterState.VOTER:
            raise Violation("hard_state_first", f"{member.id} says that it is a voter, {durable} is durable")

    def _counts_on_record(self, member: Member) -> None:
        assert member.replica is not None
        recorded, voters = self.hard[member.id].store_ids, self._members.voters(member.id)
        cutting = member.replica.member.truncating_from is not None  # the core has yet to hear of it
        for peer_id, peer in member.replica.peers.of.items():
            if not peer.counts:
                continue
            if not cutting and peer_id not in voters:
                raise Violation("learner_no_vote", f"{member.id} counts learner {peer_id}")
            if peer.hello is None or recorded.get(peer_id) != peer.hello.store_id:
                raise Violation("recorded_first", f"{member.id} counts {peer_id}; on durable record is {recorded}")

    def _campaigns(self, member: Member, to: str, vote: VoteRequest) -> None:
        self._asked[member.id, to, vote.seq] = vote
        if not self._members.may_campaign(member):
            raise Violation("learner_no_vote", f"learner {member.id} asks {to} for a vote")
        if all(to not in seats.voters for seats in self._members.judged_by(member.id)):
            raise Violation("learner_no_vote", f"{member.id} asks learner {to} for a vote")
        if vote.pre:
            return
        hard = self.hard[member.id]
        if hard.term < vote.term or (hard.term == vote.term and hard.voted_for != member.id):
            text = f"{member.id} campaigns in term {vote.term}; durable are {hard.term} and a vote for {hard.voted_for}"
            raise Violation("hard_state_first", text)
        if vote.term <= self._term_at_boot[member.id]:
            raise Violation("stored_term_led", f"{member.id} campaigns in term {vote.term}, stored when it started")
        self._vote(member, vote.term, member.id)

    def _answers(self, member: Member, to: str, answer: VoteResponse) -> None:
        hard = self.hard[member.id]
        if answer.result is VoteResult.ACCEPT and not self._members.was_voter(member.id):
            raise Violation("learner_no_vote", f"learner {member.id} votes for {to}")
        if answer.term > hard.term:
            text = f"{member.id} answers a vote in term {answer.term}, {hard.term} is durable"
            raise Violation("hard_state_first", text)
        if answer.result is not VoteResult.ACCEPT:
            return
        vote = self._asked.get((to, member.id, answer.seq))
        if vote is None:
            raise Violation("vote_unasked", f"{member.id} votes for {to}, who did not ask")
        if hard.voter_state is not VoterState.VOTER and not vote.reform:
            raise Violation("rejoining_no_vote", f"{member.id} is {hard.voter_state} and votes for {to}")
        if member.is_old_copy:
            raise Violation("restored_no_vote", f"{member.id} is an older copy of itself and votes for {to}")
        if (to, member.id, answer.seq) not in self._newer:
            raise Violation("vote_newer_log", f"{member.id} votes for {to}, whose log was older: {vote}")
        if answer.pre:
            return
        if hard.term == answer.term and hard.voted_for != to:  # under a later term that one is over anyway
            text = f"{member.id} votes for {to} in term {answer.term}; durable is a vote for {hard.voted_for}"
            raise Violation("hard_state_first", text)
        self._vote(member, answer.term, to)
        assert member.store is not None
        floor = self._rejoined_floor.get((member.id, member.disk_id), -1)
        if answer.term <= floor:
            text = f"{member.id} rejoined under term {floor} and votes for {to} in term {answer.term}"
            raise Violation("rejoined_vote_floor", text)

    def _is_newer(self, member: Member, vote: VoteRequest) -> bool:
        store = member.store
        assert store is not None
        return (vote.ledger_end_term, vote.ledger_end_index) >= (store.end_term, store.end_index)

    # --- E3, E4: what may not move anybody's term ------------------------------------------------------------------
    def delivered(self, sender: str, to: str, message: Message) -> None:
        assert self._world is not None
        member = self._world.members[to]
        self._settle(member)
        replica = member.replica
        if replica is None:
            return
        if isinstance(message, VoteRequest):
            if self._is_newer(member, message):  # as it is now; the answer may leave a little later
                self._newer.add((sender, to, message.seq))
            rule = ""
            if message.pre:
                rule = "pre_vote_changes_nothing"
            elif replica.member.leader_alive(member.clock.now()) and not self._ticket_counts(message, replica.term):
                rule = "live_leader_not_unseated"
            if rule:
                why = f"{sender} asked for {'a pre-vote' if message.pre else 'a vote'} in term {message.term}"
                self._expected_term[to] = (member.incarnation, replica.term, rule, why)
        elif isinstance(message, HeartBeatResponse | PushResponse) and message.term == replica.term:
            silent = isinstance(message, HeartBeatResponse) and message.code is not ResponseCode.SUCCESS
            if replica.role is Role.LEADER and not silent:
                self._contact[to, sender] = self._now
                peer = replica.peers.of.get(sender)
                if peer is not None and peer.counts and peer.state not in PAUSED:
                    before = self._counted.get((to, sender), NEVER_HEARD)[0]
                    self._counted[to, sender] = member.clock.now(), before, isinstance(message, PushResponse)

    def _ticket_counts(self, vote: VoteRequest, term: int) -> bool:
        ticket = vote.ticket
        if ticket is None or ticket not in self._tickets:
            return False
        return (ticket.transferee_id, ticket.term, vote.term) == (vote.candidate_id, term, term + 1)

    def _settle(self, member: Member) -> None:
        expected = self._expected_term.pop(member.id, None)
        if expected is None or member.replica is None or expected[0] != member.incarnation:
            return
        _, term, rule, why = expected
        if member.replica.term != term:
            text = f"{member.id} went from term {term} to {member.replica.term} because {why}"
            raise Violation(rule, text)

    def _is_paused_by(self, member: Member, peer_id: str) -> None:
        """R7: the answer that made a peer DIVERGED counts no more than those that it gives from then on.

        It may have come a moment ago: what it says is judged once the leader's own entry there was read.
        """
        _, before, is_push = self._counted.get((member.id, peer_id), NEVER_HEARD)
        if is_push:
            self._counted[member.id, peer_id] = before, before, False

    # --- E6, E7 ------------------------------------------------------------------
    def _hands_over(self, member: Member, to: str, request: TransferRequest) -> None:
        """Take-leadership is sent only to a member that holds everything (E7)."""
        assert self._world is not None and member.store is not None
        peer = self._world.members[to]
        if peer.store is None or peer.replica is None or peer.replica.term != request.term:
            return
        if peer.replica.member.voter_state is not VoterState.VOTER:
            return  # it lost what it had, and takes nothing over
        end, behind = member.store.end_index, peer.store.end_index < member.store.end_index
        if behind or peer.store.meta(end) != member.store.meta(end):
            text = f"{member.id} hands over to {to}, whose log ends at {peer.store.end_index}; its own at {end}"
            raise Violation("transfer_caught_up", text)

    def stepped(self, world: World) -> None:
        if not self._unsettled:
            self._keeps_leader(world)
        for member in world.touched:
            replica = member.replica
            if replica is not None:
                if member.id in self._expected_term:
                    self._settle(member)
                self._counts_on_record(member)
            if replica is None or member.paused or replica.role is not Role.LEADER:
                self._leading.pop(member.id, None)
            elif member.id not in self._leading:
                self._leading[member.id] = member
                self._awake_since[member.id] = self._last_now
        for member in self._leading.values():
            self._check_quorum(world, member)
        self._last_now = world.now

    def _keeps_leader(self, world: World) -> None:
        """E6: nothing can end a leadership here but members that stand still together, and that must not."""
        replicas = [world.members[one].replica for one in world.ids]
        leaders = {(one.term, one.leader_id) if one is not None else None for one in replicas}
        if self._settled_term is None:
            if len(leaders) == 1 and None not in leaders and replicas[0] is not None and replicas[0].leader_id:
                self._settled_term = replicas[0].term
        elif self._stood_still_too_long(world):
            self._unsettled = True  # for good: by the clock it has to step down, now or when it goes on
        elif any(one is not None and one.term != self._settled_term for one in replicas):
            text = f"the leadership of term {self._settled_term} ended although nobody was gone\n{world.describe()}"
            raise Violation("stall_keeps_leader", text)
        elif all(one is not None and one.role is not Role.LEADER for one in replicas):
            raise Violation("stall_keeps_leader", f"nobody leads term {self._settled_term} any more")

    def _stood_still_too_long(self, world: World) -> bool:
        """E6: after so long by the clock a leader that no quorum answered steps down, whoever stood still."""
        heard: dict[str, list[int]] = {}
        for (leader_id, _), at in self._contact.items():
            heard.setdefault(leader_id, []).append(at)
        for leader_id, times in heard.items():
            leader = world.members[leader_id].replica
            if leader is None or leader.role is not Role.LEADER or leader.term != self._settled_term:
                continue
            needed = len(world.ids) // 2  # beside itself
            most_ns = leader.config.timing.quorum_silence_max_ns * 0.95  # clocks drift
            return len(times) >= needed and world.now - sorted(times)[-needed] > most_ns
        return False

    def _was_silent(self, member: Member, *, by_ticks: bool) -> None:
        """E6: no quorum has just answered; who became a voter just now has an election time-out for it (M3).

        All by its own clock, which may have jumped: then it steps down, in any case.
        """
        replica = member.replica
        if replica is None:
            return
        voters, recent_ns = self._members.voters(member.id), replica.config.timing.election_min_ns // 2
        recently = set()
        for one in voters - {member.id}:
            heard_at = self._counted.get((member.id, one), NEVER_HEARD)[0]
            since = self._members.voter_since(member.id, one)
            heard = heard_at and 0 <= member.clock.now() - heard_at < recent_ns
            if heard or (by_ticks and since and self._now - since < recent_ns):
                recently.add(one)
        if 2 * len(recently | ({member.id} & voters)) > len(voters):
            raise Violation("deposed_by_silence", f"{member.id} steps down, and {sorted(recently)} have just answered")

    def _check_quorum(self, world: World, member: Member) -> None:
        """E6: a leader without a quorum of answers for long steps down."""
        replica = member.replica
        assert replica is not None
        patience_ns = SILENCE_TIMEOUTS * replica.config.timing.election_max_ns
        if world.now - self._awake_since[member.id] <= patience_ns:
            return
        seats = self._members.seats(member.id)
        voters = seats.voters
        for peer in voters:  # who became one just now was never heard as one
            self._contact.setdefault((member.id, peer), 0 if seats.named is None else world.now)
        recently = sum(world.now - self._contact[member.id, peer] <= patience_ns for peer in voters - {member.id})
        if 2 * (recently + (member.id in voters)) <= len(voters):
            text = f"{member.id} leads term {replica.term} and heard no quorum for {patience_ns} ns"
            raise Violation("check_quorum", text)
