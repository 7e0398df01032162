"""Faults planted in the logs of a pair, byte by byte; nothing here knows the audit, or reads a log."""

from __future__ import annotations

import json
import random
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.unit.message_broker import Broker, filled


@dataclass(frozen=True, slots=True)
class Planted:
    """The one finding that is to be there. `replicas`: whom it is about."""

    cls: str
    replicas: tuple[str, ...]
    begin: int
    good: tuple[str, ...] = ()


Plant = Callable[[Path, Path, random.Random], Planted | None]


def both(master: Path, slave: Path, count: int = 60) -> Broker:
    """Two equal logs; what was written."""
    filled(slave, count=count).write()
    broker = filled(master, count=count)
    broker.write()
    return broker


def patch(root: Path, offset: int, data: bytes, file_bytes: int = 4096) -> None:
    path = root / "commitlog" / f"{offset - offset % file_bytes:020d}"
    content = bytearray(path.read_bytes())
    content[offset % file_bytes : offset % file_bytes + len(data)] = data
    path.write_bytes(content)


def byte_at(broker: Broker, offset: int) -> int:
    return broker.log[offset - broker.begin]


def with_body(broker: Broker, rng: random.Random) -> tuple[int, int]:
    """A record with a body: its place, and one of its body's bytes."""
    places = [one for one in broker.places if broker.log[one + 84 : one + 88] > bytes(4)]
    place = rng.choice(places)
    return place, place + 88 + rng.randrange(struct.unpack_from(">i", broker.log, place + 84)[0])


def lineage(root: Path, pair: str, epochs: list[list[int]]) -> None:
    said = json.dumps({"pair": pair, "epochs": epochs}, separators=(",", ":"))
    (root / "quorumscope").mkdir(exist_ok=True)
    (root / "quorumscope" / "ha").write_text(f"{zlib.crc32(said.encode()):08x} {said}\n")


def nothing(master: Path, slave: Path, _rng: random.Random) -> None:
    both(master, slave)
    lineage(master, "pair-1", [[1, 0]])
    lineage(slave, "pair-1", [[1, 0]])


def slave_behind(master: Path, slave: Path, rng: random.Random) -> None:
    filled(slave, count=rng.randrange(1, 59)).write()
    filled(master).write()


def slave_with_older_files(master: Path, slave: Path, _rng: random.Random) -> None:
    both(master, slave)
    (master / "commitlog" / f"{0:020d}").unlink()


def body_of_slave(master: Path, slave: Path, rng: random.Random) -> Planted:
    broker = both(master, slave)
    place, at = with_body(broker, rng)
    patch(slave, at, bytes([byte_at(broker, at) ^ 1 << rng.randrange(8)]))
    return Planted("crc_invalid", ("slave",), place, ("master",))


def body_of_master(master: Path, slave: Path, rng: random.Random) -> Planted:
    broker = both(master, slave)
    place, at = with_body(broker, rng)
    patch(master, at, bytes([byte_at(broker, at) ^ 1 << rng.randrange(8)]))
    return Planted("crc_invalid", ("master",), place, ("slave",))


def body_of_both(master: Path, slave: Path, rng: random.Random) -> Planted:
    broker = both(master, slave)
    place, at = with_body(broker, rng)
    for root in (master, slave):
        patch(root, at, bytes([byte_at(broker, at) ^ 1]))
    return Planted("crc_invalid", ("master", "slave"), place)


def head_of_slave(master: Path, slave: Path, rng: random.Random) -> Planted:
    broker = both(master, slave)
    place = rng.choice(broker.places[:-1])
    patch(slave, place, rng.randbytes(4) + b"\x11\x22\x33\x44")
    return Planted("record_invalid", ("slave",), place, ("master",))


