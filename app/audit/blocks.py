"""One block of work: read an index range from all replicas and compare it, in pieces of bounded memory.

Runs inside a Spark task, and as well without Spark. Invariant: whatever goes wrong with one replica's bytes becomes a
fact about that replica; the other replicas of the block are still compared.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from app.audit.compare import compare
from app.audit.fence import ReplicaFence
from app.audit.observe import Fact, Seen, join
from app.audit.records import Fault, ReplicaFiles, load, plausible_sizes, read_units
from app.audit.segments import ReadFailed, SegmentIO, SegmentMap
from node.protocol.entry import INDEX_UNIT_BYTES

CHUNK_BYTES = 8 * 1024 * 1024
_CONTEXT = 2  # entries before a block that are read along, to judge its first links
_DIGEST_HEAD = struct.Struct(">iqqi")


class BlockIO(SegmentIO, Protocol):
    """A replica as a task sees it: its segments, its own digests, and whether its log changed meanwhile."""

    @property
    def changed(self) -> bool: ...

    def digest(self, first_index: int, last_index: int, block: int) -> str | None:
        """The replica's own digest of exactly this range; None where it does not give one."""
        ...


@dataclass(frozen=True, slots=True)
class Party:
    """One replica of a block."""

    fence: ReplicaFence
    io: BlockIO

    @property
    def files(self) -> ReplicaFiles:
        data, index = SegmentMap("data", self.fence.segments), SegmentMap("index", self.fence.segments)
        return ReplicaFiles(self.io, data, index, self.fence.begin_index, self.fence.end_index)


@dataclass(slots=True)
class BlockResult:
    """`rows` counts records read, over all replicas; `drilled` says that digests alone did not settle the block."""

    facts: list[Fact] = field(default_factory=list)
    rows: int = 0
    bytes_read: int = 0
    drilled: bool = False


def compare_block(
    parties: Sequence[Party], first_index: int, last_index: int, chunk_bytes: int = CHUNK_BYTES
) -> BlockResult:
    """Reads every byte of the range from every party and compares."""
    result = BlockResult(drilled=True)
    start = max(first_index - _CONTEXT, 0)
    units: list[npt.NDArray[Any] | None] = []
    units_first: list[int] = []
    live: list[Party] = []
    for party in parties:
        low, high = max(start, party.fence.begin_index), min(last_index, party.fence.end_index)
        if low > high:
            continue
        try:
            units.append(read_units(party.files, low, high))
        except ReadFailed as failed:
            result.facts.append(Fact(Seen.UNREAD, first_index, high, (party.fence.id,), note=str(failed)))
            continue
        units_first.append(low)
        live.append(party)
        result.bytes_read += (high - low + 1) * INDEX_UNIT_BYTES
    if not live:
        return result
    facts: list[Fact] = []
    for low, high in chunks(units, units_first, first_index, last_index, chunk_bytes):
        context = low - max(low - _CONTEXT, start)
        parts = [load(party.files, low - context, high, units[n], units_first[n]) for n, party in enumerate(live)]
        ids = [party.fence.id for party in live]
        facts.extend(compare(parts, ids, [party.fence.sealed_range for party in live], context))
        result.rows += sum(int((p.sizes[context:] > 0).sum()) for p in parts)
        result.bytes_read += sum(len(p.buf) for p in parts)
    for party in live:
        if party.io.changed:
            facts = _excuse_changed(facts, party.fence)
    result.facts.extend(join(facts))
    return result


def chunks(
    units: Sequence[Any], units_first: Sequence[int], first_index: int, last_index: int, chunk_bytes: int
) -> Iterator[tuple[int, int]]:
    """Cuts the range so that no replica's part is much over `chunk_bytes`, by the index files' word."""
    largest = np.zeros(last_index - first_index + 1, dtype=np.int64)
    for part, low in zip(units, units_first, strict=True):
        sizes = plausible_sizes(part)
        skip = max(first_index - low, 0)
        offset = max(low - first_index, 0)
        sizes = sizes[skip:]
        largest[offset : offset + len(sizes)] = np.maximum(largest[offset : offset + len(sizes)], sizes)
    ends = np.cumsum(largest)
    start = 0
    while start < len(largest):
        before = int(ends[start - 1]) if start else 0
        end = max(int(np.searchsorted(ends, before + chunk_bytes, side="right")), start + 1)
        yield first_index + start, first_index + end - 1
        start = end


def _excuse_changed(facts: list[Fact], fence: ReplicaFence) -> list[Fact]:
    """After a truncation meanwhile, what is odd above the replica's committed index is no statement about the log."""
    bound = fence.committed_index if fence.committed_index is not None else -1
    kept: list[Fact] = []
    for fact in facts:
        if fence.id not in fact.replicas or fact.to_index <= bound or fact.seen is Seen.POSITION:
            kept.append(fact)
            continue
        if fact.from_index <= bound:
            kept.append(replace(fact, to_index=bound))
        low = max(fact.from_index, bound + 1)
        note = "the log was truncated, or its node restarted, while the audit ran"
        kept.append(Fact(Seen.UNREAD, low, fact.to_index, (fence.id,), note=note))
    return kept


def digest_block(parties: Sequence[Party], first_index: int, last_index: int, block: int) -> BlockResult:
    """Compares the parties' own digests of the range; reads the bytes where they differ or one gives none.

    The range is within one block, and all parties hold all of it. What one party holds alone has no other digest to be
    compared with, and is not read.
    """
    if len(parties) < 2:
        return BlockResult()
    try:
        digests = [party.io.digest(first_index, last_index, block) for party in parties]
    except ReadFailed:
        digests = [None]
    if None not in digests and len(set(digests)) == 1:
        return BlockResult(rows=(last_index - first_index + 1) * len(parties))
    return compare_block(parties, first_index, last_index)


def files_digest(files: ReplicaFiles, first_index: int, last_index: int, chunk_bytes: int = CHUNK_BYTES) -> str | None:
    """SHA-256 as a node's `GET digests` answers it, from files; None for a missing record or a broken head."""
    units = read_units(files, first_index, last_index)
    sha = hashlib.sha256()
    for low, high in chunks([units], [first_index], first_index, last_index, chunk_bytes):
        records = load(files, low, high, units, first_index)
        if not bool(records.held.all()) or bool((records.faults & (Fault.MISSING | Fault.RECORD | Fault.UNREAD)).any()):
            return None
        columns = (records.heads[name].tolist() for name in ("magic", "index", "term", "body_len"))
        for row, head in enumerate(zip(*columns, strict=True)):
            sha.update(_DIGEST_HEAD.pack(*head))
            sha.update(records.body(row))
    return sha.hexdigest()
