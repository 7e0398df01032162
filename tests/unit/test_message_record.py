"""Message records, batches, properties, ids and hashes: what decodes comes back to the byte."""

from __future__ import annotations

import struct
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.message_store.batch import BatchedMessage, decode_batch, encode_batch
from node.message_store.blank import BLANK_MAGIC, encode_blank, fits
from node.message_store.bodies import opened_body
from node.message_store.errors import MessageFormatError
from node.message_store.java_text import bytes_of, key_hash, string_hash, tags_code, text_of
from node.message_store.properties import join_properties, parse_properties, split_keys
from node.message_store.record import (
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    Compression,
    Host,
    SysFlag,
    body_crc_of,
    decode_record,
    encode_record,
    magic_for,
    message_id,
    parse_message_id,
)
from tests.unit.message_kit import CALM, PLAIN, record, records


@CALM
@given(records(), st.binary(max_size=20), st.binary(max_size=20))
def test_a_record_comes_back_to_the_byte_wherever_it_lies(drawn: object, before: bytes, after: bytes) -> None:
    data = encode_record(drawn)  # type: ignore[arg-type]
    found = decode_record(before + data + after, len(before))
    assert found == drawn
    assert encode_record(found) == data
    assert found.total_size == len(data) == struct.unpack_from(">i", data)[0]
    assert found.is_body_sound


def test_the_smallest_record_has_ninety_one_bytes() -> None:
    assert len(encode_record(record(b"", topic="", properties_data=b""))) == RECORD_BYTES_MIN == 91


def test_an_empty_body_has_crc_zero_and_a_crc_never_has_its_sign_bit() -> None:
    assert body_crc_of(b"") == 0
    body = next(one for one in (b"%d" % number for number in range(100)) if zlib.crc32(one) >> 31)
    assert body_crc_of(body) == zlib.crc32(body) & 0x7FFFFFFF
    assert record(body).is_body_sound
    assert not record(body, body_crc=body_crc_of(body) ^ 1).is_body_sound


def test_a_long_topic_makes_version_two_which_is_one_byte_longer() -> None:
    assert (magic_for("t" * 127), magic_for("t" * 128)) == (MAGIC_V1, MAGIC_V2)
    assert (magic_for("\U0001f600" * 63), magic_for("\U0001f600" * 64)) == (MAGIC_V1, MAGIC_V2)  # two units each
    short, long = (record(topic="t" * length, magic=magic_for("t" * length)) for length in (127, 128))
    assert len(encode_record(long)) == len(encode_record(short)) + 2


@pytest.mark.parametrize(
    ("at", "form", "value", "says"),
    [
        (0, ">i", 90, "size 90"), (0, ">i", 5000, "size 5000"), (0, ">i", -1, "size -1"),
        (4, ">i", 1, "magic"), (36, ">i", 0x30, "of -?\\d+ bytes"), (84, ">i", -1, "body of -1"),
        (84, ">i", 1 << 20, "body of 1048576"), (92, ">B", 200, "topic of 200"), (92, ">B", 10, "properties of"),
    ],
)  # fmt: skip
def test_lengths_that_do_not_agree_are_refused(at: int, form: str, value: int, says: str) -> None:
    data = bytearray(encode_record(PLAIN))
    struct.pack_into(form, data, at, value)
    with pytest.raises(MessageFormatError, match=says):
        decode_record(bytes(data))


@pytest.mark.parametrize("length", range(0, len(encode_record(PLAIN)), 7))
def test_a_record_that_is_cut_off_is_refused(length: int) -> None:
    with pytest.raises(MessageFormatError):
        decode_record(encode_record(PLAIN)[:length])


@pytest.mark.parametrize(
    "changes",
    [
        {"topic": "t" * 128}, {"magic": 1}, {"born_host": Host(bytes(16), 1)}, {"properties_data": bytes(32768)},
        {"queue_id": 1 << 31}, {"sys_flag": int(SysFlag.STORE_HOST_V6)},
    ],
)  # fmt: skip
def test_what_no_field_can_hold_is_not_encoded(changes: dict[str, object]) -> None:
    with pytest.raises(MessageFormatError):
        encode_record(record(**changes))


def test_properties_are_read_as_rocketmq_reads_them() -> None:
    # Too short, no value, no name, no separator: passed over. No 0x02 at the end (4.9) and a name twice: fine.
    data = b"a\x01\x02TAGS\x01\x02\x01v\x02novalue\x02K\x01v\x02TAGS\x01x\x01y\x02K\x01w"
    assert parse_properties(data) == (("K", "v"), ("TAGS", "x\x01y"), ("K", "w"))
    assert record(properties_data=data).properties == {"K": "w", "TAGS": "x\x01y"}
    assert parse_properties(b"") == ()


@CALM
@given(st.lists(st.tuples(st.text("ab中", min_size=1), st.text("xy 1", min_size=1)), max_size=6))
def test_properties_keep_their_order(pairs: list[tuple[str, str]]) -> None:
    data = join_properties(pairs)
    assert list(parse_properties(data)) == pairs
    assert data == b"".join(f"{name}\x01{value}\x02".encode() for name, value in pairs)


