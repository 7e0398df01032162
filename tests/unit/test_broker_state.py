"""Metadata, states and snapshots of a broker group: what comes back, and what is none of them."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.message_store.broker_kind import content_of
from node.protocol.broker_state import (
    BodyInvalid,
    BrokerState,
    TopicOffsets,
    apply_metadata,
    decode_metadata,
    decode_state,
    encode_metadata,
    encode_state,
)
from node.protocol.group_kind import Channel
from node.protocol.inert_records import inert_record
from node.protocol.snapshot_parts import (
    HEAD,
    PART_BYTES_MAX,
    FoundSnapshot,
    SnapshotFinder,
    decode_part,
    split_snapshot,
)
from tests.unit.message_kit import CALM

INT64_MAX = (1 << 63) - 1
STATE = BrokerState(
    41,
    {
        "flights": TopicOffsets(-1, {0: 5, 3: INT64_MAX}),
        "again": TopicOffsets(17, {}),
        "caf\udce9 \U0001f600": TopicOffsets(0, {1: 0}),
    },
    {"topics": {"flights": {"readQueueNums": 4}}, "unknown_to_us": {"": [1, 2.5, None]}},
)

JSON = st.recursive(
    st.booleans() | st.integers(-(1 << 63), INT64_MAX) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,63}", fullmatch=True)
CHANGES = st.dictionaries(NAMES, st.dictionaries(st.text(), JSON | st.none(), max_size=4), max_size=4)


# --- metadata and states ----------------------------------------------------------------------------------------------
@CALM
@given(CHANGES)
def test_a_change_comes_back(change: dict[str, dict[str, Any]]) -> None:
    body = encode_metadata(change)
    assert decode_metadata(body) == change and encode_metadata(decode_metadata(body)) == body
    record = inert_record(Channel.METADATA, body, 1_800_000_000_000)
    assert decode_metadata(content_of(record)) == change


def test_a_change_is_carried_out_key_by_key() -> None:
    tables: dict[str, dict[str, Any]] = {"topics": {"a": 1, "b": 2}, "groups": {"g": 1}}
    apply_metadata(tables, {"topics": {"a": None, "c": 3}, "groups": {"g": None, "h": None}, "locks": {"q": [1]}})
    assert tables == {"topics": {"b": 2, "c": 3}, "locks": {"q": [1]}}


def test_a_state_comes_back_and_equal_states_have_equal_bytes() -> None:
    content = encode_state(STATE)
    assert decode_state(content) == STATE
    turned = BrokerState(41, dict(reversed(STATE.topics.items())), dict(reversed(STATE.tables.items())))
    assert encode_state(turned) == content


@pytest.mark.parametrize(
    "change",
    [{"Bad": {}}, {"": {}}, {"t": []}, {"t": {"k": float("nan")}}, {"t": {"k": {1, 2}}}, {"t": {1: 2}}, []],
)
def test_what_no_table_can_hold_is_refused(change: Any) -> None:
    with pytest.raises(BodyInvalid):
        encode_metadata(change)


@pytest.mark.parametrize(
    "state",
    [
        BrokerState(-2),
        BrokerState(1 << 63),
        BrokerState(0, {"t": TopicOffsets(-2)}),
        BrokerState(0, {"t": TopicOffsets(0, {-1: 0})}),
        BrokerState(0, {"t": TopicOffsets(0, {1 << 31: 0})}),
        BrokerState(0, {"t": TopicOffsets(0, {0: -1})}),
        BrokerState(0, {"t": TopicOffsets(0, {0: 1 << 63})}),
        BrokerState(0, {}, {"t": {"k": None}}),
        BrokerState(0, {}, {"T": {}}),
    ],
)
def test_what_no_state_can_be_is_refused(state: BrokerState) -> None:
    with pytest.raises(BodyInvalid):
        encode_state(state)


@CALM
@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: b"\x01" + text.encode("utf-8", "replace")))
def test_whatever_the_bytes_nothing_but_that_error_comes(data: bytes) -> None:
    for decode in (decode_metadata, decode_state, decode_part):
        try:
            decode(data)
        except BodyInvalid:
            continue


@pytest.mark.parametrize("text", ['{"t":{"k":NaN}}', '{"t":{"k":Infinity}}', "[]", "", "[" * 100_000])
def test_what_is_no_json_of_ours_is_refused(text: str) -> None:
    with pytest.raises(BodyInvalid):
        decode_metadata(b"\x01" + text.encode())


# --- parts ------------------------------------------------------------------------------------------------------------
CONTENT = random.Random(3).randbytes(1000)


def found_in(bodies: list[tuple[int, bytes]], *, keep: bool = True) -> list[FoundSnapshot]:
    finder = SnapshotFinder(keep=keep)
    return [one for index, body in bodies if (one := finder.add(index, body)) is not None]


def parts_of(snapshot_id: int = 9, as_of_index: int = 40) -> list[bytes]:
    return split_snapshot(CONTENT, snapshot_id, as_of_index, 300)


def numbered(bodies: list[bytes], first: int = 41, step: int = 3) -> list[tuple[int, bytes]]:
    """Messages lie between the parts."""
    return [(first + step * number, body) for number, body in enumerate(bodies)]


def test_a_snapshot_comes_back_from_its_parts() -> None:
    parts = parts_of()
    assert len(parts) == 4 and all(len(body) <= 300 for body in parts)
    (found,) = found_in(numbered(parts))
    assert found == FoundSnapshot(9, 40, 41, 50, CONTENT) and found.keep_from == 40
    assert found_in(numbered(parts), keep=False) == [FoundSnapshot(9, 40, 41, 50)]
    (late,) = found_in(numbered(parts, first=100))
    assert late.keep_from == 40, "entries behind the as-of index are needed to go on from there"


@pytest.mark.parametrize("size", [0, 1, PART_BYTES_MAX - HEAD.size, PART_BYTES_MAX - HEAD.size + 1, 3 * PART_BYTES_MAX])
def test_parts_are_no_longer_than_they_may_be(size: int) -> None:
    parts = split_snapshot(bytes(size), 1, -1)
    assert max(map(len, parts)) <= PART_BYTES_MAX and len(parts) == max(1, -(-size // (PART_BYTES_MAX - HEAD.size)))
    (found,) = found_in(numbered(parts, first=0))
    assert (len(found.content), found.as_of_index) == (size, -1)


def test_one_that_was_broken_off_is_void_and_the_next_one_counts() -> None:
    old, new = parts_of(), parts_of(snapshot_id=10, as_of_index=44)
    log = numbered([*old[:2], *new])
    assert [one.snapshot_id for one in found_in(log)] == [10]
    assert found_in([*log[:4], *numbered(old[2:], first=90)]) == [], "the rest of the old one belongs to nothing"


@pytest.mark.parametrize("lost", range(4))
def test_one_that_lacks_a_part_is_none(lost: int) -> None:
    parts = parts_of()
    assert found_in(numbered([*parts[:lost], *parts[lost + 1 :]])) == []


def test_parts_in_another_order_or_twice_are_none() -> None:
    first, second, third, fourth = parts_of()
    for order in ([first, third, second, fourth], [first, second, second, third, fourth], [second, third, fourth]):
        assert found_in(numbered(order)) == []
    (found,) = found_in(numbered([first, first, second, third, fourth]))
    assert found.first_index == 44, "it began anew"


def test_a_piece_that_is_another_is_said() -> None:
    parts = parts_of()
    parts[2] = parts[2][:-1] + bytes([parts[2][-1] ^ 1])
    with pytest.raises(BodyInvalid, match="CRC"):
        found_in(numbered(parts))
    parts = parts_of()
    parts[3] += b"more"
    with pytest.raises(BodyInvalid, match="more than the 1000 bytes"):
        found_in(numbered(parts))


def test_a_snapshot_of_what_comes_after_it_is_none() -> None:
    assert found_in(numbered(parts_of(as_of_index=41))) == []
    assert len(found_in(numbered(parts_of(as_of_index=40)))) == 1


def test_the_newest_complete_one_is_kept_while_another_is_under_way() -> None:
    finder = SnapshotFinder(keep=False)
    for index, body in numbered(parts_of()):
        finder.add(index, body)
    finder.add(60, parts_of(snapshot_id=11, as_of_index=55)[0])
    assert finder.newest is not None and finder.newest.snapshot_id == 9
