"""Faults planted in a store of messages, one of each class: what is changed, and what a check has to say of it.

Nothing here knows how a check works: each fault is done to the files that a broker wrote, by hand.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.unit.message_broker import UNITS_A_FILE, Broker, filled

UNIT = struct.Struct(">qiq")


@dataclass(frozen=True, slots=True)
class Planted:
    """Class, offset in the commit log, and the queue offset where the fault is one of a queue."""

    fault: str
    offset: int | None
    queue_offset: int | None = None
    count: int = 1


Plant = Callable[[Broker, random.Random], Planted]


def unit_file(broker: Broker, topic: str, queue_id: int, number: int) -> tuple[Path, int]:
    """The file of a unit, and its byte there."""
    start = number // UNITS_A_FILE * UNITS_A_FILE * UNIT.size
    folder = broker.root / "consumequeue" / topic / str(queue_id)
    return folder / f"{start:020d}", number * UNIT.size - start


def patch(path: Path, at: int, data: bytes) -> None:
    held = bytearray(path.read_bytes()) if path.exists() else bytearray(UNITS_A_FILE * UNIT.size)
    held[at : at + len(data)] = data
    path.write_bytes(held)


def patch_log(broker: Broker, offset: int, data: bytes) -> None:
    start = offset // broker.file_bytes * broker.file_bytes
    patch(broker.folder / f"{start:020d}", offset - start, data)


def some_unit(broker: Broker, rng: random.Random) -> tuple[str, int, int, int]:
    """Topic, queue, number, offset of a unit that is not a queue's last."""
    (topic, queue_id), units = rng.choice(sorted((key, units) for key, units in broker.units.items() if len(units) > 2))
    number = rng.randrange(len(units) - 1)
    return topic, queue_id, number, units[number][0]


def missing_unit(broker: Broker, rng: random.Random) -> Planted:
    broker.write()
    topic, queue_id, number, offset = some_unit(broker, rng)
    patch(*unit_file(broker, topic, queue_id, number), bytes(UNIT.size))
    return Planted("cq_missing", offset, number)


def missing_tail(broker: Broker, rng: random.Random) -> Planted:
    broker.write()
    topic, queue_id, number, offset = some_unit(broker, rng)
    count = len(broker.units[topic, queue_id]) - number
    for at in range(number, number + count):
        patch(*unit_file(broker, topic, queue_id, at), bytes(UNIT.size))
    return Planted("cq_missing", offset, number, count)


def extra_unit(broker: Broker, rng: random.Random) -> Planted:
    broker.write()
    topic, queue_id, *_ = some_unit(broker, rng)
    number = len(broker.units[topic, queue_id])
    offset = broker.end + rng.randrange(1000)
    patch(*unit_file(broker, topic, queue_id, number), UNIT.pack(offset, 200, 0))
    return Planted("cq_extra", offset, number)


def wrong_unit(broker: Broker, rng: random.Random) -> Planted:
    broker.write()
    topic, queue_id, number, offset = some_unit(broker, rng)
    other = [rng.randrange(1, 1000), 0, 0]
    rng.shuffle(other)
    path, at = unit_file(broker, topic, queue_id, number)
    held = UNIT.unpack_from(path.read_bytes(), at)
    patch(path, at, UNIT.pack(*(one + more for one, more in zip(held, other, strict=True))))
    return Planted("cq_mismatch", offset, number)


def queue_gap(broker: Broker, rng: random.Random) -> Planted:
    """A message is in neither: the log goes on behind it as if it had never been."""
    key = rng.choice(sorted(broker.units))
    skipped = rng.randrange(1, 4)
    first = broker.next_offsets[key]
    broker.next_offsets[key] += skipped
    offset = broker.put(*key, b"behind the gap")
    row = broker.units[key].pop()
    broker.units[key] += [(0, 0, 0)] * skipped + [row]
    broker.write()
    return Planted("queue_offset_gap", offset, first, skipped)


def queue_duplicate(broker: Broker, rng: random.Random) -> Planted:
    key = rng.choice(sorted(broker.units))
    broker.next_offsets[key] -= 1
    number = broker.next_offsets[key]
    offset = broker.put(*key, b"again", dispatch=False)
    broker.write()
    return Planted("queue_offset_duplicate", offset, number)


def moved_record(broker: Broker, rng: random.Random) -> Planted:
    broker.write()
    offset = rng.choice(broker.places)
    patch_log(broker, offset + 28, struct.pack(">q", offset + rng.randrange(1, 5000)))
    return Planted("physical_offset_mismatch", offset)


def missing_key(broker: Broker, rng: random.Random) -> Planted:
    _, offset = broker.keys.pop(rng.randrange(len(broker.keys)))
    broker.write()
    return Planted("index_missing", offset)


def extra_key(broker: Broker, rng: random.Random) -> Planted:
    """Of a message twice, of none, or of another key."""
    hashed, offset = rng.choice(broker.keys)
    offset = rng.choice([offset, broker.end + 100])
    broker.keys.append((rng.choice([hashed, hashed ^ 0x40]), offset))
    broker.write()
    return Planted("index_extra", offset)


def wrong_body(broker: Broker, rng: random.Random) -> Planted:
    offset = broker.put("TopicTest", 0, b"a body of some length")
    broker.write()
    patch_log(broker, offset + 88 + rng.randrange(15), bytes([0x5A]))
    return Planted("body_crc_invalid", offset)


def unlisted_topic(broker: Broker, rng: random.Random) -> Planted:
    broker.write()
    (broker.root / "config").mkdir()
    left_out = rng.choice(sorted({topic for topic, _ in broker.units}))
    listed = ",".join(f'"{topic}":{{}}' for topic in sorted({one for one, _ in broker.units} - {left_out}))
    (broker.root / "config" / "topics.json").write_text(f'{{"topicConfigTable":{{{listed}}}}}')
    return Planted("metadata_mismatch", None)


def consumer_behind_the_end(broker: Broker, rng: random.Random) -> Planted:
    broker.write()
    (broker.root / "config").mkdir()
    (topic, queue_id), units = rng.choice(sorted(broker.units.items()))
    more = rng.randrange(1, 100)
    text = f'{{"offsetTable":{{"{topic}@group":{{{queue_id}:{len(units) + more}}}}}}}'
    (broker.root / "config" / "consumerOffset.json").write_text(text)
    return Planted("metadata_mismatch", None, len(units), more)


def overwritten(broker: Broker, rng: random.Random) -> Planted:
    broker.write()
    offset = rng.choice(broker.places[:-1])
    head = 48 if broker.ledger else 0
    patch_log(broker, offset - head, rng.randbytes(4) + b"\x11\x22\x33\x44")
    return Planted("record_invalid", offset - head)


def odd_file(broker: Broker, rng: random.Random) -> Planted:
    broker.write()
    (broker.folder / f"{rng.randrange(100):03d}").write_bytes(b"x")
    return Planted("file_invalid", None)


PLANTS: tuple[Plant, ...] = (
    missing_unit, missing_tail, extra_unit, wrong_unit, queue_gap, queue_duplicate, moved_record, missing_key,
    extra_key, wrong_body, unlisted_topic, consumer_behind_the_end, overwritten, odd_file,
)  # fmt: skip


def planted(root: Path, plant: Plant, seed: int, *, ledger: bool) -> tuple[Broker, Planted]:
    broker = filled(root, count=70, ledger=ledger)
    return broker, plant(broker, random.Random(seed))
