"""The state of metadata on a member's disk: `quorumscope/state`, so that a start need not read all of the log for it.

It is a copy of what follows from the log up to its as-of index: without it the log is read again. It is written behind
the mark that says how far queues and index are sound: what a snapshot said of queues is in these by then. It is written
of a whole state only: before that the log is read from its beginning, for the snapshot that makes it whole.

Invariants: written whole, its CRC agrees, or it is none; what is read is what was written.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from node.message_store.dispatch_mark import OURS
from node.message_store.metadata_state import MetadataState
from node.message_store.read_files import OS, Files
from node.message_store.write_files import Disk
from node.protocol.broker_state import BodyInvalid, BrokerState, decode_state, encode_state
from node.protocol.entry import crc32
from node.protocol.snapshot_parts import FoundSnapshot
from node.protocol.value_class import value_class

STATE: Final = "state"
_VERSION: Final = 1
_BYTES_MAX: Final = 1 << 30


@value_class(slots=True, frozen=True)
class SavedState:
    """A copy of a `MetadataState` that can be written in another thread."""

    state: BrokerState
    head: dict[str, Any]

    def write(self, root: Path, disk: Disk) -> None:
        """Raises OSError."""
        head = json.dumps(self.head).encode()
        content = len(head).to_bytes(4, "big") + head + encode_state(self.state)
        disk.replace(state_path(root), crc32(content).to_bytes(4, "big") + content)


def state_path(root: Path) -> Path:
    return root / OURS / STATE


def saved(state: MetadataState) -> SavedState:
    """A whole state, as it is now."""
    found = state.snapshot
    parts = None if found is None else [found.snapshot_id, found.as_of_index, found.first_index, found.last_index]
    head = {"version": _VERSION, "snapshot": parts, "snapshot_at": state.snapshot_at}
    return SavedState(state.as_state(), head)


def read_state(root: Path, files: Files = OS) -> MetadataState | None:
    """None where there is none that can be read: then the log says it again."""
    path = state_path(root)
    size = files.size(path)
    if size is None:
        return None
    data = files.read(path, 0, min(size, _BYTES_MAX))
    try:
        if len(data) < 8 or int.from_bytes(data[:4], "big") != crc32(data[4:]):
            return None
        upto = 8 + int.from_bytes(data[4:8], "big")
        head, state = json.loads(data[8:upto]), decode_state(data[upto:])
        if head["version"] != _VERSION:
            return None
        found = MetadataState(state, is_whole=True)
        found.snapshot = None if head["snapshot"] is None else FoundSnapshot(*head["snapshot"])
        found.snapshot_at = head["snapshot_at"]
    except (BodyInvalid, ValueError, KeyError, TypeError, RecursionError):
        return None
    return found
