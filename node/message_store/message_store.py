"""A broker's store for reading: what kind it is, its topics and queues, and messages by place, id, key and queue.

Any RocketMQ `storePathRootDir` is one: a commit log of its own (`commitlog/`), the replicated log (`dledger-<id>/`), or
both, where it was upgraded; beside it `consumequeue/`, `index/`, `config/`, `checkpoint`, `abort`, `lock`.

Invariants: nothing is written, no lock is taken, and a broker that runs meanwhile does no harm; what is kept in a form
that is not read here (queues in RocksDB, batch queues, extended units) is refused by name, never read by half.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from node.message_store.commit_log import (
    COMMIT_LOG,
    LEDGER_PREFIX,
    CommitLog,
    JoinedCommitLog,
    Placed,
    ledger_commit_log,
    local_commit_log,
)
from node.message_store.consume_queue import ConsumeQueue
from node.message_store.errors import MessageFormatError, MessageStoreError
from node.message_store.index_file import IndexFile, file_bytes, slots_shown_by
from node.message_store.java_text import key_hash
from node.message_store.not_read import FOLDERS, check_forms
from node.message_store.read_files import OS, OWNER_FILE, Files
from node.message_store.record import parse_message_id
from node.message_store.store_files import (
    CHECKPOINT_BYTES,
    CONFIG_BYTES_MAX,
    StoreCheckpoint,
    decode_checkpoint,
    parse_config,
)

CONSUME_QUEUE: Final = "consumequeue"
INDEX: Final = "index"
QUERY_MAX: Final = 64  # maxMsgsNumBatch
_INDEX_NAME_DIGITS: Final = 17
_INDEX_BYTES_MAX: Final = 2 << 30


class StoreKind(StrEnum):
    """Where the messages are."""

    LOCAL = "commit log"
    LEDGER = "replicated log"
    JOINED = "old commit log, then replicated log"


def kind_of(root: Path, files: Files = OS) -> StoreKind | None:
    """None: this is no store of RocketMQ's (a replicated log alone may hold anything)."""
    names = files.names(root / COMMIT_LOG) if files.is_folder(root / COMMIT_LOG) else []
    has_old = any(name != OWNER_FILE for name in names)
    has_ledger = bool(ledgers_in(root, files))
    beside = OWNER_FILE in names or any(files.is_folder(root / name) for name in (CONSUME_QUEUE, INDEX, *FOLDERS))
    if has_ledger and (has_old or beside):
        return StoreKind.JOINED if has_old else StoreKind.LEDGER
    return StoreKind.LOCAL if has_old or files.is_folder(root / COMMIT_LOG) else None


def ledgers_in(root: Path, files: Files = OS) -> list[Path]:
    """The directories of replicated logs in a store."""
    names = [name for name in files.names(root) if name.startswith(LEDGER_PREFIX)]
    return [root / name for name in names if files.is_folder(root / name / "data")]


def log_begin(root: Path, files: Files = OS) -> int:
    """The place of a store's first byte: of its old commit log, else of the replicated one; 0 without files."""
    rows = (local_commit_log(root, files), *(ledger_commit_log(one, files) for one in ledgers_in(root, files)))
    return next((one.min_offset for one in rows if one.queue.files), 0)


