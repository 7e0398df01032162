"""`audit --messages`: whole message stores, replica by replica and against each other, on Spark.

The answer has the fields of every audit. What is compared is commit log against consume queues against index of one
replica, and the queues' messages between replicas; a single replica is compared with itself.

Invariants: `divergent` = any critical finding; `unauditable` = none, but a replica could not be read; the findings of a
replica are those of `store verify` there, class by class.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from app.audit.message_tasks import (
    FOUND_SCHEMA,
    PACKED_SCHEMA,
    Head,
    compare_rows,
    finding_json,
    head_bytes_of,
    ranges_of,
    read_task,
)
from app.audit.replicas import ReplicaSpec
from node.message_store.checking.facts import Facts
from node.message_store.checking.findings import Finding
from node.message_store.checking.metadata import check_metadata
from node.message_store.checking.verify import about_files, about_records, dispatched_upto, index_faults
from node.message_store.commit_log import Damage
from node.message_store.errors import MessageStoreError
from node.message_store.message_store import MessageStore

FINDINGS_MAX: Final = 1000
SEVERITY_ORDER: Final = ("critical", "warning", "info")
PROVES: Final = (
    "Every message of each commit log was read and held against every unit of the consume queues and every entry of the"
    " index on the same disk, and against the other replicas' messages by topic, queue and queue offset. Bodies are"
    " vouched for by their own CRC; they were not compared between replicas (audit without --messages does that)."
)


@dataclass(slots=True)
class Replica:
    """One store of an audit; `problem` where it cannot be read."""

    id: str
    source: str
    store: MessageStore | None = None
    problem: str | None = None
    messages: int = 0
    end: int = 0
    facts: Facts = field(default_factory=Facts)
    whose: list[tuple[int, str, int, int]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id, "source": self.source, "problem": self.problem,
            "kind": self.store.kind.value if self.store is not None else None,
            "min_offset": self.store.log.min_offset if self.store is not None else None,
            "max_offset": self.end if self.store is not None else None,
            "messages": self.messages if self.store is not None else None,
        }  # fmt: skip


def opened(specs: Sequence[ReplicaSpec]) -> list[Replica]:
    """The stores that can be read, and why the others cannot."""
    found: list[Replica] = []
    for number, spec in enumerate(specs):
        one = Replica(spec.id or Path(spec.location).name or f"store-{number}", spec.location)
        if any(other.id == one.id for other in found):
            one.id = f"{one.id}-{number}"
        try:
            one.store = MessageStore(Path(spec.location))
        except (MessageStoreError, OSError) as error:
            one.problem = str(error)
        found.append(one)
    return found


def audit_messages(
    session: Any, replicas: Sequence[Replica], counters: Callable[[Any, Any, Any], None], total: Callable[[int], None]
) -> tuple[list[dict[str, Any]], int]:
    """All findings, and how many of them are not listed. `counters` gets Spark's accumulators, `total` the ranges."""
    ranges = [
        one for number, replica in enumerate(replicas) if replica.store is not None
        for one in ranges_of(number, replica.store)
    ]  # fmt: skip
    total(len(ranges))
    if not ranges:
        return [], 0
    context = session.sparkContext
    done, rows, size_bytes = (context.accumulator(0) for _ in range(3))
    counters(done, rows, size_bytes)

    def on_range(messages: int) -> None:
        done.add(1)
        rows.add(messages)

    numbers = session.range(0, len(ranges), 1, len(ranges))
    packed = numbers.mapInArrow(read_task(ranges, on_range), PACKED_SCHEMA).persist()
    try:
        for row in packed.where("kind = 'head'").orderBy("replica", "begin").collect():
            take_head(replicas[row["replica"]], json.loads(bytes(row["data"])))
        dispatched = {
            number: dispatched_upto(one.store)
            for number, one in enumerate(replicas) if one.store is not None
        }  # fmt: skip
        heads = [head_for(one, dispatched.get(number)) for number, one in enumerate(replicas)]
        groups = packed.where("kind != 'head'").groupBy("kind", "name")
        compared = groups.applyInArrow(compare_rows(heads), FOUND_SCHEMA).collect()
    finally:
        packed.unpersist()
    findings = [one for row in compared for one in json.loads(row["findings"])]
    dropped = sum(int(row["found"]) for row in compared) - len(findings)
    for replica in replicas:
        findings += [finding_json(one, replica.id) for one in findings_of_files(replica)]
    return findings, dropped


