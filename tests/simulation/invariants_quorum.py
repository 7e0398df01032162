"""Who has a share in what a leader concludes, and what it keeps count of: SAFETY C1, C5, E7, E8.

What a member was when it sent an answer, or when that arrived, is what counts here, by the hard state that was durable
then; the product knows only what it was told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from node.consensus.reads import ALWAYS
from node.protocol.codes import ResponseCode, VoterState
from node.protocol.messages import HeartBeatResponse, PushResponse, ReadIndexResponse, TransferRequest
from tests.simulation.invariants_members import Memberships
from tests.simulation.observer import Observer, Violation

if TYPE_CHECKING:
    from node.consensus.effects import Event
    from node.consensus.leadership import Leadership
    from node.protocol.messages import Message
    from node.store.log_store import HardState
    from tests.simulation.member import Member
    from tests.simulation.world import World

Key = tuple[str, int]  # a member and its incarnation


class Quorums(Observer):
    """See the module's docstring."""

    def __init__(self, members: Memberships) -> None:
        self._members = members
        self._world: World | None = None
        self._states: dict[str, VoterState] = {}  # durable
        self._answered: dict[str, dict[str, int]] = {}  # leader -> peer -> the last frame it answered as a VOTER
        self._targets: dict[Key, tuple[int, str]] = {}  # under which (term, leader) a joining was told its target
        self._under: dict[str, tuple[int, str | None]] = {}  # the term and leader of each member, as its events tell

    def started(self, world: World) -> None:
        self._world = world

    def booted(self, member: Member) -> None:
        assert member.store is not None
        self._states[member.id] = member.store.hard_state.voter_state
        self._answered[member.id] = {}
        self._under[member.id] = member.store.hard_state.term, None

    def persisted(self, member: Member, hard_state: HardState) -> None:
        self._states[member.id] = hard_state.voter_state

    # --- who confirms a leader ------------------------------------------------------------------------------------
    def sent(self, member: Member, to: str, message: Message) -> None:
        if isinstance(message, TransferRequest):
            self._hands_over(member)
        elif isinstance(message, (HeartBeatResponse, PushResponse)):
            self._votes_for(member, to, message.seq)

    def _votes_for(self, member: Member, to: str, seq: int) -> None:
        seen = self._answered.get(to)
        if seen is not None and self._states.get(member.id) is VoterState.VOTER:
            seen[member.id] = max(seen.get(member.id, -1), seq)

    def _hands_over(self, member: Member) -> None:
        """Everybody's answer is still owed by who leads now: nothing uncommitted is handed on (E7)."""
        replica, store = member.replica, member.store
        if replica is not None and store is not None and replica.committed_index != store.end_index:
            text = f"{member.id} hands leadership over at {store.end_index}, committed are {replica.committed_index}"
            raise Violation("transfer_caught_up", text)

    def stepped(self, world: World) -> None:
        for member in world.touched:
            replica = member.replica
            if replica is not None and replica.leadership is not None:
                self._confirmed(member, replica.leadership)
                _room(member, replica.leadership)

    def _confirmed(self, member: Member, leadership: Leadership) -> None:
        seen = self._answered[member.id]
        voters = self._members.voters(member.id)
        by_voters = reached_by_half([ALWAYS if peer == member.id else seen.get(peer, -1) for peer in voters])
        if leadership.reads._confirmed_seq() > by_voters:
            raise Violation("confirmed_by_voters", f"{member.id} takes answers for a quorum's that are not VOTERs'")

    # --- joining --------------------------------------------------------------------------------------------------
    def delivered(self, sender: str, to: str, message: Message) -> None:
        assert self._world is not None
        member = self._world.members[to]
        if isinstance(message, ReadIndexResponse) and message.code is ResponseCode.SUCCESS:
            self._targets[to, member.incarnation] = message.term, sender
        elif isinstance(message, (HeartBeatResponse, PushResponse)):  # on another connection it may say so first
            self._votes_for(self._world.members[sender], to, message.seq)

    def event(self, member: Member, event: Event) -> None:
        """In the order in which it happened: the turn may have gone on into another term since."""
        detail = event.detail
        if event.kind == "term":
            self._under[member.id] = detail["term"], None
        elif event.kind == "leader":
            self._under[member.id] = detail["term"], detail["leader"]
        elif event.kind == "voter_state" and detail["was"] == VoterState.REJOINING.value:
            if "target" not in detail["reason"]:
                return
            reported, under = self._targets.get((member.id, member.incarnation)), self._under[member.id]
            if reported != under:
                text = f"{member.id} votes again under {under}; what it had to reach was told under {reported}"
                raise Violation("joined_under_this_leader", text)


def reached_by_half(values: list[int]) -> int:
    """The highest value that more than half of them reach; reckoned here, not by the code that is on trial."""
    return max(value for value in values if 2 * sum(one >= value for one in values) > len(values))


def _room(member: Member, leadership: Leadership) -> None:
    """C5: whatever does not wait any more has given its room back."""
    closures, config = leadership.closures, member.config
    entries = sum(one.last_index - one.first_index + 1 for one in closures.pending)
    size_bytes = sum(one.size_bytes for one in closures.pending)
    room = (
        config.pending_requests_max - len(closures.pending),
        config.pending_entries_max - entries,
        config.pending_bytes_max - size_bytes,
    )
    if closures.room() != room:
        raise Violation("room_returned", f"{member.id} has room for {closures.room()}; what waits leaves {room}")