class MessageStore:
    """Raises MessageStoreError where `root` is no store that can be read here."""

    def __init__(self, root: Path, files: Files = OS) -> None:
        self.root = root
        self.files = files
        self.index_sizes: tuple[int, int] | None = None  # slots and entries of a file, where its writer is known
        kind = kind_of(root, files)
        if kind is None:
            if files.is_folder(root / CONSUME_QUEUE):
                raise MessageStoreError(
                    f"{root} has consume queues but neither {COMMIT_LOG}/ nor {LEDGER_PREFIX}<id>/: its commit log is"
                    " elsewhere (storePathCommitLog, perhaps several places); bring the files together in a copy"
                )
            raise MessageStoreError(
                f"{root} is no message store: there is no {COMMIT_LOG}/ and no {LEDGER_PREFIX}<id>/"
            )
        self.kind = kind
        check_forms(root, files)
        self.ledger: Path | None = None
        if kind is not StoreKind.LOCAL:
            ledgers = ledgers_in(root, files)
            if len(ledgers) > 1:
                raise MessageStoreError(
                    f"{root} holds several replicated logs: {', '.join(one.name for one in ledgers)}"
                )
            self.ledger = ledgers[0]
        self.log = self._open_log()

    def _open_log(self) -> CommitLog:
        if self.ledger is None:
            return local_commit_log(self.root, self.files)
        ledger = ledger_commit_log(self.ledger, self.files)
        old = local_commit_log(self.root, self.files)
        if not old.queue.files:
            return ledger
        return JoinedCommitLog(old, ledger) if ledger.queue.files else old

    @property
    def divided_offset(self) -> int | None:
        """dividedCommitlogOffset: where the replicated log begins; None where it has no files."""
        if isinstance(self.log, JoinedCommitLog):
            return self.log.divided_offset
        is_old = self.ledger is None or bool(local_commit_log(self.root, self.files).queue.files)
        return None if is_old else self.log.min_offset

    # --- queues ---------------------------------------------------------------------------------------------------
    def topics(self) -> dict[str, list[int]]:
        """Every topic that has consume queues, with its queues' numbers."""
        found: dict[str, list[int]] = {}
        for name in self.files.names(self.root / CONSUME_QUEUE):
            ids = [one for one in self.files.names(self.root / CONSUME_QUEUE / name) if one.isascii() and one.isdigit()]
            if ids:
                found[name] = sorted(map(int, ids))
        return found

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """None where there is none. A topic that would lead out of the directory is none, either."""
        if not topic or "/" in topic or "\0" in topic or topic in (".", ".."):
            return None
        folder = self.root / CONSUME_QUEUE / topic / str(queue_id)
        return ConsumeQueue(folder, topic, queue_id, self.files) if self.files.is_folder(folder) else None

    def queues(self, topic: str | None = None) -> Iterator[ConsumeQueue]:
        """All queues, or those of one topic."""
        for name, ids in self.topics().items():
            for queue_id in ids if topic in (None, name) else ():
                queue = self.queue(name, queue_id)
                if queue is not None:
                    yield queue

    def max_offset(self) -> int:
        """Behind the last message of the commit log. The consume queues say near which place to look."""
        near = [int(units[-1]["offset"]) for one in self.queues() if len(units := one.units(one.max_offset() - 1, 1))]
        return self.log.find_end(max(near, default=None))

    # --- messages -------------------------------------------------------------------------------------------------
    def by_id(self, text: str) -> Placed:
        """Raises MessageStoreError; the host in the id may be an old master's, and is not compared."""
        try:
            return self.log.message_at(parse_message_id(text)[1])
        except MessageFormatError as error:
            raise MessageStoreError(str(error)) from error

    def in_queue(self, topic: str, queue_id: int, offset: int) -> Placed:
        """Raises MessageStoreError where the queue has no such message."""
        queue = self.queue(topic, queue_id)
        if queue is None:
            raise MessageStoreError(f"there is no queue {queue_id} of topic {topic!r} in {self.root}")
        units = queue.units(offset, 1)
        low, high = queue.min_offset(self.log.min_offset), queue.max_offset()
        if not len(units) or not low <= offset < high:
            span = f"it holds {low} to {high - 1}" if high > low else "it holds none"
            raise MessageStoreError(f"no message {offset} in queue {queue_id} of topic {topic!r}: {span}")
        return self.log.message_at(int(units[0]["offset"]))

    def query(
        self, topic: str, key: str, limit: int = QUERY_MAX, begin_ms: int | None = None, end_ms: int | None = None
    ) -> list[int]:
        """Offsets whose key hashes like this one, ascending, as a broker gives them: the newest `limit`."""
        return sorted(one for one in self.query_steps(topic, key, limit, begin_ms, end_ms) if one is not None)

    def query_steps(
        self, topic: str, key: str, limit: int = QUERY_MAX, begin_ms: int | None = None, end_ms: int | None = None
    ) -> Iterator[int | None]:
        """The same, newest first, with a None wherever somebody else may have a turn."""
        left, hashed = limit, key_hash(topic, key)
        for _name, file in self.index_files(newest_first=True):
            if end_ms is None or file.head.begin_timestamp_ms <= end_ms:
                for offset in file.steps(hashed, begin_ms, end_ms):
                    if offset is not None and left <= 0:
                        return
                    left -= offset is not None
                    yield offset
            if begin_ms is not None and file.head.begin_timestamp_ms < begin_ms:
                return

    def by_key(
        self, topic: str, key: str, limit: int = QUERY_MAX, begin_ms: int | None = None, end_ms: int | None = None
    ) -> list[Placed]:
        """The messages of a topic that have this key, ascending; each once."""
        found: list[Placed] = []
        for offset in dict.fromkeys(self.query(topic, key, limit, begin_ms, end_ms)):
            try:
                placed = self.log.message_at(offset)
            except MessageStoreError:
                continue  # expired, or an entry that a recovery left
            if placed.record.topic == topic and key in placed.record.index_keys:
                found.append(placed)
        return found

    # --- the other files ------------------------------------------------------------------------------------------
    def index_names(self) -> list[str]:
        names = self.files.names(self.root / INDEX)
        return [one for one in names if one.isascii() and one.isdigit() and len(one) == _INDEX_NAME_DIGITS]

    def index_file(self, name: str) -> IndexFile:
        """Raises MessageFormatError."""
        path = self.root / INDEX / name
        size = self.files.size(path) or 0
        if size > _INDEX_BYTES_MAX:
            raise MessageFormatError(f"an index file of {size} bytes, {_INDEX_BYTES_MAX} at most")
        data = self.files.mapped(path)
        if self.index_sizes is not None and len(data) == file_bytes(*self.index_sizes):
            return IndexFile(data, self.index_sizes[0])
        return IndexFile(data, slots_shown_by(data))

    def index_files(self, *, newest_first: bool = False) -> Iterator[tuple[str, IndexFile]]:
        """Those that can be read; `store verify` names the others."""
        for name in sorted(self.index_names(), reverse=newest_first):
            try:
                yield name, self.index_file(name)
            except MessageFormatError:
                continue

    def checkpoint(self) -> StoreCheckpoint | None:
        """None where there is none. Raises MessageFormatError."""
        data = self.files.read(self.root / "checkpoint", 0, CHECKPOINT_BYTES + 1)
        return decode_checkpoint(data) if data else None

    @property
    def has_abort(self) -> bool:
        """A broker runs here, or the last one did not stop cleanly."""
        return self.files.size(self.root / "abort") is not None

    @property
    def is_broker_group(self) -> bool:
        """A member's directory of a broker group, which never has `abort`."""
        return self.files.size(self.root / COMMIT_LOG / OWNER_FILE) is not None

    @property
    def may_lag(self) -> bool:
        """Queues and index may lack the newest messages, which the broker that runs, or its next start, brings there.

        In a broker group that is no fault at any time: the log of a follower has what is not committed yet, and a
        restored one has no queues at all.
        """
        return self.has_abort or self.is_broker_group

    @property
    def running_in(self) -> int | None:
        """The process that holds `lock`: a broker that runs here (-1: it cannot be named). None: none does."""
        return self.files.locked_by(self.root / "lock")

    def config(self, name: str) -> dict[str, Any] | None:
        """`config/NAME`; None where there is none. Raises MessageFormatError."""
        size = self.files.size(self.root / "config" / name)
        if size is None:
            return None
        return parse_config(self.files.read(self.root / "config" / name, 0, min(size, CONFIG_BYTES_MAX + 1)))
