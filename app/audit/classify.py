"""The audit's classifier: facts become findings, each with its class, severity and sentence. Pure.

Invariants: a class has the one severity of the table (`position_mismatch` alone is milder on a Java replica); what is
above the committed index is innocent only while the committed index is *known* for every replica involved; with two
replicas that disagree nobody is blamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from app.audit.fence import Fence, Truncated, coverage
from app.audit.observe import Fact, Seen, join

SEVERITIES: Final[dict[str, str]] = {
    "missing": "critical",
    "term_mismatch": "critical",
    "body_mismatch": "critical",
    "crc_invalid": "critical",
    "fork": "critical",
    "record_invalid": "critical",
    "index_record_mismatch": "critical",
    "truncated_committed": "critical",
    "state_mismatch": "warning",
    "position_mismatch": "warning",
    "uncommitted_divergence": "info",
    "lagging": "info",
    "trimmed": "info",
}
SEVERITY_ORDER: Final = ("critical", "warning", "info")


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference. `replicas`: whom it is about (the bad one where that is known); `good`: who holds it sound."""

    cls: str
    severity: str
    replicas: tuple[str, ...]
    from_index: int
    to_index: int
    detail: str
    good: tuple[str, ...] = ()
    sides: tuple[dict[str, Any], ...] = ()

    def as_json(self) -> dict[str, Any]:
        row: dict[str, Any] = {
            "class": self.cls,
            "severity": self.severity,
            "replicas": list(self.replicas),
            "from_index": self.from_index,
            "to_index": self.to_index,
            "detail": self.detail,
        }
        if self.good:
            row["good"] = list(self.good)
        if self.sides:
            row["sides"] = list(self.sides)
        return row


@dataclass(frozen=True, slots=True)
class Unaudited:
    """A range of a replica about which the audit says nothing, and why."""

    replica: str
    from_index: int
    to_index: int
    reason: str

    def as_json(self) -> dict[str, Any]:
        return {
            "replica": self.replica, "from_index": self.from_index, "to_index": self.to_index, "reason": self.reason
        }  # fmt: skip


def span(low: int, high: int) -> str:
    return f"entry {low:,}" if low == high else f"entries {low:,} to {high:,}"


def names(replicas: Iterable[str]) -> str:
    listed = list(replicas)
    return listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} and {listed[-1]}" if listed else "nobody"


def finding(cls: str, replicas: Sequence[str], low: int, high: int, detail: str, **more: Any) -> Finding:
    return Finding(cls, more.pop("severity", SEVERITIES[cls]), tuple(replicas), low, high, detail, **more)


def classify(facts: Iterable[Fact], fence: Fence) -> tuple[list[Finding], list[Unaudited]]:
    """All findings of an audit, worst first and then by index, and what could not be read."""
    joined = join(facts)
    findings: list[Finding] = []
    unaudited = [Unaudited(f.replicas[0], f.from_index, f.to_index, f.note) for f in joined if f.seen is Seen.UNREAD]
    for fact in joined:
        findings.extend(_from_fault(fact, fence))
    divergences = [f for f in joined if f.seen is Seen.DIFFERS]
    for region in _regions(divergences):
        findings.extend(_from_region(region, fence))
    findings.extend(_from_histories(joined, fence))
    findings.extend(_from_extent(fence, {r for f in findings if f.cls == "fork" for r in f.replicas}))
    findings.extend(_from_archives(fence))
    return worst_first(findings), unaudited


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Worst first, and then by index."""
    return sorted(findings, key=lambda f: (SEVERITY_ORDER.index(f.severity), f.from_index, f.cls, f.replicas))


def _good_text(fact: Fact) -> str:
    if not fact.good:
        return "no other replica holds it sound"
    return f"{names(fact.good)} {'holds' if len(fact.good) == 1 else 'hold'} it sound"


def _from_fault(fact: Fact, fence: Fence) -> list[Finding]:
    low, high = fact.from_index, fact.to_index
    bad = fact.replicas
    what = f"{names(bad)}: {span(low, high)}"
    note = f" ({fact.note})" if fact.note else ""
    match fact.seen:
        case Seen.CRC:
            text = f"{what}: the body does not match its own CRC{note}; {_good_text(fact)}"
            return [finding("crc_invalid", bad, low, high, text, good=fact.good)]
        case Seen.RECORD:
            text = f"{what}: the record is broken{note}; {_good_text(fact)}"
            return [finding("record_invalid", bad, low, high, text, good=fact.good)]
        case Seen.CHAIN:
            text = f"{what}: the record does not keep the chain{note}; {_good_text(fact)}"
            return [finding("record_invalid", bad, low, high, text, good=fact.good)]
        case Seen.FILLER:
            text = f"{what}: the blank record behind it, at the end of the data file, is broken"
            return [finding("record_invalid", bad, low, high, text)]
        case Seen.INDEX:
            text = f"{what}: the index file disagrees with the sound record in the data file"
            return [finding("index_record_mismatch", bad, low, high, text, good=fact.good)]
        case Seen.MISSING:
            return _missing(fact, fence)
        case Seen.POSITION:
            severity = "info" if fence.replica(bad[0]).java else "warning"
            text = f"{what}: the same content at another position{note}"
            return [finding("position_mismatch", bad, low, high, text, severity=severity)]
        case Seen.UNREAD | Seen.DIFFERS | Seen.HISTORY:
            return []  # `classify` judges these together, not each by itself


def _missing(fact: Fact, fence: Fence) -> list[Finding]:
    """A hole at or below the commit is `missing`; above it, inside the replica's own range, it is a broken log."""
    low, high = fact.from_index, fact.to_index
    committed = fence.committed_for(fact.replicas)
    edge = high if committed is None else min(high, committed)
    found: list[Finding] = []
    if low <= edge:
        text = f"{names(fact.replicas)}: {span(low, edge)}: a hole inside the replica's range; {_good_text(fact)}"
        found.append(finding("missing", fact.replicas, low, edge, text, good=fact.good))
    if edge < high:
        start = max(low, edge + 1)
        text = f"{names(fact.replicas)}: {span(start, high)}: no record, above the committed index {committed:,}"
        found.append(finding("record_invalid", fact.replicas, start, high, text, good=fact.good))
    return found


