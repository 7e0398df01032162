"""Handles the disk's reports to a replica: syncs, cuts and reads that ended, and damage that was found.

The drivers' threads report here. Invariants: a report of another log epoch changes nothing (SAFETY R8);
everything about damage follows from `store.faults`, so that a healed member leads, counts and joins again by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from node.consensus.effects import BeginBehind, FetchLog, LookUp, OpenSnapshot, ReadSlab, ReadSnapshot, TakePart
from node.consensus.entry_dispatcher import EntryDispatcher
from node.consensus.entry_handler import EntryHandler
from node.consensus.full_disk import FullDisk
from node.consensus.group_naming import GroupNaming
from node.consensus.log_giving import LogGiving
from node.consensus.log_repair import LogRepair
from node.consensus.lost_states import LostStates
from node.consensus.member_changes import MemberChanges
from node.consensus.member_state import MemberState
from node.consensus.membership import Membership
from node.consensus.office import Office
from node.consensus.roles import RoleEvent
from node.protocol.codes import FlushMode, Role
from node.protocol.entry import Slab
from node.snapshots.directory import SnapshotMeta
from node.snapshots.transfer import Taken
from node.store.faults.results import Fault, Mended
from node.store.log_store import EntryMeta, HardState


class DiskReports:
    """One per replica. `recount`: a peer counts that did not; `settle`: what may follow from any step."""

    def __init__(
        self, member: MemberState, membership: Membership, handler: EntryHandler, repair: LogRepair, giving: LogGiving,
        full_disk: FullDisk, naming: GroupNaming, changes: MemberChanges, lost_states: LostStates, office: Office,
        recount: Callable[[int], None], settle: Callable[[int], None],
    ) -> None:  # fmt: skip
        self._member, self._store, self._office, self._settle = member, member.store, office, settle
        self._changes, self._lost_states = changes, lost_states
        self._membership, self._handler, self._recount = membership, handler, recount
        self._repair, self._giving, self._full_disk, self._naming = repair, giving, full_disk, naming

    # --- the hard state -------------------------------------------------------------------------------------------
    def hard_state_saved(self, state: HardState, now: int) -> None:
        """`state` of `effects.hard_state` is durable: whoever it puts on record counts from now on (E8)."""
        named = self._member.durable_hard.group_id is None and state.group_id is not None
        self._member.hard_state_saved(state)
        if named:
            self._membership.introduce()
        if self._membership.recorded():
            self._recount(now)
            self._settle(now)
        if self._changes.waits_for_record:
            self._office.unless_damaged(lambda leadership: self._changes.recorded(leadership, now))

    # --- syncs, cuts, reads --------------------------------------------------------------------------------------
    def flushed(self, log_epoch: int, end_index: int, now: int) -> None:
        """Everything up to `end_index` is durable; `log_epoch` is the one in which that sync began (R8)."""
        member = self._member
        if log_epoch != member.log_epoch:
            return
        if not member.note_durable(end_index):
            return
        if self._office.leadership is None:
            self._handler.durable_moved()
        elif member.config.flush is FlushMode.SYNC:  # else no watermark of ours depends on it (R2)
            self._office.leadership.advance_commit(now)
        self._settle(now)

    def truncated(self, log_epoch: int, cut_index: int, now: int) -> None:
        """The archive and the cut are durable (S4)."""
        member = self._member
        if member.truncating_from is None or log_epoch != member.log_epoch:
            return
        member.cut_done(cut_index)
        if member.configurations.cut(cut_index):
            member.on_members(None, now)
        self._handler.truncated()
        member.event("truncated", now, end_index=self._store.end_index)
        self._settle(now)

    def truncate_failed(self, log_epoch: int, now: int) -> None:
        """The archive could not be written: nothing was cut, the leader will ask again (S4)."""
        member = self._member
        if member.truncating_from is None or log_epoch != member.log_epoch:
            return
        member.cut_failed()
        self._full_disk.met(now)

    def begun_behind(self, order: BeginBehind, error: str | None, now: int) -> None:
        """The log begins behind our leader's base (M6); or nothing was changed, and the leader asks again."""
        member, base = self._member, order.base
        if member.truncating_from is None or order.log_epoch != member.log_epoch:
            return
        if error is not None:
            member.cut_failed()
            self._full_disk.met(now)
            return
        said_by = order.record.leader_id, order.record.term
        member.begun_at_base(of_this_leader=said_by == (member.leader_id, member.term))
        if member.short_of_space:
            member.wrote_while_short()  # in a group where nobody appends nothing else would end the alarm
        self._store.note_progress(base.meta.index, base.meta.index)
        if member.applying is not None:
            member.applying.log_replaced(now)
        member.configurations.begin_behind(base.members)
        if member.hard.group_id is None and base.group_id is not None:
            member.save(group_id=base.group_id, naming=None)
        member.on_members(None, now)
        self._handler.truncated()
        member.event(
            "base_installed", now, "warning", begin_index=self._store.begin_index, was_from=order.record.from_index,
            was_to=order.record.to_index, leader=order.record.leader_id, term=order.record.term,
        )  # fmt: skip
        self._handler.durable_moved()
        self._settle(now)

    # --- snapshots on their way ---------------------------------------------------------------------------------
    def snapshot_opened(self, order: OpenSnapshot, meta: SnapshotMeta | None, why: str, now: int) -> None:
        """The outcome of an `OpenSnapshot`: None where there is none, and why."""
        dispatcher = self._installing(order.peer_id)
        if dispatcher is not None and dispatcher.giving.opened(order, meta, why, now):
            self._office.unless_damaged(lambda _leadership: dispatcher.pump(now))
            self._settle(now)
        elif dispatcher is None:
            self._lost_states.opened(order, meta, why, now)

    def snapshot_read(self, order: ReadSnapshot, piece: bytes | None, now: int) -> None:
        """The outcome of a `ReadSnapshot`; None where it cannot be read."""
        dispatcher = self._installing(order.peer_id)
        if dispatcher is not None and dispatcher.giving.read(order, piece, now):
            self._office.unless_damaged(lambda _leadership: dispatcher.pump(now))
            self._settle(now)
        elif dispatcher is None:
            self._lost_states.read(order, piece, now)

    def part_taken(self, order: TakePart, taken: Taken | None, now: int) -> None:
        """The outcome of a `TakePart`; None: the disk has no room for it."""
        self._handler.part_taken(order.part, taken, now)
        if taken is None:
            self._full_disk.met(now)
        self._settle(now)

    def _installing(self, peer_id: str) -> EntryDispatcher | None:
        """Who waits for a snapshot for that peer."""
        leadership = self._office.leadership
        dispatcher = None if leadership is None else leadership.dispatchers.get(peer_id)
        return dispatcher if dispatcher is not None and dispatcher.peer.installing else None

    def slab_read(self, request: ReadSlab, slab: Slab | None, now: int) -> None:
        """The outcome of `effects.reads`."""
        if self._office.leadership is not None and request.peer_id in self._office.leadership.dispatchers:
            self._office.unless_damaged(
                lambda leadership: leadership.dispatchers[request.peer_id].slab_read(request, slab, now)
            )
            self._settle(now)

    def looked(self, order: LookUp, meta: EntryMeta | None, now: int) -> None:
        """The outcome of `effects.looks`: whoever waited for it goes on."""
        member = self._member
        member.known_metas.found(order, meta, member.log_epoch)
        if member.applying is not None:
            member.applying.looked(order.index, meta is not None, now)
        for peer_id in member.others:
            self._office.unless_damaged(lambda leadership, to=peer_id: leadership.dispatchers[to].pump(now))  # type: ignore[misc]
        self._settle(now)

    # --- damage ---------------------------------------------------------------------------------------------------
    def log_damaged(self, faults: Sequence[Fault], now: int) -> None:
        """A read or a scrub met damage (S6); `fetched`, `slab_read` with None follow where somebody waits for it."""
        self._member.known_metas.forget()
        self._store.note_faults(faults)
        self._settle(now)

    def watch_damage(self, now: int) -> None:
        """The store's faults may have changed: a leader steps down, ours learns how far we count, repair goes on.

        It all follows from `store.faults`, so a healed member leads, counts and joins again by itself (S6).
        """
        if not self._member.may_lead():
            self._step_down_damaged(now)
        if not self._repair.watch(now):
            return
        if self._office.leadership is None:
            self._handler.durable_moved()
        self._repair.advance(now)

    def _step_down_damaged(self, now: int) -> None:
        if self._member.role is Role.LEADER:
            text = f"its log is damaged from entry {self._member.faulty_from()} on"
            self._member.change_role(RoleEvent.DEPOSED, now, text)

    def fetched(self, order: FetchLog, slab: Slab | None, now: int) -> None:
        """The outcome of `effects.fetches`."""
        if order.peer_id == self._member.self_id:
            self._naming.fetched(order, slab, now)
        else:
            self._giving.fetched(order, slab)
        self._settle(now)

    def mended(self, log_epoch: int, result: Mended | None, error: str, now: int) -> None:
        """The outcome of `effects.mend`; None where it could not be written, and `error` says why."""
        member = self._member
        member.known_metas.forget()
        self._repair.mended(log_epoch, result, error, now)
        if member.configurations.mended(self._store):
            member.on_members(None, now)
        self._settle(now)
        self._repair.advance(now)

    def repair_now(self, now: int) -> None:
        """An operator asks for another try (`POST /repairs`)."""
        self._repair.retry_now(now)

    def scrubbed(self, now: int) -> None:
        """The whole log was read: where it is sound, a fork's reason is elsewhere, or in both histories (R7)."""
        self._repair.scrubbed(now)

    def snapshots_damaged(self, text: str | None, now: int) -> None:
        """What is wrong with a state machine's snapshots; None: nothing any more. The log is as sound as ever."""
        if text is None:
            self._member.clear_alarm("snapshot_damaged", now)
        else:
            self._member.alarm("snapshot_damaged", text, now, severity="warning")

    # --- space ----------------------------------------------------------------------------------------------------
    def retention_held(self, text: str | None, now: int) -> None:
        """Why the front of a log that is too large, or on a disk too full, cannot go; None: nothing is held back."""
        if text is None:
            self._member.clear_alarm("retention_held", now)
        else:
            self._member.alarm("retention_held", text, now, severity="warning")

    def disk_full(self, full: bool, now: int, *, by_ratio: bool = False, still_short: bool = False) -> None:
        """No space, or (every now and then, while the member is short of it) a try whether there is some again.

        `by_ratio`: no write was refused, more is used than the configuration wants. `still_short`: the disk itself says
        that it has none; a write may fit into what was allocated before.
        """
        if full:
            self._full_disk.met(now, by_ratio=by_ratio)
        else:
            self._full_disk.try_again(now, still_short=still_short)
