"""`store verify`: every byte read, every record checked, every problem named (INTERFACES, "Command line").

Invariants: reads only; problems come in the log's order; what a Java node does is no problem: magic 1 in the index for
its own NOOP, and positions in heads that are not the true ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from node.protocol.entry import INDEX_DTYPE, INDEX_UNIT_BYTES, Magic, Slab
from node.protocol.slab_verify import slab_heads
from node.store.files.segment_list import SegmentList
from node.store.recovery.damage import read_unit
from node.store.recovery.index_records import gone_without_checkpoint, last_claimed
from node.store.recovery.survey import Finding, Survey, in_ranges
from node.store.recovery.walk import SEALED_NEVER, Cursor

PROBLEMS_MAX = 10_000
_PROGRESS_EVERY_BYTES = 64 * 1024 * 1024


@dataclass(slots=True)
class VerifyReport:
    """What `store verify --json` prints."""

    entries: int
    begin_index: int
    end_index: int
    end_term: int
    terms: list[int]
    sealed: bool
    problems: list[Finding] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Exactly the documented object."""
        return {
            "entries": self.entries,
            "begin_index": self.begin_index,
            "end_index": self.end_index,
            "end_term": self.end_term,
            "terms": self.terms,
            "sealed": self.sealed,
            "problems": [
                {
                    "class": one.kind,
                    "index": one.index,
                    "last_index": one.end,
                    "file": one.file,
                    "detail": one.detail,
                }
                for one in self.problems
            ],
        }


