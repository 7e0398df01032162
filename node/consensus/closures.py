"""Requests that wait for their quorum: pending by term and index, each completed exactly once.

The leader appends and then waits; nothing here knows of single entries. Closures lie in the order of their indexes, so
that a commit completes a run from the left. A time-out or a lost leadership leaves the entry in the log: its fate is
unknown, and the outcome says so (SAFETY C2).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from node.consensus.api import MS, Appended, Applied, Outcome, ReplicaConfig, new_outcome
from node.consensus.configuration import Configuration
from node.consensus.status import ClosureGroupStatus, ClosuresStatus, ClosureStatus
from node.protocol.codes import ResponseCode

PATIENCE = 4  # time-outs: the most that an append may wait while others still complete
EXPIRY_STEP_NS = 50 * MS  # expired closures are looked for at most this often
ITEMS_MAX = 100
SUCCESS = ResponseCode.SUCCESS
YES = Appended.YES
NOT_ASKED = Applied.NOT_ASKED


@dataclass(slots=True)
class Closure:
    """One request's promise. `outcome` is None while it waits."""

    on_done: Callable[[Outcome], None]
    first_index: int = -1
    last_index: int = -1
    term: int = -1
    size_bytes: int = 0
    created_at: int = 0
    deadline: int = 0
    outcome: Outcome | None = None

    def complete(self, outcome: Outcome) -> None:
        """Hands the outcome over; a second time is a bug of the core."""
        if self.outcome is not None:
            raise AssertionError(f"closure {self.first_index}..{self.last_index} completed twice")
        self.outcome = outcome
        self.on_done(outcome)

    def refuse(self, code: ResponseCode, leader_id: str | None, detail: str, retry_after_ns: int = 0) -> None:
        """Nothing was appended."""
        self.complete(Outcome(code, -1, -1, -1, Appended.NOT_APPENDED, leader_id, detail, retry_after_ns))

    def unknown(self, code: ResponseCode, leader_id: str | None, detail: str) -> None:
        """Appended here, but nobody can say whether it stays."""
        indexes = (self.first_index, self.last_index, self.term)
        self.complete(Outcome(code, *indexes, Appended.UNKNOWN, leader_id, detail))


