"""What a store of RocketMQ's may hold in a form that is not read here, by name, and what to do about it there.

RocketMQ 5 can keep consume queues in another form: batch queues, in which one unit counts for several messages; queues
in RocksDB, which until 5.4 lie in `consumequeue/` itself, beside or in place of the files; and, of all releases, units
that point into `consumequeue_ext/`. To somebody who reads on, such a store is one with fewer queues, or with none.

Invariants: nothing is opened but the names; a store in which nothing of the kind is found has all its queues in files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from node.message_store.errors import MessageStoreError
from node.message_store.read_files import Files

ROCKSDB_FILE: Final = "CURRENT"  # in every directory of RocksDB's
_AMONG_FILES: Final = f"consumequeue/{ROCKSDB_FILE}"
_IN_FILES: Final = (
    "queues' next offsets are in RocksDB alone, so RocketMQ has to keep queues in files: with storeType=default, in a"
    " new broker that producers and consumers move to; where it wrote both (rocksdbCQDoubleWriteEnable) set that to"
    " false, stop it cleanly, and move RocksDB's files out of the directory"
)
_FOLDERS: Final = {
    "batchconsumequeue": (
        "batch queues",
        "one message counts for several queue offsets there: let consumers take all of the topics of queue.type"
        " BatchCQ, delete these, and let RocketMQ run until their messages have expired and the directory is gone",
    ),
    "consumequeue_ext": (
        "extended consume queue units",
        "set enableConsumeQueueExt=false, stop the broker cleanly, and move the directory away: an adoption writes the"
        " queues anew from the log, and needs none of it",
    ),
    "consumequeue_rocksdb": ("consume queues in RocksDB", _IN_FILES),
    "consumequeue_r": ("consume queues in RocksDB", _IN_FILES),
    "rocksdbstore": (
        "an index, timers or transactions in RocksDB",
        "set indexRocksDBEnable, timerRocksDBEnable and transRocksDBEnable to false, let what waits be delivered, stop"
        " the broker cleanly, and move the directory away",
    ),
}  # fmt: skip
FOLDERS: Final = tuple(_FOLDERS)


class NotRead(MessageStoreError):
    """A store that is refused by name. `what_to_do`: how its owner gets it into a form that is read here."""

    def __init__(self, root: Path, what: str, where: str, what_to_do: str) -> None:
        super().__init__(f"{root} holds {what} ({where}), which are not read here: {what_to_do}")
        self.what_to_do = what_to_do


def check_forms(root: Path, files: Files) -> None:
    """Raises NotRead where queues or index are, in part or whole, in a form that is not read here."""
    for name, (what, what_to_do) in _FOLDERS.items():
        if files.names(root / name):
            raise NotRead(root, what, f"{name}/", what_to_do)
    if files.size(root / _AMONG_FILES) is not None:
        raise NotRead(root, "consume queues in RocksDB", _AMONG_FILES, _IN_FILES)


def check_config(root: Path, files: Files) -> None:
    """Raises NotRead where topics, groups or offsets are in RocksDB: `config/*.json` then says less, or is old."""
    for name in files.names(root / "config"):
        if files.size(root / "config" / name / ROCKSDB_FILE) is not None:
            raise NotRead(
                root, "topics, groups or offsets in RocksDB", f"config/{name}/",
                "export them to config/*.json (`mqadmin rocksDBConfigToJson`), and move the directory away",
            )  # fmt: skip
