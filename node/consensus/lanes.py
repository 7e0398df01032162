"""Lanes: a lane lets one appender at a time write to a group, and know which of its appends are in the log.

Theory. A server that derives state from the log (queue offsets, say) must know which of its appends are in it, and that
nothing of a predecessor, hung and resumed, comes after it. So it opens a lane at the leader. That voids every earlier
lane, also one of the same member and term, and tells the log's end: whatever an earlier lane appended is at or below
that end, whatever comes later is this lane's. An append over a lane names the lane and the sequence of its first entry,
and is taken whole or not at all; whatever is not taken whole ends the lane, so that no gap can lie behind it. Nothing
is sent again: who lost a lane opens another, and reads from the log, up to its end, what became of the rest.

Within its window (entries and bytes that wait for their outcome) a lane is never refused for load.

Invariants: at most one lane is open, under one leadership and for one connection; sequences count entries from 0 on and
leave none out; a lane that ended takes nothing any more.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from node.consensus.api import Appended, LaneTicket, Outcome, Proposal
from node.consensus.closures import Closure
from node.consensus.member_state import MemberState
from node.protocol.codes import ResponseCode
from node.protocol.entry import EntryError
from node.protocol.group_kind import ENGINES_OWN, NO_PATCH
from node.protocol.position_patch import fits_patch
from node.store.errors import StoreFull

if TYPE_CHECKING:
    from node.consensus.leadership import Leadership

WINDOW_SHARE: Final = 4  # a lane's window is this part of what may wait at all: it comes on top of what others may
REFUSED: Final = ResponseCode.LANE_ENDED
FULL: Final = ResponseCode.LEADER_PENDING_FULL
Refusal = tuple[ResponseCode, str]
Accepted = list[tuple[Proposal, Closure]]


class LaneOpened(NamedTuple):
    """The answer to OPEN_LANE. Where `code` is not SUCCESS, nothing changed, and the numbers are -1."""

    code: ResponseCode
    term: int = -1
    lane: int = -1
    end_index: int = -1  # of the log: nothing of an earlier lane comes after it
    window_entries: int = -1
    window_bytes: int = -1
    last_time_ms: int = -1  # that the entry at `end_index` carries; -1: none
    leader_id: str | None = None
    detail: str = ""


@dataclass(slots=True)
class Lane:
    """One that is open."""

    term: int
    number: int
    origin: Hashable
    last_time_ms: int  # that the log's last entry carries; what the engine itself appends carries the same
    next_sequence: int = 0
    waiting_entries: int = 0
    waiting_bytes: int = 0


class Lanes:
    """One per replica: the lane that is open here, if any."""

    def __init__(self, member: MemberState) -> None:
        self._member, self._kind = member, member.config.kind
        self.current: Lane | None = None
        self.window_entries = self.window_bytes = 1
        self._measure()
        self._numbers = 0
        self._why_ended = "none was opened here"

    def _measure(self) -> None:
        """A lane keeps the window that it was opened with."""
        config = self._member.config
        self.window_entries = max(1, min(config.pending_requests_max, config.pending_entries_max) // WINDOW_SHARE)
        self.window_bytes = max(1, min(config.pending_bytes_max, config.unsynced_bytes_max) // WINDOW_SHARE)

    # --- opening and ending ---------------------------------------------------------------------------------------
    def open(self, origin: Hashable, leadership: Leadership | None, refusal: Refusal | None, now: int) -> LaneOpened:
        """A lane for that connection, and the end of every earlier one; `refusal`: why nobody may write here now."""
        member, store = self._member, self._member.store
        if refusal is None and leadership is not None:
            refusal = self._no_room(leadership)
        if refusal is not None or leadership is None:
            code, detail = refusal or (ResponseCode.NOT_LEADER, "")
            return LaneOpened(code, leader_id=member.leader_id, detail=detail)
        self._measure()
        self._numbers += 1
        self._why_ended = f"lane {self._numbers} was opened after it"
        last_time_ms = member.last_time.milliseconds()
        self.current = Lane(member.term, self._numbers, origin, last_time_ms)
        end_index = store.end_index
        member.event("lane", now, lane=self._numbers, end_index=end_index)
        return LaneOpened(
            ResponseCode.SUCCESS, member.term, self._numbers, end_index, self.window_entries, self.window_bytes,
            last_time_ms, member.self_id,
        )  # fmt: skip

    def _no_room(self, leadership: Leadership) -> Refusal | None:
        member = self._member
        if member.store.end_index < leadership.own_term_from:
            return ResponseCode.LEADER_NOT_READY, f"the first entry of term {member.term} is not in the log yet"
        room_bytes = min(leadership.closures.room()[2], member.config.unsynced_bytes_max - member.unsynced.total)
        if room_bytes < self.window_bytes:
            return FULL, "too much waits for its quorum or its sync already: there is no room for a lane's window"
        return None

    def end(self, why: str) -> None:
        """Whatever was open here is not any more."""
        if self.current is not None:
            self.current, self._why_ended = None, why

    def lost(self, origin: Hashable) -> None:
        """That connection closed, or sent what cannot be read."""
        if self.current is not None and self.current.origin == origin:
            self.end("its connection was lost")

    def _is_open(self, ticket: LaneTicket, origin: Hashable) -> bool:
        lane = self.current
        return lane is not None and (lane.term, lane.number, lane.origin) == (ticket.term, ticket.lane, origin)

    # --- appends --------------------------------------------------------------------------------------------------
    def watch(self, proposal: Proposal) -> None:
        """Before it is proposed: its outcome frees its share of the window, or ends the lane."""
        ticket, deliver = proposal.lane, proposal.on_done
        assert ticket is not None
        count, size_bytes = proposal.count, proposal.size_bytes

        def ended(outcome: Outcome) -> None:
            lane = self.current
            if lane is not None and self._is_open(ticket, proposal.origin):
                if outcome.appended is Appended.YES:
                    lane.waiting_entries -= count
                    lane.waiting_bytes -= size_bytes
                else:
                    self.end(f"an append of it ended with {outcome.code.name}: {outcome.detail}")
            deliver(outcome)

        proposal.on_done = ended

    def take(self, proposal: Proposal, count: int) -> Refusal | None:
        """The last word on whether an append over a lane gets in; if it does, it is counted."""
        ticket, lane, member = proposal.lane, self.current, self._member
        assert ticket is not None
        if lane is None or not self._is_open(ticket, proposal.origin):
            text = f"lane {ticket.lane} of term {ticket.term} is not open for this connection: {self._why_ended}"
            return REFUSED, f"{text}; open another one"
        if ticket.sequence != lane.next_sequence:
            return REFUSED, f"entry {lane.next_sequence} of lane {lane.number} comes next, not {ticket.sequence}"
        size_bytes = proposal.size_bytes
        over = lane.waiting_entries + count > self.window_entries or lane.waiting_bytes + size_bytes > self.window_bytes
        if over and lane.waiting_entries:  # one append alone is always let in
            return FULL, f"more than {self.window_entries} entries or {self.window_bytes} bytes of this lane wait"
        if member.unsynced.total > member.config.unsynced_bytes_max:
            return FULL, "this disk has not synced for long: too much waits for it"
        wrong = self._wrong_with(proposal.bodies, ticket, lane.last_time_ms)
        if wrong is not None:
            return ResponseCode.UNEXPECTED_ARGUMENT, wrong
        lane.next_sequence += count
        lane.waiting_entries += count
        lane.waiting_bytes += size_bytes
        if not self._kind.is_plain:
            lane.last_time_ms = self._kind.time_ms(proposal.bodies[-1])
        return None

    def _wrong_with(self, bodies: Sequence[bytes], ticket: LaneTicket, last_time_ms: int) -> str | None:
        """Judged here, by the leader, and nowhere later."""
        if ticket.channel in ENGINES_OWN:
            return f"entries of channel {ticket.channel} are made by the leader itself"
        if ticket.patch_at != NO_PATCH and not fits_patch(bodies, ticket.patch_at):
            return f"a body is too short for its position at byte {ticket.patch_at}"
        return self._kind.refusal(bodies, ticket.channel, ticket.patch_at, last_time_ms)


def refuse_all(accepted: Accepted, failure: Refusal, leader_id: str) -> None:
    """They were let in, and yet nothing of them is in the log."""
    for _proposal, closure in accepted:
        closure.first_index = closure.last_index = -1
        closure.refuse(failure[0], leader_id, failure[1])


def not_written(accepted: Accepted, error: StoreFull | EntryError, term: int, leader_id: str) -> Refusal:
    """They were let in, and the store refused them; why, for what would have come behind them.

    What it could not take back (`StoreFull.leaves_bytes`) a start may find in the log: nobody can say (SAFETY C2).
    """
    if not isinstance(error, StoreFull):
        failure = ResponseCode.UNEXPECTED_ARGUMENT, str(error)
    else:
        failure = ResponseCode.DISK_FULL, str(error)
        if error.leaves_bytes:
            for _proposal, closure in accepted:
                closure.term = term
                closure.unknown(ResponseCode.DISK_ERROR, leader_id, str(error))
            return failure
    refuse_all(accepted, failure, leader_id)
    return failure


def _form(one: tuple[Proposal, Closure]) -> tuple[int, int]:
    ticket = one[0].lane
    return (0, NO_PATCH) if ticket is None else (ticket.channel, ticket.patch_at)


def runs_of(accepted: Accepted) -> Iterator[tuple[Accepted, int, int]]:
    """What can be written at once, in order: alike in channel and patch."""
    for (channel, patch_at), run in groupby(accepted, _form):
        yield list(run), channel, patch_at
