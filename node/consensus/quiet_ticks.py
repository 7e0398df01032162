"""When to tick: as soon as a part of a replica has something to do, and no more often than that.

Silence is counted in ticks of half a heartbeat (SAFETY E6), and a tick may come late: it counts once. While all is well
nobody is silent for longer than a heartbeat, so the ticks until then would count what the next frame takes back, and
each wakes an idle process, which costs it more than the tick. They are left out: a follower first looks when its leader
is overdue, a leader with its own heartbeats.

Invariants: a tick is only ever put off by this, by `rest_ns` at most; nothing else that is due waits for it; of whoever
is overdue every tick is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from node.consensus.entry_handler import EntryHandler
from node.consensus.full_disk import FullDisk
from node.consensus.leader_elector import LeaderElector
from node.consensus.leadership_transfer import LeadershipTransfer
from node.consensus.log_repair import LogRepair
from node.consensus.lost_states import LostStates
from node.consensus.member_state import MemberState
from node.consensus.membership import Membership
from node.consensus.office import Office
from node.consensus.progress import Peers
from node.consensus.settings_change import SettingsChange
from node.protocol.codes import VoterState

NEVER: Final = 1 << 62


class QuietTicks:
    """One per replica. `deadlines`: when parts have something to do next that is neither an election nor a leader's."""

    def __init__(
        self, member: MemberState, peers: Peers, office: Office, elector: LeaderElector, membership: Membership,
        handler: EntryHandler, repair: LogRepair, transfers: LeadershipTransfer, settings: SettingsChange,
        full_disk: FullDisk, lost_states: LostStates, deadlines: tuple[Callable[[], int | None], ...],
    ) -> None:  # fmt: skip
        self._member, self._peers, self._office = member, peers, office
        self._elector, self._membership = elector, membership
        self._handler, self._repair, self._transfers, self._settings = handler, repair, transfers, settings
        self._full_disk, self._lost_states, self._deadlines = full_disk, lost_states, deadlines
        self.ticked_at = 0
        self._others_due_at = 0  # of the deadlines asked last, the first that is not about silence

    def next_deadline(self) -> int:
        """When a tick has something to do next."""
        applying, leadership = self._member.applying, self._office.leadership
        at = NEVER
        for deadline in self._deadlines:
            one = deadline()
            if one is not None and one < at:
                at = one
        if applying is not None:
            at = min(at, applying.next_deadline() or NEVER)
        self._others_due_at = at
        silence_at = leadership.next_deadline() if leadership is not None else self._elector.next_deadline()
        return at if silence_at is None else min(at, silence_at)

    def next_look(self, now: int) -> int:
        """When to tick next: `next_deadline`, or later where until then only silence would be counted."""
        at = self.next_deadline()
        if self._has_more_to_do():
            return min(at, self.ticked_at + self._member.config.timing.tick_ns)
        rests_until = self._rests_until(now)
        return at if rests_until is None else max(at, min(rests_until, self._others_due_at))

    def _rests_until(self, now: int) -> int | None:
        """Until when silence need not be counted; None: it has to be."""
        leadership = self._office.leadership
        if leadership is None:
            spoke_at = self._elector.leader_spoke_at
            return None if spoke_at is None else spoke_at + self._member.config.timing.rest_ns
        end_index = self._member.store.end_index
        if leadership.closures.pending or len(leadership.reads) or not leadership.contact.is_fresh(now):
            return None
        rests = all(peer.is_at_rest(end_index) for peer in self._peers.of.values())
        return leadership.beat_at if rests else None

    def _has_more_to_do(self) -> bool:
        """Whether a part of this member looks at each tick how what it waits for stands."""
        member = self._member
        return (
            bool(member.store.faults or self._repair.known_faults)
            or self._handler.owes_answer
            or self._transfers.current is not None
            or self._settings.under_way
            or self._lost_states.under_way
            or member.disk_full
            or self._full_disk.gave_others_a_try
            or member.hard.group_id is None
            or member.voter_state is not VoterState.VOTER
            or self._membership.target_index is not None
        )
