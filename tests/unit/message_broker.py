"""A broker's store as RocketMQ writes one, small: commit log (its own or the replicated one), queues, index.

What it writes is laid out here by hand, so that a mistake in the readers is not repeated in what they are tested with:
only records are encoded by the codec, which the recorded vectors vouch for.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from pathlib import Path

from node.message_store.properties import join_properties
from node.message_store.record import MessageRecord, encode_record, magic_for
from tests.unit.message_kit import record

BLANK = 0xCBD43194
SLOTS = 100
INDEX_ENTRIES = 400
UNITS_A_FILE = 16


def java_hash(text: str) -> int:
    found = 0
    for at in range(0, len(data := text.encode("utf-16-be")), 2):
        found = (31 * found + int.from_bytes(data[at : at + 2], "big")) & 0xFFFFFFFF
    return found - (1 << 32) if found >> 31 else found


class Broker:
    """`ledger`: each record in an entry of `dledger-n0`; `begin`: where its first file begins."""

    def __init__(self, root: Path, *, ledger: bool = False, begin: int = 0, file_bytes: int = 4096) -> None:
        self.root = root
        self.folder = root / ("dledger-n0/data" if ledger else "commitlog")
        self.ledger = ledger
        self.begin = self.offset = begin
        self.file_bytes = file_bytes
        self.log = bytearray()
        self.next_offsets: dict[tuple[str, int], int] = defaultdict(int)
        self.units: dict[tuple[str, int], list[tuple[int, int, int]]] = defaultdict(list)
        self.first_units: dict[tuple[str, int], int] = {}
        self.keys: list[tuple[int, int]] = []
        self.places: list[int] = []
        self.entries = 0

    def put(
        self, topic: str = "TopicTest", queue_id: int = 0, body: bytes = b"body", *,
        tags: str = "", keys: str = "", unique: str = "", sys_flag: int = 0, dispatch: bool = True,
    ) -> int:  # fmt: skip
        """Its physical offset."""
        named = [("KEYS", keys), ("TAGS", tags), ("UNIQ_KEY", unique)]
        kind = sys_flag & 0xC
        queued = kind in (0, 8)
        key = (topic, queue_id)
        one = record(
            body, topic=topic, magic=magic_for(topic), queue_id=queue_id, sys_flag=sys_flag,
            queue_offset=self.next_offsets[key] if queued else 0,
            store_timestamp_ms=1_795_000_000_000 + len(self.places),
            properties_data=join_properties([pair for pair in named if pair[1]]),
        )  # fmt: skip
        offset = self.append(one)
        size = one.total_size
        if queued:
            self.next_offsets[key] += 1
        if queued and dispatch:
            self.first_units.setdefault(key, one.queue_offset)
            self.units[key].append((offset, size, java_hash(tags) if tags else 0))
        if kind != 0xC and dispatch:
            for name in [unique, *keys.split(" ")]:
                if name:
                    self.keys.append((abs(java_hash(f"{topic}#{name}")), offset))
        return offset

    def append(self, one: MessageRecord) -> int:
        """The record at the end of the log, with its own place in it; returns that place."""
        head_bytes = 48 if self.ledger else 0
        size = one.total_size + head_bytes
        left = self.file_bytes - len(self.log) % self.file_bytes
        if size + 8 > left:
            blank = struct.pack(">ii", -1, left) if self.ledger else struct.pack(">iI", left, BLANK)
            self.log += blank.ljust(left, b"\0")
        place = self.begin + len(self.log)
        data = bytearray(encode_record(one))
        struct.pack_into(">q", data, 28, place + head_bytes)
        if self.ledger:
            self.log += struct.pack(">iiqqqiIIi", 1, size, self.entries, 1, place, 0, 0, 0, len(data))
        self.entries += 1
        self.log += data
        self.places.append(place + head_bytes)
        return place + head_bytes

    @property
    def end(self) -> int:
        return self.begin + len(self.log)

    def write(self) -> Path:
        """All files as they are now."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for at in range(0, len(self.log), self.file_bytes):
            data = bytes(self.log[at : at + self.file_bytes]).ljust(self.file_bytes, b"\0")
            (self.folder / f"{self.begin + at:020d}").write_bytes(data)
        for (topic, queue_id), units in self.units.items():
            self.write_queue(topic, queue_id, self.first_units[topic, queue_id], units)
        self.write_index()
        return self.root

    def write_queue(self, topic: str, queue_id: int, first: int, units: list[tuple[int, int, int]]) -> None:
        folder = self.root / "consumequeue" / topic / str(queue_id)
        folder.mkdir(parents=True, exist_ok=True)
        start = first // UNITS_A_FILE * UNITS_A_FILE
        rows = [(0, 0x7FFFFFFF, 0)] * (first - start) + units
        for at in range(0, len(rows), UNITS_A_FILE):
            data = b"".join(struct.pack(">qiq", *row) for row in rows[at : at + UNITS_A_FILE])
            name = f"{(start + at) * 20:020d}"
            (folder / name).write_bytes(data.ljust(UNITS_A_FILE * 20, b"\0"))

    def write_index(self, name: str = "20261121032455669") -> None:
        (self.root / "index").mkdir(exist_ok=True)
        slots, entries = [0] * SLOTS, [(0, 0, 0, 0)]
        for hashed, offset in self.keys:
            entries.append((hashed, offset, 0, slots[hashed % SLOTS]))
            slots[hashed % SLOTS] = len(entries) - 1
        offsets = [offset for _, offset in self.keys] or [0]
        head = struct.pack(
            ">qqqqii", 1_795_000_000_000, 1_795_000_000_000 + len(self.places), offsets[0], offsets[-1],
            sum(map(bool, slots)), len(entries),
        )  # fmt: skip
        body = b"".join(struct.pack(">iqii", *one) for one in entries).ljust(INDEX_ENTRIES * 20, b"\0")
        (self.root / "index" / name).write_bytes(head + struct.pack(f">{SLOTS}i", *slots) + body)


def filled(root: Path, *, count: int = 60, ledger: bool = False, begin: int = 0) -> Broker:
    """Messages of three topics in seven queues, with tags and keys, half and rolled back ones among them."""
    broker = Broker(root, ledger=ledger, begin=begin)
    for number in range(count):
        topic = ("TopicTest", "OrderTopic", "L" * 150)[number % 3]
        kind = {7: 4, 11: 12, 13: 8}.get(number % 17, 0)
        broker.put(
            topic, number % 2, b"message %d" % number * (number % 9), tags=("", "TagA", "TagB")[number % 3],
            keys=f"k{number % 5} order-{number}", unique=f"FD{number:04X}", sys_flag=kind,
        )  # fmt: skip
    return broker
