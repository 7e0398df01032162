"""Leadership leaves a member whose broker takes no messages: while it leads, no broker of the group takes any.

In RocketMQ a broker and its DLedger are one process, so one that has ended or hangs leads no more. Here the engine
leads on. A broker whose dispatch stands still has it hand over by itself (`Broker._look_at_dispatch`); one that hangs
or is gone cannot, and one that has yet to dispatch much is not master for as long, where another one may be in step.

A broker that still hangs when leadership comes back is ended, and its supervisor starts it again: others prefer this
member (`preferred_leaders`), or are no better off. Once: one that starts may be long at it.

Invariants: what is handed over is this member's own leadership, of the term that was looked at; a broker that is only
slow to answer keeps it; whose broker works is not known here, so the other voters have their turns, in the order of the
ids behind this one's; where none of them is better off, the tries come ever more rarely, until this one's is the
master: one that answers while another member leads has shown nothing. Leadership that comes back to a preferred member
shows nothing about the others: it leaves again at once.
"""

from __future__ import annotations

import logging
import time
from typing import Final

from node.control.broker_link import BrokerLink, NotUnderstood, is_busy
from node.control.common import Parts
from node.control.leadership import carry_out
from node.control.operations import end_of
from node.control.problems import Problem
from node.supervised import ask_for_another_broker
from node.views.state import StateView
from node.views.transfer import Transfer

AFTER_S: Final = 5.0  # as long as a broker's own dispatch may stand still; one that was killed is back before
AGAIN_S_MAX: Final = 300.0
PATIENCE_S: Final = 5.0  # for the last question: a machine may be very busy
log = logging.getLogger(__name__)


class BrokerHandOver:
    """`look` once a second."""

    def __init__(self, parts: Parts, broker: BrokerLink) -> None:
        self._parts, self._broker = parts, broker
        self._due_s = self._pause_s = AFTER_S  # after it has taken none for so long
        self._turn = 0
        self._has_left = self._was_ended = False  # leadership, and the broker, within the silence that lasts

    async def look(self, idle_since_s: float | None, *, is_master: bool) -> None:
        """Since when the broker has been silent, or no master though its engine leads (monotonic seconds); None: it is
        as it should be. `is_master`: as it said last."""
        if is_master:
            self._pause_s = AFTER_S
        if idle_since_s is None:
            self._due_s, self._has_left, self._was_ended = self._pause_s, False, False
            return
        if time.monotonic() - idle_since_s < self._due_s:
            return
        state = await self._parts.snapshots.get(StateView)
        others = voters_behind(state)
        if state.engine != "ok" or state.role != "LEADER" or not others or await self._takes_messages():
            return
        if self._has_left and not self._was_ended and self._broker.hangs and ask_for_another_broker():
            self._was_ended = True
            log.error("leadership came back, and this member's broker still gives no answer: it is started again")
        to, self._turn = others[self._turn % len(others)], self._turn + 1
        ended = await end_of(carry_out(self._parts, Transfer(to=to, if_term=state.term)))
        idle_s = time.monotonic() - idle_since_s
        why = "done" if ended["state"] == "done" else ended["problem"]["detail"]
        log.error(
            "this member's broker has taken no messages for %.0f s; leadership is to go to %s: %s", idle_s, to, why
        )
        if ended["state"] == "done":
            self._has_left = True
        if ended["state"] == "done" and state.self_id in self._parts.settings.node.preferred_leaders:
            self._due_s = idle_s
        elif ended["state"] == "done" or self._turn % len(others) == 0:
            self._due_s, self._pause_s = idle_s + self._pause_s, min(2 * self._pause_s, AGAIN_S_MAX)

    async def _takes_messages(self) -> bool:
        try:
            said = await self._broker.broker(PATIENCE_S, patient=True)
        except Problem as problem:
            return is_busy(problem) or isinstance(problem, NotUnderstood)
        return said.role == "MASTER"


def voters_behind(state: StateView) -> list[str]:
    """The others, by id, from the one behind this one on: leaders that all do so let everybody have a turn."""
    ids = sorted(one.id for one in state.peers or () if one.is_voter is not False and one.id != state.self_id)
    own = state.self_id or ""
    return [one for one in ids if one > own] + [one for one in ids if one < own]
