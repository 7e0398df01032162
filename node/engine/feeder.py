"""The engine's side of a state machine: reads what the core ordered, hands it over, reports what came of it.

Invariant: damage is reported as a failure, so that the same entry is ordered again; nothing is skipped, and nothing of
an earlier life is handed over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from node.consensus.effects import ApplyLog
from node.consensus.replica import Replica
from node.engine.applier import Applier, Batch
from node.engine.log_reads import LogReads
from node.protocol.codes import ResponseCode
from node.protocol.entry import BytesLike


class Feeder:
    """One engine's. Without an applier nothing is ever ordered, and nothing here is called."""

    def __init__(
        self, replica: Replica, reads: LogReads, applier: Applier | None, now_ns: Callable[[], int],
        step: Callable[[Callable[[], object]], None],
    ) -> None:  # fmt: skip
        """`step` runs something that enters the core, and carries out what follows."""
        self._replica, self._reads, self._applier = replica, reads, applier
        self._now_ns, self._step = now_ns, step

    def start(self) -> None:
        if self._applier is not None:
            self._applier.start(self)

    def stop(self) -> None:
        if self._applier is not None:
            self._applier.stop()

    def reload(self) -> None:
        """The log begins behind a snapshot, which lies among this store's now."""
        if self._applier is not None:
            self._applier.reload()

    def carry_out(self, order: ApplyLog) -> None:
        """Reads what is ordered, from memory or off the loop, and hands it over."""
        self._reads.committed(order.first_index, order.max_bytes, order.last_index, partial(self._found, order))

    def _found(self, order: ApplyLog, code: ResponseCode, count: int, records: BytesLike) -> None:
        if self._applier is None or order.life != self._replica.applying.life:
            return
        first_index = order.first_index
        if code is not ResponseCode.SUCCESS or count == 0:
            self.applied(order.life, first_index - 1, (), f"it cannot be read from this log ({code.name})")
        else:
            last_index = first_index + count - 1
            self._applier.apply(Batch(order.life, first_index, last_index, records, order.results_wanted))

    # --- Reports ------------------------------------------------------------------------------------------------
    def stands(self, index: int, term: int | None, chain: int | None = None) -> int:
        self._step(lambda: self._replica.applying.ready(index, term, self._now_ns(), at_chain=chain))
        return self._replica.applying.life

    def applied(self, life: int, upto_index: int, results: Sequence[bytes | None], error: str = "") -> None:
        self._step(lambda: self._replica.applying.applied(life, upto_index, results, self._now_ns(), error))

    def ended(self, life: int, reason: str) -> None:
        self._step(lambda: self._replica.applying.lost(life, reason, self._now_ns()))
