"""What an audit of a classic pair says: findings in the words of every audit, and what only one log has.

`from_index` and `to_index` are offsets of the log here (`unit`: "offset"), both of bytes that are meant.

Invariants: a slave that is behind is no finding, nor what one log alone still has or has already; every finding names
the logs that are wrong where that can be said, and who holds the place sound; `consistent` needs a byte that two logs
hold, and that all of what both hold was read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

from app.audit.classify import names
from app.audit.pair_compare import Fact, Seen
from app.audit.pair_logs import PairLog
from app.audit.result import FINDINGS_MAX

SEVERITY: Final = "critical"
PROVES: Final = (
    "Every byte that two logs hold was read from both and compared, master against slave; every record was held"
    " against its lengths, its own place and the CRC of its body, also where one log alone has it. Topic and properties"
    " carry no CRC in RocketMQ's format: damage in them shows where another log holds them otherwise."
)
MEANS: Final[dict[str, str]] = {
    "crc_invalid": "consumers of this log get a body that nobody sent, or an error",
    "record_invalid": "this log cannot be read here: consumers stop, and a restart may cut it",
    "missing": "messages of this range are gone on this broker",
    "body_mismatch": "after a failover consumers get something else",
    "fork": "one of the two took messages that the other never had: what is behind is lost on one side or the other",
    "ahead": "when its master writes on, both hold other messages at the same offsets",
    "stranger": "this is no copy: it must not be promoted, and needs an empty directory to become one",
    "two_masters": "both took messages as master at the same time: one side's are to be brought over by hand",
    "file_size_mismatch": "the files cannot be the same; RocketMQ's slave needs its master's mappedFileSizeCommitLog",
}
SEEN_CLASS: Final = {
    Seen.CRC: "crc_invalid", Seen.RECORD: "record_invalid", Seen.MISSING: "missing", Seen.DIFFERS: "body_mismatch",
    Seen.PARTED: "fork",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PairFinding:
    """As every audit's, of offsets; `count`: records."""

    cls: str
    severity: str
    replicas: tuple[str, ...]
    from_index: int
    to_index: int
    detail: str
    good: tuple[str, ...] = ()
    sides: tuple[dict[str, Any], ...] = ()
    count: int = 0

    def as_json(self) -> dict[str, Any]:
        row: dict[str, Any] = {
            "class": self.cls, "severity": self.severity, "replicas": list(self.replicas),
            "from_index": self.from_index, "to_index": self.to_index, "detail": self.detail,
        }  # fmt: skip
        row |= {"good": list(self.good)} if self.good else {}
        row |= {"sides": list(self.sides)} if self.sides else {}
        return {**row, "means": MEANS[self.cls], "records": self.count}


def finding(cls: str, logs: Sequence[str], begin: int, end: int, detail: str, **more: Any) -> PairFinding:
    return PairFinding(cls, SEVERITY, tuple(logs), begin, max(begin, end - 1), detail, **more)


def about_logs(master: PairLog, slave: PairLog) -> list[PairFinding]:
    """What is known before a byte is compared; where there is anything, comparing them says no more."""
    both = (master.id, slave.id)
    if master.problem or slave.problem or slave.is_empty or master.is_empty:
        return []
    if master.pair and slave.pair and master.pair != slave.pair:
        text = f"{slave.id} is of pair {slave.pair}, {master.id} of {master.pair}"
        return [finding("stranger", (slave.id,), slave.begin, slave.end, text)]
    if master.file_bytes != slave.file_bytes:
        text = f"the files of {slave.id} have {slave.file_bytes:,} bytes, those of {master.id} {master.file_bytes:,}"
        return [finding("file_size_mismatch", both, slave.begin, slave.end, text)]
    return []


def two_masters(master: PairLog, slave: PairLog) -> list[PairFinding]:
    theirs = dict(slave.epochs)
    for number, start in master.epochs:
        other = theirs.get(number)
        # A log that was cut, or is behind, says its own end for a later start.
        if other is not None and other != start and max(other, start) <= min(master.end, slave.end):
            text = f"epoch {number} began at {start:,} on {master.id} and at {other:,} on {slave.id}: two masters"
            return [finding("two_masters", (master.id, slave.id), min(start, other), max(start, other), text)]
    return []


