"""Snapshots on their way between simulated members, as `node/engine/snapshot_transfer.py` moves them.

What is sent lies in the sender's state machine; the receiver puts it together with the product's own code, on its
simulated disk, so that a crash at any of its calls, a lost power or a full disk meets the real thing. Pieces are some
bytes long. Now and then what is open is closed, and the newest one is taken the next time.

Invariants: nothing of a transfer survives its process but what is on its disk; one piece is put down at a time.
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Final

from node.consensus.api import MS
from node.consensus.effects import OpenSnapshot, ReadSnapshot, TakePart
from node.consensus.snapshot_install import meta_of
from node.engine.pin_leases import SENT
from node.engine.snapshot_transfer import SAVES
from node.protocol.entry import crc32
from node.snapshots.directory import SnapshotMeta
from node.snapshots.transfer import SnapshotReceiver, Taken, take_received
from node.store.errors import StoreFull
from tests.simulation.applier import Saved

if TYPE_CHECKING:
    from tests.simulation.process import Process

PIECE_BYTES_MAX: Final = 2
CLOSED: Final = 0.1  # share of openings before which what was open was closed: it took too long
PACE_NS: Final = 10 * MS  # so that a leader, a link or a member may end on the way


class Transfers:
    """One per incarnation."""

    def __init__(self, process: Process, rng: random.Random) -> None:
        self._process, self._rng = process, rng
        member = process.member
        self._receiver = SnapshotReceiver(member.directory, member.platform)
        self._open: tuple[str, Saved] | None = None

    def carry_out(self, order: OpenSnapshot | ReadSnapshot | TakePart) -> None:
        delay_ns = self._rng.randrange(PACE_NS)
        if isinstance(order, TakePart):
            self._process.later(delay_ns, self._take, order)
        elif isinstance(order, ReadSnapshot):
            self._process.later(delay_ns + order.pause_ns, self._read, order)
        else:
            self._process.later(delay_ns, self._open_newest, order)

    # --- sending ------------------------------------------------------------------------------------------------
    def _open_newest(self, order: OpenSnapshot) -> None:
        if self._open is not None and self._rng.random() < CLOSED:
            self._open = None
        if self._open is None or self._open[0] != order.peer_id or self._open[1].meta.index < order.from_index:
            self._open = None
            saved = self._usable(order.from_index)
            if saved is not None:
                self._open = order.peer_id, saved
        store = self._process.store
        if self._open is not None and self._open[1].meta.index + 1 < store.begin_index:
            self._open = None  # by force
        if self._open is None:
            store.release(SENT)
            self._process.snapshot_opened(order, None, SAVES)
        else:
            meta = self._open[1].meta
            store.pin(meta.index + 1, SENT)
            self._process.snapshot_opened(order, meta, "")

    def _usable(self, from_index: int) -> Saved | None:
        machine = self._process.member.state_machine
        assert machine is not None
        saved = machine.saved
        if saved is None or saved.meta.index < from_index:
            machine.save_now()
            return None
        meta = saved.meta
        return None if meta.chain is None or meta.next_pos is None else _with_its_checksum(saved)

    def _read(self, order: ReadSnapshot) -> None:
        piece: bytes | None = None
        if self._open is not None and self._open[0] == order.peer_id:
            length = min(order.max_bytes, self._rng.randrange(1, PIECE_BYTES_MAX + 1))
            piece = self._open[1].data[order.offset : order.offset + length]
        self._process.snapshot_read(order, piece)

    # --- receiving ----------------------------------------------------------------------------------------------
    def _take(self, order: TakePart) -> None:
        part = order.part

        def work() -> Taken:
            taken = self._receiver.take(meta_of(part), part.offset, part.data)
            if taken.is_whole and order.keeps:
                take_received(self._process.member.directory, part.base_index, self._process.member.platform)
            return taken

        self._process.jobs.beside(work, partial(self._taken, order))

    def _taken(self, order: TakePart, taken: Taken | None, error: Exception | None) -> None:
        if error is None or isinstance(error, StoreFull):
            self._process.part_taken(order, taken)
        else:
            self._process.fail(f"a snapshot that comes from {order.part.leader_id} cannot be written: {error}")


def _with_its_checksum(saved: Saved) -> Saved:
    meta = saved.meta
    whole = SnapshotMeta(
        meta.index, meta.term, meta.chain, meta.next_pos, len(saved.data), crc32(saved.data), meta.more
    )
    return Saved(whole, saved.data)
