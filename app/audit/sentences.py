"""The sentences of an audit's result: how much was found equal on whom, what was checked against CRCs. Pure.

Invariants: entries count as "the same" only where two replicas hold them and no finding says that they differ; a check
is claimed only of data that carries what is checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from app.audit.classify import Finding, names, span
from app.audit.fence import Fence, ReplicaFence, coverage

Range = tuple[int, int]
RANGES_SHOWN: Final = 3
INDEX_MAX: Final = (1 << 63) - 1
SAME: Final = {
    "chain": "were written the same {}; their disks were not read",
    "digest": "say that they hold the same {}",
    "bytes": "hold the same {}, every byte read",
}
ALONE: Final = {"bytes": "read and compared with nothing"}
NOT_LOOKED_AT: Final = "and was not looked at"


def what_is_equal(fence: Fence, depth: str, findings: Sequence[Finding]) -> str:
    """One sentence: who holds the same, of how many; what one holds alone; what differs without being a fault."""
    differ = [(one.from_index, one.to_index) for one in findings if one.cls == "uncommitted_divergence"]
    held: dict[tuple[str, ...], list[Range]] = {}
    for low, high, ids in coverage(fence):
        held.setdefault(ids, []).extend(_without((low, high), differ))
    parts: list[str] = []
    for ids, ranges in sorted(held.items(), key=lambda one: (-len(one[0]), one[1][0] if one[1] else (0, 0))):
        count = sum(high - low + 1 for low, high in ranges)
        if not count:
            continue
        if len(ids) > 1:
            who = names(ids) if parts else _how_many(len(ids), len(fence.readable))
            entries = "entry" if count == 1 else "entries"
            parts.append(f"{who} {SAME[depth].format(f'{count:,} {entries} ({_ranges(ranges)})')}")
        else:
            is_one = "is" if count == 1 else "are"
            parts.append(f"{_spans(ranges)} {is_one} on {ids[0]} alone, {ALONE.get(depth, NOT_LOOKED_AT)}")
    if differ:
        parts.append(f"{_spans(differ)} differ, above the committed index")
    empty = [one.id for one in fence.readable if one.empty]
    if empty:
        parts.append(f"{names(empty)} {'holds' if len(empty) == 1 else 'hold'} none of them")
    return "; ".join(parts or ["No entry was compared"]) + "."


def about_crcs(fence: Fence) -> str:
    """Which bodies a read of all bytes could hold against CRCs: a Java node writes none."""
    holders = [one for one in fence.holders if fence.begin_within(one) <= fence.end_within(one)]
    if holders and all(one.java for one in holders):
        return (
            "These entries carry no CRCs, for a Java node writes none: damage that was copied to all replicas would not"
            " show."
        )
    silent = [one.id for one in holders if not one.java and one.sealed_from is None]
    bare = [f"{one.id} ({_ranges(ranges)})" for one in holders if (ranges := _bare(fence, one))]
    if not silent and not bare:
        return "Bodies were checked against their CRCs, and links of the chain."
    text = "Bodies were checked against CRCs and the chain where entries carry them"
    text += f"; {names(bare)} need not, for a Java node wrote there" if bare else ""
    text += f"; {names(silent)} does not say from which entry on its own do" if silent else ""
    return f"{text}."


def _bare(fence: Fence, one: ReplicaFence) -> list[Range]:
    """The ranges of a replica that may go without seals."""
    low, high = fence.begin_within(one), fence.end_within(one)
    if one.java:
        return [(low, high)]
    if one.sealed_range is None:
        return []
    first, until = one.sealed_range
    return [(a, b) for a, b in ((low, min(high, first - 1)), (max(low, until), high)) if a <= b]


def _without(one: Range, holes: Sequence[Range]) -> list[Range]:
    left = [one]
    for first, last in holes:
        left = [
            (a, b) for low, high in left for a, b in ((low, min(high, first - 1)), (max(low, last + 1), high)) if a <= b
        ]
    return left


def _how_many(count: int, readable: int) -> str:
    return f"{count} replicas" if count == readable else f"{count} of {readable} replicas"


def _ranges(ranges: Sequence[Range]) -> str:
    shown = [f"{low:,}" if low == high else f"{low:,} to {high:,}" for low, high in ranges[:RANGES_SHOWN]]
    more = f" and {len(ranges) - RANGES_SHOWN:,} more ranges" if len(ranges) > RANGES_SHOWN else ""
    return ", ".join(shown) + more


def _spans(ranges: Sequence[Range]) -> str:
    return span(*ranges[0]) if len(ranges) == 1 else f"entries {_ranges(ranges)}"
