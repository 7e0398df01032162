"""Targets: the small files of a store and everything else that is parsed from text or bytes in one piece."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from io import BytesIO
from pathlib import Path

import numpy as np

from app.commands.endings import Failure
from app.commands.ledger import Split, bodies_of
from app.console.packing import pack, unpack
from node.config import ConfigError, load
from node.control.entry_pages import entry_json
from node.control.problems import Problem
from node.control.segments import parse_range
from node.protocol.codes import VoterState
from node.protocol.entry import Entry, crc32
from node.protocol.peers import format_peers, parse_peers, split_address
from node.store.errors import StoreRefused
from node.store.files.checkpoint import CHECKPOINT, SLOT_SPACING_BYTES, Slot, pack_slot, read_checkpoint, unpack_slot
from node.store.files.hard_state import (
    CURRTERM,
    HARDSTATE,
    adopt_currterm,
    format_currterm,
    hard_state_to_json,
    load_hard_state,
    parse_currterm,
    save_hard_state,
)
from node.store.files.identity import (
    BASE,
    IDENTITY,
    Base,
    Identity,
    check_identity,
    read_base,
    read_identity,
    write_identity,
)
from node.store.files.os_files import pack_sealed_json
from node.store.files.truncation_archive import TruncationArchive
from node.store.log_store import EntryMeta, HardState
from tests.fuzz.held_files import HeldFiles
from tests.fuzz.target import Target
from tests.fuzz.wire import JSON_BYTES_PER_BYTE

ROOT = Path("/store")
STATE = HardState(
    7, "n1", VoterState.VOTER, 3, {"n1": "store-1", "n2": "store-2"}, ("life-1", "life-2"), {"n1": "life-9"},
    "store-9", "group-id", 6,
)  # fmt: skip
INT64 = 1 << 63


# --- a store's own ----------------------------------------------------------------------------------------------------
SLOTS = [pack_slot(Slot()), pack_slot(Slot(9, 0, 900, 3, 0xABCD, 8, 7, 9, 2, True, "boot-1", 4))]


def reseal_slot(data: bytes) -> bytes:
    size = len(SLOTS[0]) - 4
    return (
        b"QSCP" + struct.pack(">I", 1) + data[8:size] + struct.pack(">I", crc32(data[:size]))
        if len(data) > size
        else data
    )


def slot(data: bytes) -> None:
    """A slot whose CRC is right comes back to the byte, flags that nobody set aside."""
    found = unpack_slot(data)
    if found is not None:
        assert unpack_slot(pack_slot(found)) == found
    held = HeldFiles({ROOT / CHECKPOINT: data[:SLOT_SPACING_BYTES].ljust(SLOT_SPACING_BYTES, b"\0") + SLOTS[1]})
    newest = read_checkpoint(ROOT / CHECKPOINT, held)
    assert newest is not None
    assert newest.number >= 4


def currterm(data: bytes) -> None:
    """A term is a number that a frame can hold, or the file says none."""
    found = parse_currterm(data)
    if found is not None:
        assert 0 <= found[0] < INT64
        assert parse_currterm(format_currterm(*found)) == found
    held = HeldFiles({ROOT / CURRTERM: data, ROOT / HARDSTATE: pack_sealed_json(hard_state_to_json(STATE))})
    both = load_hard_state(ROOT, has_entries=True, platform=held)
    assert both is not None
    assert both.term >= STATE.term
    assert (both.term, both.voted_for) == (STATE.term, STATE.voted_for) or both.vote_floor >= both.term
    adopted = adopt_currterm(ROOT, has_entries=True, platform=held)
    save_hard_state(ROOT, adopted, held)


def resealed(data: bytes) -> bytes:
    """The CRC in front of a line of JSON is right."""
    text = data.rstrip(b"\n").partition(b" ")[2]
    return b"%08x %s\n" % (crc32(text), text)


def hardstate(data: bytes) -> None:
    held = HeldFiles({ROOT / HARDSTATE: data})
    found = load_hard_state(ROOT, has_entries=True, platform=held)
    assert found is not None
    assert 0 <= found.term < INT64
    save_hard_state(ROOT, found, held)
    assert load_hard_state(ROOT, has_entries=True, platform=held) == found


def base(data: bytes) -> None:
    found = read_base(ROOT, HeldFiles({ROOT / BASE: data}))
    assert found is not None
    assert found.pos >= 0
    assert -1 <= found.meta.index < INT64


BASES = [
    pack_sealed_json({"index": one.meta.index, "term": one.meta.term, "chain": one.meta.chain, "pos": one.pos})
    for one in (Base(EntryMeta(41, 3, 0xABCD), 4096), Base(EntryMeta(41, 3, None), 4096))
]
IDENTITY_SEED = json.dumps(asdict(Identity("g", "n0", "store", 4096, 1024, 7)), indent=1).encode()


def identity(data: bytes) -> None:
    held = HeldFiles({ROOT / IDENTITY: data})
    found = read_identity(ROOT, held)
    assert found is not None
    assert found.sealed_from >= 0
    assert found.data_file_size >= 512
    check_identity(ROOT, found, found)
    write_identity(ROOT, found, held)
    assert read_identity(ROOT, held) == found


META = {
    "by": "n0", "leader": "n1", "term": 3, "from_index": 5, "to_index": 9, "reason": "conflict", "committed_at": 4,
    "time": "2026-01-01T00:00:00Z",
}  # fmt: skip


def meta(data: bytes) -> None:
    """An archive whose meta.json cannot be read is still there: it is listed with its bytes, and nothing breaks."""
    folder = ROOT / "truncated" / "0000000001"
    archive = TruncationArchive(ROOT, platform=HeldFiles({folder / "meta.json": data, folder / "data": data}))
    for found in archive.records():
        assert isinstance(found.by, str)
        assert isinstance(found.from_index, int)
        assert found.to_index - found.from_index + 1 is not None
        json.dumps(asdict(found)).encode()
    archive.entries(1)
    assert archive.count == 1


# --- the rest ---------------------------------------------------------------------------------------------------------
def peers(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    try:
        host, port = split_address(text)
        assert host
        assert 1 <= port <= 65535
    except ValueError:
        pass
    found = parse_peers(text)
    assert parse_peers(format_peers(found)) == found


CONFIG = b"""peers = "n0-127.0.0.1:20911;n1-127.0.0.1:20912"
[node]
id = "n0"
group = "g"
flush = "sync"
[control]
address = "127.0.0.1:8080"
[timing]
heart_beat_time_interval_ms = 100
"""


def config(data: bytes) -> None:
    """A file in memory: no disk."""
    fd = os.memfd_create("q.toml")
    try:
        os.write(fd, data)
        load({}, Path(f"/proc/self/fd/{fd}"), {})
    finally:
        os.close(fd)


def cli_bodies(data: bytes) -> None:
    split = list(Split)[data[0] % 3] if data else Split.FILE
    for body in bodies_of(BytesIO(data[1:]), split):
        assert len(body) <= len(data)


@cache
def packings() -> Sequence[bytes]:
    columns = {"t": np.arange(50, dtype=np.int64), "end": np.full(50, 1 << 60, dtype=np.int64)}
    return [pack(columns), pack({"t": np.zeros(1, dtype=np.int64)})]


def packing(data: bytes) -> None:
    found = unpack(data)
    assert {len(column) for column in found.values()} != set()


def entry_view(data: bytes) -> None:
    """An entry's body in every form that the control plane shows: always JSON that can be sent."""
    entry = Entry(1, 5, 1, 0, data)
    for form in ("text", "json", "hex", "base64"):
        json.dumps(entry_json(entry, form), ensure_ascii=False, allow_nan=False).encode("utf-8")


