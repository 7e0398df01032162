"""Moving leadership to a chosen member, with a deadline and an outcome in every case (SAFETY E7).

Theory. Writes pause, the transferee catches up, and when it holds everything (and everything is committed, so that no
request ends as unknown) the leader hands it a ticket that lets its campaign through although the leader is alive.
Until then nothing is lost by giving up; past the deadline writes go on, and a late campaign wins or loses by its term
like any other. A transfer outlives the leadership: its outcome is known when somebody leads a higher term.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from node.consensus.api import MS, TransferOutcome
from node.consensus.member_state import MemberState
from node.consensus.status import TransferStatus
from node.protocol.codes import ResponseCode, Role
from node.protocol.messages import Message, TransferRequest, TransferResponse, TransferTicket


class Phase(StrEnum):
    """How far a transfer has come."""

    CATCHING_UP = "catching_up"
    TAKING_OVER = "taking_over"


@dataclass(slots=True)
class Transfer:
    """The one under way."""

    transferee_id: str
    term: int
    started_at: int
    deadline_at: int
    on_done: Callable[[TransferOutcome], None]
    phase: Phase = Phase.CATCHING_UP
    ticket: TransferTicket | None = None
    ordered_at: int = 0


class LeadershipTransfer:
    """One per replica."""

    def __init__(self, member: MemberState) -> None:
        self._member = member
        self.current: Transfer | None = None
        self._handed_out: TransferTicket | None = None

    @property
    def transferee_id(self) -> str | None:
        return None if self.current is None else self.current.transferee_id

    @property
    def pauses_writes(self) -> bool:
        """Only while this member still leads the term in which the transfer began."""
        current = self.current
        return current is not None and self._member.role is Role.LEADER and current.term == self._member.term

    def start(
        self, transferee_id: str, now: int, deadline_ns: int, on_done: Callable[[TransferOutcome], None], reason: str
    ) -> None:
        """All checks were made: writes pause from now on."""
        member = self._member
        self.current = Transfer(transferee_id, member.term, now, now + deadline_ns, on_done)
        member.event("transfer", now, to=transferee_id, phase=Phase.CATCHING_UP.value, term=member.term, reason=reason)

    def step(self, transferee_match: int, now: int) -> bool:
        """The leader's progress: hands out the ticket once the transferee holds everything; True when it does so."""
        current, member = self.current, self._member
        if current is None or not self.pauses_writes or now >= current.deadline_at:
            return False  # past its deadline it ends within this turn, and what is appended then is not held there
        end = member.store.end_index
        if transferee_match != end or member.committed_index != end:
            return False
        if current.phase is Phase.TAKING_OVER and now < current.ordered_at + member.config.timing.heartbeat_ns:
            return False
        if current.ticket is None:
            current.ticket = TransferTicket(member.term, current.transferee_id, f"{member.rng.getrandbits(64):016x}")
            self._handed_out = current.ticket
            current.phase = Phase.TAKING_OVER
            member.event("transfer", now, to=current.transferee_id, phase=current.phase.value, term=member.term)
        current.ordered_at = now
        request = TransferRequest(member.next_seq(), member.term, current.transferee_id, end, current.ticket)
        member.send(current.transferee_id, request)
        return True

    def may_leave(self, message: Message, now: int) -> bool:
        """Whether what had to wait for a record may leave now: an order only as if it were given just now (E7)."""
        if not isinstance(message, TransferRequest):
            return True
        current, member = self.current, self._member
        if current is None or not self.pauses_writes or current.ticket != message.ticket or now >= current.deadline_at:
            return False
        return message.take_leadership_index == member.store.end_index == member.committed_index

    def ticket_is_ours(self, ticket: TransferTicket) -> bool:
        """Whether this member, as leader, handed out exactly that ticket."""
        return ticket == self._handed_out

    def handle_answer(self, sender: str, answer: TransferResponse, now: int) -> None:
        """The transferee refused: the transfer is over at once."""
        current = self.current
        if current is None or sender != current.transferee_id or answer.term > current.term:
            return
        if answer.code is not ResponseCode.SUCCESS:
            self._finish(answer.code, f"{sender} refused to take leadership ({answer.code.name})", now)

    def leader_known(self, now: int) -> None:
        """Somebody leads: if the term moved on, the transfer has its outcome."""
        current, member = self.current, self._member
        if current is None or member.leader_id is None or member.term <= current.term:
            return
        if member.leader_id == current.transferee_id:
            self._finish(ResponseCode.SUCCESS, f"{member.leader_id} leads term {member.term}", now)
        else:
            self._finish(
                ResponseCode.TAKE_LEADERSHIP_FAILED, f"{member.leader_id} leads term {member.term} instead", now
            )

    def transferee_lost(self, peer_id: str, now: int) -> None:
        """Its connection closed before the order was sent: nothing was handed out, give up at once."""
        current = self.current
        if current is not None and current.transferee_id == peer_id and current.phase is Phase.CATCHING_UP:
            self._finish(ResponseCode.TAKE_LEADERSHIP_FAILED, f"the connection to {peer_id} was lost", now)

    def tick(self, now: int) -> None:
        """Past the deadline writes go on."""
        current, member = self.current, self._member
        if current is None or now < current.deadline_at:
            return
        if self.pauses_writes:
            text = f"{current.transferee_id} did not take over in time ({current.phase}); writes go on"
            self._finish(ResponseCode.TAKE_LEADERSHIP_FAILED, text, now)
        else:
            self._finish(ResponseCode.TIMEOUT, f"nobody is known to lead after term {member.term}", now)

    def abandon(self, detail: str, now: int) -> None:
        """This member stops."""
        if self.current is not None:
            self._finish(ResponseCode.TIMEOUT, detail, now)

    def _finish(self, code: ResponseCode, detail: str, now: int) -> None:
        current, member = self.current, self._member
        assert current is not None
        self.current = None
        member.event(
            "transfer", now, "info" if code is ResponseCode.SUCCESS else "warning",
            to=current.transferee_id, phase="done", code=int(code), detail=detail,
            took_ms=(now - current.started_at) // MS,
        )  # fmt: skip
        current.on_done(TransferOutcome(code, current.transferee_id, member.leader_id, member.term, detail))

    def next_deadline(self) -> int | None:
        return None if self.current is None else self.current.deadline_at

    def status(self) -> TransferStatus | None:
        current = self.current
        if current is None:
            return None
        return TransferStatus(current.transferee_id, current.phase.value, current.started_at, current.deadline_at)


def judge_take_leadership(member: MemberState, sender: str, request: TransferRequest) -> ResponseCode:
    """The transferee's side: whether to campaign on that order."""
    ticket = request.ticket
    if request.term != member.term:
        return ResponseCode.INCONSISTENT_TERM
    if sender != member.leader_id or member.role is not Role.FOLLOWER:
        return ResponseCode.INCONSISTENT_LEADER
    if ticket is None or request.transferee_id != member.self_id or ticket.transferee_id != member.self_id:
        return ResponseCode.UNEXPECTED_ARGUMENT
    able = member.may_lead() and member.truncating_from is None
    if not member.has_vote or not able:
        return ResponseCode.ILLEGAL_MEMBER_STATE
    if member.store.end_index < request.take_leadership_index or member.disk_full:
        return ResponseCode.TAKE_LEADERSHIP_FAILED
    return ResponseCode.SUCCESS
