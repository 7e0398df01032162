"""What one member knows about itself: role, term and vote, leader, and where its log stands.

Invariants: the term never goes down, and a vote is given once a term; both leave here only as `effects.hard_state`,
which the driver makes durable before anything leaves that speaks of it; `durable_hard` is what it reported last.
`committed_index` never goes down and never passes the log's end. `verified_index` belongs to one leader in one term and
one process (SAFETY R1). Role changes follow `ROLE_TRANSITIONS`; anything unlisted raises.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from node.consensus.api import Randomness, ReplicaConfig
from node.consensus.configuration import Configuration
from node.consensus.effects import Effects, Event, TruncateLog, new_send
from node.consensus.known_metas import KnownMetas
from node.consensus.status import AlarmStatus
from node.protocol.codes import FlushMode, Role, VoterState
from node.protocol.entry import Slab
from node.protocol.messages import Message
from node.store.faults.ranges import fault_at
from node.store.log_store import ColdEntry, EntryMeta, Fault, LogStore, StoreCorrupt, TruncationRecord

if TYPE_CHECKING:
    from node.consensus.applying import Applying


class RoleEvent(StrEnum):
    """What can change a role."""

    CAMPAIGN = "campaign"  # no live leader for an election time-out, or told to take leadership
    ELECTED = "elected"  # a quorum voted for us
    FOLLOW = "follow"  # a leader of our term spoke
    DEPOSED = "deposed"  # a higher term, or no quorum of answers


ROLE_TRANSITIONS: Mapping[tuple[Role, RoleEvent], Role] = {
    (Role.CANDIDATE, RoleEvent.CAMPAIGN): Role.CANDIDATE,
    (Role.FOLLOWER, RoleEvent.CAMPAIGN): Role.CANDIDATE,
    (Role.CANDIDATE, RoleEvent.ELECTED): Role.LEADER,
    (Role.CANDIDATE, RoleEvent.FOLLOW): Role.FOLLOWER,
    (Role.FOLLOWER, RoleEvent.FOLLOW): Role.FOLLOWER,
    (Role.CANDIDATE, RoleEvent.DEPOSED): Role.CANDIDATE,
    (Role.FOLLOWER, RoleEvent.DEPOSED): Role.CANDIDATE,
    (Role.LEADER, RoleEvent.DEPOSED): Role.CANDIDATE,
}


# Fields of the hard state that no message of ours speaks of before they are durable.
ABOUT_PEERS = frozenset({"store_ids", "peer_lives", "naming"})


class UnsyncedBytes:
    """How many bytes were written that no sync has covered yet (SAFETY S9); one item per slab."""

    def __init__(self) -> None:
        self.total = 0
        self._slabs: deque[tuple[int, int]] = deque()

    def written(self, last_index: int, size_bytes: int) -> None:
        """A slab that ends at `last_index` went to the page cache."""
        self._slabs.append((last_index, size_bytes))
        self.total += size_bytes

    def durable(self, index: int) -> None:
        """A sync covered everything up to `index`."""
        while self._slabs and self._slabs[0][0] <= index:
            self.total -= self._slabs.popleft()[1]

    def cut(self, cut_index: int) -> None:
        """Everything from `cut_index` on is gone."""
        while self._slabs and self._slabs[-1][0] >= cut_index:
            self.total -= self._slabs.pop()[1]


class MemberState:
    """Shared by the parts of one replica; `effects` collects what the driver must do."""

    def __init__(self, config: ReplicaConfig, store: LogStore, rng: Randomness, now: int) -> None:
        self.config = config
        self.store = store
        self.rng = rng
        self.self_id = config.self_id
        self.configuration = config.configuration
        self.others: tuple[str, ...] = ()  # all members but this one, and those of them who are voters
        self.other_voters: tuple[str, ...] = ()
        self.configure(self.configuration)
        self.gathered: Effects | None = None  # the batch, once something was put into it
        # Called with a reason just before this member stops being the leader.
        self.on_abdicate: Callable[[str, int], None] = lambda _reason, _now: None
        # While the group has no id here (C9): whether a slab may be appended, and that the committed index moved.
        self.may_append: Callable[[Slab], bool] = lambda _slab: True
        self.on_commit: Callable[[int], None] = lambda _now: None
        # What feeds the state machine; None: a log alone, where an entry is applied when it is committed.
        self.applying: Applying | None = None
        # Called with a reason where this member must give up its vote before it gives up entries (E8, S6).
        self.on_rejoin: Callable[[str, int], None] = lambda _reason, _now: None

        self.hard = store.hard_state
        self.term, self.voter_state = self.hard.term, self.hard.voter_state  # copies: asked for all the time
        self.role = Role.CANDIDATE
        self.role_since = now
        self.leader_id: str | None = None
        # The follower's lease of its leader: the last frame from it, None once the lease is void.
        self.leader_contact_at: int | None = None

        # Only what is committed is ever removed from the front of a log.
        self.committed_index = max(min(store.recovered_commit_index, store.end_index), store.base.index)
        self.durable_index = min(store.durable_index, store.end_index)
        self.verified_index = -1
        self.log_epoch = 0
        self.truncating_from: int | None = None
        # Faults, by their first index, that the leader (term, id) could not give entries for: see `unlinkable_at`.
        self.unlinkable: dict[int, tuple[int, str | None]] = {}
        self.unsynced = UnsyncedBytes()
        self.known_metas = KnownMetas()
        with suppress(StoreCorrupt):  # heartbeats name what is committed; at a start it is read once
            committed = store.meta(self.committed_index)
            if committed is not None:
                self.known_metas.keep(committed)
        # Gate and alarm of S8: appends are refused while `disk_full`; `short_of_space` stays until they succeed again.
        self.disk_full = self.short_of_space = False
        self.wrote_since_full = False
        self.alarms: dict[tuple[str, str | None], AlarmStatus] = {}
        self._seq = 0
        self.durable_hard = self.hard
        if store.end_term > self.hard.term:
            # The log was written under a term that never became durable here: we may have voted in it (E1, E2).
            floor = max(self.hard.vote_floor, store.end_term)
            self.save(term=store.end_term, voted_for=None, vote_floor=floor)

    # --- who belongs to the group ---------------------------------------------------------------------------------
    def configure(self, configuration: Configuration) -> None:
        """Who belongs to the group from now on; the voters are those of the start (see `Configuration`)."""
        if configuration.voters != self.configuration.voters:
            raise ValueError("voters change by an entry of the log only, never while the group runs")
        if (self.self_id in configuration.learners) != (self.self_id in self.configuration.learners):
            raise ValueError(f"{self.self_id} cannot make a learner of itself, or cease to be one")
        self.configuration = configuration
        self.others = tuple(sorted(one for one in configuration.members if one != self.self_id))
        self.other_voters = tuple(one for one in self.others if one in configuration.voters)

    @property
    def has_vote(self) -> bool:
        """Whether this member may vote and campaign: a voter of the group whose store lost nothing (E8, M4)."""
        return self.voter_state is VoterState.VOTER and self.self_id in self.configuration.voters

    # --- hard state ---------------------------------------------------------------------------------------------
    def save(self, **changes: Any) -> None:
        """Changes the hard state; it is durable before anything leaves that speaks of it (E2)."""
        after = replace(self.hard, **changes)
        if after.term < self.hard.term:
            raise AssertionError(f"term went down from {self.hard.term} to {after.term}")
        self.effects.spoken_of |= not changes.keys() <= ABOUT_PEERS
        self.hard = after
        self.term, self.voter_state = after.term, after.voter_state
        self.effects.hard_state = after

    @property
    def store_id(self) -> str:
        """Our own store's; another one than at the open, once this store turned out to be a restored copy (E8)."""
        return self.hard.store_id or self.store.store_id

    # --- roles --------------------------------------------------------------------------------------------------
    def change_role(self, event: RoleEvent, now: int, reason: str, **told: Any) -> None:
        """Follows ROLE_TRANSITIONS; `told`: what else people should know of it."""
        to = ROLE_TRANSITIONS.get((self.role, event))
        if to is None:
            raise AssertionError(f"{self.self_id}: {event} is impossible as {self.role} in term {self.term}")
        if self.role is Role.LEADER:
            self.on_abdicate(reason, now)
        if to is not self.role:
            self.event("role", now, role=to.value, was=self.role.value, term=self.term, reason=reason, **told)
            self.role_since = now
        self.role = to
        if to is Role.LEADER:
            self.leader_id = self.self_id
        elif to is Role.CANDIDATE:
            self.leader_id = None
            self.leader_contact_at = None

    def adopt_term(self, term: int, now: int, reason: str) -> None:
        """A higher term exists: whoever leads a lower one is deposed, and votes start anew."""
        if term <= self.term:
            raise AssertionError(f"adopting term {term} from {self.term}")
        self.change_role(RoleEvent.DEPOSED, now, reason)
        self.save(term=term, voted_for=None)
        self.verified_index = -1
        self.event("term", now, term=term, reason=reason)

    def follow(self, leader_id: str, now: int) -> None:
        """The leader of our term spoke: renews the lease."""
        if self.leader_id != leader_id:
            self.change_role(RoleEvent.FOLLOW, now, f"{leader_id} leads term {self.term}")
            self.leader_id = leader_id
            self.event("leader", now, leader=leader_id, term=self.term)
        self.leader_contact_at = now

    def leader_alive(self, now: int) -> bool:
        """Whether votes against the present leader are refused (E3, E4); a leader is alive to itself."""
        if self.role is Role.LEADER:
            return True
        contact = self.leader_contact_at
        return self.leader_id is not None and contact is not None and now < contact + self.config.timing.election_min_ns

    # --- the log ------------------------------------------------------------------------------------------------
    @property
    def applied_index(self) -> int | None:
        """What the state machine has taken in; None: it has not said yet."""
        return self.committed_index if self.applying is None else self.applying.applied_index

    def own_watermark(self) -> int:
        """What this member itself contributes to a quorum as leader (R3)."""
        mark = self.durable_index if self.config.flush is FlushMode.SYNC else self.store.end_index
        return min(mark, self.sound_through()) if self.store.faults else mark

    def advance_commit(self, index: int, now: int) -> bool:
        """Moves the committed index up, never down; True if it moved."""
        if index <= self.committed_index:
            return False
        if index > self.store.end_index:
            raise AssertionError(f"commit {index} beyond the end {self.store.end_index}")
        self.committed_index = index
        if self.applying is None:
            self.store.note_progress(index, index)
        else:
            self.applying.committed(now)
        if self.hard.naming is not None:
            self.on_commit(now)
        return True

    def order_cut(self, cut: int, leader_id: str | None, reason: str, now: int) -> None:
        """Archive and cut from `cut` on: the driver's work, of which nothing counts from now on (R8, S4)."""
        record = TruncationRecord(
            by=self.self_id, leader_id=leader_id, term=self.term, from_index=cut, to_index=self.store.end_index,
            reason=reason, committed_index=self.committed_index,
        )  # fmt: skip
        self.log_epoch += 1  # a sync under way no longer speaks of this log
        self.known_metas.forget()
        self.durable_index = min(self.durable_index, cut - 1)
        self.truncating_from = cut
        self.effects.truncate = TruncateLog(self.log_epoch, cut, record)
        end_index = self.store.end_index
        self.event("truncation", now, "warning", from_index=cut, to_index=end_index, leader=leader_id, term=self.term)

    def meta(self, index: int) -> EntryMeta | None:
        """Term and chain at `index`, None outside the log; never from a disk (S9).

        Raises ColdEntry: the driver is asked to look, and whoever needs it asks again. Raises StoreCorrupt.
        """
        try:
            return self.store.meta_at_hand(index)
        except ColdEntry:
            known = self.known_metas.get(index)
            if known is not None:
                return known
            order = self.known_metas.order(index, self.log_epoch)
            if order is not None:
                self.effects.looks.append(order)
            raise

    def chain_at(self, index: int) -> int | None:
        """The chain at `index`, None where it is not known, or not at hand."""
        try:
            meta = self.store.meta_at_hand(index)
        except ColdEntry:
            meta = self.known_metas.get(index)
        except StoreCorrupt as error:
            self.note_damage(error)
            return None
        return None if meta is None else meta.chain

    # --- damage (S6): everything follows from `store.faults` ------------------------------------------------------
    def may_lead(self) -> bool:
        """Who cannot serve its whole log neither campaigns nor leads; it may vote, because its end is known."""
        return not self.store.faults

    def faulty_from(self) -> int:
        """The lowest damaged entry, -1 where the log is sound as far as is known."""
        faults = self.store.faults
        return faults[0].first_index if faults else -1

    def sound_through(self) -> int:
        """Up to here nothing is known to be damaged."""
        faults = self.store.faults
        return faults[0].first_index - 1 if faults else self.store.end_index

    def note_damage(self, error: StoreCorrupt) -> None:
        """A look-up met damage that nobody knew of. Raises the error again where it names no entries."""
        if not error.faults:
            raise error
        self.store.note_faults(error.faults)

    def damaged_at(self, index: int) -> bool:
        """Whether our own entry at `index` is known to be damaged, so that it cannot be compared with anybody's."""
        return fault_at(self.store.faults, index) is not None

    def unlinkable_at(self, index: int) -> Fault | None:
        """The fault that holds `index`, if our present leader has nothing that links it, and all of it may go.

        What is verified or committed never may; what another leader could not give, this one perhaps can.
        """
        fault = fault_at(self.store.faults, index)
        if fault is None or self.unlinkable.get(fault.first_index) != (self.term, self.leader_id):
            return None
        return fault if fault.first_index > max(self.verified_index, self.committed_index) else None

    def term_bounds(self, index: int) -> tuple[int, int]:
        """Between which terms that of a damaged entry must lie: terms never go down along a log."""
        store = self.store
        fault = fault_at(store.faults, index)
        assert fault is not None, f"entry {index} is not damaged"
        before = self.meta(fault.first_index - 1)
        after = self.meta(min(fault.last_index + 1, store.end_index))
        return -1 if before is None else before.term, store.end_term if after is None else after.term

    # --- what leaves --------------------------------------------------------------------------------------------
    def next_seq(self) -> int:
        self._seq += 1
        return self._seq

    @property
    def last_seq(self) -> int:
        """Every frame sent from now on has a higher number."""
        return self._seq

    def send(self, to: str, message: Message) -> None:
        (self.gathered or self.effects).sends.append(new_send((to, message)))

    def event(self, kind: str, now: int, severity: str = "info", **detail: Any) -> None:
        """Something for people; `now` keeps callers honest about the moment it belongs to."""
        self.effects.events.append(Event(kind, {"at_ns": now, **detail}, severity))

    def alarm(self, code: str, text: str, now: int, *, peer_id: str | None = None, severity: str = "critical") -> None:
        """Raises an alarm; one that stands already only gets the new text."""
        known = self.alarms.get((code, peer_id))
        self.alarms[(code, peer_id)] = AlarmStatus(code, severity, peer_id, text, known.since_at_ns if known else now)
        if known is None:
            self.event("alarm", now, severity, code=code, peer=peer_id, text=text)

    def clear_alarm(self, code: str, now: int, *, peer_id: str | None = None) -> None:
        """The reason is gone."""
        if self.alarms.pop((code, peer_id), None) is not None:
            self.event("alarm_cleared", now, code=code, peer=peer_id)

    def no_space(self, text: str, now: int) -> None:
        """The disk refused a write: all are refused until the next try, and the alarm stands until one succeeded."""
        self.disk_full = self.short_of_space = True
        self.wrote_since_full = False
        self.alarm("disk_full", text, now)

    def try_space(self, now: int, still_short: bool) -> None:
        """Lets the next write find out. Only a try that saw writes since the last one, and no refusal, ends the alarm.

        One write alone proves little: a small one may fit where a large one is refused again and again. And none proves
        anything while the disk is `still_short`: what a new leader sends may fit into what was allocated before.
        """
        if self.wrote_since_full and not self.disk_full and not still_short:
            self.short_of_space = self.wrote_since_full = False
            self.clear_alarm("disk_full", now)
        self.disk_full = False

    def fork_found(self, text: str, now: int, peer_id: str) -> None:
        """Equal index and term, another chain (R7): whose log is damaged shows by its own CRCs, so it is scrubbed."""
        if ("fork", peer_id) not in self.alarms:
            self.effects.scrub_wanted = True
        self.alarm("fork", text, now, peer_id=peer_id)

    def two_leaders(self, other: str, now: int) -> None:
        """Impossible by E1 and E2; if it ever happens, nobody should have to guess."""
        text = f"{other} and {self.leader_id} both claim to lead term {self.term}"
        self.alarm("two_leaders", text, now, peer_id=other)

    @property
    def effects(self) -> Effects:
        """The batch that gathers, for whoever puts something into it."""
        if self.gathered is None:
            self.gathered = Effects()
        return self.gathered