def findings_of(facts: Iterable[Fact], logs: Sequence[PairLog]) -> tuple[list[PairFinding], list[dict[str, Any]]]:
    """Findings in the order of the log, and what could not be read."""
    by_id = {one.id: one for one in logs}
    ordered = sorted(facts, key=lambda one: (one.begin, one.end, one.seen))
    unread = [
        {"replica": log, "from_index": one.begin, "to_index": max(one.begin, one.end - 1), "reason": one.note}
        for one in ordered if one.seen is Seen.UNREAD for log in one.logs
    ]  # fmt: skip
    found: list[PairFinding] = []
    for slave in logs[1:]:
        found += _differences([one for one in ordered if _of_pair(one, logs[0].id, slave.id)], logs[0], slave)
    for fact in _joined_faults(one for one in ordered if one.seen in (Seen.CRC, Seen.RECORD, Seen.MISSING)):
        found.append(_fault(fact))
    for slave in logs[1:]:
        found += about_logs(logs[0], slave) or _ahead(logs[0], slave, found) + two_masters(logs[0], slave)
    assert all(log in by_id for one in found for log in one.replicas)
    return sorted(found, key=lambda one: (one.from_index, one.cls, one.replicas)), unread


def _of_pair(fact: Fact, master: str, slave: str) -> bool:
    return fact.seen in (Seen.DIFFERS, Seen.PARTED) and fact.logs == (master, slave)


def _differences(facts: Sequence[Fact], master: PairLog, slave: PairLog) -> list[PairFinding]:
    """Runs of records that both hold otherwise; one that goes on to the end of either log is a fork."""
    runs: list[Fact] = []
    for fact in facts:
        if runs and runs[-1].seen is Seen.PARTED:
            break  # behind a fork nothing is to be compared
        if runs and runs[-1].end >= fact.begin:
            last = runs[-1]
            runs[-1] = replace(last, seen=fact.seen, end=max(last.end, fact.end), records=last.records + fact.records)
        else:
            runs.append(replace(fact))
    found: list[PairFinding] = []
    for run in runs:
        sides = tuple(run.sides)
        if run.seen is Seen.PARTED or run.end >= min(master.end, slave.end):
            text = (
                f"the logs part at offset {run.begin:,}: {master.id} goes on for {master.end - run.begin:,} bytes,"
                f" {slave.id} for {slave.end - run.begin:,}, each with records of its own"
            )
            end = max(master.end, slave.end)
            found.append(finding("fork", run.logs, run.begin, end, text, sides=sides, count=run.records))
        else:
            what = "1 record" if run.records == 1 else f"{run.records:,} records"
            text = (
                f"{what} from offset {run.begin:,}: {names(run.logs)} hold other bytes, and each its own for sound"
                f"{_where(run)}; two logs that disagree do not say which one is right"
            )
            found.append(finding("body_mismatch", run.logs, run.begin, run.end, text, sides=sides, count=run.records))
    return found


def _where(fact: Fact) -> str:
    return f" (the first byte that differs is at {fact.sides[0]['differs_at']:,})" if fact.sides else ""


def _joined_faults(facts: Iterable[Fact]) -> list[Fact]:
    """The same place seen in several pairs is one fact, of all that are wrong there, with all that are sound."""
    found: dict[tuple[Seen, int, int], Fact] = {}
    for one in facts:
        key = one.seen, one.begin, one.end
        if key not in found:
            found[key] = replace(one)
            continue
        known = found[key]
        known.logs = tuple(dict.fromkeys((*known.logs, *one.logs)))
        known.good = tuple(dict.fromkeys((*known.good, *one.good)))
        known.sides = known.sides if len(known.sides) >= len(one.sides) else one.sides
    return list(found.values())


def _fault(fact: Fact) -> PairFinding:
    good = tuple(log for log in fact.good if log not in fact.logs)
    who = f"{names(good)} {'holds' if len(good) == 1 else 'hold'} it sound" if good else "no other log holds it sound"
    what = "" if fact.records <= 1 else f" and {fact.records - 1:,} more records behind it"
    text = f"{names(fact.logs)}: offset {fact.begin:,}{what}: {fact.note}; {who}"
    cls = SEEN_CLASS[fact.seen]
    sides = tuple(fact.sides)
    return finding(cls, fact.logs, fact.begin, fact.end, text, good=good, sides=sides, count=fact.records)


