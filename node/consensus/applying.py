"""Applying: which committed entries a state machine gets next, and what it answered.

`committed` is a promise about the log; `applied` is what a state machine has taken in, by its own word. A group that is
a log alone has no `Applying`: there an entry is applied when it is committed.

Theory. An applier says where it stands (the last entry it applied, that entry's term and chain), whenever it starts;
what this process remembers does not count. That is held against the log first: a state of another history, such as a
snapshot of another group's, is neither fed nor asked. From there it is fed one order at a time, each a range of
committed entries that the driver reads from the store again: what lags costs an index, never memory. Each start is a
*life*, and a report belongs to the life of its order; so in one life every entry is applied once, in order, and across
lives the applier's own position decides. An entry that cannot be applied is tried again with a back-off, and never
skipped.

Invariants: an order holds committed entries only; orders of one life continue each other without a gap; a report of
another life changes nothing; a closure that waits for its result completes exactly once: with the result, or as
committed with the result unknown (its leadership or its patience ended, or the life that knew it).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from node.consensus.api import Appended, Applied, Outcome
from node.consensus.closures import Closure
from node.consensus.effects import ApplyLog
from node.consensus.member_state import MemberState
from node.consensus.status import ApplierStatus
from node.protocol.packed_bodies import PackedBodies, size_of
from node.store.errors import ColdEntry, StoreCorrupt

APPLY_ENTRIES_MAX: Final = 4096  # in one order
APPLY_BYTES_MAX: Final = 1024 * 1024
RESULTS_BYTES_MAX: Final = 8 * 1024 * 1024  # of one request; its answer has to fit a frame
ALARMS: Final = ("apply_failed", "applier_down", "applier_behind", "applier_diverged")

Deliver = Callable[[Outcome], None]


@dataclass(slots=True, eq=False)
class Waiting:
    """A request that waits for its result; `results` are those of its first entries, which may be applied before the
    last ones are committed. `outcome`: as it was committed; until then None, and there is no deadline."""

    first_index: int
    last_index: int
    deliver: Deliver
    outcome: Outcome | None = None
    deadline: int = 0
    results: Sequence[bytes] = ()
    result_bytes: int = 0
    taken: int = 0

    def take(self, results: Sequence[bytes | None]) -> None:
        """Of its next entries, mostly of all of them. What is too long altogether is given up at once: it is
        everybody's memory."""
        self.taken += len(results)
        if type(results) is PackedBodies:
            kept: Sequence[bytes] = results
        else:
            kept = [one for one in results if one is not None]
        self.result_bytes += size_of(kept)
        if len(kept) < len(results):
            self.result_bytes = RESULTS_BYTES_MAX + 1
        self.results = [*self.results, *kept] if self.results else kept
        if self.result_bytes > RESULTS_BYTES_MAX:
            self.results = ()

    def forget(self) -> None:
        self.results = ()
        self.taken = self.result_bytes = 0

    def complete(self) -> None:
        if self.result_bytes > RESULTS_BYTES_MAX:
            self.unknown(f"the state machine gave none (None), or over {RESULTS_BYTES_MAX} bytes: ask for fewer")
            return
        assert self.outcome is not None
        results = tuple(self.results) if type(self.results) is list else self.results
        self.deliver(self.outcome._replace(applied=Applied.YES, results=results))

    def unknown(self, why: str) -> None:
        """The entries stay; what applying them answered is not known here, and may never be."""
        assert self.outcome is not None
        text = f"committed, but the result of applying it is unknown: {why}"
        self.deliver(self.outcome._replace(applied=Applied.UNKNOWN, detail=text))


