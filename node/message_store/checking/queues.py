"""One consume queue against what the commit log says should be in it.

Invariants: a unit is looked at where it stands, also behind a hole; what points below the log's first byte has expired
and is no fault; what points into damaged bytes says nothing (the damage is a finding of its own).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from node.message_store.checking.facts import Rows, in_damage
from node.message_store.checking.findings import Fault, Finding
from node.message_store.commit_log import Damage
from node.message_store.consume_queue import ConsumeQueue
from node.message_store.queue_units import UNIT_BYTES, UNIT_DTYPE, Units, decode_units, prefill_of
from node.protocol.value_class import value_class


@value_class(slots=True, frozen=True)
class Span:
    """Of the commit log: its first byte, and where the reading of it ended.

    `dispatched`: messages from there on may not have been dispatched yet, for the broker runs or crashed.
    """

    begin: int
    end: int
    dispatched: int | None = None

    def unread(self, offsets: npt.NDArray[np.int64], end_now: EndNow) -> tuple[npt.NDArray[np.bool_], int]:
        """Which of these offsets, from queues or an index, lie where the log was not read for it grew meanwhile; and
        its end, as of now: a broker that runs stores a message first and names it in a queue or an index afterwards."""
        behind = offsets >= self.end
        end = max(self.end, end_now(int(offsets[behind].min()))) if behind.any() else self.end
        return behind & (offsets < end), end


EndNow = Callable[[int], int]
"""Where the commit log ends at this moment; it is given the offset of a message that may be near its end."""


def check_numbers(
    topic: str, queue_id: int, due: Rows, name_at: Callable[[int], str], damaged: npt.NDArray[Any]
) -> list[Finding]:
    """Whether the queue offsets in the commit log are dense and unique. `due` is in the order of the log; `damaged`:
    those of messages that lie in damaged bytes, which is a finding of its own."""
    found: list[Finding] = []
    order = np.argsort(due["number"], kind="stable")
    numbers = due["number"][order]
    for at in np.flatnonzero(np.diff(numbers) == 0):
        first, second = (int(due["offset"][order[at + one]]) for one in (0, 1))
        number = int(numbers[at])
        detail = f"also the message at offset {first} has queue offset {number}"
        found.append(
            Finding(Fault.QUEUE_OFFSET_DUPLICATE, name_at(second), detail, second, topic, queue_id, number, number)
        )
    known = np.union1d(numbers, damaged)
    for at in np.flatnonzero(np.diff(known) > 1):
        low, high = int(known[at]) + 1, int(known[at + 1]) - 1
        place = int(np.searchsorted(numbers, high))
        if place == 0 or place == len(numbers):
            continue  # only damaged ones on one side: they were not read, nor what is between them
        behind = int(due["offset"][order[place]])
        detail = (
            f"the message at offset {behind} has queue offset {int(numbers[place])}, none has one below from {low} on"
        )
        found.append(
            Finding(Fault.QUEUE_OFFSET_GAP, name_at(behind), detail, behind, topic, queue_id, low, high, high - low + 1)
        )
    return found


def numbers_in_damage(queue: ConsumeQueue | None, damage: Sequence[Damage], head_bytes: int) -> npt.NDArray[np.int64]:
    """Queue offsets of messages that lie in damaged bytes, as far as the queue knows them."""
    found = [np.zeros(0, np.int64)]
    for start, units in _pieces(queue) if queue is not None and damage else ():
        inside = in_damage(units["offset"].astype("i8"), damage, head_bytes) & (units["size"] > 0) & ~prefill_of(units)
        found.append(np.flatnonzero(inside) + start)
    return np.concatenate(found)


def check_queue(queue: ConsumeQueue | None, topic: str, queue_id: int, due: Rows, span: Span, end_now: EndNow,
                damage: Sequence[Damage] = (), head_bytes: int = 0) -> list[Finding]:  # fmt: skip
    """Every unit against the message that is due there. `queue` None: there is no such queue."""
    found: list[Finding] = []
    place = _Place(topic, queue_id, queue)
    due = due[np.argsort(due["number"], kind="stable")]
    seen = np.zeros(len(due), np.bool_)
    for start, units in _pieces(queue) if queue is not None else ():
        low, high = (int(one) for one in np.searchsorted(due["number"], [start, start + len(units)]))
        rows = due[low:high]
        seen[low:high] = True
        at = rows["number"] - start
        there = units[at]
        same = (there["offset"] == rows["offset"]) & (there["size"] == rows["size"])
        same &= there["tags_code"] == rows["tags_code"]
        silent = (there["size"] <= 0) | (there["offset"] < 0) | prefill_of(there)
        right = np.zeros(len(units), np.bool_)
        right[at[same]] = True  # of two messages with one queue offset, one is enough
        due_at = np.zeros(len(units), np.bool_)
        due_at[at] = True
        missing = silent & ~right[at]
        other = ~same & ~silent & ~right[at]
        found += _due_findings(Fault.CQ_MISSING, place, rows, missing, there, span)
        found += _due_findings(Fault.CQ_MISMATCH, place, rows, other, there, span)
        offsets = units["offset"].astype("i8")
        extra = (units["size"] > 0) & (offsets >= span.begin) & ~prefill_of(units) & ~due_at
        extra &= ~in_damage(offsets, damage, head_bytes)
        unread, end = span.unread(offsets[extra], end_now)
        extra[extra] = ~unread
        found += _extra_findings(place, start, units, extra, end)
    rows = due[~seen]
    nothing = np.zeros(len(rows), UNIT_DTYPE)
    return found + _due_findings(Fault.CQ_MISSING, place, rows, np.ones(len(rows), np.bool_), nothing, span)


def _pieces(queue: ConsumeQueue) -> Iterator[tuple[int, Units]]:
    """All units of all files, also those that say nothing."""
    for file in queue.queue.files:
        units = decode_units(queue.queue.read(file.start, file.size_bytes))
        if len(units):
            yield file.start // UNIT_BYTES, units


def _runs(chosen: npt.NDArray[np.bool_], numbers: npt.NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Rows first..last of each run of consecutive numbers among the chosen."""
    rows = np.flatnonzero(chosen)
    if not len(rows):
        return
    borders = np.flatnonzero(np.diff(numbers[rows]) != 1) + 1
    for piece in np.split(rows, borders):
        yield int(piece[0]), int(piece[-1])


