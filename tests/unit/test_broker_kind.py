"""The kind of a broker group: every entry a record with its place, and what is none refused where it costs nothing."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from node.consensus.api import LaneTicket, Outcome, Proposal
from node.consensus.group_naming import naming_body
from node.message_store.broker_kind import BrokerKind
from node.message_store.record import (
    MAGIC_V1,
    Host,
    MessageRecord,
    TransactionType,
    decode_record,
    encode_record,
    magic_for,
)
from node.message_store.record_check import RecordInvalid, judge, store_timestamp_ms
from node.protocol.codes import ResponseCode
from node.protocol.entry import HEAD_BYTES, Entry, Magic, crc32
from node.protocol.group_kind import NO_PATCH, Channel
from node.protocol.inert_records import TOPICS, inert_record, is_reserved
from node.protocol.messages import Hello, InstallRequest, PushResponse
from node.protocol.packed_bodies import PackedBodies
from node.state_machine.kind import MachineKind, kind_of
from node.store.memory_store import MemoryStore
from tests.unit.core_kit import GROUP_ID, Solo, store_of
from tests.unit.message_kit import CALM, record, records
from tests.unit.test_packed_bodies import packed

NOW_MS = 1_800_000_000_000
KIND = BrokerKind(lambda: NOW_MS)
AT = KIND.position_at


def message(body: bytes = b"body", time_ms: int = NOW_MS + 5, **changes: Any) -> bytes:
    fields: dict[str, Any] = {"topic": "flights", "store_timestamp_ms": time_ms, **changes}
    return encode_record(record(body, **fields))


# --- inert records ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("channel", list(TOPICS))
def test_an_inert_record_is_a_rollback_that_no_queue_and_no_index_takes(channel: int) -> None:
    found = decode_record(inert_record(channel, b"content", NOW_MS))
    assert (found.magic, found.sys_flag, found.transaction_type) == (MAGIC_V1, 0xC, TransactionType.ROLLBACK)
    assert (found.queue_id, found.queue_offset, found.physical_offset, found.flag) == (0, 0, 0, 0)
    assert found.topic == TOPICS[channel] and is_reserved(found.topic) and len(found.topic) <= 127
    assert found.properties_data == b"" and found.body == b"content" and found.is_body_sound
    assert [len(found.born_host.ip), len(found.store_host.ip)] == [4, 4]
    assert (found.store_timestamp_ms, found.prepared_transaction_offset) == (NOW_MS, 0)


def test_the_engines_own_entries_carry_the_time_before_or_now() -> None:
    assert store_timestamp_ms(KIND.first_of_term(-1)) == NOW_MS
    assert store_timestamp_ms(KIND.first_of_term(7_000)) == 7_000
    body = KIND.config_change(b"{}", 7_000)
    assert (KIND.content_of(body), KIND.time_ms(body)) == (b"{}", 7_000)
    assert KIND.content_of(b"no record") == b"" and KIND.time_ms(b"") == -1


# --- what the leader judges ------------------------------------------------------------------------------------------
def refusal(*bodies: bytes, channel: int = 0, patch_at: int = AT, last_time_ms: int = -1) -> str | None:
    return KIND.refusal(list(bodies), channel, patch_at, last_time_ms)


@CALM
@given(records())
def test_whatever_passes_is_a_record_that_decodes_to_the_byte(drawn: MessageRecord) -> None:
    body = encode_record(drawn)
    try:
        found = judge(body)
    except RecordInvalid:
        return
    assert encode_record(decode_record(body)) == body and decode_record(body).is_body_sound
    assert found.store_timestamp_ms == drawn.store_timestamp_ms == store_timestamp_ms(body)
    assert found.topic == drawn.topic.encode("utf-8", "surrogateescape") and found.sys_flag == drawn.sys_flag


@pytest.mark.parametrize("v6", [0, 0x10, 0x20, 0x30])
@pytest.mark.parametrize("topic", ["t", "t" * 127, "t" * 128, "t" * 300])
def test_every_sound_record_passes(v6: int, topic: str) -> None:
    born, stored = (Host(bytes(16 if v6 & bit else 4), 1) for bit in (0x10, 0x20))
    hosts = {"born_host": born, "store_host": stored}
    sound = record(b"x" * 300, topic=topic, sys_flag=v6, store_timestamp_ms=NOW_MS, magic=magic_for(topic), **hosts)
    body = encode_record(sound)
    assert refusal(body) is None and judge(body).store_timestamp_ms == NOW_MS == KIND.time_ms(body)


def cut(body: bytes) -> bytes:
    return body[:-1]


def flipped(body: bytes) -> bytes:
    at = body.index(b"body")
    return body[:at] + b"B" + body[at + 1 :]


def longer(body: bytes) -> bytes:
    return struct.pack(">i", len(body) + 1) + body[4:] + b"\0"


def other_magic(body: bytes) -> bytes:
    return body[:4] + b"\0\0\0\1" + body[8:]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (cut, "says it has"), (flipped, "CRC"), (longer, "properties"), (other_magic, "magic"),
        (lambda _: b"", "0 bytes are no record"), (lambda body: body[:90], "90 bytes"),
    ],
)  # fmt: skip
def test_what_is_no_record_is_refused_with_all_that_came_with_it(spoil: Callable[[bytes], bytes], words: str) -> None:
    found = refusal(message(), spoil(message()))
    assert found is not None and words in found


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (message(topic=""), "topic of 0 bytes"),
        (message(queue_id=-1), "negative"),
        (message(queue_offset=-1), "negative"),
        (message(time_ms=0), "no time"),
        (message(time_ms=1 << 60), "no time"),
        (message(topic=TOPICS[Channel.METADATA]), "no message has a topic"),
        (message(properties_data=b"A\x01b\x02__CRC32#\x010123456789\x02"), "__CRC32#"),
    ],
)
def test_what_a_broker_must_not_store_is_refused(body: bytes, words: str) -> None:
    found = refusal(body)
    assert found is not None and words in found


def test_a_property_that_only_looks_like_that_of_the_checksum_passes() -> None:
    assert refusal(message(properties_data=b"my__CRC32#\x01x\x02")) is None
    assert refusal(message(b"__CRC32#\x01", properties_data=b"A\x01__CRC32#\x02")) is None


def test_time_never_goes_back() -> None:
    assert refusal(message(time_ms=7), message(time_ms=7), last_time_ms=7) is None
    for found in (refusal(message(time_ms=6), last_time_ms=7), refusal(message(time_ms=8), message(time_ms=7))):
        assert found is not None and "time goes back" in found


@pytest.mark.parametrize("channel", [Channel.METADATA, Channel.SNAPSHOT_PART])
def test_channel_and_record_agree(channel: Channel) -> None:
    inert = inert_record(channel, b"x", NOW_MS)
    assert refusal(inert, channel=channel) is None
    other = Channel.SNAPSHOT_PART if channel is Channel.METADATA else Channel.METADATA
    found = decode_record(inert)
    for body, wrong in (
        (inert, other), (inert, Channel.MESSAGE), (message(), channel),
        (encode_record(replace(found, sys_flag=0)), channel), (encode_record(replace(found, queue_offset=1)), channel),
    ):  # fmt: skip
        assert refusal(body, channel=wrong) is not None


@pytest.mark.parametrize("channel", [Channel.FIRST_OF_TERM, Channel.CONFIG_CHANGE, 5, -1])
def test_no_client_makes_the_engines_own_entries(channel: int) -> None:
    assert refusal(message(), channel=channel) is not None


@pytest.mark.parametrize("patch_at", [NO_PATCH, 0, AT + 1])
def test_every_record_gets_its_place(patch_at: int) -> None:
    found = refusal(message(), patch_at=patch_at)
    assert found is not None and "byte 28" in found


def test_packed_bodies_are_judged_alike() -> None:
    good = [message(b"x" * size) for size in range(40)]
    bad = [*good[:20], flipped(message()), *good[20:]]
    for bodies, passes in ((good, True), (bad, False)):
        packed_bodies = packed(bodies)
        assert type(packed_bodies) is PackedBodies
        assert (KIND.refusal(packed_bodies, 0, AT, -1) is None) is passes


def test_no_state_machine_is_called_broker() -> None:
    with pytest.raises(ValueError, match="broker"):
        MachineKind("broker")
    with pytest.raises(ValueError, match="broker"):
        kind_of("my.module:Broker")


# --- in a leader ------------------------------------------------------------------------------------------------------
class BrokerSolo(Solo):
    """Member n0 of a broker group."""

    def __init__(self) -> None:
        store = MemoryStore(store_id="s0", kind="broker", hard_state=store_of().hard_state)
        assert store.hard_state.group_id == GROUP_ID
        super().__init__(store, kind=KIND)

    def hello_of(self, peer: str, *, seq: int = 1, **changes: object) -> Hello:
        return super().hello_of(peer, seq=seq, **{"caps": ("kind:broker",), **changes})


class Leader:
    """n0 leads a broker group, alone as far as these tests go."""

    def __init__(self) -> None:
        self.solo = BrokerSolo()
        self.solo.lead()
        self.done: list[Outcome] = []
        self.opened = self.solo.replica.open_lane("a", self.solo.now)

    def over(self, sequence: int, *bodies: bytes, channel: int = 0) -> Outcome | None:
        ticket = LaneTicket(self.opened.term, self.opened.lane, sequence, channel, AT)
        one = Proposal(bodies, self.done.append, origin="a", lane=ticket)
        self.solo.replica.lanes.watch(one)
        before = len(self.done)
        self.solo.replica.propose_many([one], self.solo.now)
        return self.done[-1] if len(self.done) > before else None

    def entries(self) -> Sequence[Entry]:
        store = self.solo.store
        found = [store.get(index) for index in range(store.begin_index, store.end_index + 1)]
        return [one for one in found if one is not None]


def test_every_entry_is_a_record_that_says_where_it_lies() -> None:
    leader = Leader()
    assert leader.opened.last_time_ms == NOW_MS
    assert leader.over(0, message(b"a"), message(b"b", NOW_MS + 9)) is None
    leadership = leader.solo.replica.leadership
    assert leadership is not None and leadership.append_config_change(naming_body(GROUP_ID), leader.solo.now)
    assert leader.over(2, inert_record(Channel.METADATA, b"m", NOW_MS + 9), channel=Channel.METADATA) is None
    entries = leader.entries()
    assert [entry.channel for entry in entries] == [1, 0, 0, 2, 3]
    for entry in entries:
        found = decode_record(entry.body)
        assert entry.magic == Magic.NORMAL and found.physical_offset == entry.pos + HEAD_BYTES
        assert entry.body_crc == crc32(entry.body), "taken after the place was written"
        assert found.is_body_sound
    times = [store_timestamp_ms(entry.body) for entry in entries]
    assert times == [NOW_MS, NOW_MS + 5, NOW_MS + 9, NOW_MS + 9, NOW_MS + 9]


def test_a_lane_ends_with_the_first_record_whose_time_goes_back() -> None:
    leader = Leader()
    assert leader.over(0, message(time_ms=NOW_MS + 9)) is None
    outcome = leader.over(1, message(time_ms=NOW_MS + 8))
    assert outcome is not None and outcome.code is ResponseCode.UNEXPECTED_ARGUMENT and "goes back" in outcome.detail
    assert leader.solo.store.end_index == 1 and leader.solo.replica.lanes.current is None
    again = leader.solo.replica.open_lane("a", leader.solo.now)
    assert (again.end_index, again.last_time_ms) == (1, NOW_MS + 9)


def test_nothing_but_lane_appends_enters() -> None:
    leader = Leader()
    outcome = leader.solo.replica.propose([message()], leader.solo.now).outcome
    assert outcome is not None and outcome.code is ResponseCode.UNEXPECTED_ARGUMENT
    assert "over a lane only" in outcome.detail and leader.solo.store.end_index == 0


def test_a_follower_begins_its_log_with_a_data_file_or_not_at_all() -> None:
    solo = BrokerSolo()
    solo.follow(term=3)
    order = InstallRequest(77, "n1", 3, 1, -1, 9, 2, 0x1234, 5 * solo.store.data_file_size + 48, GROUP_ID)
    (answer,) = [one for _to, one in solo.receive("n1", order) if isinstance(one, PushResponse)]
    assert answer.code is ResponseCode.UNEXPECTED_ARGUMENT and solo.effects.begin_behind is None
    solo.receive("n1", replace(order, seq=78, base_pos=5 * solo.store.data_file_size))
    assert solo.effects.begin_behind is not None