def _ahead(master: PairLog, slave: PairLog, found: Sequence[PairFinding]) -> list[PairFinding]:
    if master.problem or slave.problem or slave.end <= master.end or slave.is_empty:
        return []
    if any(one.cls == "fork" and slave.id in one.replicas for one in found):
        return []
    text = (
        f"{slave.id} ends at {slave.end:,}, its master {master.id} at {master.end:,}: {slave.end - master.end:,} bytes"
    )
    return [finding("ahead", (slave.id,), master.end, slave.end, f"{text} that its master has not")]


def single_copies(logs: Sequence[PairLog]) -> list[dict[str, Any]]:
    """What one log alone has: read, and compared with nothing."""
    readable = [one for one in logs if one.problem is None and not one.is_empty]
    borders = sorted({place for one in readable for place in (one.begin, one.end)})
    found: list[dict[str, Any]] = []
    for low, high in pairwise(borders):
        holders = [one.id for one in readable if one.begin <= low and high <= one.end]
        if len(holders) == 1:
            found.append({"replica": holders[0], "from_index": low, "to_index": high - 1})
    return found


def replica_json(one: PairLog, number: int) -> dict[str, Any]:
    return {
        "id": one.id, "source": one.source, "problem": one.problem, "role": "slave" if number else "master",
        "kind": "http" if one.version else "directory", "java": None, "committed_index": None,
        "begin_index": None if one.problem else one.begin, "end_index": None if one.problem else one.end - 1,
        "min_offset": None if one.problem else one.begin, "max_offset": None if one.problem else one.end,
        "file_bytes": None if one.problem else one.file_bytes, "pair": one.pair,
        "epoch": one.epochs[-1][0] if one.epochs else None,
    }  # fmt: skip


def result_of(
    logs: Sequence[PairLog],
    facts: Sequence[Fact],
    *,
    records: int,
    same_bytes: int,
    dropped: int,
    seconds: float,
    taken_at: str | None = None,
) -> dict[str, Any]:
    """The JSON that `audit --ha --json` prints. `taken_at`: when it was asked how far the logs go."""
    findings, unread = findings_of(facts, logs)
    unread += [
        {"replica": one.id, "from_index": None, "to_index": None, "reason": one.problem} for one in logs if one.problem
    ]
    replicas = [replica_json(one, number) for number, one in enumerate(logs)]
    verdict = "divergent" if findings else "unauditable" if unread or not same_bytes else "consistent"
    return {
        "verdict": verdict, "depth": "ha", "unit": "offset", "proves": PROVES,
        "fence": {
            "taken_at": taken_at, "committed_index": None,
            "from_index": min((one.begin for one in logs if not one.problem), default=0),
            "to_index": max((one.end for one in logs if not one.problem), default=0) - 1,
        },
        "replicas": replicas,
        "first_divergence": min((one.from_index for one in findings), default=None),
        "single_copy_ranges": single_copies(logs), "unaudited": unread,
        "findings": [one.as_json() for one in findings[:FINDINGS_MAX]],
        "findings_truncated": dropped > 0 or len(findings) > FINDINGS_MAX,
        "findings_total": len(findings) + dropped, "rows": records, "same_bytes": same_bytes,
        "seconds": round(seconds, 3), "summary": summary(verdict, logs, findings, unread, same_bytes),
    }  # fmt: skip


def summary(
    verdict: str, logs: Sequence[PairLog], findings: Sequence[PairFinding], unread: Sequence[dict[str, Any]], same: int
) -> str:
    """One sentence for people."""
    if verdict == "divergent":
        more = f", and {len(findings) - 1:,} more findings" if len(findings) > 1 else ""
        return f"The logs are not the same: {findings[0].detail}{more}."
    if unread:
        return f"Not settled: {unread[0]['replica']} could not be read: {unread[0]['reason']}."
    if not same:
        return "Not settled: no byte is held by two logs."
    parts = [_stand(logs[0], one) for one in logs[1:]]
    return f"{'; '.join(parts)}. Every byte that two logs hold was read from both."


def _stand(master: PairLog, slave: PairLog) -> str:
    low, high = max(master.begin, slave.begin), min(master.end, slave.end)
    if high <= low:
        return f"{slave.id} holds nothing of what {master.id} has"
    behind = f", and ends {master.end - slave.end:,} bytes before it" if slave.end < master.end else ""
    return f"{slave.id} holds the same {high - low:,} bytes as {master.id} (offsets {low:,} to {high - 1:,}){behind}"
