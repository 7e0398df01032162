"""`audit --messages` in Spark's workers: the commit log is read by ranges, queues and keys are compared by name.

Two steps. `read_task` reads one range of one replica's commit log and gives what it says should be in each queue and in
the index, packed, one row a queue and a part of the index. Spark brings the rows of one name together, of all
replicas, and `compare_rows` holds them against the files. A message never leaves the worker that read it.

Invariants: tasks get their work by closure as plain JSON values; nothing is taken from the files twice, nothing is kept
in the driver but heads and findings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from node.message_store.checking.facts import DUE_UNIT, KEY, Facts, Rows, facts_of
from node.message_store.checking.findings import Fault, Finding
from node.message_store.checking.index import check_index, rows_of
from node.message_store.checking.queues import Span, check_numbers, check_queue, numbers_in_damage
from node.message_store.checking.verify import MULTI_DISPATCHED, end_finder, name_at, whose_of
from node.message_store.commit_log import Damage
from node.message_store.kept_conf import delay_levels_of
from node.message_store.message_store import MessageStore, StoreKind
from node.protocol.entry import HEAD_BYTES

INDEX_PARTS: Final = 8
FINDINGS_PER_GROUP_MAX: Final = 1000
PACKED_SCHEMA: Final = "kind string, name string, replica long, begin long, data binary"
FOUND_SCHEMA: Final = "found long, findings string"


@dataclass(frozen=True, slots=True)
class Range:
    """A range of one replica's commit log, between borders of files."""

    replica: int
    root: str
    begin: int
    end: int | None
    is_first: bool


@dataclass(frozen=True, slots=True)
class Head:
    """What all workers need to know of a replica's commit log once it has been read."""

    id: str
    root: str
    begin: int
    end: int
    dispatched: int | None
    head_bytes: int
    damage: tuple[tuple[int, int], ...]

    @property
    def span(self) -> Span:
        return Span(self.begin, self.end, self.dispatched)

    @property
    def damages(self) -> list[Damage]:
        return [Damage(offset, size_bytes, "") for offset, size_bytes in self.damage]


def ranges_of(replica: int, store: MessageStore) -> list[Range]:
    """One range a file; at least one, also of an empty log."""
    borders = [file.start for _queue, file in store.log.files] or [0]
    ends: list[int | None] = [*borders[1:], None]
    return [
        Range(replica, str(store.root), low, high, number == 0)
        for number, (low, high) in enumerate(zip(borders, ends, strict=True))
    ]


def packed_rows(one: Range) -> Iterator[tuple[str, str, int, int, bytes]]:
    """(kind, name, replica, begin, data): a head, each queue's due units, each part of the keys.

    The first range of a replica names every queue that has a directory and every part of the index, so that also those
    of which no message is left are compared.
    """
    store = MessageStore(Path(one.root))
    facts = facts_of(store.log.scan(one.begin, one.end), delay_levels_of(store.root))
    yield "head", "", one.replica, one.begin, json.dumps(head_of(facts)).encode()
    units = {name: facts.units[facts.units["queue"] == at] for at, name in enumerate(facts.queues)}
    if one.is_first:
        for topic, ids in store.topics().items():
            units |= {(topic, queue_id): units.get((topic, queue_id), facts.units[:0]) for queue_id in ids}
    for (topic, queue_id), rows in units.items():
        yield "queue", json.dumps([topic, queue_id]), one.replica, one.begin, rows.tobytes()
    for part in range(INDEX_PARTS):
        keys = facts.keys[facts.keys["hash"] % INDEX_PARTS == part]
        if len(keys) or one.is_first:
            yield "index", str(part), one.replica, one.begin, keys.tobytes()


def head_of(facts: Facts) -> dict[str, Any]:
    """What the driver keeps of a range: everything but units and keys."""
    whose = [(offset, *place) for offset, place in whose_of(facts).items()]
    return {
        "messages": facts.messages, "end": facts.end, "bad_bodies": facts.bad_bodies,
        "out_of_place": facts.out_of_place, "damage": [asdict(one) for one in facts.damage], "whose": whose,
    }  # fmt: skip


