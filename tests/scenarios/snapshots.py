"""Snapshots of a scenario's state machines: saved by the script, opened, read and put together as its drivers would.

- `save n0`: the state machine of n0 saves what it has applied.

What is saved says up to where it goes; it goes over in pieces of PIECE_BYTES. Whoever begins behind one has loaded it,
and says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from node.consensus.effects import OpenSnapshot, ReadSnapshot, TakePart
from node.consensus.snapshot_install import meta_of
from node.protocol.entry import crc32
from node.snapshots.directory import SnapshotMeta
from node.snapshots.transfer import Taken
from tests.scenarios.appliers import Appliers
from tests.scenarios.cluster import Cluster, SimNode

if TYPE_CHECKING:
    from node.consensus.effects import BeginBehind
    from tests.scenarios.runner import Command

PIECE_BYTES: Final = 4


class Snapshots:
    """Those of one group."""

    def __init__(self, cluster: Cluster, appliers: Appliers, say: Callable[[str], None]) -> None:
        self._cluster, self._appliers, self._say = cluster, appliers, say
        self._saved: dict[str, tuple[SnapshotMeta, bytes]] = {}
        self._open: dict[str, tuple[SnapshotMeta, bytes]] = {}
        self._received: dict[str, tuple[SnapshotMeta, bytes]] = {}
        self.verbs: dict[str, Callable[[Command], None]] = {"save": self._save}
        cluster.on_snapshot, cluster.on_begun = self.carry_out, self.begun

    def _save(self, command: Command) -> None:
        node_id = command.words[0]
        index, store = self._appliers.at(node_id), self._cluster.nodes[node_id].store
        held, entry, pos = store.meta(index), store.get(index), store.position_at_hand(index)
        assert held is not None and entry is not None and pos is not None, f"{node_id} has applied {index}"
        data = b"the state of entry %d" % index
        meta = SnapshotMeta(index, held.term, held.chain, pos + entry.size, len(data), crc32(data))
        self._saved[node_id] = meta, data
        self._say(f"{node_id} saves a snapshot up to entry {index}")

    def carry_out(self, node_id: str, node: SimNode, order: OpenSnapshot | ReadSnapshot | TakePart) -> None:
        reports, now = node.replica.disk, self._cluster.now
        if isinstance(order, OpenSnapshot):
            saved = self._saved.get(node_id)
            if saved is None or saved[0].index < order.from_index:
                reports.snapshot_opened(order, None, "no snapshot goes up to where this log begins", now)
                return
            self._open[node_id] = saved
            reports.snapshot_opened(order, saved[0], "", now)
        elif isinstance(order, ReadSnapshot):
            data = self._open[node_id][1]
            reports.snapshot_read(order, data[order.offset : order.offset + PIECE_BYTES], now)
        else:
            reports.part_taken(order, self._take(node_id, order), now)

    def _take(self, node_id: str, order: TakePart) -> Taken:
        meta, part = meta_of(order.part), order.part
        known, data = self._received.get(node_id, (meta, b""))
        if known != meta:
            data = b""
        if part.data and part.offset == len(data):
            data += part.data
        self._received[node_id] = meta, data
        return Taken(len(data), is_whole=len(data) == meta.data_bytes and crc32(data) == meta.data_crc)

    def begun(self, node_id: str, order: BeginBehind) -> None:
        """The log begins behind what was put together: the state machine loads it."""
        meta, data = self._received.pop(node_id)
        assert meta.index == order.base.meta.index
        self._saved[node_id] = meta, data
        self._say(f"{node_id} loads {data.decode()!r}")
        self._appliers.stand(node_id, meta.index, meta.term)
