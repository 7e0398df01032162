"""What a replica makes of its disk's reports: syncs, cuts and reads that are done, and damage that was met.

The half of `Replica` below the driver's threads. Invariants: a report of another log epoch changes nothing (SAFETY R8);
everything about damage follows from `store.faults`, so that a healed member leads, counts and joins again by itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from node.consensus.effects import FetchLog, LookUp, ReadSlab
from node.consensus.entry_handler import EntryHandler
from node.consensus.group_naming import GroupNaming
from node.consensus.leader_elector import LeaderElector
from node.consensus.leadership import Leadership
from node.consensus.log_repair import LogRepair
from node.consensus.member_state import MemberState, RoleEvent
from node.consensus.membership import Membership
from node.protocol.codes import FlushMode, Role
from node.protocol.entry import Slab
from node.store.log_store import EntryMeta, Fault, HardState, LogStore, Mended, StoreCorrupt


class DiskReports(ABC):
    """See the module's docstring; the attributes are `Replica`'s."""

    store: LogStore
    member: MemberState
    membership: Membership
    elector: LeaderElector
    handler: EntryHandler
    repair: LogRepair
    naming: GroupNaming
    leadership: Leadership | None

    @abstractmethod
    def _settle(self, now: int) -> None: ...

    @abstractmethod
    def disk_full(self, full: bool, now: int, *, still_short: bool = False) -> None: ...

    # --- the hard state -------------------------------------------------------------------------------------------
    def hard_state_saved(self, state: HardState, now: int) -> None:
        """`state` of `effects.hard_state` is durable: whoever it puts on record counts from now on (E8)."""
        self.member.durable_hard = state
        if self.membership.recorded():
            self.elector.recount(now)
            self._unless_damaged(lambda leadership: leadership.recount(now))
            self._settle(now)

    # --- syncs, cuts, reads --------------------------------------------------------------------------------------
    def flushed(self, log_epoch: int, end_index: int, now: int) -> None:
        """Everything up to `end_index` is durable; `log_epoch` is the one in which that sync began (R8)."""
        member = self.member
        if log_epoch != member.log_epoch:
            return
        durable_index = min(end_index, self.store.end_index)
        if member.truncating_from is not None:  # what is about to be cut is not to be counted on, until the cut failed
            durable_index = min(durable_index, member.truncating_from - 1)
        if durable_index <= member.durable_index:
            return
        member.durable_index = durable_index
        member.unsynced.durable(member.durable_index)
        if self.leadership is None:
            self.handler.durable_moved()
        elif member.config.flush is FlushMode.SYNC:  # else no watermark of ours depends on it (R2)
            self.leadership.advance_commit(now)
        self._settle(now)

    def truncated(self, log_epoch: int, cut_index: int, now: int) -> None:
        """The archive and the cut are durable (S4)."""
        member = self.member
        if member.truncating_from is None or log_epoch != member.log_epoch:
            return
        member.truncating_from = None
        member.wrote_since_full = member.short_of_space  # its archive found space
        # A sync that ended meanwhile was ignored (R8); the store knows what it made durable below the cut.
        member.durable_index = min(self.store.durable_index, cut_index - 1)
        member.unsynced.cut(cut_index)
        member.unsynced.durable(member.durable_index)
        member.effects.sync_wanted |= member.durable_index < self.store.end_index
        self.handler.truncated()
        member.event("truncated", now, end_index=self.store.end_index)
        self._settle(now)

    def truncate_failed(self, log_epoch: int, now: int) -> None:
        """The archive could not be written: nothing was cut, the leader will ask again (S4)."""
        member = self.member
        if member.truncating_from is None or log_epoch != member.log_epoch:
            return
        member.truncating_from = None
        # A sync that ended meanwhile was ignored (R8), and no other one may ever come.
        member.durable_index = min(self.store.durable_index, self.store.end_index)
        member.unsynced.durable(member.durable_index)
        member.effects.sync_wanted |= member.durable_index < self.store.end_index
        self.disk_full(True, now)

    def slab_read(self, request: ReadSlab, slab: Slab | None, now: int) -> None:
        """The outcome of `effects.reads`."""
        if self.leadership is not None and request.peer_id in self.leadership.dispatchers:
            self._unless_damaged(
                lambda leadership: leadership.dispatchers[request.peer_id].slab_read(request, slab, now)
            )
            self._settle(now)

    def looked(self, order: LookUp, meta: EntryMeta | None, now: int) -> None:
        """The outcome of `effects.looks`: whoever waited for it goes on."""
        self.member.known_metas.found(order, meta, self.member.log_epoch)
        for peer_id in self.member.others:
            self._unless_damaged(lambda leadership, to=peer_id: leadership.dispatchers[to].pump(now))  # type: ignore[misc]
        self._settle(now)

    # --- damage ---------------------------------------------------------------------------------------------------
    def log_damaged(self, faults: Sequence[Fault], now: int) -> None:
        """A read or a scrub met damage (S6); `fetched`, `slab_read` with None follow where somebody waits for it."""
        self.member.known_metas.forget()
        self.store.note_faults(faults)
        self._settle(now)

    def _watch_damage(self, now: int) -> None:
        """The store's faults may have changed: a leader steps down, ours learns how far we count, repair goes on.

        It all follows from `store.faults`, so a healed member leads, counts and joins again by itself (S6).
        """
        if not self.member.may_lead():
            self._step_down_damaged(now)
        if not self.repair.watch(now):
            return
        if self.leadership is None:
            self.handler.durable_moved()
        self.repair.advance(now)

    def _step_down_damaged(self, now: int) -> None:
        if self.member.role is Role.LEADER:
            text = f"its log is damaged from entry {self.member.faulty_from()} on"
            self.member.change_role(RoleEvent.DEPOSED, now, text)

    def _unless_damaged(self, step: Callable[[Leadership], None]) -> None:
        """A step of the leadership; met damage ends it (`_settle`), so nothing half-done is ever continued."""
        try:
            if self.leadership is not None:
                step(self.leadership)
        except StoreCorrupt as error:
            self.member.note_damage(error)

    def fetched(self, order: FetchLog, slab: Slab | None, now: int) -> None:
        """The outcome of `effects.fetches`."""
        if order.peer_id == self.member.self_id:
            self.naming.fetched(order, slab, now)
        else:
            self.repair.fetched(order, slab)
        self._settle(now)

    def mended(self, log_epoch: int, result: Mended | None, error: str, now: int) -> None:
        """The outcome of `effects.mend`; None where it could not be written, and `error` says why."""
        self.member.known_metas.forget()
        self.repair.mended(log_epoch, result, error, now)
        self._settle(now)
        self.repair.advance(now)

    def repair_now(self, now: int) -> None:
        """A person asks for another try (`POST /repairs`)."""
        self.repair.retry_now(now)

    def scrubbed(self, now: int) -> None:
        """The whole log was read: where it is sound, a fork's reason lies elsewhere, or in both histories (R7)."""
        self.repair.scrubbed(now)
