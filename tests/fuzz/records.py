"""Targets: records, slabs, blanks and index units. The scalar and the numpy path must say the same of every input."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache

from node.protocol import entry as entries
from node.protocol import slab_encode, slab_verify
from node.protocol.entry import (
    HEAD_BYTES,
    INDEX_UNIT,
    INDEX_UNIT_BYTES,
    Entry,
    EntryError,
    Slab,
    chain_of,
    crc32,
    decode_slab,
    iter_bodies,
    pack_record,
    seal_of,
    slab_of,
    unpack_record,
    unpack_records,
)
from node.protocol.slab_encode import encode_slab
from node.protocol.slab_verify import slab_heads
from node.store.slab_pieces import cut_slab, cut_to_bytes, join_slabs, settle, slab_meta
from tests.fuzz.target import Target

# What the slab targets' inputs begin with: count, first index, pos, terms, chains, and whether bodies are checked.
SLAB_HEAD = struct.Struct(">IqqqqIIB")
FILE_BYTES = 1 << 16


@cache
def slabs() -> tuple[Slab, ...]:
    """Sealed, unsealed and mixed; below and above the border between the two paths; several terms."""
    few = encode_slab([b"one", b"", b"three" * 9], 5, 3, 4096, 0xABCD)
    many = encode_slab([b"body %d" % (number % 7) * (number % 3) for number in range(30)], 0, 2, 0, 0)
    equal = encode_slab([b"0123456789"] * 26, 7, 4, 8192, 0x1234)
    unsealed = slab_of(b"".join(pack_record(_bare(one)) for one in decode_slab(many)), 0, 0)
    grown = encode_slab([b"later"], 8, 5, few.end_pos, few.last_chain or 0)
    return few, many, equal, unsealed, join_slabs([few, grown])


def _bare(entry: Entry) -> Entry:
    return Entry(entry.magic, entry.index, entry.term, entry.pos, entry.body)


# --- one record -------------------------------------------------------------------------------------------------------
def record_seeds() -> Sequence[bytes]:
    return [pack_record(one) for slab in slabs() for one in decode_slab(slab)[:4]]


def record(data: bytes) -> None:
    """What decodes encodes to the bytes that it was decoded from."""
    found = unpack_record(data)
    assert pack_record(found) == data[: found.size]
    assert found.index >= 0
    assert found.term >= 0
    seal_of(found, None)
    seal_of(found, found.chain_crc)
    chain_of(found, 0)


def records(data: bytes) -> None:
    """A run of records: the client's decoder and the slab's agree, and nothing is lost on the way."""
    slab = slab_of(data, 0, None)
    found = decode_slab(slab)
    assert b"".join(map(pack_record, found)) == data
    assert len(found) == slab.count
    assert [bytes(body) for body in iter_bodies(slab)] == [one.body for one in found]
    assert [*unpack_records(data, slab.count)] == found


def records_seeds() -> Sequence[bytes]:
    return [slab.data for slab in slabs()]


def client_entries(data: bytes) -> None:
    """A read answer's records as a client takes them, whatever count it was told."""
    if len(data) < 4:
        return
    (count,) = struct.unpack_from(">I", data)
    [*unpack_records(data[4:], count)]


# --- slabs ------------------------------------------------------------------------------------------------------------
def packed(slab: Slab) -> bytes:
    head = SLAB_HEAD.pack(
        slab.count, slab.first_index, slab.pos, slab.first_term, slab.last_term, slab.prev_chain or 0,
        slab.last_chain or 0, 1,
    )  # fmt: skip
    return head + slab.index_records + slab.data


def unpacked(data: bytes) -> tuple[Slab, bool] | None:
    """A slab as a decoder could hand it on: its index records complete, its numbers inside what the frame allows."""
    if len(data) < SLAB_HEAD.size:
        return None
    count, first, pos, first_term, last_term, before, after, bodies = SLAB_HEAD.unpack_from(data)
    count %= 64
    end = SLAB_HEAD.size + count * INDEX_UNIT_BYTES
    raw = data[end:]
    limit = entries.POSITION_MAX
    if count < 1 or len(data) < end or not 0 <= first <= limit - count or not 0 <= pos <= limit - len(raw):
        return None
    units = data[SLAB_HEAD.size : end]
    return Slab(first, count, pos, raw, units, first_term, last_term, before, after), bool(bodies & 1)


