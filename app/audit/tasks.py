"""The tasks of Spark's workers: one compares one run of blocks over all replicas (`mapInArrow`, no shuffle).

Tasks get their work by closure as plain JSON values and return one row per block; nothing here knows of Spark but
the shape of its Arrow batches. Invariant: a block's row leaves as soon as the block is compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from app.audit.blocks import BlockResult, compare_block, digest_block
from app.audit.fence import Fence, FenceError, ReplicaFence, coverage
from app.audit.observe import Fact
from app.audit.replicas import ReplicaSpec, open_replica

BLOCK_ENTRIES = 8192
FACTS_PER_BLOCK_MAX = 2000
PIECES_MAX = 2_000_000  # 16 thousand million entries
ROW_SCHEMA = "task long, rows long, bytes long, found long, facts string"


@dataclass(frozen=True, slots=True)
class Piece:
    """A range inside one block that the same replicas hold throughout."""

    from_index: int
    to_index: int
    replicas: tuple[str, ...]


def plan_pieces(
    fence: Fence, block: int = BLOCK_ENTRIES, ranges: Sequence[tuple[int, int]] | None = None
) -> list[Piece]:
    """The fence's range, or the parts of it in `ranges`, cut at multiples of `block` and where the holders change.

    Raises FenceError where that is more than one audit reads: a member may say of itself that it holds anything.
    """
    wanted = [
        (max(low, from_index), min(high, to_index), ids)
        for low, high, ids in coverage(fence)
        for from_index, to_index in (ranges if ranges is not None else [(low, high)])
    ]
    entries = sum(max(end - start + 1, 0) for start, end, _ in wanted)
    if entries > PIECES_MAX * block:
        raise FenceError(
            f"these replicas say that they hold {entries} entries, and one audit reads {PIECES_MAX * block} at most:"
            " name a range (`--from`, `--to`), or look at what each of them says (`GET state`)"
        )
    pieces: list[Piece] = []
    for start, end, ids in wanted:
        while start <= end:
            last = min(start - start % block + block - 1, end)
            pieces.append(Piece(start, last, ids))
            start = last + 1
    return pieces


def split_tasks(pieces: Sequence[Piece], parallelism: int) -> list[list[Piece]]:
    """Runs of consecutive pieces: enough tasks for fine progress, few enough that their start costs nothing."""
    wanted = max(1, min(len(pieces), max(parallelism * 8, len(pieces) // 64)))
    return [list(pieces[len(pieces) * n // wanted : len(pieces) * (n + 1) // wanted]) for n in range(wanted)]


def compare_task(
    tasks: Sequence[Sequence[Piece]],
    specs: Sequence[dict[str, Any]],
    fences: Sequence[dict[str, Any]],
    depth: str,
    block: int,
    on_block: Callable[[int, int], None],
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function for mapInArrow over the task numbers; `on_block(rows, bytes)` counts progress."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        opened = [
            open_replica(ReplicaSpec.from_json(spec), ReplicaFence.from_json(fence))
            for spec, fence in zip(specs, fences, strict=True)
        ]
        parties = {party.fence.id: party for party in opened}
        compare = partial(digest_block, block=block) if depth == "digest" else compare_block
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for piece in tasks[number]:
                    result = compare([parties[one] for one in piece.replicas], piece.from_index, piece.to_index)
                    on_block(result.rows, result.bytes_read)
                    yield _row(number, result)

    return run


def _row(number: int, result: BlockResult) -> Any:
    import pyarrow as pa  # here: the job starts, and can say so, where Spark is not installed

    facts = json.dumps([fact.as_json() for fact in result.facts[:FACTS_PER_BLOCK_MAX]])
    values: tuple[Any, ...] = (number, result.rows, result.bytes_read, len(result.facts), facts)
    columns = [pa.array([value], type=pa.string() if value is facts else pa.int64()) for value in values]
    return pa.RecordBatch.from_arrays(columns, names=[column.split()[0] for column in ROW_SCHEMA.split(", ")])


def facts_of(text: str) -> list[Fact]:
    return [Fact.from_json(row) for row in json.loads(text)]
