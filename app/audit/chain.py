"""Depth `chain`: is the stored chain equal at the highest common index, and if not, where did it part?

Equal chains at an index mean equal histories up to it (SAFETY, "The chain"), so one head of 48 bytes per replica
settles a whole log, and a bisection finds where two logs part. Invariant: what cannot be settled this way (unsealed
entries, a head that cannot be read) is said, never counted as equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from app.audit.blocks import Party
from app.audit.classify import Unaudited
from app.audit.fence import Fence
from app.audit.segments import ReadFailed
from node.protocol.entry import HEAD, HEAD_BYTES, INDEX_UNIT, INDEX_UNIT_BYTES


class NoChain(Exception):
    """The entry says nothing of its history; the message is the reason."""


class BrokenHead(Exception):
    """Where the index points there is no such record: the bytes have to be looked at."""


@dataclass(slots=True)
class ChainResult:
    """`drill`: index ranges whose bytes must be compared. `rows`: heads read."""

    drill: list[tuple[int, int]] = field(default_factory=list)
    unaudited: list[Unaudited] = field(default_factory=list)
    compared: int = 0
    rows: int = 0


class ChainProbe:
    """Reads stored chains of one replica."""

    def __init__(self, party: Party) -> None:
        self.party = party
        self.rows = 0
        self._files = party.files

    def chain(self, index: int) -> int:
        """Raises NoChain, BrokenHead, ReadFailed."""
        self.rows += 1
        files = self._files
        raw = files.index.read(files.io, index * INDEX_UNIT_BYTES, INDEX_UNIT_BYTES)
        _, position, _, unit_index, _ = INDEX_UNIT.unpack(raw)
        if unit_index != index or files.data.at(position) is None:
            raise BrokenHead
        head = HEAD.unpack(files.data.read(files.io, position, HEAD_BYTES))
        if head[2] != index:
            raise BrokenHead
        chain, body_crc = int(head[6]), int(head[7])
        if chain == 0 and body_crc == 0:
            raise NoChain("unsealed entries (written by the Java node) carry no chain; depth=bytes reads them")
        return chain


def compare_chains(fence: Fence, parties: Sequence[Party]) -> ChainResult:
    """Compares every replica with the one that reaches furthest, at the highest index that both hold."""
    result = ChainResult()
    probes = sorted((ChainProbe(p) for p in parties), key=lambda p: -fence.end_within(p.party.fence))
    for number, probe in enumerate(probes):
        one = probe.party.fence
        low, high = fence.begin_within(one), fence.end_within(one)
        if high < low:
            continue
        partner = next((p for p in probes[:number] if p.party.fence.holds(high)), None)
        if partner is None:
            continue  # the reference itself, or a replica that shares no index with the others
        _compare_pair(result, partner, probe, max(low, partner.party.fence.begin_index), high)
    result.rows = sum(p.rows for p in probes)
    return result


def _compare_pair(result: ChainResult, a: ChainProbe, b: ChainProbe, low: int, high: int) -> None:
    try:
        if a.chain(high) == b.chain(high):
            result.compared += 1
            return
        result.drill.append((_first_difference(a, b, low, high), high))
        result.compared += 1
    except BrokenHead:
        result.drill.append((low, high))
        result.compared += 1
    except (NoChain, ReadFailed) as error:
        result.unaudited.append(Unaudited(b.party.fence.id, low, high, str(error)))


def _first_difference(a: ChainProbe, b: ChainProbe, low: int, high: int) -> int:
    """The lowest index with different chains, given that they differ at `high`; once apart, chains stay apart."""
    while low < high:
        middle = (low + high) // 2
        if a.chain(middle) == b.chain(middle):
            low = middle + 1
        else:
            high = middle
    return low


def merge_ranges(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return merged