def byte_range(data: bytes) -> None:
    first, last = parse_range(data.decode("latin-1"), 1 << 20)
    assert first >= 0
    assert last < 1 << 20


BODIES = [b"\0one\ntwo\r\n\n", b"\x01whole", b"\x02\0\0\0\x03one\0\0\0\0"]
VIEWS = [b'{"a": [1, 2.5, null, "x"]}', b"plain", b'"\\u00e4"', b"[[[[1]]]]", b"1e308", b"\xff"]
TARGETS: tuple[Target, ...] = (
    Target("checkpoint_slot", slot, lambda: SLOTS, repair=reseal_slot),
    Target("currterm", currterm, lambda: [format_currterm(7, "n1"), b"#c\ncurrTerm=9\nvoteLeader=\n"], (StoreRefused,)),
    Target("hardstate", hardstate, lambda: [pack_sealed_json(hard_state_to_json(STATE))], (StoreRefused,), resealed,
           bytes_per_byte=JSON_BYTES_PER_BYTE),
    Target("base", base, lambda: BASES, (StoreRefused,), resealed, bytes_per_byte=JSON_BYTES_PER_BYTE),
    Target("identity", identity, lambda: [IDENTITY_SEED], (StoreRefused,), bytes_per_byte=JSON_BYTES_PER_BYTE),
    Target("truncation_meta", meta, lambda: [json.dumps(META).encode()], bytes_per_byte=JSON_BYTES_PER_BYTE),
    Target("peers", peers, lambda: [b"n0-127.0.0.1:20911;n1-[::1]:20912", b"n0-a:1"], (ValueError,),
           bytes_per_byte=JSON_BYTES_PER_BYTE),
    Target("config", config, lambda: [CONFIG], (ConfigError,), bytes_per_byte=400, bytes_fixed=1024 * 1024),
    Target("cli_bodies", cli_bodies, lambda: BODIES, (Failure,), bytes_per_byte=200),
    Target("packing", packing, packings, (ValueError,), bytes_per_byte=64),
    Target("entry_view", entry_view, lambda: VIEWS, bytes_per_byte=JSON_BYTES_PER_BYTE),
    Target("byte_range", byte_range, lambda: [b"bytes=0-99", b"bytes=5-"], (Problem,)),
)  # fmt: skip