def read_task(ranges: Sequence[Range], on_range: Callable[[int], None]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function for mapInArrow over the ranges' numbers; `on_range(messages)` counts progress."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        names = [column.split()[0] for column in PACKED_SCHEMA.split(", ")]
        types = [pa.string(), pa.string(), pa.int64(), pa.int64(), pa.binary()]
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for row in packed_rows(ranges[number]):
                    if row[0] == "head":
                        on_range(json.loads(row[4])["messages"])
                    yield pa.RecordBatch.from_arrays(
                        [pa.array([value], type=kind) for value, kind in zip(row, types, strict=True)], names=names
                    )

    return run


def compare_rows(heads: Sequence[Head]) -> Callable[[Any], Any]:
    """The function for applyInArrow over the rows of one name, of all replicas."""

    def run(table: Any) -> Any:
        import pyarrow as pa

        kind, name = table.column("kind")[0].as_py(), table.column("name")[0].as_py()
        parts: dict[int, list[tuple[int, bytes]]] = {}
        for replica, begin, data in zip(
            *(table.column(one).to_pylist() for one in ("replica", "begin", "data")), strict=True
        ):
            parts.setdefault(replica, []).append((begin, data))
        dtype = DUE_UNIT if kind == "queue" else KEY
        due = {
            replica: np.concatenate([np.frombuffer(data, dtype) for _begin, data in sorted(rows)])
            for replica, rows in sorted(parts.items())
        }
        found = compared(heads, kind, name, due)
        listed = json.dumps([finding_json(one, *ids) for one, ids in found[:FINDINGS_PER_GROUP_MAX]])
        return pa.table({"found": pa.array([len(found)], pa.int64()), "findings": pa.array([listed], pa.string())})

    return run


def compared(
    heads: Sequence[Head], kind: str, name: str, due: dict[int, Rows]
) -> list[tuple[Finding, tuple[str, ...]]]:
    """The findings about one queue or one part of the index, each with the replicas it is about."""
    found: list[tuple[Finding, tuple[str, ...]]] = []
    for replica, rows in due.items():
        head = heads[replica]
        store = MessageStore(Path(head.root))
        end_now = end_finder(store)
        if kind == "queue":
            topic, queue_id = json.loads(name)
            if topic.startswith(MULTI_DISPATCHED):
                continue
            queue = store.queue(topic, queue_id)
            damaged = numbers_in_damage(queue, head.damages, head.head_bytes)
            mine = check_numbers(topic, queue_id, rows, partial(name_at, store), damaged)
            mine += check_queue(queue, topic, queue_id, rows, head.span, end_now, head.damages, head.head_bytes)
        else:
            files = {
                file: entries[entries["hash"] % INDEX_PARTS == int(name)]
                for file, one in store.index_files()
                for entries in (rows_of(one.entries),)
            }
            mine = check_index(rows, files, head.span, end_now, head.damages, head.head_bytes)
        found += [(one, (head.id,)) for one in mine]
    if kind == "queue":
        topic, queue_id = json.loads(name)
        found += across(heads, topic, queue_id, due)
    return found


def across(
    heads: Sequence[Head], topic: str, queue_id: int, due: dict[int, Rows]
) -> list[tuple[Finding, tuple[str, ...]]]:
    """The commit logs of two replicas against each other, queue offset by queue offset, as far as both have them."""
    found: list[tuple[Finding, tuple[str, ...]]] = []
    with_rows = [(heads[replica], rows) for replica, rows in due.items() if len(rows)]
    for head, rows in with_rows[1:]:
        first, reference = with_rows[0]
        both, ours, theirs = np.intersect1d(reference["number"], rows["number"], return_indices=True)
        differ = np.zeros(len(both), np.bool_)
        for column in ("offset", "size", "tags_code"):
            differ |= reference[column][ours] != rows[column][theirs]
        if differ.any():
            at = int(np.argmax(differ))
            low, high = int(both[at]), int(both[differ][-1])
            said = [
                tuple(int(row[column]) for column in ("offset", "size", "tags_code"))
                for row in (reference[ours[at]], rows[theirs[at]])
            ]
            count = int(differ.sum())
            detail = (
                f"{first.id} and {head.id} hold different messages: offset, size and tags code {said[0]} and {said[1]}"
                f" at queue offset {low}, {count} in all"
            )
            one = Finding(
                Fault.CQ_MISMATCH, f"consumequeue/{topic}/{queue_id}/", detail, said[0][0], topic, queue_id, low, high,
                count, "the replicas do not hold the same log: after a failover consumers get something else",
            )  # fmt: skip
            found.append((one, (first.id, head.id)))
    return found


def finding_json(one: Finding, *replicas: str) -> dict[str, Any]:
    """One of `findings`. Indexes are of entries, and none is meant: null."""
    row = one.as_json()
    del row["index"]
    return {"class": row.pop("class"), "severity": one.severity, "replicas": list(replicas), "from_index": None,
            "to_index": None, **row}  # fmt: skip


def head_bytes_of(store: MessageStore) -> int:
    """How far in front of a message its entry may begin."""
    return 0 if store.kind is StoreKind.LOCAL else HEAD_BYTES