def _due_findings(
    fault: Fault, place: _Place, rows: Rows, chosen: npt.NDArray[np.bool_], there: Units, span: Span
) -> list[Finding]:
    """Messages that their queue has not, or has something else for."""
    if fault is Fault.CQ_MISSING and span.dispatched is not None:
        chosen = chosen & (rows["offset"] < span.dispatched)
    found: list[Finding] = []
    for first, last in _runs(chosen, rows["number"]):
        low, high, offset = int(rows["number"][first]), int(rows["number"][last]), int(rows["offset"][first])
        if fault is Fault.CQ_MISMATCH:
            says, due = (tuple(int(one) for one in row) for row in (there[first], list(rows[first])[2:]))
            detail = f"the unit says offset, size and tags code {says}, the message {due}"
        else:
            what = "the message" if low == high else f"{high - low + 1} messages, the first"
            why = "has no unit" if place.queue is not None else "has no unit: there is no such queue"
            detail = f"{what} at offset {offset} {why}"
        found.append(place.finding(fault, detail, offset, low, high))
    return found


def _extra_findings(place: _Place, start: int, units: Units, chosen: npt.NDArray[np.bool_], end: int) -> list[Finding]:
    """Units that no message is due for; the commit log ends at `end`."""
    found: list[Finding] = []
    for first, last in _runs(chosen, np.arange(len(units))):
        offset = int(units["offset"][first])
        if offset >= end:
            why = f"it points to offset {offset}, behind the end of the commit log at {end}"
        else:
            why = f"it points to offset {offset}, where no message of this queue and queue offset begins"
        detail = why if first == last else f"{last - first + 1} units; of the first: {why}"
        found.append(place.finding(Fault.CQ_EXTRA, detail, offset, start + first, start + last))
    return found


@value_class(slots=True, frozen=True)
class _Place:
    """The queue that findings are about; `queue` None: there is no such directory."""

    topic: str
    queue_id: int
    queue: ConsumeQueue | None

    def finding(self, fault: Fault, detail: str, offset: int, low: int, high: int) -> Finding:
        """About units `low` to `high`, in the file in which the first of them is, or would be."""
        folder = f"consumequeue/{self.topic}/{self.queue_id}"
        file = self.queue.queue.find(low * UNIT_BYTES) if self.queue is not None else None
        name = f"{folder}/{file.name}" if file is not None else f"{folder}/"
        return Finding(fault, name, detail, offset, self.topic, self.queue_id, low, high, high - low + 1)
