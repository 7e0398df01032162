"""Reads back what a hand-over promises, before the owner files go.

Invariant: nothing is written; the first promise that does not hold is a refusal, and Java stays out.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

import numpy as np

from node.hand_over.report import Refused, Report
from node.message_store.checking.findings import Fault
from node.message_store.checking.verify import verify
from node.message_store.dispatch_mark import LogPoint
from node.message_store.message_store import CONSUME_QUEUE, MessageStore
from node.protocol.entry import INDEX_DTYPE, INDEX_UNIT_BYTES, Magic
from node.store.files.java_files import java_committed_index

_PIECE_BYTES: Final = 1 << 20
# Of what lies behind the dispatched point Java says itself whether it is committed, and dispatches it then.
_NOT_YET: Final = (Fault.CQ_MISSING, Fault.INDEX_MISSING)


def prove(root: Path, ledger: Path, end_position: int, end_index: int, point: LogPoint, report: Report) -> None:
    """Raises Refused."""
    _check_tail(ledger / "data", end_position)
    _check_tail(ledger / "index", (end_index + 1) * INDEX_UNIT_BYTES)
    report.proven.append(f"Behind entry {end_index} no byte is written, in the log and in its index.")
    wrong = check_units(ledger, end_index)
    if wrong is not None:
        raise Refused(wrong)
    report.proven.append("Every entry has magic 1, the only one that DLedger 0.3.1.2 knows.")
    committed = java_committed_index(ledger)
    if committed != point.index:
        raise Refused(f"DLedger's checkpoint says {committed}, queues and index end at entry {point.index}")
    report.proven.append(f"DLedger's checkpoint says what is dispatched and on disk: entry {committed}.")
    if (root / "abort").exists():
        raise Refused(f"{root / 'abort'} is there: Java would start its recovery after a crash")
    if not (root / CONSUME_QUEUE).is_dir():
        report.proven.append("There are no messages, and no queues.")
        return
    found = verify(MessageStore(root))
    for one in found.findings:
        if not (one.fault in _NOT_YET and one.offset is not None and one.offset >= point.position):
            raise Refused(f"{one.fault.value} in {one.file}: {one.detail}; `quorumscope store verify {root}` lists all")
    report.proven.append(
        f"{found.messages:,} messages, {found.units:,} units of {found.queues} queues and {found.index_entries:,} index"
        " entries say the same."
    )


def _check_tail(folder: Path, end: int) -> None:
    for path in sorted(folder.iterdir()):
        if not path.name.isdigit():
            continue
        start = int(path.name)
        if start >= end:
            raise Refused(f"{path} lies behind the end of the log")
        if _is_written(path, max(end - start, 0)):
            raise Refused(f"{path}: behind the end of the log, at {end}, something is written")


def _is_written(path: Path, begin: int) -> bool:
    """Whether any byte from there on is not zero; holes are not read."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        at, size = begin, os.fstat(fd).st_size
        while at < size:
            try:
                at = max(at, os.lseek(fd, at, os.SEEK_DATA))
            except OSError as error:
                if error.errno == errno.ENXIO:  # nothing but a hole
                    return False
                raise
            piece = os.pread(fd, _PIECE_BYTES, at)
            if piece.count(0) != len(piece):
                return True
            at += len(piece)
        return False
    finally:
        os.close(fd)


def check_units(ledger: Path, end_index: int) -> str | None:
    """What in DLedger's own index is not as Java wants it; None: nothing is."""
    for path in sorted((ledger / "index").iterdir()):
        if not path.name.isdigit():
            continue
        first = int(path.name) // INDEX_UNIT_BYTES
        count = min(path.stat().st_size // INDEX_UNIT_BYTES, end_index + 1 - first)
        units = np.fromfile(path, INDEX_DTYPE, max(count, 0))
        written = units["size"] > 0  # before the first entry there is nothing, or a blank
        numbers = np.arange(first, first + len(units))
        wrong = written & ((units["magic"] != Magic.NORMAL) | (units["index"] != numbers)) & (units["magic"] != -1)
        if wrong.any():
            return f"entry {first + int(np.argmax(wrong))} is not one that DLedger 0.3.1.2 knows"
    return None
