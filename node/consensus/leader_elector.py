"""Elections: pre-vote, votes and their answers.

Theory. A candidate first asks whether it could win (PRE_VOTE changes nothing anywhere), then makes term + 1 and its own
vote durable and asks for votes. A member that sees the higher term adopts it and answers REJECT_TERM_NOT_READY, as
DLedger does; the candidate asks again at once, in the same term. The answers of a round are parsed as DLedger parses
them (`parse_votes`).

Invariants: one vote a term, durable before its answer leaves (SAFETY E2); only a term that this process raised itself
is ever led (E1); an answer of another round counts for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from node.consensus.api import MS, Timing
from node.consensus.member_state import MemberState
from node.consensus.membership import Membership
from node.consensus.progress import Peers
from node.consensus.roles import RoleEvent
from node.consensus.ticks import Ticks
from node.consensus.vote_results import ParseResult, parse_votes
from node.protocol.codes import Role, VoteResult, VoterState
from node.protocol.messages import TransferTicket, VoteRequest, VoteResponse


@dataclass(slots=True)
class Round:
    """One round of (pre-)votes; the candidate's own vote is in `results` from the start."""

    pre: bool
    term: int
    seq: int
    ends_at: int
    needed: int
    reform: bool
    ticket: TransferTicket | None
    results: dict[str, VoteResult] = field(default_factory=dict)

    @property
    def votes(self) -> str:
        """Who voted for us."""
        return ", ".join(sorted(one for one, result in self.results.items() if result is VoteResult.ACCEPT))


