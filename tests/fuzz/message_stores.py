"""Targets: whole stores of messages, in memory: whatever a commit log, a queue or an index file holds, reading it ends
with values or with an error of its own."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from node.message_store.commit_log import Damage, Placed
from node.message_store.consume_queue import pull
from node.message_store.errors import MessageStoreError
from node.message_store.message_store import MessageStore
from tests.fuzz.target import KIB, Target
from tests.unit.message_broker import filled

ROOT = Path("/store")


class HeldStore:
    """A directory in memory, as node.message_store reads one."""

    def __init__(self, contents: dict[str, bytes]) -> None:
        self.contents = {ROOT / name: data for name, data in contents.items()}

    def names(self, folder: Path) -> list[str]:
        depth = len(folder.parts)
        return sorted({path.parts[depth] for path in self.contents if folder in path.parents})

    def size(self, path: Path) -> int | None:
        return len(self.contents[path]) if path in self.contents else None

    def is_folder(self, path: Path) -> bool:
        return any(path in one.parents for one in self.contents)

    def read(self, path: Path, offset: int, length: int) -> bytes:
        return self.contents.get(path, b"")[offset : offset + length]

    def mapped(self, path: Path) -> bytes:
        return self.contents.get(path, b"")

    def locked_by(self, path: Path) -> int | None:
        return None


@cache
def sound(*, ledger: bool) -> dict[str, bytes]:
    """The files of a small store."""
    with tempfile.TemporaryDirectory() as folder:
        root = filled(Path(folder), count=24, ledger=ledger).write()
        return {str(one.relative_to(root)): one.read_bytes() for one in root.rglob("*") if one.is_file()}


def log_of(ledger: bool) -> str:
    return "dledger-n0/data" if ledger else "commitlog"


def read_all(contents: dict[str, bytes]) -> None:
    store = MessageStore(ROOT, HeldStore(contents))
    end = store.log.min_offset
    for item in store.log.scan():
        if isinstance(item, Placed):
            assert item.offset >= end
            end = item.end
            assert store.log.message_at(item.offset).record == item.record
        elif isinstance(item, Damage):
            assert item.size_bytes > 0
    assert store.max_offset() >= 0
    for queue in store.queues():
        assert queue.min_offset(store.log.min_offset) <= queue.max_offset()
        pull(store.log, queue, 0, 32)
    store.by_key("TopicTest", "k3")


def log(data: bytes, *, ledger: bool) -> None:
    """The first file of the log is something else; the length of all is this one's."""
    contents = sound(ledger=ledger) | {f"{log_of(ledger)}/{0:020d}": data}
    read_all(contents)


def queue(data: bytes) -> None:
    read_all(sound(ledger=False) | {f"consumequeue/TopicTest/0/{0:020d}": data})


def index(data: bytes) -> None:
    name = next(one for one in sound(ledger=False) if one.startswith("index/"))
    read_all(sound(ledger=False) | {name: data})


def first_file(folder: str, *, ledger: bool = False) -> bytes:
    return next(data for name, data in sorted(sound(ledger=ledger).items()) if name.startswith(folder))


REFUSED = (MessageStoreError,)
TARGETS: tuple[Target, ...] = (
    Target("message_log", lambda data: log(data, ledger=False), lambda: [first_file("commitlog")], REFUSED,
           bytes_fixed=4096 * KIB, bytes_per_byte=400, heavy=True),
    Target("message_ledger", lambda data: log(data, ledger=True), lambda: [first_file("dledger-n0", ledger=True)],
           REFUSED, bytes_fixed=4096 * KIB, bytes_per_byte=400, heavy=True),
    Target("message_queue", queue, lambda: [first_file("consumequeue/TopicTest/0")], REFUSED,
           bytes_fixed=4096 * KIB, bytes_per_byte=400, heavy=True),
    Target("message_index", index, lambda: [first_file("index")], REFUSED, bytes_fixed=4096 * KIB,
           bytes_per_byte=400, heavy=True),
)  # fmt: skip
