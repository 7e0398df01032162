"""The state of this member: role, term and vote, leader, and where its log stands.

Invariants: the term never goes down, and a vote is given once a term; both leave here only as `effects.hard_state`,
which the driver makes durable before anything leaves that speaks of it; `durable_hard` is what it reported last.
`committed_index` never goes down and never passes the log's end. `verified_index` belongs to one leader in one term and
one process (SAFETY R1). Role changes follow `ROLE_TRANSITIONS`; anything unlisted raises.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from node.consensus.api import Randomness, ReplicaConfig
from node.consensus.configuration import Configuration
from node.consensus.configurations import Configurations
from node.consensus.effects import NOTHING, Effects, Event, new_send
from node.consensus.known_metas import KnownMetas
from node.consensus.own_entries import LastTime
from node.consensus.roles import ROLE_TRANSITIONS, RoleEvent
from node.consensus.status import AlarmStatus
from node.consensus.unsynced_bytes import UnsyncedBytes
from node.protocol.codes import FlushMode, Role, VoterState
from node.protocol.entry import Slab, crc32
from node.protocol.messages import Message
from node.store.errors import ColdEntry, StoreCorrupt
from node.store.faults.ranges import fault_at
from node.store.log_store import EntryMeta, HardState, LogStore

if TYPE_CHECKING:
    from node.consensus.applying import Applying

# Fields of the hard state that no message of ours speaks of before they are durable: nothing waits for these (S9).
ABOUT_PEERS = frozenset({"store_ids", "peer_lives", "naming", "group_id", "configurations"})


class MemberState:
    """Shared by the parts of one replica; `effects` collects what the driver must do."""

    def __init__(self, config: ReplicaConfig, store: LogStore, rng: Randomness, now: int) -> None:
        self.config, self.store, self.rng = config, store, rng
        self.self_id = config.self_id
        self.configurations = Configurations(config, store)
        self.configuration = self.configurations.in_effect
        self.others: tuple[str, ...] = ()  # all members but this one, and those of them who are voters
        self.other_voters: tuple[str, ...] = ()
        self.configure(self.configuration)
        self.gathered: Effects | None = None  # the batch, once something was put into it
        # Called with a reason just before this member stops being the leader.
        self.on_abdicate: Callable[[str, int], None] = lambda _reason, _now: None
        # While the group has no id here (C9): whether a slab may be appended, and that the committed index moved.
        self.may_append: Callable[[Slab], bool] = lambda _slab: True
        self.on_commit: Callable[[int], None] = lambda _now: None
        # The log holds other configurations: an entry came in that slab; or (None) was cut, or is committed.
        self.on_members: Callable[[Slab | None, int], None] = lambda _slab, _now: None
        # What feeds the state machine; None: a log alone, where an entry is applied when it is committed.
        self.applying: Applying | None = None
        # Called with a reason where this member must give up its vote before it gives up entries (E8, S6).
        self.on_rejoin: Callable[[str, int], None] = lambda _reason, _now: None

        self.last_time = LastTime(config.kind, store)
        self.hard = store.hard_state
        self.term, self.voter_state = self.hard.term, self.hard.voter_state  # copies: asked for all the time
        self.role, self.role_since = Role.CANDIDATE, now
        self.leader_id: str | None = None
        # The follower's lease of its leader: the last frame from it, None once the lease is void.
        self.leader_contact_at: int | None = None
        self.has_followed = False  # since it started: a leader spoke to it, so its group has formed

        # Only what is committed is ever removed from the front of a log.
        self.committed_index = max(min(store.recovered_commit_index, store.end_index), store.base.index)
        self.durable_index = min(store.durable_index, store.end_index)
        self.verified_index, self.log_epoch = -1, 0
        self.truncating_from: int | None = None
        self.unsynced = UnsyncedBytes()
        self.known_metas = KnownMetas()
        with suppress(StoreCorrupt):  # heartbeats name what is committed; at a start it is read once
            committed = store.meta(self.committed_index)
            if committed is not None:
                self.known_metas.keep(committed)
        # Gate and alarm of S8: appends are refused while `disk_full`; `short_of_space` stays until they succeed again.
        self.disk_full = self.short_of_space = self.refused_by_disk = self.wrote_since_full = False
        self.alarms: dict[tuple[str, str | None], AlarmStatus] = {}
        # Far from where another life began: an answer to a frame of that one, which comes late over our new connection,
        # is none to a frame of ours.
        self._seq = crc32("".join(store.hard_state.life_ids[-1:]).encode()) >> 2
        self.durable_hard = self.hard
        if store.end_term > self.hard.term:
            # The log was written under a term that never became durable here: we may have voted in it (E1, E2).
            floor = max(self.hard.vote_floor, store.end_term)
            self.save(term=store.end_term, voted_for=None, vote_floor=floor)

    # --- who belongs to the group ---------------------------------------------------------------------------------
    def configure(self, configuration: Configuration) -> None:
        """Who belongs to the group from now on (M1)."""
        self.configuration = configuration
        self.others = tuple(sorted(one for one in configuration.members if one != self.self_id))
        self.other_voters = tuple(one for one in self.others if one in configuration.voters)

    @property
    def has_vote(self) -> bool:
        """Whether this member may campaign: a voter of the group whose store lost nothing (E8, M4)."""
        return self.voter_state is VoterState.VOTER and self.configurations.may_campaign(self.self_id)

    def wire(
        self, *, applying: Applying | None, on_abdicate: Callable[[str, int], None],
        on_rejoin: Callable[[str, int], None], may_append: Callable[[Slab], bool], on_commit: Callable[[int], None],
        on_members: Callable[[Slab | None, int], None],
    ) -> None:  # fmt: skip
        """The parts that are called from here; once, when they have been made."""
        self.applying, self.on_abdicate, self.on_rejoin = applying, on_abdicate, on_rejoin
        self.may_append, self.on_commit, self.on_members = may_append, on_commit, on_members

    # --- hard state ---------------------------------------------------------------------------------------------
    def save(self, **changes: Any) -> None:
        """Changes the hard state; it is durable before anything leaves that speaks of it (E2)."""
        after = replace(self.hard, **changes)
        assert after.term >= self.hard.term, f"term went down from {self.hard.term} to {after.term}"
        self.effects.spoken_of |= not changes.keys() <= ABOUT_PEERS
        self.hard = after
        self.term, self.voter_state = after.term, after.voter_state
        self.effects.hard_state = after

    def hard_state_saved(self, state: HardState) -> None:
        """`state` is durable, as it was ordered."""
        assert state.term >= self.durable_hard.term, f"term {state.term} saved after {self.durable_hard.term}"
        self.durable_hard = state

    @property
    def store_id(self) -> str:
        """Our own store's; another one than at the open, once this store turned out to be a restored copy (E8)."""
        return self.hard.store_id or self.store.store_id

    # --- roles --------------------------------------------------------------------------------------------------
    def change_role(self, event: RoleEvent, now: int, reason: str, **detail: Any) -> None:
        """Follows ROLE_TRANSITIONS; `detail`: what else the event shows."""
        to = ROLE_TRANSITIONS.get((self.role, event))
        if to is None:
            raise AssertionError(f"{self.self_id}: {event} is impossible as {self.role} in term {self.term}")
        if self.role is Role.LEADER:
            self.on_abdicate(reason, now)
        if to is not self.role:
            self.event("role", now, role=to.value, was=self.role.value, term=self.term, reason=reason, **detail)
            self.role_since = now
        self.role = to
        if to is Role.LEADER:
            self.leader_id = self.self_id
        elif to is Role.CANDIDATE:
            self.leader_id = None
            self.leader_contact_at = None

    def adopt_term(self, term: int, now: int, reason: str) -> None:
        """A higher term exists: whoever leads a lower one is deposed, and votes start anew."""
        assert term > self.term, f"adopting term {term} from {self.term}"
        self.change_role(RoleEvent.DEPOSED, now, reason)
        self.save(term=term, voted_for=None)
        self.verified_index = -1
        self.event("term", now, term=term, reason=reason)

    def stand_for_election(self, now: int, pre_votes: str | None) -> None:
        """The next term, and our own vote in it (E1)."""
        assert self.role is Role.CANDIDATE, f"{self.self_id} campaigns as {self.role}"
        self.save(term=self.term + 1, voted_for=self.self_id)
        self.verified_index = -1
        self.event("term", now, term=self.term, reason="own campaign", pre_votes=pre_votes)

    def follow(self, leader_id: str, now: int) -> None:
        """The leader of our term spoke: renews the lease."""
        if self.leader_id != leader_id:
            self.change_role(RoleEvent.FOLLOW, now, f"{leader_id} leads term {self.term}")
            self.leader_id = leader_id
            self.event("leader", now, leader=leader_id, term=self.term)
        self.leader_contact_at = now
        self.has_followed = True

    def void_lease(self) -> None:
        """The leader's connection closed, and no lease read depends on this member's patience (E5)."""
        self.leader_contact_at = None

    def leader_alive(self, now: int) -> bool:
        """Whether votes against the present leader are refused (E3, E4); a leader is alive to itself."""
        if self.role is Role.LEADER:
            return True
        contact = self.leader_contact_at
        return self.leader_id is not None and contact is not None and now < contact + self.config.vote_kept_ns

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
        if index >= self.configurations.next_index or index >= self.configurations.expected_index:
            self.on_members(None, now)
        return True

    def note_verified(self, index: int) -> None:
        """Our log is our leader's up to `index` (R1)."""
        assert self.role is Role.FOLLOWER, f"{self.self_id} verifies as {self.role}"
        assert index <= self.store.end_index, f"verified {index} beyond the end {self.store.end_index}"
        if index > self.verified_index:
            self.verified_index = index

    def appended(self, size_bytes: int) -> None:
        """A slab of our leader's is in the page cache, behind what was verified: it is verified with that."""
        self.verified_index = last_index = self.store.end_index
        self.unsynced.written(last_index, size_bytes)
        if self.short_of_space:
            self.wrote_since_full = True
        self.append_effects().sync_wanted = True

    def wrote_while_short(self) -> None:
        """A write of ours found space, while the alarm of a full disk stands."""
        self.wrote_since_full = True

    def note_durable(self, end_index: int) -> bool:
        """A sync of the present log epoch covered everything up to `end_index`; False where that is no news."""
        index = min(end_index, self.store.end_index)
        if self.truncating_from is not None:  # what is about to be cut is not to be counted on, until the cut failed
            index = min(index, self.truncating_from - 1)
        if index <= self.durable_index:
            return False
        self.durable_index = index
        self.unsynced.durable(index)
        return True

    def cut_done(self, cut_index: int) -> None:
        """The archive and the cut are durable (S4)."""
        assert self.truncating_from == cut_index, f"cut from {cut_index}, ordered was {self.truncating_from}"
        self.wrote_since_full = self.short_of_space  # its archive found space
        self.unsynced.cut(cut_index)
        self._cut_over(cut_index - 1)

    def cut_failed(self) -> None:
        """Nothing was cut (S4)."""
        self._cut_over(self.store.end_index)

    def _cut_over(self, upto_index: int) -> None:
        """A sync that ended meanwhile was ignored (R8), and no other may come: the store knows what is durable."""
        self.truncating_from = None
        self.durable_index = min(self.store.durable_index, upto_index)
        self.unsynced.durable(self.durable_index)
        self.effects.sync_wanted |= self.durable_index < self.store.end_index

    def close_log(self, from_index: int) -> None:
        """What is from there on is about to go: nothing of it counts, and nothing is appended meanwhile (R8)."""
        self.log_epoch += 1  # a sync under way no longer speaks of this log
        self.known_metas.forget()
        self.durable_index = min(self.durable_index, from_index - 1)
        self.truncating_from = from_index

    def begun_at_base(self, *, of_this_leader: bool) -> None:
        """The log begins anew, behind what a leader said: durable, and all of it committed (R8, M6)."""
        base_index = self.store.base.index
        assert self.committed_index <= base_index, f"committed {self.committed_index}, base {base_index}"
        self.unsynced.cut(0)
        self.committed_index = self.durable_index = base_index
        self.verified_index = base_index if of_this_leader else -1
        self.truncating_from = None

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

    def safe_through(self) -> int:
        """Up to here this member holds for good what the group committed: durable and undamaged."""
        return min(self.committed_index, self.durable_index, self.sound_through())

    def note_damage(self, error: StoreCorrupt) -> None:
        """A look-up met damage that nobody knew of. Raises the error again where it names no entries."""
        if not error.faults:
            raise error
        self.store.note_faults(error.faults)

    def damaged_at(self, index: int) -> bool:
        """Whether our own entry at `index` is known to be damaged, so that it cannot be compared with anybody's."""
        return fault_at(self.store.faults, index) is not None

    # --- what leaves --------------------------------------------------------------------------------------------
    def next_seq(self) -> int:
        self._seq += 1
        return self._seq

    @property
    def last_seq(self) -> int:
        """Every frame sent from now on has a higher number."""
        return self._seq

    def send(self, to: str, message: Message) -> None:
        (self.gathered or self.append_effects()).sends.append(new_send((to, message)))

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

    def no_space(self, text: str, now: int, *, by_ratio: bool = False) -> None:
        """The disk refused a write, or is full `by_ratio` of what is used: all are refused until the next try."""
        self.disk_full = self.short_of_space = True
        self.refused_by_disk |= not by_ratio
        self.wrote_since_full = False
        self.alarm("disk_full", text, now)

    def try_space(self, now: int, still_short: bool) -> None:
        """Lets the next write find out. Where the disk refused one, only writes since the last try end the alarm.

        One write alone proves little: a small one may fit where a large one is refused again and again. And none proves
        anything while the disk is `still_short`: what a new leader sends may fit into what was allocated before.
        """
        if not still_short and (not self.refused_by_disk or (self.wrote_since_full and not self.disk_full)):
            self.short_of_space = self.refused_by_disk = self.wrote_since_full = False
            self.clear_alarm("disk_full", now)
        self.disk_full = False

    def take_effects(self) -> Effects:
        """What the driver must do now, in that order; begins a new batch."""
        taken, self.gathered = self.gathered, None
        return NOTHING if taken is None else taken

    @property
    def effects(self) -> Effects:
        """The batch that gathers, for whoever puts something into it."""
        effects = self.append_effects()
        effects.is_unusual = True
        return effects

    def append_effects(self) -> Effects:
        """The same, for who adds to `sends` and `sync_wanted` only: the driver need not look for anything else."""
        if self.gathered is None:
            self.gathered = Effects()
        return self.gathered