class ClosureTable:
    """The closures of one leadership, within limits in requests, entries and bytes (SAFETY C5)."""

    def __init__(self, config: ReplicaConfig, term: int) -> None:
        self._config = config
        self._term = term
        self.pending: deque[Closure] = deque()
        self._entries = 0
        self._bytes = 0
        self._next_expiry: int | None = None
        self._last_completed: tuple[int, int] | None = None  # (at, took)

    def __len__(self) -> int:
        return len(self.pending)

    @property
    def size_bytes(self) -> int:
        """Of the bodies that wait."""
        return self._bytes

    def room(self) -> tuple[int, int, int]:
        """How many more requests, entries and bytes may wait (SAFETY C5)."""
        config = self._config
        return (
            config.pending_requests_max - len(self.pending),
            config.pending_entries_max - self._entries,
            config.pending_bytes_max - self._bytes,
        )

    def add(self, closure: Closure) -> None:
        """Starts to wait; indexes ascend from one closure to the next."""
        if self.pending and self.pending[-1].last_index >= closure.first_index:
            raise AssertionError(f"closure {closure.first_index} after {self.pending[-1].last_index}")
        self.pending.append(closure)
        self._entries += closure.last_index - closure.first_index + 1
        self._bytes += closure.size_bytes
        if self._next_expiry is None or closure.deadline < self._next_expiry:
            self._next_expiry = closure.deadline

    def _forget(self, closure: Closure) -> None:
        self._entries -= closure.last_index - closure.first_index + 1
        self._bytes -= closure.size_bytes

    def commit(self, committed_index: int, leader_id: str, now: int) -> None:
        """Completes everything up to `committed_index`."""
        pending = self.pending
        closure: Closure | None = None
        while pending and pending[0].last_index <= committed_index:
            closure = pending.popleft()
            self._forget(closure)
            first, last, term = closure.first_index, closure.last_index, closure.term
            closure.complete(new_outcome((SUCCESS, first, last, term, YES, leader_id, "", 0, NOT_ASKED, ())))
        if closure is not None:
            self._last_completed = (now, now - closure.created_at)
        if not pending:
            self._next_expiry = None

    def expire(self, now: int, leader_id: str, slab_time_ns: Callable[[], int] = lambda: 0) -> None:
        """Fails what waited too long, as unknown (WAIT_QUORUM_ACK_TIMEOUT).

        Where a link became slow after it was let in, what moves on is given more time, up to PATIENCE time-outs: its
        client is better served by a late answer than by one that says nothing. Nothing completes while a slab is on its
        way: over such a link for `slab_time_ns`.
        """
        if self._next_expiry is None or now < self._next_expiry:
            return
        timeout_ns = self._config.timing.closure_timeout_ns
        since_ns = None if self._last_completed is None else now - self._last_completed[0]
        moving = since_ns is not None and since_ns < timeout_ns // 2 + slab_time_ns()
        kept: deque[Closure] = deque()
        earliest: int | None = None
        pending, self.pending = self.pending, kept
        for closure in pending:
            if closure.deadline <= now and not (moving and now < closure.created_at + PATIENCE * timeout_ns):
                self._forget(closure)
                closure.unknown(ResponseCode.WAIT_QUORUM_ACK_TIMEOUT, leader_id, "no quorum of acks in time")
            else:
                kept.append(closure)
                earliest = closure.deadline if earliest is None else min(earliest, closure.deadline)
        self._next_expiry = None if earliest is None else max(earliest, now + EXPIRY_STEP_NS)

    def fail_all(self, code: ResponseCode, leader_id: str | None, detail: str) -> None:
        """The leadership ends: every outcome is unknown (SAFETY E6)."""
        pending, self.pending = self.pending, deque()
        self._entries = self._bytes = 0
        self._next_expiry = None
        for closure in pending:
            closure.unknown(code, leader_id, detail)

    def next_deadline(self) -> int | None:
        return self._next_expiry

    def status(self, watermarks: Mapping[str, int], configuration: Configuration, now: int) -> ClosuresStatus:
        """A copy for observers, grouped by the members that the requests wait for.

        Who is missing changes only where a watermark is passed, so it is worked out once a group, not once a request.
        """
        groups: list[ClosureGroupStatus] = []
        items: list[ClosureStatus] = []
        run: list[Closure] = []
        waits: tuple[str, ...] = ()
        same_upto = -1
        for closure in self.pending:
            if closure.last_index > same_upto:
                missing = tuple(sorted(peer for peer, mark in watermarks.items() if mark < closure.last_index))
                reached = [mark for mark in watermarks.values() if mark >= closure.last_index]
                same_upto = min(reached, default=self.pending[-1].last_index)
                if run and missing != waits:
                    groups.append(_group(run, waits, configuration.still_needed(len(watermarks) - len(waits)), now))
                    run = []
                waits = missing
            run.append(closure)
            if len(items) < ITEMS_MAX:
                items.append(_item(closure, waits, now))
        if run:
            groups.append(_group(run, waits, configuration.still_needed(len(watermarks) - len(waits)), now))
        oldest = min((closure.created_at for closure in self.pending), default=None)
        return ClosuresStatus(
            pending=len(self.pending),
            limit=self._config.pending_requests_max,
            pending_entries=self._entries,
            pending_bytes=self._bytes,
            oldest_age_ms=None if oldest is None else (now - oldest) // MS,
            groups=tuple(groups),
            items=tuple(items),
            last_completed_at_ns=None if self._last_completed is None else self._last_completed[0],
            last_completed_took_ns=None if self._last_completed is None else self._last_completed[1],
        )


def _item(closure: Closure, waits: tuple[str, ...], now: int) -> ClosureStatus:
    age_ms = (now - closure.created_at) // MS
    return ClosureStatus(closure.first_index, closure.last_index, closure.term, closure.size_bytes, age_ms, waits)


def _group(run: list[Closure], waits: tuple[str, ...], needed: int, now: int) -> ClosureGroupStatus:
    return ClosureGroupStatus(
        waits_for=waits,
        needed=needed,
        count=len(run),
        first_index=run[0].first_index,
        last_index=run[-1].last_index,
        oldest_age_ms=(now - min(closure.created_at for closure in run)) // MS,
        bytes=sum(closure.size_bytes for closure in run),
        times_out_in_ms=max(0, min(closure.deadline for closure in run) - now) // MS,
    )