class Applying:
    """One member's applier, as the core sees it; see the module's docstring."""

    def __init__(self, member: MemberState) -> None:
        self._member = member
        self.life = 0  # how often an applier said where it stands; 0: not yet
        self._at: int | None = None  # the last entry that it applied; None: there is none, or it has not said
        self._at_term: int | None = None  # of that entry, until it was compared with the log's
        self._at_chain: int | None = None  # the same
        self._order: ApplyLog | None = None  # the one that is with it
        self._retry_at: int | None = None
        self._failures = 0
        self._last_error: str | None = None
        self._refused = False  # it stands where this log cannot feed it
        self.needs_state_from = -1  # up to which entry a state has to reach at least, where the own one is lost
        self._asked: dict[
            Waiting, None
        ] = {}  # in the order of the log: what is not committed yet, or not all of it ...
        self._asked_upto = -1  # ... the last entry of any
        self._waiting: deque[Waiting] = deque()
        self._now = 0

    @property
    def applied_index(self) -> int | None:
        """None: not known. It may stand above what this member knows to be committed: it can outlive an engine."""
        return None if self._at is None else min(self._at, self._member.committed_index)

    @property
    def failing(self) -> str:
        """Why the entry behind its position is not applied, while that is tried again; empty: it is."""
        return self._last_error or "" if self._failures else ""

    @property
    def unfit(self) -> str:
        """Why nothing may be asked of its state: it is not one of this log, or that is not known yet; empty: it is."""
        if self._refused:
            return self._last_error or "its state is not one of this log"
        if self._is_compared:
            return ""
        return f"its state goes up to entry {self._at}, which was not compared with the log yet"

    @property
    def _is_compared(self) -> bool:
        return self._at_term is None and self._at_chain is None

    # --- what the applier says ----------------------------------------------------------------------------------
    def ready(self, index: int, term: int | None, now: int, *, at_chain: int | None = None) -> int:
        """An applier starts: it has applied everything up to `index`, an entry of `term` and with that chain (None: it
        does not know). The life in which it is fed from there.
        """
        self._now = now
        self.life += 1
        self._order, self._retry_at, self._failures, self._last_error = None, None, 0, None
        self._at, self._refused = max(index, -1), False
        self._at_term, self._at_chain = (term, at_chain) if index >= 0 else (None, None)
        self.needs_state_from = -1
        for alarm in ALARMS:
            self._member.clear_alarm(alarm, now)
        self._forget_results()
        self._note_progress()
        self._feed(now)
        return self.life

    def lost(self, life: int, reason: str, now: int) -> None:
        """It ended; nothing is applied until another one says where it stands."""
        if life != self.life and self._at is not None:
            return  # another one stands by now
        self._order = self._retry_at = self._at = None
        self._last_error = reason
        self._member.alarm("applier_down", f"nothing is applied: {reason}", now)

    def log_replaced(self, now: int) -> None:
        """The log begins behind a snapshot, which the applier is to load: nothing is applied until then."""
        self._now = now
        self._order = self._retry_at = self._at = self._at_term = self._at_chain = None
        self._refused, self.needs_state_from = False, -1
        self._last_error = "it loads the snapshot behind which its log begins"
        self._forget_results()

    def applied(self, life: int, upto_index: int, results: Sequence[bytes | None], now: int, error: str = "") -> None:
        """Of the order of that life everything up to `upto_index` is applied, which answered `results`, one an entry
        (None: one that was too long).

        `error`: why the entry behind that could not be; without one at least an entry was applied.
        """
        order = self._order
        if order is None or life != order.life:
            return  # of an applier that started again since: it said itself where it stands
        lowest = order.first_index if not error else order.first_index - 1
        if not lowest <= upto_index <= order.last_index:
            raise AssertionError(f"applied up to {upto_index} of {order.first_index}..{order.last_index}")
        self._now = now
        self._order = None
        if upto_index >= order.first_index:
            self._at = upto_index
            self._note_progress()
            self._answer(order.first_index, upto_index, results)
            if self._failures:
                self._failures, self._last_error = 0, None
                self._member.clear_alarm("apply_failed", now)
        if error:
            self._failed(upto_index + 1, error, now)
        else:
            self._feed(now)

    def _failed(self, index: int, error: str, now: int) -> None:
        timing = self._member.config.timing
        wait_ns = min(timing.apply_retry_min_ns << min(self._failures, 16), timing.apply_retry_max_ns)
        self._failures += 1
        self._last_error = error
        self._retry_at = now + wait_ns
        self._member.alarm("apply_failed", f"entry {index} is not applied: {error}", now)

    # --- feeding it ---------------------------------------------------------------------------------------------
    def committed(self, now: int) -> None:
        """The committed index moved."""
        self._now = now
        self._note_progress()
        self._feed(now)

    def _feed(self, now: int) -> None:
        member = self._member
        if self._at is None or self._order is not None or self._retry_at is not None or self._refused:
            return
        last_index = min(member.committed_index, self._at + APPLY_ENTRIES_MAX)
        if last_index < self._at or not self._fits_log(now) or last_index == self._at:
            return
        first_index = self._at + 1
        wanted = first_index <= self._asked_upto
        self._order = ApplyLog(self.life, first_index, last_index, APPLY_BYTES_MAX, wanted)
        member.effects.apply = self._order

    def _fits_log(self, now: int) -> bool:
        """Whether this log has what comes next, and in its place the entry that the applier applied last."""
        member, store, at = self._member, self._member.store, self._at
        assert at is not None
        if at + 1 < store.begin_index:
            text = (
                f"it applied entries up to {at}, and this log begins at {store.begin_index}: the leader is asked for a"
                " snapshot; where no member has that state, restore a back-up"
            )
            self._refuse("applier_behind", text, now)
            self.needs_state_from = store.base.index
            return False
        if self._is_compared or member.damaged_at(at):
            self._at_term = self._at_chain = None
            return True
        held_chain = None
        if self._at_chain is not None:
            try:
                meta = member.meta(at)
            except ColdEntry:
                return False  # the driver looks; `looked` follows
            except StoreCorrupt:
                meta = None
            held_chain = None if meta is None else meta.chain
        term, at_chain, self._at_term, self._at_chain = self._at_term, self._at_chain, None, None
        held_term = store.base.term if at == store.base.index else store.term_at(at)
        if term not in (None, held_term):
            what = f"it applied an entry {at} of term {term}, here that entry is of term {held_term}"
        elif None not in (at_chain, held_chain) and at_chain != held_chain:
            what = f"it applied another entry {at} than this log has: its chain is {at_chain}, here it is {held_chain}"
        else:
            return True
        text = f"{what}; its snapshots are of another history: move them away, and start it again"
        self._refuse("applier_diverged", text, now)
        return False

    def looked(self, index: int, found: bool, now: int) -> None:
        """The driver has looked at an entry; where nothing can be read there is nothing to compare with."""
        if not self._is_compared:
            if index == self._at and not found:
                self._at_chain = None
            self._feed(now)

    def _refuse(self, alarm: str, text: str, now: int) -> None:
        self._refused = True
        self._last_error = text
        self._member.alarm(alarm, text, now)

    def _note_progress(self) -> None:
        """What the next checkpoint says; while nobody knows, what it said before."""
        applied_index = self.applied_index
        store = self._member.store
        if applied_index is None:
            applied_index = store.applied_index
        store.note_progress(self._member.committed_index, applied_index)

    # --- requests that wait for their result --------------------------------------------------------------------
    @property
    def is_full(self) -> bool:
        """Whether too many wait already (SAFETY C5)."""
        return len(self._asked) + len(self._waiting) >= self._member.config.pending_requests_max

    def wait(self, closure: Closure) -> None:
        """This closure was accepted, and completes with its result."""
        waiting = Waiting(closure.first_index, closure.last_index, closure.on_done)

        def on_done(outcome: Outcome) -> None:
            del self._asked[waiting]
            if outcome.appended is Appended.YES:
                self._wait(waiting, outcome)
            else:
                waiting.deliver(outcome)

        closure.on_done = on_done
        self._asked[waiting] = None
        self._asked_upto = max(self._asked_upto, closure.last_index)

    def _wait(self, waiting: Waiting, outcome: Outcome) -> None:
        waiting.outcome = outcome
        waiting.deadline = self._now + self._member.config.timing.closure_timeout_ns
        applied = 0 if self._at is None else max(0, self._at - waiting.first_index + 1)
        if applied != waiting.taken:
            waiting.unknown("it was applied before this member knew that it is committed")
        else:
            self._waiting.append(waiting)

    def _answer(self, first_index: int, upto_index: int, results: Sequence[bytes | None]) -> None:
        """Each waiting request takes the results of its own entries; whole ones complete, in the order of the log."""
        queue = self._waiting
        for waiting in chain(queue, self._asked):
            if waiting.first_index > upto_index:
                break
            begin = max(waiting.first_index, first_index) - first_index
            end = min(waiting.last_index, upto_index) - first_index + 1
            if begin < end and results:
                waiting.take(results[begin:end])
        while queue and queue[0].last_index <= upto_index:
            waiting = queue.popleft()
            if waiting.taken == waiting.last_index - waiting.first_index + 1:
                waiting.complete()
            else:
                waiting.unknown("the applier gave none")

    def _forget_results(self) -> None:
        """Another life: what it stands behind was applied in one that cannot tell its results any more."""
        kept: deque[Waiting] = deque()
        queue, self._waiting = self._waiting, kept
        for waiting in self._asked:
            waiting.forget()
        for waiting in queue:
            waiting.forget()
            if self._at is not None and waiting.first_index <= self._at:
                waiting.unknown("the applier started again")
            else:
                kept.append(waiting)

    def leadership_ended(self, reason: str) -> None:
        """Whoever waits here gets what is known: its entries are committed (SAFETY E6, C2)."""
        queue, self._waiting = self._waiting, deque()
        self._asked_upto = -1
        for waiting in queue:
            waiting.unknown(reason)

    # --- time, looking ------------------------------------------------------------------------------------------
    def tick(self, now: int) -> None:
        """Another try at what failed; the end of somebody's patience."""
        self._now = now
        while self._waiting and self._waiting[0].deadline <= now:
            self._waiting.popleft().unknown("it was not applied in time")
        if self._retry_at is not None and now >= self._retry_at:
            self._retry_at = None
            self._feed(now)

    def next_deadline(self) -> int | None:
        patience = self._waiting[0].deadline if self._waiting else None
        if patience is None or self._retry_at is None:
            return self._retry_at if patience is None else patience
        return min(patience, self._retry_at)

    def status(self) -> ApplierStatus:
        """A copy for observers."""
        order = self._order
        return ApplierStatus(
            applied_index=self.applied_index,
            life=self.life,
            applying_from_index=None if order is None else order.first_index,
            applying_to_index=None if order is None else order.last_index,
            waiting=len(self._waiting),
            failures=self._failures,
            last_error=self._last_error,
        )


def wait_for_result(member: MemberState, closure: Closure) -> None:
    """This closure completes once its entries are applied; in a log alone that is when they are committed."""
    if member.applying is not None:
        member.applying.wait(closure)
        return
    deliver = closure.on_done

    def on_done(outcome: Outcome) -> None:
        deliver(outcome._replace(applied=Applied.YES) if outcome.appended is Appended.YES else outcome)

    closure.on_done = on_done
