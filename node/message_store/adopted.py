"""What an adopted directory knew beside its log: `quorumscope/adopted`, for the first snapshot of the group.

The log of a directory that was RocketMQ's says nothing of topics, groups and offsets; its `config/*.json` and queues
do.
They were read at the adoption. Until the log holds a snapshot, the first master writes one with this state.

Invariants: written once, whole; its CRC agrees, or it is none; `border` is where the log ended then: below it queue
offsets may have been given twice, from there on they are dense.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from node.message_store.dispatch_mark import OURS
from node.message_store.errors import MessageStoreError
from node.message_store.read_files import OS, Files
from node.message_store.write_files import Disk
from node.protocol.broker_state import BodyInvalid, BrokerState, decode_state, encode_state
from node.protocol.entry import crc32
from node.protocol.value_class import value_class

ADOPTED: Final = "adopted"
_BYTES_MAX: Final = 1 << 30


@value_class(slots=True, frozen=True)
class Adopted:
    """`state` is as of the last entry of RocketMQ's; `border` the position behind it."""

    border: int
    state: BrokerState


def adopted_path(root: Path) -> Path:
    return root / OURS / ADOPTED


def write_adopted(root: Path, found: Adopted, disk: Disk) -> None:
    """Raises BodyInvalid, OSError."""
    content = found.border.to_bytes(8, "big") + encode_state(found.state)
    disk.replace(adopted_path(root), crc32(content).to_bytes(4, "big") + content)


def read_adopted(root: Path, files: Files = OS) -> Adopted | None:
    """None where nothing was adopted. Raises MessageStoreError."""
    path = adopted_path(root)
    size = files.size(path)
    if size is None:
        return None
    data = files.read(path, 0, min(size, _BYTES_MAX))
    try:
        if len(data) < 12 or int.from_bytes(data[:4], "big") != crc32(data[4:]):
            raise BodyInvalid("its CRC does not agree")
        return Adopted(int.from_bytes(data[4:12], "big"), decode_state(data[12:]))
    except BodyInvalid as error:
        raise MessageStoreError(f"{path} cannot be read: {error}; `quorumscope store adopt` writes it anew") from error
