"""Arithmetic on the faults of a log: which entries are damaged, as sorted and disjoint ranges (SAFETY S6).

Pure functions over tuples of `Fault`. Invariant of every result: ascending, disjoint, and never touching: neighbours
are one fault, because only a chain that links *intact* entries on both sides can heal one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace

from node.store.faults.results import Fault


def fault_at(faults: Sequence[Fault], index: int) -> Fault | None:
    """The fault that holds `index`, if there is one."""
    place = bisect_right(faults, index, key=lambda fault: fault.first_index) - 1
    return faults[place] if place >= 0 and index <= faults[place].last_index else None


def next_fault(faults: Sequence[Fault], index: int) -> Fault | None:
    """The first fault that ends at or behind `index`."""
    return next((fault for fault in faults if fault.last_index >= index), None)


def merged(faults: Iterable[Fault], begin_index: int, end_index: int) -> tuple[Fault, ...]:
    """All of them inside [begin_index, end_index], sorted; what overlaps or touches becomes one."""
    inside = [
        replace(fault, first_index=max(fault.first_index, begin_index), last_index=min(fault.last_index, end_index))
        for fault in faults
        if fault.last_index >= begin_index and fault.first_index <= end_index
    ]
    result: list[Fault] = []
    for fault in sorted(inside, key=lambda one: (one.first_index, one.last_index)):
        if result and fault.first_index <= result[-1].last_index + 1:
            last = result[-1]
            result[-1] = replace(last, last_index=max(last.last_index, fault.last_index))
        else:
            result.append(fault)
    return tuple(result)


def cut(faults: Sequence[Fault], cut_index: int) -> tuple[Fault, ...]:
    """What is left of them when the log ends before `cut_index`."""
    return merged(faults, 0, cut_index - 1)


def without(faults: Sequence[Fault], healed: Fault) -> tuple[Fault, ...]:
    """What of them is outside the range that was healed."""
    left: list[Fault] = []
    for fault in faults:
        if fault.first_index < healed.first_index:
            left.append(replace(fault, last_index=min(fault.last_index, healed.first_index - 1)))
        if fault.last_index > healed.last_index:
            left.append(replace(fault, first_index=max(fault.first_index, healed.last_index + 1)))
    return tuple(left)


def _range(fault: Fault) -> str:
    if fault.first_index == fault.last_index:
        return f"entry {fault.first_index}"
    return f"entries {fault.first_index}..{fault.last_index}"


def in_words(faults: Sequence[Fault], most: int = 5) -> str:
    """For alarms and refusals: "entries 5..7 (crc_invalid), entry 12 (missing) and 3 more ranges"."""
    named = [f"{_range(one)} ({one.kind})" for one in faults[:most]]
    more = len(faults) - most
    return ", ".join(named) + (f" and {more} more range{'s' if more > 1 else ''}" if more > 0 else "")