@pytest.mark.parametrize("pair", [("", "v"), ("n", ""), ("n\x01", "v"), ("n", "v\x02"), ("n", "v" * 32768)])
def test_properties_that_no_reader_would_give_again_are_refused(pair: tuple[str, str]) -> None:
    with pytest.raises(MessageFormatError):
        join_properties([pair])


def test_keys_keep_their_order_and_their_repetitions() -> None:
    assert split_keys(" k2  k1 k2 ") == ["k2", "k1", "k2"]
    assert PLAIN.index_keys == ["FD01", "k1", "k2"]
    assert record(properties_data=b"").index_keys == []


def test_no_text_of_a_stranger_is_kept_for_its_hash() -> None:
    """4,096 questions with topics of 220 kB held 900 MB for ever."""
    tracemalloc.start()
    try:
        for number in range(64):
            long = f"{number:064}" * 2048
            assert tags_code(long) == string_hash(long)
            assert key_hash(long, "k") == abs(string_hash(f"{long}#k"))
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()


def test_hashes_are_javas() -> None:
    assert [string_hash(one) for one in ("", "a", "TagA", "*x")] == [0, 97, 2598919, 1422]  # "TagA": of the vectors
    assert tags_code(None) == tags_code("") == 0
    assert string_hash("polygenelubricants") == -(1 << 31)
    long = "ab中\U0001f600" * 40
    expected = 0
    for unit in struct.unpack(f">{len(long.encode('utf-16-be')) // 2}H", long.encode("utf-16-be")):
        expected = (31 * expected + unit) & 0xFFFFFFFF
    assert string_hash(long) & 0xFFFFFFFF == expected
    assert key_hash("TopicTest", "k3") == abs(string_hash("TopicTest#k3"))


def test_a_key_whose_hash_has_no_opposite_hashes_to_zero() -> None:
    """abs() of Java's smallest int stays negative; RocketMQ makes it 0."""
    wanted = (1 << 31) - string_hash("t#") * 31**7 - sum(0x4E00 * 31**power for power in range(7))
    key = "".join(chr(0x4E00 + wanted % (1 << 32) // 31**power % 31) for power in reversed(range(7)))
    assert string_hash(f"t#{key}") == -(1 << 31)
    assert key_hash("t", key) == 0


@CALM
@given(st.binary(max_size=40))
def test_names_that_are_no_utf8_come_back_as_they_were(data: bytes) -> None:
    assert bytes_of(text_of(data)) == data


@CALM
@given(st.sampled_from([4, 16]), st.data())
def test_a_message_id_says_host_and_place(length: int, data: st.DataObject) -> None:
    host = Host(data.draw(st.binary(min_size=length, max_size=length)), data.draw(st.integers(0, 65535)))
    offset = data.draw(st.integers(0, (1 << 63) - 1))
    text = message_id(host, offset)
    assert len(text) == (32 if length == 4 else 56)
    assert parse_message_id(text) == parse_message_id(text.lower()) == (host, offset)


@pytest.mark.parametrize("text", ["", "zz" * 16, "00" * 15, "00" * 20, "0" * 16 + "F" * 16, " " + "0" * 31])
def test_what_is_no_message_id_is_refused(text: str) -> None:
    with pytest.raises(MessageFormatError, match="no message id"):
        parse_message_id(text)


BATCHED = st.builds(BatchedMessage, st.integers(-5, 5), st.binary(max_size=30), st.binary(max_size=30))


@CALM
@given(st.lists(BATCHED, max_size=5))
def test_a_batch_comes_back_to_the_byte(messages: list[BatchedMessage]) -> None:
    data = encode_batch(messages)
    assert decode_batch(data) == messages
    if data:
        with pytest.raises(MessageFormatError):
            decode_batch(data[:-1])


def test_a_blank_leaves_room_for_itself() -> None:
    assert encode_blank(16959) == struct.pack(">ii", 16959, BLANK_MAGIC)
    assert fits(100, 108)
    assert not fits(100, 107)


def test_a_compressed_body_is_opened_within_its_bound() -> None:
    zipped = zlib.compress(b"x" * 1000)
    for kind in (Compression.OLD_ZLIB, Compression.ZLIB):
        assert opened_body(record(zipped, sys_flag=1 | kind)) == b"x" * 1000
    assert opened_body(record(zipped)) == zipped
    with pytest.raises(MessageFormatError, match="more than 999"):
        opened_body(record(zipped, sys_flag=1), 999)
    with pytest.raises(MessageFormatError, match="in its middle"):
        opened_body(record(zipped[:-5], sys_flag=1))
    with pytest.raises(MessageFormatError, match="no zlib stream"):
        opened_body(record(b"plain", sys_flag=1))
    for kind, name in ((0x100, "LZ4"), (0x200, "ZSTD"), (0x500, "0x500")):
        with pytest.raises(MessageFormatError, match=name):
            opened_body(record(zipped, sys_flag=1 | kind))
