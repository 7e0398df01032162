"""Messages and stores of messages for the tests: records drawn by hypothesis, and a directory as a broker writes it."""

from __future__ import annotations

import dataclasses

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from node.message_store.properties import join_properties
from node.message_store.record import (
    MAGIC_V1,
    Compression,
    Host,
    MessageRecord,
    SysFlag,
    TransactionType,
    body_crc_of,
    magic_for,
)

# A busy machine is no fault of an example: nothing here asserts how long one takes.
CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=12)
KINDS = [int(one) for one in Compression if one >= 0]


@st.composite
def hosts(draw: st.DrawFn, v6: bool) -> Host:
    length = 16 if v6 else 4
    return Host(draw(st.binary(min_size=length, max_size=length)), draw(INT32))


@st.composite
def records(draw: st.DrawFn) -> MessageRecord:
    """Every variant: hosts, both versions, transaction types, compressions."""
    sys_flag = draw(st.sampled_from([int(one) for one in TransactionType])) | draw(st.sampled_from([0, *KINDS]))
    for bit in SysFlag:
        sys_flag |= bit if draw(st.booleans()) else 0
    topic = draw(st.one_of(st.text(st.characters(codec="ascii"), max_size=30), st.text("tß中", max_size=300)))
    magic = magic_for(topic)
    if magic == MAGIC_V1:
        topic = topic.encode()[:127].decode(errors="ignore")
    body = draw(st.binary(max_size=200))
    pairs = draw(st.lists(st.tuples(NAMES, NAMES), max_size=5))
    return MessageRecord(
        magic, body_crc_of(body), draw(INT32), draw(INT32), draw(INT64), draw(INT64), sys_flag, draw(INT64),
        draw(hosts(bool(sys_flag & SysFlag.BORN_HOST_V6))), draw(INT64),
        draw(hosts(bool(sys_flag & SysFlag.STORE_HOST_V6))), draw(INT32), draw(INT64), body, topic,
        join_properties(pairs),
    )  # fmt: skip


PLAIN = MessageRecord(
    MAGIC_V1, body_crc_of(b"body"), 3, 0, 7, 4096, 0, 1_795_000_000_000, Host(bytes([10, 1, 2, 3]), 34567),
    1_795_000_000_100, Host(bytes([192, 168, 7, 8]), 10911), 0, 0, b"body", "TopicTest",
    join_properties([("KEYS", "k1 k2"), ("TAGS", "TagA"), ("UNIQ_KEY", "FD01")]),
)  # fmt: skip


def record(body: bytes = b"body", **changes: object) -> MessageRecord:
    """PLAIN with another body, whose CRC is right, and whatever else is to be different."""
    fields: dict[str, object] = {"body": body, "body_crc": body_crc_of(body)} | changes
    return dataclasses.replace(PLAIN, **fields)  # type: ignore[arg-type]
