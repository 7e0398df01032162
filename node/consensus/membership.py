"""Membership: who may vote, how a member comes to vote, and what HELLO says of it (SAFETY E8).

Theory. A vote or an ack may only count if the member that gives it still holds whatever it acknowledged before. So
each store has an identity that its peers record before they count it, and a store that may have lost history is
REJOINING until it holds everything that a confirmed leader held after the joining began. FORMING is a new store that
waits to learn whether its group is new as well.

Invariants: FORMING and REJOINING members neither vote nor count; a member becomes VOTER by exactly one of three ways:
forming (`_try_forming`), joining (`progress`), re-forming (`reformed`).
"""

from __future__ import annotations

from node.consensus import ended_groups
from node.consensus.api import MS, SECOND
from node.consensus.member_state import MemberState
from node.consensus.own_caps import OWN_CAPS
from node.consensus.progress import VERSION_MAX, VERSION_MIN, Peers
from node.consensus.roles import RoleEvent
from node.consensus.said_as_voter import said_as_voter
from node.consensus.settings_book import SettingsBook
from node.consensus.store_records import StoreRecords
from node.consensus.strangers import WAS_REMOVED, Stranger, Strangers
from node.protocol.codes import FlushMode, ResponseCode, Role, VoterState
from node.protocol.group_kind import capabilities, kind_in
from node.protocol.messages import HeartBeatResponse, Hello, Message, ReadIndexRequest, ReadIndexResponse, VoteResponse

GUESTS_MAX = 8  # members that our configuration does not know
REASON_MAX = 300  # characters of what a stranger may say
REFUSAL_EVENT_INTERVAL_NS = 10 * SECOND  # whoever connects to us to be refused must not fill the list of events