class LeaderElector:
    """One per replica. `on_elected(now)` is called once a quorum voted for us in our term."""

    def __init__(
        self, member: MemberState, membership: Membership, peers: Peers, on_elected: Callable[[int], None], now: int
    ) -> None:
        self._member, self._membership, self._peers = member, membership, peers
        self._on_elected = on_elected
        self._round: Round | None = None
        # A ticket that the leader handed to us; None unless taking leadership.
        self._taking: TransferTicket | None = None
        self._lost_at: int | None = None  # when the connection to a leader closed; for people
        self._failure_reported = ""
        # Checks a ticket that this member itself handed out as leader.
        self.ticket_is_ours: Callable[[TransferTicket], bool] = lambda _ticket: False
        self._reform_turn = False
        # Since when this member heard nothing: what renews its patience, and the lease that it grants, are two things.
        self._silence = Ticks(self._timing.tick_ns, now)
        self._spoke_at: int | None = None  # the leader, since when nothing has happened but silence
        self._patience = (1, 0)  # the time-out drawn last: how many ticks, and when the first is due
        self._ticks_needed = 1
        self._draw_timeout(now)
        # With lease reads on, our former life may have promised its leader a lease: no vote before it is over (E9).
        waits = member.config.grants_leases and bool(member.other_voters)
        self._no_vote_before = now + member.config.vote_kept_ns if waits else now
        if not member.other_voters and member.self_id in member.configuration.voters:
            self._campaign_in(0, now)

    # --- timers -------------------------------------------------------------------------------------------------
    @property
    def _timing(self) -> Timing:
        return self._member.config.timing

    def retimed(self, now: int) -> None:
        """Other time-outs are in force."""
        self._silence.period_ns = self._timing.tick_ns
        if self._round is None and self._member.role is not Role.LEADER:
            self._draw_timeout(now)

    def _draw_timeout(self, now: int) -> None:
        timing = self._timing
        timeout_ns = self._member.rng.randrange(timing.election_min_ns, timing.election_max_ns)
        self._patience = self._silence.split(timeout_ns)
        self._listen(now)

    def _listen(self, now: int) -> None:
        """The whole time-out again."""
        self._spoke_at = None
        self._ticks_needed, first_ns = self._patience
        self._silence.begin(now, first_ns)

    def _campaign_in(self, wait_ns: int, now: int) -> None:
        self._spoke_at = None
        self._ticks_needed, first_ns = self._silence.split(wait_ns)
        self._silence.begin(now, first_ns)

    def leader_spoke(self, now: int) -> None:
        """Any frame from the leader counts as a heartbeat."""
        self._round = None
        self._taking = None
        self._ticks_needed, first_ns = self._patience  # as `_listen` does: each append comes by here
        silence = self._silence
        silence.count, silence.due_at = 0, now + first_ns  # `Ticks.begin`
        self._spoke_at = now

    def leader_bytes(self, now: int) -> None:
        """Bytes of a frame of the leader's that is not complete: it is not silent, and has promised nothing (E6)."""
        self._ticks_needed, first_ns = self._patience
        self._silence.begin(now, first_ns)
        self._spoke_at = now

    def stepped_down(self, now: int) -> None:
        """Another term, or no leadership any more: wait before campaigning."""
        self._round = None
        self._failure_reported = ""
        self._taking = None
        self._draw_timeout(now)

    def leader_lost(self, now: int) -> None:
        """The leader's connection closed: a short random wait, not before the lease's end with lease reads (E5)."""
        member, timing = self._member, self._timing
        quick = member.rng.randrange(timing.quick_election_min_ns, timing.quick_election_max_ns)
        start = self._lost_at = now
        if member.config.grants_leases and member.leader_contact_at is not None:
            start = max(now, member.leader_contact_at + member.config.vote_kept_ns)
        else:
            member.void_lease()
        left_ns = self._silence.due_at + (self._ticks_needed - self._silence.count - 1) * self._silence.period_ns - now
        wait_ns = max(self._no_vote_before - now, min(left_ns, start + quick - now))
        self._campaign_in(max(0, wait_ns), now)

    def members_changed(self, now: int) -> None:
        """Another configuration is in effect: votes that were asked for under the one before elect nobody."""
        if self._round is not None:
            self._round = self._taking = None
            self._retry_soon(now)

    def _retry_soon(self, now: int) -> None:
        timing = self._timing
        self._campaign_in(self._member.rng.randrange(timing.vote_retry_min_ns, timing.vote_retry_max_ns), now)

    @property
    def leader_spoke_at(self) -> int | None:
        """When the leader spoke that this member waits for; None: it waits for none, or has counted silence since."""
        return None if self._silence.count or self._round is not None else self._spoke_at

    def next_deadline(self) -> int | None:
        if self._member.role is Role.LEADER:
            return None
        return self._round.ends_at if self._round is not None else self._silence.due_at

    def tick(self, now: int) -> None:
        if self._member.role is Role.LEADER:
            return
        if self._round is not None:
            if now >= self._round.ends_at:
                self._close_round(now)
        elif self._silence.passed(now) and self._silence.count >= self._ticks_needed:
            self.campaign(now)

    # --- the candidate's side -----------------------------------------------------------------------------------
    def campaign(self, now: int) -> None:
        """The time-out ran out: a pre-vote, if this member may lead at all."""
        member = self._member
        kept_until = self._no_vote_before
        if member.config.grants_leases and member.leader_contact_at is not None:
            # Shorter time-outs may be in force than those by which its leader reckons its lease (settings_change.py).
            kept_until = max(kept_until, member.leader_contact_at + member.config.vote_kept_ns)
        if now < kept_until:  # our own vote is a vote
            self._campaign_in(kept_until - now, now)
            return
        voter = member.has_vote
        # What is known of the others' states may be old: a voter tries the ordinary way every other time, and learns
        # from the votes that it gets who is a voter by now.
        self._reform_turn = not self._reform_turn or not voter
        reform = self._reform_turn and self._membership.may_reform()
        # A full disk leaves the others the first try: what this member leads, it could not write.
        able = member.may_lead() and member.truncating_from is None and not member.disk_full
        if not able or not (reform or voter):
            if member.role is Role.FOLLOWER:
                member.change_role(RoleEvent.CAMPAIGN, now, "the leader is silent", why=self._why(now))
            self._draw_timeout(now)
            return
        member.change_role(RoleEvent.CAMPAIGN, now, "no leader for an election time-out", why=self._why(now))
        self._open_round(now, pre=True, term=member.term + 1, reform=reform, ticket=None)

    def _why(self, now: int) -> str:
        """What is known of the leader that this member does without."""
        leader, contact = self._member.leader_id, self._member.leader_contact_at
        if leader is None:
            return "no leader was known"
        if self._lost_at is not None and (contact is None or contact <= self._lost_at):
            return f"the connection to leader {leader} closed {(now - self._lost_at) // MS} ms ago"
        return f"leader {leader} was silent" + ("" if contact is None else f" for {(now - contact) // MS} ms")

    def take_leadership(self, ticket: TransferTicket, now: int) -> None:
        """The leader asked us to: a real campaign at once, with its ticket (E4, E7)."""
        self._member.change_role(RoleEvent.CAMPAIGN, now, f"asked to take leadership of term {ticket.term}")
        self._taking = ticket
        self._real_campaign(now, reform=False, ticket=ticket)

    def _real_campaign(
        self, now: int, *, reform: bool, ticket: TransferTicket | None, pre_votes: str | None = None
    ) -> None:
        member = self._member
        member.stand_for_election(now, pre_votes)
        self._open_round(now, pre=False, term=member.term, reform=reform, ticket=ticket)

    def _open_round(self, now: int, *, pre: bool, term: int, reform: bool, ticket: TransferTicket | None) -> None:
        member = self._member
        configuration = member.configuration
        needed = len(configuration.voters) if reform else configuration.majority
        ends_at = now + self._timing.vote_round_ns
        this = Round(pre, term, member.next_seq(), ends_at, needed, reform, ticket)
        this.results[member.self_id] = VoteResult.ACCEPT
        self._round = this
        store = member.store
        request = VoteRequest(
            this.seq, member.self_id, term, store.end_index, store.end_term, pre=pre, ticket=ticket, reform=reform
        )
        for peer_id in member.other_voters:
            member.send(peer_id, request)
        if needed == 1 and member.self_id in member.configuration.voters:
            self._passed(this, now)

    def handle_answer(self, sender: str, answer: VoteResponse, now: int) -> None:
        """A vote's answer; a higher term in it is adopted, an answer of another round ignored."""
        member, this = self._member, self._round
        if this is None or answer.seq != this.seq or answer.pre != this.pre or sender in this.results:
            return
        if sender not in member.configuration.voters:  # nobody asked it
            return
        if answer.term > member.term:
            member.adopt_term(answer.term, now, f"{sender} knows term {answer.term}")
            self._round = None
            self._taking = None
            self._retry_soon(now)
            return
        if answer.result is VoteResult.ACCEPT and not this.pre and answer.term != this.term:
            return  # a vote of another term: it was asked for by an earlier process of this member
        refused = self._peers.of[sender].voter_state is None  # its HELLO: a copy votes until it knows what it is (E8)
        if answer.result is VoteResult.ACCEPT and not (this.reform or refused):
            self._membership.voter_state_seen(sender, VoterState.VOTER, now)  # nobody else gives a vote
        this.results[sender] = answer.result
        self._judge_round(this, now)

    def recount(self, now: int) -> None:
        """A peer counts that did not: its vote may be the one that was missing."""
        if self._round is not None:
            self._judge_round(self._round, now)

    def _counted(self, this: Round) -> list[VoteResult]:
        """The answers so far, those of peers without a share in the quorum as unknown."""
        sharing = {one for one, peer in self._peers.of.items() if this.reform or peer.counts}
        sharing |= {self._member.self_id} & self._member.configuration.voters.keys()
        shares = ((result, one in sharing) for one, result in this.results.items())
        return [result if share else VoteResult.UNKNOWN for result, share in shares]

    def _judge_round(self, this: Round, now: int) -> None:
        parsed = parse_votes(self._counted(this), this.needed)
        if parsed is ParseResult.PASSED:
            self._passed(this, now)
        elif parsed is ParseResult.REVOTE_IMMEDIATELY:
            self._open_round(now, pre=this.pre, term=this.term, reform=this.reform, ticket=this.ticket)
        elif self._peers.connected_voters() <= this.results.keys() and not self._membership.awaiting_record():
            self._close_round(now)  # whoever is not connected will not answer

    def _passed(self, this: Round, now: int) -> None:
        self._round = None
        # Damage was met since the round began (S6), or our own vote is worth nothing any more (E8).
        voter = this.reform or self._member.has_vote
        if not self._member.may_lead() or not voter:
            self._taking = None
            self._draw_timeout(now)
            return
        if this.pre:
            self._real_campaign(now, reform=this.reform, ticket=None, pre_votes=this.votes)
            return
        self._taking = None
        if this.reform:
            self._membership.reformed(now)
        self._member.change_role(RoleEvent.ELECTED, now, f"elected in term {this.term}", votes=this.votes)
        self._on_elected(now)

    def _close_round(self, now: int) -> None:
        """Not won: when to try again depends on why (DLedger's parse of results)."""
        this = self._round
        assert this is not None
        self._round = None
        self._taking = None
        self._tell_failure(this, now)
        counted = self._counted(this)
        parsed = parse_votes(counted, this.needed)
        has_leader = VoteResult.REJECT_ALREADY_HAS_LEADER in counted
        if parsed is ParseResult.WAIT_TO_REVOTE and has_leader:
            self._draw_timeout(now)  # whoever leads will speak to us, or stop speaking to them
        else:
            self._retry_soon(now)

    def _tell_failure(self, this: Round, now: int) -> None:
        """Once for each way of failing: a member that is cut off tries several times a second."""
        member = self._member
        answers = [f"{one} {result.name}" for one, result in sorted(this.results.items()) if one != member.self_id]
        silent = [one for one in member.other_voters if one not in this.results]
        text = ", ".join([*answers, *(f"{one} silent" for one in silent)])
        if text != self._failure_reported:
            self._failure_reported = text
            kind = "pre-vote" if this.pre else "vote"
            member.event("not_elected", now, term=this.term, reason=f"{kind}: {text}", votes=this.votes)

    # --- the voter's side ---------------------------------------------------------------------------------------
    def handle_vote(self, sender: str, vote: VoteRequest, now: int) -> None:
        result = self._judge(sender, vote, now)
        self._member.send(sender, VoteResponse(vote.seq, self._member.term, result, pre=vote.pre))

    def _judge(self, sender: str, vote: VoteRequest, now: int) -> VoteResult:
        member, store = self._member, self._member.store
        if not member.configurations.knows(vote.candidate_id):  # it may be a voter by now: our log may lag (M3)
            return VoteResult.REJECT_UNKNOWN_LEADER
        if vote.candidate_id == member.self_id or vote.candidate_id != sender:
            return VoteResult.REJECT_UNEXPECTED_LEADER
        if vote.ledger_end_term < store.end_term:
            return VoteResult.REJECT_EXPIRED_LEDGER_TERM
        if vote.ledger_end_term == store.end_term and vote.ledger_end_index < store.end_index:
            return VoteResult.REJECT_SMALL_LEDGER_END_INDEX
        # Who asks takes us for a voter, and may know better than our log which lags (M3).
        may_vote = self._membership.may_reform() if vote.reform else member.voter_state is VoterState.VOTER
        may_vote = may_vote and (now >= self._no_vote_before or self._handed_over(vote))
        if vote.pre:
            return self._judge_pre(vote, may_vote, now)
        return self._judge_real(vote, may_vote, now)

    def _judge_pre(self, vote: VoteRequest, may_vote: bool, now: int) -> VoteResult:
        """Changes nothing here (E3)."""
        member = self._member
        if member.leader_alive(now):
            return VoteResult.REJECT_ALREADY_HAS_LEADER
        if vote.term <= max(member.term, member.hard.vote_floor):
            return VoteResult.REJECT_EXPIRED_VOTE_TERM
        return VoteResult.ACCEPT if may_vote else VoteResult.UNKNOWN

    def _judge_real(self, vote: VoteRequest, may_vote: bool, now: int) -> VoteResult:
        member = self._member
        if vote.term < member.term:
            return VoteResult.REJECT_EXPIRED_VOTE_TERM
        if vote.term > member.term:
            if not may_vote:
                return VoteResult.UNKNOWN  # no vote to give, so no reason to raise anybody's term
            if member.leader_alive(now) and not self._ticket_valid(vote):
                return VoteResult.REJECT_ALREADY_HAS_LEADER  # without adopting its term (E4)
            member.adopt_term(vote.term, now, f"{vote.candidate_id} campaigns in term {vote.term}")
            self.stepped_down(now)
            return VoteResult.REJECT_TERM_NOT_READY
        if member.hard.voted_for != vote.candidate_id:
            if member.leader_id is not None:
                return VoteResult.REJECT_ALREADY_HAS_LEADER
            if member.hard.voted_for is not None:
                return VoteResult.REJECT_ALREADY_VOTED
        if vote.term < member.store.end_term:
            return VoteResult.REJECT_TERM_SMALL_THAN_LEDGER
        if self._taking is not None:
            return VoteResult.REJECT_TAKING_LEADERSHIP
        if vote.term <= member.hard.vote_floor:
            return VoteResult.REJECT_ALREADY_VOTED  # perhaps, before its record of it was lost
        if not may_vote:
            return VoteResult.UNKNOWN
        if member.hard.voted_for is None:
            member.save(voted_for=vote.candidate_id)
            member.event("vote", now, candidate=vote.candidate_id, term=vote.term)
        if vote.reform:
            self._membership.voted_to_reform(vote.candidate_id, vote.term)
        self._draw_timeout(now)
        return VoteResult.ACCEPT

    def _handed_over(self, vote: VoteRequest) -> bool:
        """Whether the leader whose lease we may have promised gave it up for this candidate (E9).

        Also once the vote's own term was adopted: whoever campaigns in it leads nobody there yet.
        """
        ticket = vote.ticket
        if ticket is None or ticket.transferee_id != vote.candidate_id or vote.term != ticket.term + 1:
            return False
        return self._member.term in (ticket.term, vote.term)

    def _ticket_valid(self, vote: VoteRequest) -> bool:
        """The leader of our present term handed it to this candidate for the very next one (E4)."""
        ticket, member = vote.ticket, self._member
        if ticket is None or ticket.transferee_id != vote.candidate_id:
            return False
        if ticket.term != member.term or vote.term != ticket.term + 1:
            return False
        return member.role is not Role.LEADER or self.ticket_is_ours(ticket)
