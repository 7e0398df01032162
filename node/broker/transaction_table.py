"""Transactions that are open: half messages that no op message ends yet, as the two system queues say it.

A half message waits in `RMQ_SYS_TRANS_HALF_TOPIC`; an op message in `RMQ_SYS_TRANS_OP_HALF_TOPIC` (tag `d`, the body
is a queue offset of the half queue) says that it was committed, rolled back or given up. Each check stores a half
message again with a higher count, which takes the place of the one before.

Invariants: what has an op message is not open, in whichever order the two were read; of one transaction (producer
group, unique key and topic) at most one half message is open; where the queues have to be read from never lies behind
what is open.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final

from node.message_store.properties import REAL_TOPIC, TAGS, UNIQ_KEY
from node.message_store.record import MessageRecord, TransactionType

REMOVED_TAG: Final = "d"
CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
IMMUNITY: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PRODUCER_GROUP: Final = "PGROUP"
_OFFSET_DIGITS_MAX: Final = 18
CHECKS_APART: Final = 16  # counts of checks are kept apart up to so many
Key = tuple[str, str, str]


@dataclass(slots=True, eq=False)
class Half:
    """One open transaction's half message. `decision`: it was ended so, and its op message is not stored yet."""

    offset: int  # in the half queue
    place: int  # in the log
    born_ms: int
    checks: int
    immunity_ms: int | None
    key: Key | None
    group: str  # the producers that may decide
    decision: TransactionType | None = None
    lock: asyncio.Lock = field(
        default_factory=asyncio.Lock
    )  # of the transaction: ending and checking exclude each other

    @property
    def class_of_checks(self) -> int:
        """A hostile producer's count makes no class of its own."""
        return min(self.checks, CHECKS_APART)

    def is_due(self, now_ms: int, timeout_ms: int) -> bool:
        """Whether its producer is to be asked. A producer's clock that is ahead delays nothing, as in RocketMQ."""
        age_ms = now_ms - self.born_ms
        return not 0 <= age_ms < (timeout_ms if self.immunity_ms is None else self.immunity_ms)


class HalfTable:
    """See the module's docstring. Of one mastership; both queues are read on from `next_half` and `next_op`."""

    def __init__(self, next_half: int, next_op: int) -> None:
        self.next_half, self.next_op = next_half, next_op
        self.open: dict[int, Half] = {}  # in the order of the queue
        self._by_key: dict[Key, Half] = {}
        self._ended_ahead: set[int] = set()  # op messages whose half message was not read yet
        self._ops: deque[tuple[int, int]] = deque()  # op messages' offsets, and the highest that each ends
        self._by_checks: dict[int, dict[int, Half]] = {}  # each in the order of the queue
        self.by_group: Counter[str] = Counter()

    def take_half(self, record: MessageRecord) -> None:
        """The next one of the half queue."""
        self.next_half = record.queue_offset + 1
        half = half_of(record)
        before = None if half.key is None else self._by_key.get(half.key)
        if before is not None:
            half.decision, half.lock = before.decision, before.lock
            self.drop(before.offset)
        if half.offset in self._ended_ahead:
            self._ended_ahead.discard(half.offset)
            return
        self.open[half.offset] = half
        self._by_checks.setdefault(half.class_of_checks, {})[half.offset] = half
        self.by_group[half.group] += 1
        if half.key is not None:
            self._by_key[half.key] = half

    def take_op(self, record: MessageRecord) -> None:
        """The next one of the op queue. One that cannot be read ends nothing."""
        self.next_op = record.queue_offset + 1
        offsets = ended_by(record)
        for offset in offsets:
            self.drop(offset)
            if offset >= self.next_half:
                self._ended_ahead.add(offset)
        self._ops.append((record.queue_offset, max(offsets, default=-1)))

    def drop(self, offset: int) -> None:
        """It is not open any more."""
        half = self.open.pop(offset, None)
        if half is None:
            return
        del self._by_checks[half.class_of_checks][offset]
        self.by_group[half.group] -= 1
        if not self.by_group[half.group]:
            del self.by_group[half.group]
        if half.key is not None and self._by_key.get(half.key) is half:
            del self._by_key[half.key]

    def find(self, record: MessageRecord) -> Half | None:
        """The open one of the transaction that this half message belongs to, perhaps as an earlier check stored it."""
        found = self.open.get(record.queue_offset)
        key = key_of(record)
        return self._by_key.get(key) if found is None and key is not None else found

    def asked_at_least(self, checks: int) -> int:
        """How many are open though their producers were asked so often; counted up to CHECKS_APART."""
        return sum(len(halves) for asked, halves in self._by_checks.items() if asked >= checks)

    @property
    def oldest_born_ms(self) -> int | None:
        """When the oldest began, by its producer's clock. A check moves a transaction behind those that were not
        checked yet, and keeps the order among those checked as often."""
        return min((next(iter(one.values())).born_ms for one in self._by_checks.values() if one), default=None)

    def begins(self) -> tuple[int, int]:
        """From where both queues have to be read to know all that is open."""
        half = next(iter(self.open), self.next_half)
        while self._ops and self._ops[0][1] < half:
            self._ops.popleft()
        return half, self._ops[0][0] if self._ops else self.next_op


def half_of(record: MessageRecord) -> Half:
    known = record.properties
    immunity, checks = known.get(IMMUNITY, ""), known.get(CHECK_TIMES, "")
    return Half(
        record.queue_offset, record.physical_offset, record.born_timestamp_ms, int(checks) if _is_number(checks) else 0,
        int(immunity) * 1000 if _is_number(immunity) else None, key_of(record),
        known.get(PRODUCER_GROUP, ""),
    )  # fmt: skip


def key_of(record: MessageRecord) -> Key | None:
    known = record.properties
    unique = known.get(UNIQ_KEY)
    return (known.get(PRODUCER_GROUP, ""), unique, known.get(REAL_TOPIC, "")) if unique else None


def ended_by(record: MessageRecord) -> list[int]:
    """The half messages that an op message ends: 4.9 writes one number, 5.x several with commas."""
    if record.properties.get(TAGS) != REMOVED_TAG:
        return []
    texts = record.body.decode("ascii", "replace").split(",")
    return [int(one) for one in texts if _is_number(one)]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _OFFSET_DIGITS_MAX
