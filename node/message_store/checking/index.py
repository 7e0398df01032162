"""The index against the keys of the messages in the commit log.

Invariants: keys are compared as often as they occur (a message may have one key twice); an entry of a message that has
expired is no fault, nor is one that points into damaged bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from node.message_store.checking.facts import KEY, Rows, in_damage
from node.message_store.checking.findings import Fault, Finding
from node.message_store.checking.queues import EndNow, Span
from node.message_store.commit_log import Damage


def rows_of(entries: Rows) -> Rows:
    """The entries of an index file as rows that `check_index` compares."""
    rows = np.zeros(len(entries), KEY)
    rows["hash"], rows["offset"] = entries["hash"], entries["offset"]
    return rows


def check_index(
    due: Rows,
    files: Mapping[str, Rows],
    span: Span,
    end_now: EndNow,
    damage: Sequence[Damage] = (),
    head_bytes: int = 0,
) -> list[Finding]:
    """`files`: the rows of each index file by its name. Without any file there is no index, and nothing is missing."""
    if not files:
        return []
    held = np.concatenate(list(files.values()))
    indexed = None
    if span.dispatched is not None:  # the index comes after the queues
        indexed = min(span.dispatched, int(held["offset"].max(initial=0)))
        due = due[due["offset"] < indexed]
    keys, of_due, of_held = _counted(due, held)
    surplus = of_held - of_due
    missing = keys[surplus < 0]
    extra = surplus > 0
    offsets = keys["offset"]
    extra &= offsets >= span.begin
    if indexed is not None:
        extra &= ~((offsets >= indexed) & (offsets < span.end))
    extra &= ~in_damage(offsets, damage, head_bytes)
    unread, end = span.unread(offsets[extra], end_now)
    extra[extra] = ~unread
    newest = max(files)
    found = [
        Finding(
            Fault.INDEX_MISSING, f"index/{newest}",
            f"{count} key{'s' if count > 1 else ''} of the message at offset {offset} in no index file", offset,
            count=count,
        )
        for offset, count in _by_offset(missing, -surplus[surplus < 0])
    ]  # fmt: skip
    for key, times, of_message in zip(keys[extra], surplus[extra], of_due[extra], strict=True):
        name = next(name for name in sorted(files, reverse=True) if (files[name] == key).any())
        offset = int(key["offset"])
        if offset >= end:
            why = f"points behind the end of the commit log at {end}"
        elif of_message:
            why = f"its key is there {int(times)} time{'s' if times > 1 else ''} too often"
        else:
            why = "no message with such a key begins there"
        detail = f"an entry for offset {offset}: {why}"
        found.append(Finding(Fault.INDEX_EXTRA, f"index/{name}", detail, offset, count=int(times)))
    return found


def _counted(due: Rows, held: Rows) -> tuple[Rows, Rows, Rows]:
    """Every row that occurs, in the order of the log, and how often it occurs in either."""
    rows = np.concatenate([due, held])
    order = np.lexsort((rows["hash"], rows["offset"]))
    rows = rows[order]
    begins = np.ones(len(rows), np.bool_)
    begins[1:] = (rows["offset"][1:] != rows["offset"][:-1]) | (rows["hash"][1:] != rows["hash"][:-1])
    groups = np.cumsum(begins) - 1
    count = int(groups[-1]) + 1 if len(groups) else 0
    is_due = order < len(due)
    of_due, of_held = (np.bincount(groups[chosen], minlength=count) for chosen in (is_due, ~is_due))
    return rows[begins], of_due, of_held


def _by_offset(keys: Rows, counts: Rows) -> list[tuple[int, int]]:
    """Missing keys by message, in the order of the log."""
    found: dict[int, int] = {}
    for offset, count in sorted(zip(keys["offset"].tolist(), counts.tolist(), strict=True)):
        found[offset] = found.get(offset, 0) + count
    return list(found.items())