class Verification:
    """One run of `verify` over a log."""

    def __init__(
        self,
        data: SegmentList,
        index: SegmentList,
        survey: Survey,
        *,
        index_durable: int | None,
        straight_from: int,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self._data = data
        self._index = index
        self._survey = survey
        self._index_durable = index_durable
        self._straight_from = straight_from
        self._progress = progress
        self._entries = 0
        self._terms: list[int] = []

    def run(self) -> VerifyReport:
        """Reads everything; what the disk itself cannot read is damage of the entries there."""
        self._data.read_around()
        self._index.read_around()
        begin = self._survey.end.index
        problems: list[Finding] = []
        read_bytes = said_bytes = 0
        for item in self._with_ends():
            found = [item] if isinstance(item, Finding) else list(self._check(item))
            problems[-1:] = in_ranges([*problems[-1:], *found])
            del problems[PROBLEMS_MAX:]
            read_bytes += len(item.data) if isinstance(item, Slab) else 0
            if self._progress is not None and read_bytes - said_bytes >= _PROGRESS_EVERY_BYTES:
                said_bytes = read_bytes
                self._progress(self._entries)
        end = self._survey.end
        if self._survey.unsealed_from is not None:
            java = self._unsealed(end.index - 1, self._survey.unsealed_from)
            before = [one for one in problems if one.index is None or one.index < self._survey.unsealed_from]
            problems.insert(len(before), java)
        problems += self._gone(end)
        sealed = self._survey.sealed_count == self._entries and not any(one.kind == "crc_invalid" for one in problems)
        return VerifyReport(
            self._entries, begin, end.index - 1, self._terms[-1] if self._terms else -1, self._terms, sealed, problems
        )

    def _gone(self, end: Cursor) -> list[Finding]:
        """Entries that the index alone still names. With a checkpoint that is for the checkpoint to say; in what Java
        wrote a truncation leaves such records."""
        no_slot = self._index_durable is None and end.sealed_from != SEALED_NEVER
        claimed = last_claimed(self._index, end.index) if no_slot else None
        if claimed is None:
            return []
        segment = self._index.find(claimed * INDEX_UNIT_BYTES)
        file = f"index/{segment.path.name}" if segment is not None else "index"
        detail = gone_without_checkpoint(self._index, end.index)
        return [Finding("missing", end.index, file, detail, claimed)]

    def _with_ends(self) -> Iterator[Slab | Finding]:
        """The survey's items; a finding lasts until the next record that can be placed again."""
        held: Finding | None = None
        for item in self._survey.run():
            if held is not None:
                yield _until(held, item.first_index if isinstance(item, Slab) else item.index)
            held = item if isinstance(item, Finding) else None
            if isinstance(item, Slab):
                yield item
        if held is not None:
            yield _until(held, self._survey.end.index)

    def _unsealed(self, end_index: int, first: int) -> Finding:
        unit = read_unit(self._index, first)
        segment = self._data.find(unit.pos) if unit is not None else None
        detail = (
            "a Java node wrote here: its entries carry no CRCs, so that only their form and order could be checked; no"
            " engine starts on them before `quorumscope store adopt DIR`"
        )
        file = f"data/{segment.path.name}" if segment is not None else "data"
        return Finding("unsealed", first, file, detail, last_index=end_index)

    def _check(self, slab: Slab) -> Iterator[Finding]:
        """A sound slab against its index records, and its positions."""
        self._entries += slab.count
        heads = slab_heads(slab)
        for term in np.unique(heads["term"]):
            if not self._terms or int(term) > self._terms[-1]:
                self._terms.append(int(term))
        yield from self._check_positions(slab, heads)
        yield from self._check_index(slab)

    def _check_positions(self, slab: Slab, heads: np.ndarray[Any, Any]) -> Iterator[Finding]:
        true = np.frombuffer(slab.index_records, dtype=INDEX_DTYPE)["pos"].astype(np.int64)
        shift = heads["pos"].astype(np.int64) - true
        straight = np.arange(slab.first_index, slab.first_index + slab.count) >= self._straight_from
        alone = (shift != 0) & ((heads["body_crc"] != 0) | (heads["chain_crc"] != 0))
        alone[1:] &= shift[1:] != shift[:-1]
        alone[:-1] &= shift[:-1] != shift[1:]
        yield from self._wrong_positions(slab, heads, true, alone | (straight & (shift != 0)))

    def _wrong_positions(
        self, slab: Slab, heads: np.ndarray[Any, Any], true: np.ndarray[Any, Any], which: np.ndarray[Any, Any]
    ) -> Iterator[Finding]:
        segment = self._data.find(slab.pos)
        for number in np.flatnonzero(which):
            said, lies = int(heads["pos"][number]), int(true[number])
            name = f"data/{segment.path.name}" if segment is not None else "data"
            detail = f"its head says position {said}, it is at {lies}"
            yield Finding("position_mismatch", slab.first_index + int(number), name, detail)

    def _check_index(self, slab: Slab) -> Iterator[Finding]:
        at = slab.first_index * INDEX_UNIT_BYTES
        raw = self._index.read_across(at, len(slab.index_records))
        if raw == slab.index_records:
            return
        stored = np.frombuffer(raw, dtype=INDEX_DTYPE)
        wanted = np.frombuffer(slab.index_records, dtype=INDEX_DTYPE)
        wrong = (stored["magic"] != wanted["magic"]) & (stored["magic"] != Magic.NORMAL)
        for name in ("pos", "size", "index", "term"):
            wrong |= stored[name] != wanted[name]
        for number in np.flatnonzero(wrong):
            index = slab.first_index + int(number)
            unit = raw[int(number) * INDEX_UNIT_BYTES :][:INDEX_UNIT_BYTES]
            if self._index_durable is not None and index > self._index_durable and not any(unit):
                continue  # not synced yet: the next start rebuilds it
            segment = self._index.find(index * INDEX_UNIT_BYTES)
            if segment is None:
                continue  # the whole file is missing: the reader says so once
            magic, pos, size, said, term = (int(value) for value in stored[int(number)].tolist())
            yield Finding(
                "index_record_mismatch",
                index,
                f"index/{segment.path.name}",
                f"it says magic {magic}, pos {pos}, size {size}, index {said}, term {term}; "
                f"the record says {', '.join(str(int(value)) for value in wanted[int(number)].tolist())}",
            )


def _until(finding: Finding, next_index: int | None) -> Finding:
    """With the last entry that it hides: the one before `next_index`."""
    if finding.index is None or next_index is None or next_index - 1 <= finding.index:
        return finding
    return replace(finding, last_index=next_index - 1)