class Membership:
    """One per replica."""

    def __init__(self, member: MemberState, peers: Peers, now: int) -> None:
        self._member, self._peers = member, peers
        # REJOINING: what must be durable here before we vote again, and which (term, leader) said so.
        self.target_index: int | None = None
        self._target_of: tuple[int, str] | None = None
        self._target_seq: int | None = None
        self._ask_at = now
        self._reform_vote: tuple[int, str] | None = None
        self.strangers = Strangers(member)
        self.records = StoreRecords(member)
        self.settings = SettingsBook(member, peers)
        self._refusal_reported_at: int | None = None
        self._try_forming(now)

    # --- HELLO --------------------------------------------------------------------------------------------------
    def hello(
        self, seq: int, *, to: str, answers: Hello | None = None, code: ResponseCode, detail: str | None = None,
        at_once: bool = False,
    ) -> Hello:  # fmt: skip
        """Our own HELLO for that peer. `at_once`: it waits for no save, so it says only what is durable."""
        member, store = self._member, self._member.store
        config, hard = member.config, member.durable_hard if at_once else member.hard
        return Hello(
            seq=seq,
            group=config.group,
            node_id=config.self_id,
            store_id=hard.store_id or store.store_id,
            # A vote that is being given up counts for nobody any more; one that is being won does not count yet.
            voter_state=VoterState.REJOINING if member.voter_state is VoterState.REJOINING else hard.voter_state,
            end_index=store.end_index,
            sealed_from=store.sealed_from,
            peers_hash=config.peers_hash,
            data_file_size=store.data_file_size,
            index_file_size=store.index_file_size,
            flush=config.flush,
            lease_reads=config.lease_reads,
            api_url=config.api_url,
            caps=(*capabilities(config.kind.name), *OWN_CAPS),
            code=code,
            detail=detail,
            recorded=dict(member.durable_hard.store_ids),
            answer=answers is not None,
            version_min=VERSION_MIN,
            version_max=VERSION_MAX,
            term=member.durable_hard.term,
            group_id=member.durable_hard.group_id,
            life_ids=hard.life_ids,
            election_min_ms=config.timing.election_min_ns // MS if config.lease_reads else None,
            marks_from=hard.marks_from,
            record=self.records.of(to, answers),
            settings=self.settings.said(to, answers),
        )

    def _judge(self, sender: str, hello: Hello) -> tuple[ResponseCode, str | None]:
        config, store = self._member.config, self._member.store
        if hello.group != config.group:
            return ResponseCode.UNKNOWN_GROUP, f"this is group {config.group!r}, not {hello.group!r}"
        group_id = self._member.hard.group_id
        if None not in (group_id, hello.group_id) and hello.group_id != group_id:
            text = f"this is another group {config.group!r}: its id is {group_id}, not {hello.group_id}"
            return ResponseCode.UNKNOWN_GROUP, ended_groups.refusal(self._member, hello) or text
        if self._member.configurations.was_removed(hello.node_id, hello.store_id):
            return ResponseCode.UNKNOWN_MEMBER, f"{hello.node_id} {WAS_REMOVED}"
        if hello.node_id not in self._peers.of and not self._may_be_ahead(sender, hello):
            return ResponseCode.UNKNOWN_MEMBER, f"{hello.node_id!r} is not a peer of {config.self_id!r}"
        if hello.node_id != sender:
            return ResponseCode.UNEXPECTED_MEMBER, f"{sender!r} says it is {hello.node_id!r}"
        for name, ours, theirs in (
            ("data_file_size", store.data_file_size, hello.data_file_size),
            ("index_file_size", store.index_file_size, hello.index_file_size),
            ("kind", config.kind.name, kind_in(hello.caps)),
        ):
            if ours != theirs:
                text = f"{name} differs: {theirs} at {hello.node_id}, {ours} at {config.self_id}"
                return ResponseCode.UNEXPECTED_ARGUMENT, text
        unlike = self.settings.refusal(hello)
        if unlike is not None:
            return ResponseCode.UNEXPECTED_ARGUMENT, unlike
        if hello.version_min > VERSION_MAX or hello.version_max < VERSION_MIN:
            spoken = f"versions {hello.version_min}..{hello.version_max} are spoken there"
            text = f"{spoken}, {VERSION_MIN}..{VERSION_MAX} here"
            return ResponseCode.UNEXPECTED_ARGUMENT, text
        return ResponseCode.SUCCESS, None

    def _may_be_ahead(self, sender: str, hello: Hello) -> bool:
        """Whether that may be a member that our log does not know yet: it has the group's id (M3, M7), which a voter
        that our configuration names tells us where we have none ourselves (C9)."""
        member, own_id = self._member, self._member.hard.group_id
        known = [own_id] if own_id else [peer.hello.group_id for peer in self._peers.voters if peer.hello is not None]
        if hello.group_id is None or hello.group_id not in known or sender == member.self_id:
            return False
        if hello.answer or (member.config.proof_wanted and not hello.proven):
            return False
        return sender in member.configurations.guests or len(member.configurations.guests) < GUESTS_MAX

    def handle_hello(self, sender: str, hello: Hello, now: int) -> None:
        """A peer's HELLO, or its answer to ours: take it in, answer a request."""
        code, detail = self._judge(sender, hello)
        if code is ResponseCode.SUCCESS and sender not in self._peers.of:
            self._member.configurations.guests[sender] = hello
            self._member.send(sender, self.hello(hello.seq, to=sender, answers=hello, code=code))
            return
        if code is ResponseCode.SUCCESS:
            code, detail = self._judge_stores(sender, hello, now)
        refused = detail if code is not ResponseCode.SUCCESS else hello.detail or "refused"
        if code is ResponseCode.SUCCESS and hello.code is ResponseCode.SUCCESS:
            self._met_or_gone(sender, hello, now)
            self._take_in(sender, hello, now)
        elif hello.answer:
            # Ours says only that ids differ, or that nothing is known of it: a refusal may come without a whole HELLO.
            refused = hello.detail if hello.ended or (hello.detail and not hello.store_id) else refused
            self.strangers.refused_by(sender, str(refused)[:REASON_MAX], now)
            if ended_groups.gives_up_vote(self._member, sender, hello):
                self.rejoin(f"{sender} says: {str(refused)[:REASON_MAX]}", now)
        else:
            self._tell_refusal(sender, str(refused)[:REASON_MAX], now)
        if not hello.answer:
            answer = self.hello(hello.seq, to=sender, answers=hello, code=code, detail=detail)
            self._member.send(sender, ended_groups.with_verdict(self._member, hello, answer))

    def _met_or_gone(self, sender: str, hello: Hello, now: int) -> None:
        """A member speaks, and answers at its address or has; while the secret is introduced it may have none yet.

        One that connects to us says nothing of its address: with two exchanged in our configuration both reach us.
        """
        if self._member.config.proof_wanted and not hello.proven:
            text = f'{sender} is let in without proving the members\' secret, because secret is "optional"'
            self.strangers.met(sender, Stranger.UNPROVEN, text, now)
        elif hello.answer or self._peers.of[sender].connected:
            self.stranger_gone(sender, now)

    def _judge_stores(self, sender: str, hello: Hello, now: int) -> tuple[ResponseCode, str | None]:
        """Whether our store, or the peer's, is a restored copy (E8); ours is settled before anything is answered."""
        member, peer = self._member, self._peers.of[sender]
        ours = self.records.against_us(hello)
        if ours is not None:
            text = f"the store of {member.self_id} is a restored copy: {sender} says that {ours}"
            member.alarm("restored_copy", text, now, severity="warning")
            if member.role is Role.LEADER:
                member.change_role(RoleEvent.DEPOSED, now, text)
            self._become(VoterState.REJOINING, text, now, store_id=f"{member.rng.getrandbits(128):032x}")
        theirs = self.records.against(sender, hello)
        if theirs is None:
            member.clear_alarm("restored_copy", now, peer_id=sender)
            return ResponseCode.SUCCESS, None
        peer.judged(None, counts=False)
        text = f"the store of {sender} is a restored copy: {theirs}"
        member.alarm("restored_copy", text, now, peer_id=sender, severity="warning")
        return ResponseCode.RESTORED_COPY, text

    def stranger_gone(self, peer_id: str, now: int) -> None:
        """Nobody listens at that peer's address any more, or a member does."""
        self.strangers.gone(peer_id, now)
        self._try_forming(now)

    def forget(self, peer_id: str, now: int) -> None:
        """A member is gone, and that store of it never comes back (M5): as another one it begins anew."""
        self.records.forget(peer_id)
        self.stranger_gone(peer_id, now)

    def _tell_refusal(self, sender: str, reason: str, now: int) -> None:
        """Somebody who connected to us was refused: an event, now and then; no alarm, for it may be anybody."""
        if self._refusal_reported_at is None or now - self._refusal_reported_at >= REFUSAL_EVENT_INTERVAL_NS:
            self._refusal_reported_at = now
            self._member.event("hello_refused", now, "warning", peer=sender, text=reason)

    def _take_in(self, sender: str, hello: Hello, now: int) -> None:
        peer = self._peers.of[sender]
        before, peer.hello, peer.asked_before = peer.hello, hello, self._member.last_seq
        self.settings.heard(peer, before, hello, now)
        self.records.note_life(sender, hello)
        peer.judged(peer.voter_state, counts=peer.counts and self._on_record(sender))
        self.voter_state_seen(sender, hello.voter_state, now)
        if self._member.voter_state is VoterState.FORMING:
            self._try_forming(now)

    def voter_state_seen(self, peer_id: str, state: VoterState, now: int) -> None:
        """A peer said what it is; a VOTER's store is on record before it counts."""
        peer = self._peers.of[peer_id]
        if state is peer.voter_state and (peer.counts or state is not VoterState.VOTER):
            hello = peer.hello
            if hello is None or self._member.hard.store_ids.get(peer_id) in (None, hello.store_id):
                return
        counts = False
        if state is VoterState.VOTER and peer.hello is not None:
            self._record(peer_id, peer.hello, now)
            counts = self._on_record(peer_id)
        peer.judged(state, counts=counts)

    def reconsider(self, peer_id: str, now: int) -> None:
        """A learner became a voter: it counts once its store is on record (E8)."""
        peer = self._peers.of[peer_id]
        if peer.voter_state is not None:
            self.voter_state_seen(peer_id, peer.voter_state, now)

    def beat_answered(self, peer_id: str, answer: HeartBeatResponse, now: int) -> None:
        """What it says of its vote, unless a HELLO overtook it on another connection."""
        if answer.voter_state is not VoterState.VOTER or answer.seq > self._peers.of[peer_id].asked_before:
            self.voter_state_seen(peer_id, answer.voter_state, now)

    def may_leave(self, message: Message) -> bool:
        """Whether a message that waited for a save may leave now: as a voter's none, once the vote was given up."""
        gone = self._member.voter_state is VoterState.REJOINING and said_as_voter(message)
        return not gone or (isinstance(message, VoteResponse) and self.may_reform())

    def _on_record(self, peer_id: str) -> bool:
        """Whether that peer's present store, and a proven one's life, is on durable record here (E8)."""
        hello, durable = self._peers.of[peer_id].hello, self._member.durable_hard
        if hello is None or durable.store_ids.get(peer_id) != hello.store_id:
            return False
        return not hello.proven or not hello.life_ids or durable.peer_lives.get(peer_id) == hello.life_ids[-1]

    def recorded(self) -> bool:
        """The hard state was saved; whether somebody counts from now on."""
        waited = [peer_id for peer_id in self.awaiting_record() if self._on_record(peer_id)]
        for peer_id in waited:
            self._peers.of[peer_id].judged(VoterState.VOTER, counts=True)
        return bool(waited)

    def awaiting_record(self) -> list[str]:
        """The voters that count as soon as the record about them is durable."""
        sound = (peer for peer in self._peers.voters if peer.voter_state is VoterState.VOTER)
        return [peer.peer_id for peer in sound if not peer.counts and peer.hello is not None]

    def _record(self, peer_id: str, hello: Hello, now: int) -> None:
        known = self._member.hard.store_ids.get(peer_id)
        if known == hello.store_id:
            return
        if known is not None:
            self._member.event("store_replaced", now, "warning", peer=peer_id, was=known, store_id=hello.store_id)
        self.records.note_store(peer_id, hello)

    # --- FORMING ------------------------------------------------------------------------------------------------
    def _try_forming(self, now: int) -> None:
        """VOTER with a quorum of equally new members; REJOINING where the group already has a history."""
        member = self._member
        if member.voter_state is not VoterState.FORMING or self.strangers.plain:
            return
        hellos = [peer.hello for peer in self._peers.of.values() if peer.hello is not None]
        own, before_first = member.store_id, member.store.base.index
        for hello in hellos:
            recorded = hello.recorded.get(member.self_id)
            if recorded not in (None, own):
                self._become(VoterState.REJOINING, f"{hello.node_id} knew another store of this member", now)
                return
            if hello.end_index > before_first:
                self._become(VoterState.REJOINING, f"{hello.node_id} already holds entries", now)
                return
        # One whose log begins below ours is no part of this group: both were not made alike.
        alike = [one for one in hellos if one.end_index == before_first]
        new = [one.node_id for one in alike if one.voter_state in (VoterState.FORMING, VoterState.VOTER)]
        if member.configuration.is_majority([member.self_id, *new]):
            self._become(VoterState.VOTER, "a quorum of the group is as new as this member", now)

    def leader_spoke(self, now: int) -> None:
        """A FORMING member that hears a leader came late: it joins through that leader."""
        member = self._member
        if member.voter_state is VoterState.FORMING:
            self._become(VoterState.REJOINING, f"{member.leader_id} already leads the group", now)
        if self._reform_vote is not None and self._reform_vote == (member.term, member.leader_id):
            self.reformed(now)

    def rejoin(self, reason: str, now: int) -> None:
        """This member is about to lose what it may have acknowledged: no vote until it holds everything again."""
        if self._member.voter_state is not VoterState.REJOINING:
            self._become(VoterState.REJOINING, reason, now)
            self.target_index = self._target_of = None

    def _become(self, state: VoterState, reason: str, now: int, **also: int | str) -> None:
        member = self._member
        was = member.voter_state
        member.save(voter_state=state, **also)
        member.event("voter_state", now, "info", state=state.value, was=was.value, reason=reason)
        self.introduce()

    def introduce(self) -> None:
        """What our HELLO said is no longer so."""
        member = self._member
        for peer_id, peer in self._peers.of.items():
            if peer.connected:
                member.send(peer_id, self.hello(member.next_seq(), to=peer_id, code=ResponseCode.SUCCESS))

    # --- REJOINING ----------------------------------------------------------------------------------------------
    def tick(self, now: int) -> None:
        """Asks the leader how far this member has to come; anew under each leader."""
        member = self._member
        if member.voter_state is not VoterState.REJOINING or member.role is not Role.FOLLOWER:
            return
        assert member.leader_id is not None
        if self._target_of != (member.term, member.leader_id):
            self.target_index = None
            if now >= self._ask_at:
                self._target_seq = member.next_seq()
                self._ask_at = now + 2 * member.config.timing.heartbeat_ns
                member.send(member.leader_id, ReadIndexRequest(self._target_seq, member.term))

    def handle_target(self, sender: str, answer: ReadIndexResponse, now: int) -> bool:
        """The leader's confirmed end; False if this answer was not asked for by the joining."""
        member = self._member
        if self._target_seq is None or answer.seq != self._target_seq:
            return False
        self._target_seq = None
        current = answer.term == member.term and sender == member.leader_id
        if answer.code is ResponseCode.SUCCESS and current and member.voter_state is VoterState.REJOINING:
            self.target_index = answer.end_index
            self._target_of = (answer.term, sender)
            self.progress(now)
        return True

    def progress(self, now: int) -> None:
        """Something became durable: perhaps the joining is complete."""
        member = self._member
        if member.voter_state is not VoterState.REJOINING or self.target_index is None:
            return
        if self._target_of != (member.term, member.leader_id):
            return
        if self._held_through() >= self.target_index:
            floor = max(member.hard.vote_floor, member.term)
            reason = f"durable up to the target {self.target_index}"
            self._become(VoterState.VOTER, reason, now, vote_floor=floor, marks_from=member.term)
            member.clear_alarm("restored_copy", now)
            self.target_index = self._target_of = None

    def _held_through(self) -> int:
        """What this member holds of its leader's log: matched, durable, and without damage."""
        member = self._member
        return min(member.verified_index, member.durable_index, member.sound_through())

    def next_deadline(self) -> int | None:
        member = self._member
        waits = member.voter_state is VoterState.REJOINING and member.role is Role.FOLLOWER
        return self._ask_at if waits and self._target_of != (member.term, member.leader_id) else None

    # --- forming again ------------------------------------------------------------------------------------------
    def may_reform(self) -> bool:
        """Whether no quorum of VOTERs is left, and the group is async and complete, so that all may elect together."""
        member = self._member
        kept = member.hard.kept
        may_lack = member.config.flush is FlushMode.ASYNC or (kept is not None and kept.promises.unsynced)
        if not may_lack or member.voter_state is VoterState.FORMING:
            return False
        if member.self_id not in member.configuration.voters:
            return False
        voters = [member.self_id] if member.voter_state is VoterState.VOTER else []
        for peer in self._peers.voters:
            if not peer.connected or peer.voter_state in (None, VoterState.FORMING):
                return False
            if peer.voter_state is VoterState.VOTER:
                voters.append(peer.peer_id)
        return not member.configuration.is_majority(voters)

    def voted_to_reform(self, candidate_id: str, term: int) -> None:
        """Remembers whom this member helped to form the group again."""
        self._reform_vote = (term, candidate_id)

    def reformed(self, now: int) -> None:
        """The whole group elected the longest log among all: whoever took part is a voter again."""
        member = self._member
        self._reform_vote = None
        member.save(marks_from=member.term)  # what was lost is lost for all
        if member.voter_state is not VoterState.VOTER:
            reason = "the whole group formed again from its longest log"
            self._become(VoterState.VOTER, reason, now, vote_floor=member.term)
        text = "no quorum of voters was left after a loss of unsynced writes; acknowledged entries may be gone"
        member.alarm("group_reformed", text, now)