def _regions(differences: Sequence[Fact]) -> list[list[Fact]]:
    """Differences that follow each other without a gap, whoever is on which side."""
    regions: list[list[Fact]] = []
    for fact in differences:
        if regions and regions[-1][-1].to_index + 1 >= fact.from_index:
            regions[-1].append(fact)
        else:
            regions.append([fact])
    return regions


def _sides(fact: Fact, fence: Fence, low: int) -> tuple[dict[str, Any], ...]:
    rows = []
    for number, side in enumerate(fact.sides):
        end = max(fence.end_within(fence.replica(replica)) for replica in side)
        rows.append({"replicas": list(side), "term": fact.terms[number], "entries_alone": end - low + 1})
    return tuple(rows)


def _from_region(region: list[Fact], fence: Fence) -> list[Finding]:
    first, low, high = region[0], region[0].from_index, region[-1].to_index
    involved = sorted({replica for fact in region for replica in fact.replicas})
    committed = fence.committed_for(involved)
    if committed is not None and low > committed:
        text = (
            f"{names(involved)} hold different {span(low, high)}, above the committed index {committed:,}: the next"
            " COMPARE resolves it"
        )
        return [finding("uncommitted_divergence", involved, low, high, text, sides=_sides(first, fence, low))]
    side_ends = sorted(max(fence.end_within(fence.replica(r)) for r in side) for side in first.sides)
    if not first.same_terms and high >= side_ends[-2]:
        return [_fork(first, low, side_ends[-1], involved, fence, committed)]
    found: list[Finding] = []
    for fact in region:
        edge = fact.to_index if committed is None else min(fact.to_index, committed)
        if fact.from_index <= edge:
            found.append(_mismatch(replace(fact, to_index=edge), fence))
        if edge < fact.to_index:
            start = max(fact.from_index, edge + 1)
            text = f"{names(fact.replicas)} hold different {span(start, fact.to_index)}, above the committed index"
            found.append(finding("uncommitted_divergence", fact.replicas, start, fact.to_index, text))
    return found


def _fork(first: Fact, low: int, high: int, involved: list[str], fence: Fence, committed: int | None) -> Finding:
    sides = _sides(first, fence, low)
    parts = "; ".join(
        f"{names(side['replicas'])} in term {side['term']} {'holds' if len(side['replicas']) == 1 else 'hold'}"
        f" {side['entries_alone']:,} entries alone"
        for side in sides
    )
    known = "is unknown" if committed is None else f"{committed:,} is not below it"
    text = f"the logs part at index {low:,} in different terms and the committed index {known}: {parts}"
    return finding("fork", involved, low, high, text, sides=sides)


