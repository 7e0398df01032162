"""Alarms about this member's broker, in the state that its control plane gives: consoles and `status` read them there.

The broker is asked once a second, beside the calls: no state waits for a broker that hangs. Invariants: an alarm stands
once what is wrong has lasted for GRACE_S; `since` is when it was first seen; each consumer group is looked at, a page
of them at a time.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Final, Protocol

from node.background import Background
from node.control.broker_link import BrokerLink, NotUnderstood, is_busy
from node.control.problems import Problem
from node.control.snapshots import now_text
from node.control.stalled_consumers import GONE, StalledConsumers
from node.views.base import TEXT_MAX
from node.views.broker import BrokerSaid, ScheduleSaid, TransactionsSaid
from node.views.message_answers import DISPATCH_BEHIND_MS, OVERDUE_MS
from node.views.state import AlarmView

EVERY_S: Final = 1.0
GRACE_S: Final = 3.0
WITHIN_S: Final = 1.0
GROUPS_EVERY: Final = 10  # looks: a list of all consumer groups is dear
GROUPS_MAX: Final = 1000  # of one page, the most that a broker lists at once; a look is at one page
DOWN: Final = "broker_down"
NOT_MASTER: Final = "broker_not_master"
IDLE: Final = frozenset({DOWN, NOT_MASTER})  # where its engine leads, nobody takes messages
ON_PURPOSE: Final = frozenset({GONE})  # perhaps, so that nobody is woken by it


class Idle(Protocol):
    """See BrokerAlarms."""

    async def __call__(self, idle_since_s: float | None, *, is_master: bool) -> None: ...


class BrokerAlarms:
    """`start` looks for ever; `now` gives the alarms that stand. `idle` is called with each look: since when the broker
    has taken no messages that it should take (monotonic seconds), None: it is as it should be; whether it is master."""

    def __init__(self, link: BrokerLink, self_id: str, idle: Idle | None = None) -> None:
        self._link, self._self_id, self._idle = link, self_id, idle
        self._idle_since_s: float | None = None
        self._background = Background()
        self.said: BrokerSaid | None = None  # what it answered last; None: it does not answer
        self._found: dict[str, tuple[float, str, str]] = {}  # by code: since when twice, and the text
        self._consumers, self._stalled, self._looks = StalledConsumers(), dict[str, str](), 0
        self._cursor: str | None = None  # of the groups that come with the next look

    def start(self) -> None:
        self._background.keep("looks at the broker", self._keep)

    def now(self) -> tuple[AlarmView, ...]:
        now_s = time.monotonic()
        return tuple(
            AlarmView(
                code=code,
                severity="info" if code in ON_PURPOSE else "warning",
                peer_id=None,
                text=text[:TEXT_MAX],
                since=since,
            )
            for code, (began_s, since, text) in self._found.items()
            if now_s - began_s >= GRACE_S
        )

    async def _keep(self) -> None:
        while True:
            await self._look()
            if self._idle is not None:
                is_master = self.said is not None and self.said.role == "MASTER"
                await self._idle(self._idle_since_s, is_master=is_master)
            await asyncio.sleep(EVERY_S)

    async def _look(self) -> None:
        is_known = True
        try:
            self.said = await self._link.broker(WITHIN_S)
            wrong = troubles(self.said, leads=self.said.leader_id == self._self_id)
            wrong |= await self._look_at_consumers(self.said.role == "MASTER")
        except Problem as problem:
            if is_busy(problem):  # others ask it for as much as it answers at once: it is there
                self._found.pop(DOWN, None)
                self._idle_since_s = self._idle_since_s if IDLE & self._found.keys() else None
                return
            self.said, wrong = None, {DOWN: problem.detail.rstrip(".")}
            is_known = not isinstance(problem, NotUnderstood)  # such a one may well take messages
        now_s, before = time.monotonic(), self._found
        self._idle_since_s = (self._idle_since_s or now_s) if is_known and IDLE & wrong.keys() else None
        self._found = {}
        for code, text in wrong.items():
            began_s, since, _ = before.get(code, (now_s, now_text(), ""))
            self._found[code] = began_s, since, text

    async def _look_at_consumers(self, is_master: bool) -> dict[str, str]:
        """Consumers ask the master."""
        if not is_master:
            self._consumers.forget()
            self._stalled, self._looks, self._cursor = {}, 0, None
        elif self._looks % GROUPS_EVERY == 0 or self._cursor is not None:
            with suppress(Problem):  # the next look shows whether it answers at all
                said = await self._link.group_stands(GROUPS_MAX, self._cursor)
                self._consumers.observe(said.items, time.monotonic())
                self._cursor = said.next
                if self._cursor is None:
                    self._stalled = self._consumers.stalled()
        self._looks += is_master
        return self._stalled

    async def close(self) -> None:
        await self._background.stop()


def troubles(said: BrokerSaid, *, leads: bool) -> dict[str, str]:
    """By code, what is wrong with a broker that says this of itself. `leads`: its engine does."""
    found: dict[str, str] = {}
    dispatch = said.dispatch
    if dispatch.stopped_by:
        found["broker_dispatch_stopped"] = f"entry {dispatch.dispatched_index + 1:,}: {dispatch.stopped_by}"
    elif dispatch.behind_ms > DISPATCH_BEHIND_MS:
        entries, seconds = dispatch.behind_entries, dispatch.behind_ms / 1000
        found["broker_dispatch_behind"] = f"{entries:,} committed entries are not in its queues, for {seconds:.0f} s"
    if leads and said.role != "MASTER":
        last = said.role_changes[-1] if said.role_changes else None
        step = f": it is at the step {last.steps[-1].step!r}" if last is not None and last.steps else ""
        found[NOT_MASTER] = f"its engine leads, and no messages are taken{step}"
    if said.damaged_messages:
        which = [one.message or f"offset {one.offset:,}" for one in said.damaged_messages]
        more = f" and {len(which) - 3} more" if len(which) > 3 else ""
        found["broker_message_damaged"] = f"not what was written, by the CRC of the body: {'; '.join(which[:3])}{more}"
    found |= waiting_troubles(said.schedule, said.transactions)
    silent = [one.address for one in said.name_servers if one.registered_ms is None]
    if silent and said.role is not None:
        found["broker_not_registered"] = f"clients that ask {', '.join(silent)} do not learn of it"
    return found


def waiting_troubles(schedule: ScheduleSaid | None, transactions: TransactionsSaid | None) -> dict[str, str]:
    """Of a master: deliveries that are due and not made, transactions that no producer decides."""
    found: dict[str, str] = {}
    late = [] if schedule is None else [one for one in schedule.levels if one.overdue_ms > OVERDUE_MS]
    if late:
        count, seconds = sum(one.waiting for one in late), max(one.overdue_ms for one in late) / 1000
        text = f"{count:,} wait in level {', '.join(str(one.level) for one in late)}"
        found["broker_schedule_behind"] = (
            f"messages are due and not delivered: {text}, the oldest due {seconds:.0f} s ago"
        )
    if transactions is not None and transactions.unanswered:
        unanswered = transactions.unanswered
        gone = [one.producer_group for one in transactions.groups if not one.producers]
        who = f"no producer of {', '.join(gone)} is connected" if gone else "their producers do not decide"
        was = "transaction was" if unanswered == 1 else "transactions were"
        found["broker_transactions_unanswered"] = f"{unanswered:,} {was} asked about three times or more: {who}"
    return found
