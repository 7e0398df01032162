"""The clients' history against the one log that is left: linearizable, or which operation was not."""

from __future__ import annotations

from collections.abc import Sequence

from tests.process.chaos_clients import Operation
from tests.process.chaos_verdict import Log, Violation


def check_history(operations: Sequence[Operation], logs: Sequence[Log]) -> list[Violation]:
    """Every read saw the log's own entries without a hole, and nobody's end ever went back in real time."""
    if not logs:
        return []
    log = max(logs, key=lambda one: len(one.entries))
    found: list[Violation] = []
    # (time, index): from this moment on the log is known to reach at least this index.
    known: list[tuple[int, int]] = []
    for one in operations:
        if one.outcome == "ok" and one.completed_ns is not None:
            end = one.first_index + len(one.bodies) - 1 if one.kind == "append" else _end_of(one)
            known.append((one.completed_ns, end))
    known.sort()
    at, reached = 0, -1
    for one in sorted(operations, key=lambda operation: operation.invoked_ns):
        while at < len(known) and known[at][0] < one.invoked_ns:
            reached = max(reached, known[at][1])
            at += 1
        if one.outcome != "ok":
            continue
        if one.kind == "append" and one.first_index <= reached:
            found.append(
                Violation("not_linearizable", f"{one.client} appended at {one.first_index}, {reached} was there")
            )
        if one.kind == "read":
            found += _read(one, reached, log)
    return found[:5]


def _end_of(read: Operation) -> int:
    return read.seen[-1][0] if read.seen else -1


def _read(read: Operation, reached: int, log: Log) -> list[Violation]:
    name = f"{read.client} read from {read.from_index} ({read.how})"
    if _end_of(read) < reached and read.from_index <= reached:
        return [
            Violation("stale_read", f"{name} saw the log end at {_end_of(read)}, {reached} was known before it began")
        ]
    for offset, (index, body) in enumerate(read.seen):
        if index != read.from_index + offset:
            return [Violation("read_with_a_hole", f"{name} saw {index} in the place of {read.from_index + offset}")]
        if index >= len(log.entries) or log.entries[index].body != body:
            return [Violation("dirty_read", f"{name} saw an entry at {index} that is not there")]
    return []