def _mismatch(fact: Fact, fence: Fence) -> Finding:
    cls = "body_mismatch" if fact.same_terms else "term_mismatch"
    what = "content of one term" if fact.same_terms else "terms"
    parts = " against ".join(
        f"{names(side)} (term {fact.terms[number]})" for number, side in enumerate(fact.sides)
    )  # fmt: skip
    verdict = "" if len(fact.replicas) > 2 else "; two replicas that disagree do not say which one is right"
    text = f"{span(fact.from_index, fact.to_index)} disagree in {what}: {parts}{verdict}"
    sides = tuple({"replicas": list(side), "term": fact.terms[n]} for n, side in enumerate(fact.sides))
    return finding(cls, fact.replicas, fact.from_index, fact.to_index, text, sides=sides)


def _from_histories(facts: Sequence[Fact], fence: Fence) -> list[Finding]:
    """Equal entries on different chains count only where no difference below explains them."""
    seen = (Seen.DIFFERS, Seen.CHAIN, Seen.CRC, Seen.RECORD, Seen.MISSING, Seen.UNREAD)
    found: list[Finding] = []
    listed_already: set[tuple[str, ...]] = set()
    for fact in facts:
        if fact.seen is not Seen.HISTORY or fact.replicas in listed_already:
            continue
        below = [
            f
            for f in facts
            if f.seen in seen and f.from_index <= fact.from_index and set(f.replicas) & set(fact.replicas)
        ]
        listed_already.add(fact.replicas)
        if below:
            continue
        text = (
            f"{names(fact.replicas)} hold equal {span(fact.from_index, fact.to_index)} on different chains: their logs"
            f" parted before index {fact.from_index:,}"
        )
        found.append(finding("fork", fact.replicas, fact.from_index, fact.to_index, text))
    return found


def _from_extent(fence: Fence, forked: set[str]) -> list[Finding]:
    found: list[Finding] = []
    low, high = fence.from_index, fence.to_index
    if high < low or len(fence.readable) < 2:
        return found
    for replica in fence.readable:
        begin, end = replica.begin_index, replica.end_index
        if replica.empty or end < low:
            # Its log may begin behind a snapshot or a base, which stand for what lies before: that is not behind.
            lacks = max(low, begin)
            if lacks <= high:
                text = f"{replica.id} holds nothing of {span(lacks, high)}"
                found.append(finding("lagging", (replica.id,), lacks, high, text))
            if begin > low:
                text = f"{replica.id} begins at {begin:,}, and holds nothing of {span(low, min(begin - 1, high))}"
                found.append(finding("trimmed", (replica.id,), low, min(begin - 1, high), text))
            continue
        if end < high and replica.id not in forked:
            text = f"{replica.id} ends at {end:,}, {high - end:,} entries before the others"
            found.append(finding("lagging", (replica.id,), end + 1, high, text))
        if begin > low:
            text = f"{replica.id} begins at {begin:,}, {begin - low:,} entries after the others"
            found.append(finding("trimmed", (replica.id,), low, begin - 1, text))
    return found


def _from_archives(fence: Fence) -> list[Finding]:
    return [
        finding(
            "truncated_committed", (replica.id,), low, high,
            f"{replica.id} truncated {span(low, high)} on {record.time or 'an unknown day'}"
            f" ({record.reason or 'no reason recorded'}; leader {record.leader_id or 'unknown'}): {why}",
        )
        for replica in fence.readable
        for record in replica.truncations
        for low, high, why in _committed_part(record, fence)
    ]  # fmt: skip


def _committed_part(record: Truncated, fence: Fence) -> list[tuple[int, int, str]]:
    """Which archived entries were committed: by the archive's own word, or because they stand in the log today."""
    low, high, why = max(record.from_index, record.begins_behind + 1), -1, ""
    known = record.committed_index
    if known is not None and known >= low:
        high, why = min(record.to_index, known), f"its committed index was {known:,} then"
    elif record.committed_again is not None:
        low, high = record.committed_again
        why = "the group's committed log holds these very entries"
    low = max(low, fence.asked_from or 0)
    high = high if fence.asked_to is None else min(high, fence.asked_to)
    return [(low, high, why)] if low <= high else []


def single_copy_ranges(fence: Fence) -> list[dict[str, Any]]:
    """What one replica alone holds: checked against itself, compared with nothing."""
    return [
        {"replica": ids[0], "from_index": low, "to_index": high} for low, high, ids in coverage(fence) if len(ids) == 1
    ]
