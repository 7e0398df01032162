"""A stopped member of a broker group, as its engine and its broker left it: a log of messages and inert records."""

from __future__ import annotations

from pathlib import Path

from node.message_store.commit_log import ledger_commit_log
from node.message_store.dispatch import Dispatcher
from node.message_store.dispatch_mark import DerivedSizes
from node.message_store.log_pieces import begin_of, entries_in
from node.message_store.properties import join_properties
from node.message_store.record import PHYSICAL_OFFSET_AT, encode_record, magic_for
from node.protocol.group_kind import Channel
from node.protocol.inert_records import inert_record
from node.store.file_store import FileStore
from tests.unit.java_rocketmq.broker import LEDGER_INDEX_BYTES, JavaBroker
from tests.unit.message_kit import record
from tests.unit.store_fixtures import BOOT, kill, sync

FILE_BYTES = 16384
SIZES = DerivedSizes(queue_file_bytes=320, index_slots=100, index_entries=400)
FIRST_MS = 1_795_000_000_000


class Group:
    """One member's directory. `messages`: place, queue and keys of each message that was put, by (topic, queue id)."""

    def __init__(self, root: Path, node_id: str = "n0") -> None:
        self.root, self.ledger = root, root / f"dledger-{node_id}"
        self.node_id = node_id
        self.store = self._open(init=True)
        self.next: dict[tuple[str, int], int] = {}
        self.puts: dict[tuple[str, int], list[int]] = {}
        self.term = 0
        self.count = 0

    def _open(self, *, init: bool = False) -> FileStore:
        return FileStore.open(
            self.ledger, group="g", node_id=self.node_id, data_file_size=FILE_BYTES,
            index_file_size=LEDGER_INDEX_BYTES, init=init, boot_id=BOOT, kind="broker",
        )  # fmt: skip

    def lead(self) -> None:
        """A term begins."""
        self.term += 1
        self.inert(Channel.FIRST_OF_TERM, b"")

    def inert(self, channel: int, content: bytes) -> int:
        body = inert_record(channel, content, FIRST_MS + self.count)
        self.store.append_as_leader([body], self.term, channel=channel, patch_at=PHYSICAL_OFFSET_AT)
        return self.store.end_index

    def put(
        self, count: int, *, topics: tuple[str, ...] = ("TopicTest", "Orders"), tag: str = "TagA",
        properties: tuple[tuple[str, str], ...] = (),
    ) -> None:  # fmt: skip
        for _ in range(count):
            topic, queue_id = topics[self.count % len(topics)], self.count % 3
            number = self.next.get((topic, queue_id), 0)
            self.next[topic, queue_id] = number + 1
            one = record(
                b"message %d" % self.count * (self.count % 7), topic=topic, magic=magic_for(topic), queue_id=queue_id,
                queue_offset=number, store_timestamp_ms=FIRST_MS + self.count,
                properties_data=join_properties([("KEYS", f"k{self.count}"), ("TAGS", tag), *properties]),
            )  # fmt: skip
            self.store.append_as_leader([encode_record(one)], self.term, patch_at=PHYSICAL_OFFSET_AT)
            self.puts.setdefault((topic, queue_id), []).append(self.store.end_index)
            self.count += 1

    def stop(self, committed: int | None = None, *, dispatched: int | None = None, cleanly: bool = True) -> None:
        """`committed` None: all. `dispatched`: as far as the broker came; None: it never ran."""
        self.committed = self.store.end_index if committed is None else committed
        self.store.note_progress(self.committed, self.committed)
        sync(self.store)
        self.end = self.store.end_index
        if cleanly:
            self.store.close()
        else:
            kill(self.store)
        if dispatched is not None:
            begin = begin_of(ledger_commit_log(self.ledger).queue)
            dispatcher = Dispatcher(self.root, SIZES, begin=begin)
            for piece in entries_in(self.ledger, begin, dispatched):
                dispatcher.dispatch(piece.batch, piece.end)
            dispatcher.save()
            if cleanly:
                dispatcher.close()

    def trim(self, through: int) -> None:
        """Retention removes whole files below that entry."""
        self.store.note_progress(self.store.end_index, self.store.end_index)
        sync(self.store)
        self.store.remove_prefix(through)

    def reopened(self) -> FileStore:
        return self._open()

    def committed_puts(self) -> dict[tuple[str, int], int]:
        """How many messages of each queue are committed."""
        found = {name: sum(one <= self.committed for one in indexes) for name, indexes in self.puts.items()}
        return {name: count for name, count in found.items() if count}


def java(root: Path, version: str) -> JavaBroker:
    """Raises WillNotStart."""
    return JavaBroker(
        root, version, file_bytes=FILE_BYTES, queue_bytes=SIZES.queue_file_bytes, slots=SIZES.index_slots,
        index_entries=SIZES.index_entries,
    )  # fmt: skip
