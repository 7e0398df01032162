"""The check of seals: each record's body CRC and its link of the chain (SAFETY, "The chain").

An unsealed record (both CRCs 0, written by the Java node) says nothing and passes, unless the log is known to be sealed
there. Invariant: one damaged record is blamed once; its successor is judged against the chain as stored and against the
chain as computed, and one match is enough.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from app.audit.records import Fault, Records
from node.protocol.entry import CHAIN_START, chain_next, crc32

_CHAIN_HEAD = struct.Struct(">iiqqiI")


def check_seals(records: Records, needed: npt.NDArray[np.bool_], sealed: tuple[int, int] | None) -> None:
    """Adds CRC and CHAIN faults to the `needed` rows. The rows before the first needed one are context; `sealed` is
    a fence's range in which all must carry seals."""
    located = (records.sizes > 0) & (records.faults & (Fault.RECORD | Fault.UNREAD) == 0)
    check = needed & located
    rows = np.flatnonzero(check)
    if not len(rows):
        return
    heads = records.heads
    stored_body = heads["body_crc"].astype(np.uint32)
    stored_chain = heads["chain_crc"].astype(np.uint32)
    unsealed = (stored_body == 0) & (stored_chain == 0)
    for row in rows[~unsealed[rows]].tolist():
        if crc32(records.body(row)) != stored_body[row]:
            records.faults[row] |= Fault.CRC
    if sealed is not None:
        indexes = np.arange(records.count) + records.first_index
        late = check & unsealed & (indexes >= sealed[0]) & (indexes < sealed[1])
        records.faults[late] |= Fault.CHAIN
    _check_links(records, rows[~unsealed[rows]].tolist(), located & ~unsealed, stored_chain)


def _check_links(
    records: Records, rows: Iterable[int], sealed: npt.NDArray[np.bool_], stored_chain: npt.NDArray[np.uint32]
) -> None:
    heads = records.heads
    columns = ("magic", "size", "index", "term", "channel", "body_crc")
    packed = list(zip(*(heads[name].tolist() for name in columns), strict=True))
    stored: list[int] = stored_chain.tolist()
    last, computed = -2, 0
    for row in rows:
        index = records.first_index + row
        if index == 0:
            before = [CHAIN_START]
        elif row > 0 and sealed[row - 1]:
            before = [stored[row - 1], computed] if last == row - 1 else [stored[row - 1]]
        else:
            last = -2  # nothing vouches for the entry before: the link cannot be judged
            continue
        head = _CHAIN_HEAD.pack(*packed[row])
        computed = crc32(head, before[0])
        linked = stored[row] == computed
        if not linked and len(before) > 1 and before[1] != before[0]:
            other = crc32(head, before[1])
            linked = stored[row] == other
            computed = other
        if not linked and records.faults[row] & Fault.CRC:
            # A damaged CRC field breaks the link too; with the body's true CRC it holds, and the blame stays one.
            magic, size, entry_index, term, channel, _ = packed[row]
            true_crc = crc32(records.body(row))
            for chain in before:
                candidate = chain_next(chain, magic, size, entry_index, term, channel, true_crc)
                if candidate == stored[row]:
                    linked, computed = True, candidate
        if not linked:
            records.faults[row] |= Fault.CHAIN
        last = row
