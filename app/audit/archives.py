"""The check of truncation archives: does one hold entries that the group's committed log holds too?

Such an entry should never have been cut: the leader that ordered the cut did not hold an entry that a quorum had. What
a recovery cut by itself (a torn tail) is no such order. Invariant: an entry is known by index and term, as Raft does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from app.audit.blocks import Party
from app.audit.fence import Fence, ReplicaFence, Truncated
from app.audit.records import read_units
from app.audit.segments import ReadFailed


def find_committed(fence: Fence, parties: Sequence[Party]) -> Fence:
    """The fence with `committed_again` filled in."""
    committed = fence.committed_index
    if committed is None or not any(one.truncations for one in fence.readable):
        return fence
    return replace(fence, replicas=tuple(_checked(one, committed, parties) for one in fence.replicas))


def _checked(one: ReplicaFence, committed: int, parties: Sequence[Party]) -> ReplicaFence:
    checked = tuple(_check(record, committed, parties) for record in one.truncations)
    return one if checked == one.truncations else replace(one, truncations=checked)


def _check(record: Truncated, committed: int, parties: Sequence[Party]) -> Truncated:
    # What is at or before the base of a log that was replaced is not lost: that log begins behind it.
    entries = [(index, term) for index, term in record.entries if record.begins_behind < index <= committed]
    if record.leader_id is None or not entries:
        return record
    same = [index for index, term in entries if _term_at(index, parties) == term]
    return replace(record, committed_again=(same[0], same[-1])) if same else record


def _term_at(index: int, parties: Sequence[Party]) -> int | None:
    """The term by the index file of the first replica that holds the entry and can be read."""
    for party in parties:
        if party.fence.holds(index):
            try:
                unit = read_units(party.files, index, index)[0]
            except ReadFailed:
                continue
            if int(unit["index"]) == index:
                return int(unit["term"])
    return None
