"""The end that was asked for (SIGTERM): a leader hands its leadership over first, so that clients hardly notice.

To the voter that holds most, then to the next one, WITHIN_NS in all; one that says nothing has half of what is left
while there is another one to ask. What came of it is an event (`handed_over`), with
the reason where nothing did. Invariants: the engine ends in any case, long before its supervisor would kill it
(node/__main__.py: STOP_WITHIN_S); asked a second time it ends at once; who does not lead ends at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from node.consensus.api import MS, TransferOutcome
from node.consensus.replica import Replica
from node.protocol.codes import ResponseCode, Role

WITHIN_NS: Final = 1_000 * MS
# So long a member that does not lead any more goes on telling clients who does: what it has not read when it ends would
# be an unknown outcome to them.
LINGER_S: Final = 0.2
LOOK_EVERY_S: Final = 0.01


class Driver(Protocol):
    """The engine, as far as its end goes."""

    replica: Replica
    now_ns: Callable[[], int]

    def transfer(
        self, to: str | None, deadline_ms: int | None, if_term: int | None, done: Callable[[TransferOutcome], None],
        reason: str = ...,
    ) -> None: ...  # fmt: skip
    def turn_if_wanted(self) -> None: ...
    def note(self, kind: str, severity: str, detail: dict[str, Any]) -> None: ...
    def stop(self) -> None: ...


class Retirement:
    """One per engine; `later(seconds, call)` calls back on its loop."""

    def __init__(self, driver: Driver, later: Callable[[float, Callable[[], None]], object]) -> None:
        self._driver, self._later = driver, later
        self._began_at: int | None = None
        self._term = 0
        self._tried: list[str] = []  # in that order; the last one is asked now
        self._asking = self._ended = False
        self._why = ""

    def begin(self) -> None:
        """Returns at once; the engine's `stop` follows."""
        driver = self._driver
        if self._began_at is not None or driver.replica.role is not Role.LEADER:
            self._end()
            return
        self._began_at, self._term = driver.now_ns(), driver.replica.term
        self._look()

    def _look(self) -> None:
        """The next step, until leadership has moved or nothing is left to try."""
        replica = self._driver.replica
        if self._ended:
            return
        if replica.role is not Role.LEADER and replica.leader_id not in (None, replica.config.self_id):
            self._tell("info", f"{replica.leader_id} leads term {replica.term}", to=replica.leader_id)
        elif self._left_ns() <= 0:
            self._tell("warning", self._why or "no time was left for it")
        elif replica.role is Role.LEADER and replica.transfers.current is None and not self._asking:
            self._ask_next()
        elif self._is_gone():
            self._tell("warning", f"{self._tried[-1]} is gone, and may lead by now")
        if not self._ended:
            self._later(LOOK_EVERY_S, self._look)

    def _left_ns(self) -> int:
        assert self._began_at is not None
        return self._began_at + WITHIN_NS - self._driver.now_ns()

    def _is_gone(self) -> bool:
        """Whether whom we asked cannot tell any more."""
        peers = self._driver.replica.peers.of
        return bool(self._tried) and (self._tried[-1] not in peers or not peers[self._tried[-1]].connected)

    def _ask_next(self) -> None:
        replica = self._driver.replica
        able = [one for one in replica.handover.transferees.by_what_they_hold() if one not in self._tried]
        if not able:
            self._tell("warning" if replica.peers.voters else "info", self._why or self._why_nobody())
            return
        self._tried.append(able[0])
        self._asking = True
        deadline_ms = max(1, self._left_ns() // MS // (2 if len(able) > 1 else 1))
        self._driver.transfer(able[0], deadline_ms, None, self._outcome, "this member stops")
        self._driver.turn_if_wanted()

    def _outcome(self, outcome: TransferOutcome) -> None:
        self._asking = False
        if outcome.code is not ResponseCode.SUCCESS:
            self._why = outcome.detail

    def _why_nobody(self) -> str:
        replica = self._driver.replica
        if not replica.peers.voters:
            return "it is the only voter"
        judge = replica.handover.transferees.judge
        return "; ".join(judge(peer.peer_id)[1] for peer in replica.peers.voters)

    def _tell(self, severity: str, reason: str, to: str | None = None) -> None:
        assert self._began_at is not None
        took_ms = (self._driver.now_ns() - self._began_at) // MS
        was = "leadership is handed over" if to is not None else "leadership is not handed over"
        detail = {"to": to, "from_term": self._term, "took_ms": took_ms, "reason": f"{was}: {reason}"}
        self._driver.note("handed_over" if to is not None else "not_handed_over", severity, detail)
        self._ended = True
        if to is None:
            self._driver.stop()
        else:
            self._later(LINGER_S, self._driver.stop)

    def _end(self) -> None:
        self._ended = True
        self._driver.stop()