def repair_slab(data: bytes) -> bytes:
    """CRCs, chain, index units and the slab's own terms say again what the whole records in it say."""
    made = unpacked(data)
    if made is None:
        return data
    slab, _ = made
    raw, units, chain, offset, number = bytearray(slab.data), bytearray(), slab.prev_chain or 0, 0, 0
    terms: list[int] = []
    while offset + HEAD_BYTES <= len(raw) and number < slab.count:
        head = list(entries.HEAD.unpack_from(raw, offset))
        size = head[1]
        if size < HEAD_BYTES or offset + size > len(raw):
            break
        head[7] = crc32(bytes(raw[offset + HEAD_BYTES : offset + size]))
        chain = head[6] = entries.chain_next(chain, head[0], head[1], head[2], head[3], head[5], head[7])
        entries.HEAD.pack_into(raw, offset, *head)
        units += INDEX_UNIT.pack(head[0], (slab.pos + offset) & entries.POSITION_MAX, size, head[2], head[3])
        terms.append(head[3])
        offset, number = offset + size, number + 1
    units += slab.index_records[len(units) :]
    ends = (terms[0], terms[-1]) if terms else (slab.first_term, slab.last_term)
    head_raw = SLAB_HEAD.pack(slab.count, slab.first_index, slab.pos, *ends, slab.prev_chain or 0, chain, 1)
    return head_raw + bytes(units) + bytes(raw)


def slab_seeds() -> Sequence[bytes]:
    return [packed(slab) for slab in slabs()]


Verdict = tuple[str, int | None]


def _verdict(slab: Slab, chain: int | None, bodies: bool, vector: bool) -> Verdict:
    check = slab_verify._verify_columns if vector else slab_verify._verify_loop
    try:
        return "sound", check(slab, chain, bodies=bodies)
    except EntryError:
        return "refused", None


def slab_paths(data: bytes) -> None:
    """Loop and columns give the same verdict and the same chain; what is sound also decodes, to the same heads."""
    made = unpacked(data)
    if made is None:
        return
    slab, bodies = made
    for chain in (slab.prev_chain, None):
        loop, columns = (_verdict(slab, chain, bodies, vector) for vector in (False, True))
        assert loop == columns, f"loop {loop}, columns {columns}"
    if _verdict(slab, slab.prev_chain, True, False)[0] != "sound":
        return
    found = decode_slab(slab)
    heads = slab_heads(slab)
    assert [one.index for one in found] == heads["index"].tolist()
    assert [one.term for one in found] == heads["term"].tolist()
    assert [one.index for one in found] == list(range(slab.first_index, slab.last_index + 1))
    assert b"".join(map(pack_record, found)) == slab.data


def slab_pieces(data: bytes) -> None:
    """Cutting, joining and placing a slab that proved sound yields its bytes."""
    made = unpacked(data)
    if made is None or _verdict(made[0], made[0].prev_chain, True, False)[0] != "sound":
        return
    slab = made[0]
    half = slab.first_index + slab.count // 2
    assert cut_to_bytes(slab, half, 100).first_index == half
    slab_meta(slab, slab.last_index)
    if slab.count > 1:
        parts = [cut_slab(slab, slab.first_index, 1), cut_slab(slab, slab.first_index + 1, slab.count - 1)]
        assert join_slabs(parts).data == slab.data
    if slab.pos <= 1 << 62:
        assert b"".join(one.data for one in settle(slab, slab.pos, FILE_BYTES)) == slab.data


def encode(data: bytes) -> None:
    """Bodies cut out of the input: both encoders write the same bytes, and they verify."""
    bodies = [data[at : at + data[at] % 64] for at in range(min(len(data), 60))] or [b""]
    channel = len(data) % 5
    loop = slab_encode._encode_loop(bodies, 3, 2, 100, 7, 1, channel)
    assert loop == slab_encode._encode_columns(bodies, 3, 2, 100, 7, 1, channel)
    slab = encode_slab(bodies, 3, 2, 100, 7, 1, channel)
    assert slab_verify.verify_slab(slab, 7, bodies=True) == slab.last_chain == loop[2]


TARGETS: tuple[Target, ...] = (
    Target("record", record, record_seeds, (EntryError,)),
    Target("records", records, records_seeds, (EntryError,)),
    Target("client_entries", client_entries, lambda: [struct.pack(">I", slab.count) + slab.data
                                                      for slab in slabs()], (EntryError,)),
    Target("slab_paths", slab_paths, slab_seeds, repair=repair_slab),
    Target("slab_pieces", slab_pieces, slab_seeds, (EntryError,), repair_slab),
    Target("encode", encode, lambda: [b"\x05hello\x00\x20", bytes(range(60))]),
)  # fmt: skip
