"""Handover: starts a transfer of leadership, on request, to a preferred leader, or because this one cannot write.

What happens then is `leadership_transfer.py`'s; whom it may move to is `transferee.py`'s. Invariant: whoever asks has
an outcome, at once or later.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from node.consensus.api import TransferOutcome
from node.consensus.leadership_transfer import LeadershipTransfer
from node.consensus.member_state import MemberState
from node.consensus.office import Office
from node.consensus.progress import Peers
from node.consensus.transferee import TransfereeChoice
from node.protocol.codes import ResponseCode

RESTS_MAX: Final = 10


class Handover:
    """One per replica."""

    def __init__(
        self, member: MemberState, peers: Peers, office: Office, transfers: LeadershipTransfer, now: int
    ) -> None:
        self._member, self._peers, self._office, self._transfers = member, peers, office, transfers
        self.transferees = TransfereeChoice(member, peers)
        self._preferred_at = now
        self._given_at: int | None = None  # when a preferred leader was last asked to take over, and did
        self._rest_ns = 0

    def ask(
        self, to: str | None, now: int, on_done: Callable[[TransferOutcome], None], deadline_ns: int | None = None,
        if_term: int | None = None, reason: str = "asked for",
    ) -> None:  # fmt: skip
        """Moves leadership; `to` None picks the best peer."""
        member, transfers = self._member, self._transfers
        if self._office.leadership is None:
            code, text = ResponseCode.NOT_LEADER, f"{member.self_id} does not lead"
        elif if_term is not None and if_term != member.term:
            code, text = ResponseCode.INCONSISTENT_TERM, f"the term is {member.term}, not {if_term}"
        elif transfers.transferee_id is not None:
            code, text = ResponseCode.LEADER_TRANSFERRING, f"a transfer to {transfers.transferee_id} is under way"
        else:
            chosen = to or self.transferees.best()
            code, text = self.transferees.judge(chosen)
            if chosen is not None and code is ResponseCode.SUCCESS:
                deadline = member.config.timing.transfer_deadline_ns if deadline_ns is None else deadline_ns
                transfers.start(chosen, now, deadline, on_done, reason)
                self.go_on(now)
                return
        on_done(TransferOutcome(code, to, member.leader_id, member.term, text))

    def go_on(self, now: int) -> None:
        """The next step of the transfer under way."""
        current, leadership = self._transfers.current, self._office.leadership
        if current is None:
            return
        transferee = self._peers.of.get(current.transferee_id)
        if leadership is None or transferee is None:
            self._transfers.leader_known(now)
        elif now >= leadership.reads.promised_until and self._transfers.step(transferee.sound_match_index, now):
            leadership.reads.lease_void = True  # E7

    # --- a preferred leader ---------------------------------------------------------------------------------------
    def elected(self, now: int) -> None:
        """This member leads from now on: it is no use looking for another at once.

        Where a preferred leader had taken over and did not keep it, ever less: it cannot serve (its broker is down, it
        crashes), and each try is an interruption. One that kept it for long begins anew.
        """
        timing = self._member.config.timing
        longest_ns = RESTS_MAX * timing.preferred_again_ns
        came_back = self._given_at is not None and now - self._given_at < 2 * longest_ns
        self._rest_ns = min(max(2 * self._rest_ns, timing.preferred_again_ns), longest_ns) if came_back else 0
        self._preferred_at = now + max(timing.preferred_check_ns, self._rest_ns)

    def prefer_others(self, now: int) -> None:
        """A leader that is not preferred hands over to one that is, when that one is ready."""
        member = self._member
        preferred = member.config.preferred_leaders
        if self._office.leadership is None or now < self._preferred_at or not preferred:
            return
        self._preferred_at = now + member.config.timing.preferred_check_ns
        best = self.transferees.best()
        if best in preferred and member.self_id not in preferred and self._transfers.transferee_id is None:
            self.ask(best, now, partial(self._was_given, now), reason=f"{best} is preferred")

    def _was_given(self, asked_at: int, outcome: TransferOutcome) -> None:
        if outcome.code is ResponseCode.SUCCESS:
            self._given_at = asked_at

    def next_deadline(self) -> int | None:
        leads = self._office.leadership is not None
        return self._preferred_at if leads and self._member.config.preferred_leaders else None