def zeros_in_slave(master: Path, slave: Path, rng: random.Random) -> Planted:
    """From within one file to its end; the log goes on in the next."""
    broker = both(master, slave)
    place = rng.choice([one for one in broker.places if one < broker.end // 4096 * 4096])
    patch(slave, place, bytes(4096 - place % 4096))
    return Planted("record_invalid", ("slave",), place, ("master",))


def blank_of_slave(master: Path, slave: Path, rng: random.Random) -> Planted:
    broker = both(master, slave)
    at = broker.log.find(struct.pack(">I", 0xCBD43194)) - 4
    patch(slave, at, rng.randbytes(8))
    return Planted("record_invalid", ("slave",), at, ("master",))


def properties_of_slave(master: Path, slave: Path, rng: random.Random) -> Planted:
    """No CRC covers them."""
    broker = both(master, slave)
    ends = [end for end in broker.places[1:-1] if broker.log[end - 1] and broker.log[end - 9 : end - 8] != b"\0"]
    end = rng.choice([one for one in ends if one % 4096])
    patch(slave, end - 1, bytes([byte_at(broker, end - 1) ^ 3]))
    return Planted("body_mismatch", ("master", "slave"), max(one for one in broker.places if one < end))


def queue_offset_of_slave(master: Path, slave: Path, rng: random.Random) -> Planted:
    broker = both(master, slave)
    place = rng.choice(broker.places[:-1])
    patch(slave, place + 27, bytes([byte_at(broker, place + 27) ^ 0x40]))
    return Planted("body_mismatch", ("master", "slave"), place)


def forked(master: Path, slave: Path, rng: random.Random) -> Planted:
    """From one record on both went on by themselves; `same_sizes`: the records of both lie at the same places."""
    one, other = filled(master, count=40), filled(slave, count=40)
    begin = one.end
    same_sizes = rng.random() < 0.5
    for number in range(rng.randrange(1, 40)):
        one.put(body=b"of the master, %04d" % number)
        other.put(body=b"of the slave!, %04d" % number if same_sizes else b"of the slave %04d, longer" % number)
    one.write()
    other.write()
    left = 4096 - begin % 4096
    return Planted("fork", ("master", "slave"), begin if one.places[40] == begin else begin + left)


def slave_ahead(master: Path, slave: Path, rng: random.Random) -> Planted:
    broker = filled(master, count=rng.randrange(2, 59))
    broker.write()
    filled(slave).write()
    return Planted("ahead", ("slave",), broker.end)


def stranger(master: Path, slave: Path, _rng: random.Random) -> Planted:
    both(master, slave)
    lineage(master, "pair-1", [[1, 0]])
    lineage(slave, "pair-2", [[1, 0]])
    return Planted("stranger", ("slave",), 0)


def both_were_master(master: Path, slave: Path, rng: random.Random) -> Planted:
    broker = both(master, slave)
    one, other = sorted(rng.sample(broker.places[:-1], 2))
    lineage(master, "pair-1", [[1, 0], [2, other]])
    lineage(slave, "pair-1", [[1, 0], [2, one]])
    return Planted("two_masters", ("master", "slave"), one)


def file_of_slave_gone(master: Path, slave: Path, _rng: random.Random) -> Planted:
    both(master, slave)
    (slave / "commitlog" / f"{4096:020d}").unlink()
    return Planted("missing", ("slave",), 4096, ("master",))


def other_file_size(master: Path, slave: Path, _rng: random.Random) -> Planted:
    filled(master).write()
    broker = Broker(slave, file_bytes=8192)
    for number in range(30):
        broker.put(body=b"%d" % number)
    broker.write()
    return Planted("file_size_mismatch", ("master", "slave"), 0)


SOUND: tuple[Plant, ...] = (nothing, slave_behind, slave_with_older_files)
PLANTS: tuple[Plant, ...] = (
    body_of_slave, body_of_master, body_of_both, head_of_slave, zeros_in_slave, blank_of_slave, properties_of_slave,
    queue_offset_of_slave, forked, slave_ahead, stranger, both_were_master, file_of_slave_gone, other_file_size,
)  # fmt: skip
