"""One entry as every replica holds it, read raw and compared byte by byte: what a finding opens.

Invariant: a replica's broken record is shown as it is on its disk, with what is wrong about it; a replica that cannot
be read is in the answer with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from app.audit.compare import compare
from app.audit.fence import ReplicaFence
from app.audit.fencing import fence_directory, fence_http
from app.audit.observe import Fact
from app.audit.records import Records, load, read_units
from app.audit.replicas import ReplicaSpec, open_replica

BYTES_SHOWN_MAX: Final = 4096
ROW_BYTES: Final = 16
HEAD_FIELDS: Final = ("magic", "size", "index", "term", "pos", "channel", "chain_crc", "body_crc", "body_len")


@dataclass(frozen=True, slots=True)
class HeldEntry:
    """`raw` is the record as read; `facts` what the comparison says of this replica at this index."""

    replica: str
    raw: bytes | None
    fields: dict[str, int]
    position: int | None
    facts: tuple[str, ...]
    problem: str | None


def entry_on_all(specs: Sequence[ReplicaSpec], index: int) -> list[HeldEntry]:
    """Blocking: a few small requests to each replica, all replicas at once."""
    with ThreadPoolExecutor(max_workers=max(len(specs), 1)) as pool:
        read = list(pool.map(lambda spec: _read_one(spec, index), specs))
    parts = [(fence, records) for fence, records, problem in read if records is not None and problem is None]
    context = index - parts[0][1].first_index if parts else 0
    facts: list[Fact] = []
    if parts:
        facts = compare(
            [records for _, records in parts], [f.id for f, _ in parts], [f.sealed_range for f, _ in parts], context
        )
    return [_held(fence, records, problem, facts, context) for fence, records, problem in read]


def _read_one(spec: ReplicaSpec, index: int) -> tuple[ReplicaFence, Records | None, str | None]:
    try:
        fence = fence_http(spec) if spec.kind == "http" else fence_directory(spec)
        if not fence.holds(index):
            return fence, None, f"holds {fence.begin_index:,} to {fence.end_index:,}"
        files = open_replica(spec, fence).files
        first = max(index - 2, 0)
        low = max(first, fence.begin_index)
        return fence, load(files, first, index, read_units(files, low, index), low), None
    except Exception as error:  # shown in that replica's column
        name = spec.id or spec.public
        return ReplicaFence(name, spec.public, spec.kind), None, str(error) or type(error).__name__


def _held(
    fence: ReplicaFence, records: Records | None, problem: str | None, facts: Sequence[Fact], row: int
) -> HeldEntry:
    if records is None or records.sizes[row] == 0:
        text = problem or "no record there"
        return HeldEntry(fence.id, None, {}, None, _facts_of(fence.id, facts), text)
    offset, size = int(records.offsets[row]), int(records.sizes[row])
    fields = {name: int(records.heads[row][name]) for name in HEAD_FIELDS}
    raw = records.buf[offset : offset + size].tobytes()
    return HeldEntry(fence.id, raw, fields, int(records.positions[row]), _facts_of(fence.id, facts), None)


def _facts_of(replica: str, facts: Sequence[Fact]) -> tuple[str, ...]:
    """In words, per replica."""
    said = []
    for fact in facts:
        if fact.sides:
            side = next((number for number, ids in enumerate(fact.sides) if replica in ids), None)
            if side is not None:
                said.append(f"{fact.seen.value}: side {side + 1} of {len(fact.sides)}")
        elif replica in fact.replicas:
            said.append(f"{fact.seen.value}{f': {fact.note}' if fact.note else ''}")
    return tuple(said)


def suspects_first(entries: Sequence[HeldEntry]) -> list[HeldEntry]:
    """Those of which something is wrong stand where they are seen without scrolling; else the given order."""
    return sorted(entries, key=lambda entry: not entry.facts)


def row_bytes(replicas: int) -> int:
    """So many bytes to a row that all replicas stand beside each other on a screen of 1280 px."""
    return ROW_BYTES if replicas <= 2 else ROW_BYTES // 2 if replicas <= 4 else ROW_BYTES // 4


def hex_rows(
    entries: Sequence[HeldEntry], limit: int = BYTES_SHOWN_MAX, width: int = ROW_BYTES
) -> list[dict[str, Any]]:
    """Rows of `width` bytes across all replicas; a byte is marked where not all replicas that have it agree."""
    held = [entry for entry in entries if entry.raw is not None]
    longest = min(max((len(entry.raw or b"") for entry in held), default=0), limit)
    rows: list[dict[str, Any]] = []
    for start in range(0, longest, width):
        columns = [(entry.raw or b"")[start : min(start + width, limit)] for entry in held]
        differs = [len({column[i : i + 1] for column in columns}) > 1 for i in range(width)]
        rows.append(
            {
                "offset": start,
                "differs": any(differs),
                "columns": [_cells(column, differs) for column in columns],
            }
        )
    return rows


def _cells(column: bytes, differs: Sequence[bool]) -> list[dict[str, Any]]:
    """Bytes of one replica in one row, runs of equal marking together: few elements, same text."""
    cells: list[dict[str, Any]] = []
    for number, byte in enumerate(column):
        printable = chr(byte) if 32 <= byte < 127 else "·"
        if cells and cells[-1]["differs"] == differs[number]:
            cells[-1]["hex"] += f" {byte:02x}"
            cells[-1]["text"] += printable
        else:
            cells.append({"hex": f"{byte:02x}", "text": printable, "differs": differs[number]})
    return cells
