"""`audit --ha`: the commit logs of a master and its slaves against each other, by ranges of bytes, on Spark.

One task reads one file's range of a master and of one slave and compares them (`app/audit/pair_compare.py`); what comes
back are facts, a row a range. Bytes never leave the worker that read them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from app.audit.pair_compare import Compared, Fact, Seen, compare_file
from app.audit.pair_logs import PairLog, reader_of
from app.audit.pair_result import about_logs
from app.audit.replicas import ReplicaSpec

FACTS_PER_PIECE_MAX: Final = 2000
ROW_SCHEMA: Final = "records long, bytes long, same long, found long, facts string"


@dataclass(frozen=True, slots=True)
class Piece:
    """One file of the logs with these numbers: of a master and a slave, or of one that is compared with nothing."""

    logs: tuple[int, ...]
    start: int


def plan(logs: Sequence[PairLog]) -> list[Piece]:
    """Every file of every log at least once."""
    found: list[Piece] = []
    master = logs[0]
    for number, slave in enumerate(logs[1:], start=1):
        if slave.problem:
            continue
        if master.problem or about_logs(master, slave):
            found += [Piece((number,), start) for start in _files(slave)]
            continue
        found += [Piece((0, number), start) for start in sorted({*_files(master), *_files(slave)})]
    if not master.problem and not any(0 in one.logs for one in found):
        found += [Piece((0,), start) for start in _files(master)]
    return found


def _files(log: PairLog) -> list[int]:
    """Those that are there, and those that should be."""
    return list(range(log.begin, log.end, log.file_bytes)) if log.file_bytes else []


def compare_task(
    pieces: Sequence[Piece],
    specs: Sequence[dict[str, Any]],
    logs: Sequence[dict[str, Any]],
    on_piece: Callable[[int, int], None],
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function for mapInArrow over the pieces' numbers; `on_piece(records, bytes)` counts progress."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        known = [PairLog.from_json(one) for one in logs]
        named = [ReplicaSpec.from_json(one) for one in specs]
        for batch in batches:
            for number in batch.column(0).to_pylist():
                one = pieces[number]
                found = compare_file([(known[at], reader_of(known[at], named[at])) for at in one.logs], one.start)
                on_piece(found.records, found.size_bytes)
                yield _row(pa, found)

    return run


def _row(pa: Any, found: Compared) -> Any:
    facts = json.dumps([one.as_json() for one in found.facts[:FACTS_PER_PIECE_MAX]])
    numbers = (found.records, found.size_bytes, found.same_bytes, len(found.facts))
    columns = [*(pa.array([one], pa.int64()) for one in numbers), pa.array([facts], pa.string())]
    return pa.RecordBatch.from_arrays(columns, names=[one.split()[0] for one in ROW_SCHEMA.split(", ")])


@dataclass(slots=True)
class Outcome:
    facts: list[Fact]
    records: int = 0
    same_bytes: int = 0
    dropped: int = 0


def audit_pair(
    session: Any,
    specs: Sequence[ReplicaSpec],
    logs: Sequence[PairLog],
    counters: Callable[[Any, Any, Any], None],
    total: Callable[[int], None],
) -> Outcome:
    """All facts of logs, each read as its spec says. `counters` gets Spark's accumulators, `total` the pieces."""
    pieces = plan(logs)
    total(len(pieces))
    outcome = Outcome([])
    if not pieces:
        return outcome
    done, rows, size_bytes = (session.sparkContext.accumulator(0) for _ in range(3))
    counters(done, rows, size_bytes)

    def on_piece(records: int, read_bytes: int) -> None:
        done.add(1)
        rows.add(records)
        size_bytes.add(read_bytes)

    work = compare_task(pieces, [one.as_json() for one in specs], [one.as_json() for one in logs], on_piece)
    for row in session.range(0, len(pieces), 1, len(pieces)).mapInArrow(work, ROW_SCHEMA).collect():
        outcome.facts += [Fact.from_json(one) for one in json.loads(row["facts"])]
        outcome.records += row["records"]
        outcome.same_bytes += row["same"]
        outcome.dropped += max(0, row["found"] - FACTS_PER_PIECE_MAX)
    return outcome


def excused(facts: Sequence[Fact], logs: Sequence[PairLog], now: Sequence[PairLog]) -> list[Fact]:
    """A log that was cut, or whose files expired, since the audit began is not at fault for what it no longer has."""
    kept: list[Fact] = []
    for fact in facts:
        changed = tuple(
            was.id for was, today in zip(logs, now, strict=True)
            if was.id in fact.logs
            and (today.end < min(was.end, fact.end) or max(was.begin, fact.begin) < today.begin)
        )  # fmt: skip
        if changed and fact.seen is not Seen.UNREAD:
            note = "the log was cut, or its files expired, while the audit ran"
            fact = replace(fact, seen=Seen.UNREAD, logs=changed, note=note, sides=[])
        kept.append(fact)
    return kept