def take_head(replica: Replica, head: dict[str, Any]) -> None:
    """Ranges come in the order of the log."""
    replica.messages += head["messages"]
    replica.end = max(replica.end, head["end"])
    replica.facts.bad_bodies += head["bad_bodies"]
    replica.facts.out_of_place += [(offset, says) for offset, says in head["out_of_place"]]
    replica.facts.damage += [Damage(**one) for one in head["damage"]]
    replica.whose += [(offset, topic, queue_id, number) for offset, topic, queue_id, number in head["whose"]]


def head_for(replica: Replica, dispatched: int | None) -> Head:
    if replica.store is None:
        return Head(replica.id, "", 0, 0, None, 0, ())
    log = replica.store.log
    end = replica.end or log.min_offset
    damage = tuple((one.offset, one.size_bytes) for one in replica.facts.damage)
    return Head(
        replica.id, str(replica.store.root), log.min_offset, end, dispatched, head_bytes_of(replica.store), damage,
    )  # fmt: skip


def findings_of_files(replica: Replica) -> list[Finding]:
    """What needs no Spark: files, records that the ranges named, configuration."""
    store = replica.store
    if store is None:
        return []
    queues = {(one.topic, one.queue_id): one for one in store.queues()}
    whose = {offset: (topic, queue_id, number) for offset, topic, queue_id, number in replica.whose}
    found = about_files(store) + about_records(store, replica.facts, whose)
    return found + index_faults(store) + check_metadata(store, queues)


def result_of(
    replicas: Sequence[Replica], findings: list[dict[str, Any]], dropped: int, seconds: float
) -> dict[str, Any]:
    """The JSON that `audit --messages --json` prints."""
    findings.sort(
        key=lambda one: (
            SEVERITY_ORDER.index(one["severity"]), one["replicas"], one["class"], one["topic"] or "",
            one["queue_id"] or 0, one["queue_offset"] or 0, one["offset"] or 0,
        )
    )  # fmt: skip
    critical = [one for one in findings if one["severity"] == "critical"]
    unread = [one for one in replicas if one.problem is not None]
    verdict = "divergent" if critical else "unauditable" if unread else "consistent"
    messages = sum(one.messages for one in replicas)
    if critical:
        first = critical[0]
        more = f", and {len(critical) - 1:,} more critical findings" if len(critical) > 1 else ""
        summary = f"Not sound: {', '.join(first['replicas'])}: {first['class']}: {first['detail']}{more}."
    elif unread:
        summary = f"Not settled: {unread[0].id} could not be read: {unread[0].problem}."
    elif findings:
        total, classes = len(findings) + dropped, ", ".join(sorted({one["class"] for one in findings}))
        summary = f"Commit log and consume queues agree in {len(replicas)} replica(s); warnings: {total:,} ({classes})."
    else:
        summary = f"Commit log, consume queues and index agree in {len(replicas)} replica(s)."
    return {
        "verdict": verdict,
        "depth": "messages",
        "proves": PROVES,
        "fence": {"replicas": [one.as_json() for one in replicas]},
        "replicas": [one.as_json() for one in replicas],
        "first_divergence": min((one["offset"] for one in critical if one["offset"] is not None), default=None),
        "single_copy_ranges": [],
        "unaudited": [
            {"replica": one.id, "from_index": None, "to_index": None, "reason": one.problem} for one in unread
        ],
        "findings": findings[:FINDINGS_MAX],
        "findings_truncated": dropped > 0 or len(findings) > FINDINGS_MAX,
        "findings_total": len(findings) + dropped,
        "rows": messages,
        "seconds": round(seconds, 3),
        "summary": summary,
    }
