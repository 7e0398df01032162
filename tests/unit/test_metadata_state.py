"""What a broker group's log says beside its messages, as a member applies it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.message_store import metadata_state
from node.message_store.broker_tables import CONSUMER_OFFSETS, TOPICS
from node.message_store.errors import MessageFormatError
from node.message_store.metadata_state import MetadataState, OwnEntry, own_entry, state_at_begin
from node.protocol.broker_state import BrokerState, Tables, TopicOffsets, encode_metadata, encode_state
from node.protocol.group_kind import Channel
from node.protocol.inert_records import inert_record
from node.protocol.snapshot_parts import split_snapshot
from tests.unit.message_kit import CALM


def changes(index: int, change: Tables) -> OwnEntry:
    return own_entry(index, Channel.METADATA, inert_record(Channel.METADATA, encode_metadata(change), 1))


def parts(index: int, state: BrokerState, snapshot_id: int = 1, part_bytes: int = 80) -> list[OwnEntry]:
    """Of a snapshot whose parts lie from `index` on."""
    bodies = split_snapshot(encode_state(state), snapshot_id, state.as_of_index, part_bytes)
    return [
        own_entry(index + at, Channel.SNAPSHOT_PART, inert_record(Channel.SNAPSHOT_PART, body, 1))
        for at, body in enumerate(bodies)
    ]


def test_changes_apply_in_order_and_once() -> None:
    state = MetadataState()
    assert state.take(changes(3, {TOPICS: {"T": {"perm": 6}}})).is_new
    assert state.take(changes(5, {CONSUMER_OFFSETS: {"T@G": {"0": 4}}, TOPICS: {"U": {"perm": 2}}})).is_new
    assert not state.take(changes(3, {TOPICS: {"T": {"perm": 0}}})).is_new
    assert state.tables == {TOPICS: {"T": {"perm": 6}, "U": {"perm": 2}}, CONSUMER_OFFSETS: {"T@G": {"0": 4}}}
    assert state.incarnations == {} and state.index == 5
    gone = state.take(changes(7, {TOPICS: {"T": None}}))
    assert gone.entry.dropped == ["T"] and state.incarnations == {"T": 7}
    state.take(changes(9, {TOPICS: {"T": {"perm": 6}, "U": {"perm": 6}}}))
    assert state.incarnations == {"T": 7}, "U was only changed"


def test_the_state_of_a_snapshot_is_the_state_that_was() -> None:
    state = MetadataState()
    state.take(changes(2, {TOPICS: {"T": None, "Gone": None}}))
    state.take(changes(3, {TOPICS: {"T": {"perm": 6}}, "a_later_table": {"k": [1]}}))
    state.passed(8)
    said = state.as_state({("T", 1): 12, ("Old", 0): 7})
    assert said == BrokerState(
        8, {"T": TopicOffsets(2, {1: 12}), "Gone": TopicOffsets(2, {}), "Old": TopicOffsets(-1, {0: 7})},
        {TOPICS: {"T": {"perm": 6}}, "a_later_table": {"k": [1]}},
    )  # fmt: skip
    later = MetadataState()
    later.passed(20)
    applied = [later.take(one) for one in parts(21, said)]
    assert [one.is_replaced for one in applied] == [False] * (len(applied) - 1) + [True]
    assert applied[-1].places == {("T", 1): 12, ("Old", 0): 7}
    assert later.tables == state.tables and later.incarnations == state.incarnations and later.is_whole
    assert later.snapshot is not None and later.snapshot.as_of_index == 8 and later.snapshot.first_index == 21


def test_a_snapshot_takes_nothing_back_that_came_behind_its_as_of_index() -> None:
    """A member that begins in the middle: changes between the as-of index and the last part come before it."""
    snapshot = BrokerState(
        10, {"T": TopicOffsets(2, {0: 50}), "Gone": TopicOffsets(3, {0: 60}), "Again": TopicOffsets(4, {0: 70})},
        {TOPICS: {"T": 1, "Gone": 1, "Again": 1}, CONSUMER_OFFSETS: {"T@G": {"0": 1}, "T@H": {"0": 2}}},
    )  # fmt: skip
    state = MetadataState()
    state.take(changes(9, {CONSUMER_OFFSETS: {"T@H": {"0": 999}}}))  # as of 10 it was something else again
    state.take(changes(11, {CONSUMER_OFFSETS: {"T@G": {"0": 5}}, TOPICS: {"Gone": None, "Again": None}}))
    state.take(changes(12, {TOPICS: {"Again": 2, "New": 3}}))
    last = [state.take(one) for one in parts(13, snapshot)][-1]
    assert state.tables == {
        TOPICS: {"T": 1, "Again": 2, "New": 3}, CONSUMER_OFFSETS: {"T@G": {"0": 5}, "T@H": {"0": 2}},
    }  # fmt: skip
    assert state.incarnations == {"T": 2, "Gone": 11, "Again": 11}
    assert last.places == {("T", 0): 50}, "the queues of topics that were deleted since begin at 0"


def test_who_has_a_snapshot_already_needs_no_other_but_knows_where_it_is() -> None:
    state = MetadataState(is_whole=True)
    state.take(changes(1, {TOPICS: {"T": 1}}))
    entries = parts(5, BrokerState(4, {}, {TOPICS: {"Other": 1}}))
    applied = [state.take(one) for one in entries]
    assert state.tables == {TOPICS: {"T": 1}} and not applied[-1].is_replaced
    assert applied[-1].snapshot is not None and applied[-1].snapshot.last_index == entries[-1].index


def test_a_snapshot_of_an_entry_before_the_logs_beginning_is_of_no_use() -> None:
    """Its last parts are still there; what changed between its as-of index and the log's first entry is gone."""
    state = state_at_begin(10, None)
    for one in parts(12, BrokerState(8, {}, {TOPICS: {"T": "older"}})):
        assert state.take(one).snapshot is None
    last = [state.take(one) for one in parts(30, BrokerState(9, {}, {TOPICS: {"T": "newer"}}))][-1]
    assert last.is_replaced and state.tables == {TOPICS: {"T": "newer"}}


def test_what_an_adopted_directory_knew_counts_until_the_log_begins_behind_it() -> None:
    adopted = BrokerState(10, {"T": TopicOffsets(-1, {0: 4})}, {TOPICS: {"T": 1}})
    state = state_at_begin(3, adopted)
    state.take(changes(9, {TOPICS: {"U": 1}}))
    assert state.tables == {TOPICS: {"T": 1}} and state.places == {("T", 0): 4}, "entries up to there say nothing more"
    assert state.take(changes(11, {TOPICS: {"T": None}})).is_new and state.places == {}
    assert state_at_begin(12, adopted).tables == {}


def test_a_snapshot_that_is_not_sound_is_none() -> None:
    state = MetadataState()
    one, two = (parts(5, BrokerState(4, {}, {TOPICS: {"T": number}}), number, 40) for number in (1, 2))
    for entry in [*one[:-1], *two[1:]]:
        state.take(entry)
    assert not state.is_whole and state.snapshot is None
    unknown = own_entry(9, Channel.SNAPSHOT_PART, inert_record(Channel.SNAPSHOT_PART, b"\x09", 1))
    assert state.take(unknown).snapshot is None


def test_of_topics_that_are_gone_the_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_state, "DELETED_MAX", 3)
    state = MetadataState()
    for index, name in enumerate("ABCDE"):
        state.take(changes(index, {TOPICS: {name: None}}))
    assert state.incarnations == {"C": 2, "D": 3, "E": 4}
    state.take(changes(5, {TOPICS: {"C": 1}}))
    state.take(changes(6, {TOPICS: {"F": None}}))
    assert state.incarnations == {"C": 2, "D": 3, "E": 4, "F": 6}, "C is there"


def test_metadata_of_a_later_format_is_not_passed_over() -> None:
    with pytest.raises(MessageFormatError, match="entry 7 is metadata that cannot be read: format 2"):
        own_entry(7, Channel.METADATA, inert_record(Channel.METADATA, b"\x02{}", 1))


KEYS = st.sampled_from(["A", "B", "C"])
CHANGES = st.lists(
    st.dictionaries(
        st.sampled_from([TOPICS, CONSUMER_OFFSETS]),
        st.dictionaries(KEYS, st.one_of(st.none(), st.integers(0, 3)), min_size=1),
        min_size=1,
    ),
    min_size=1, max_size=12,
)  # fmt: skip


@given(CHANGES, st.data())
@settings(CALM, max_examples=60)
def test_beginning_anywhere_behind_a_snapshot_ends_in_the_same_state(
    log: list[dict[str, Any]], data: st.DataObject
) -> None:
    """Whoever reads all of it, and whoever begins in the middle and then comes by a snapshot, agree at its end."""
    as_of = data.draw(st.integers(0, len(log) - 1))
    begin = data.draw(st.integers(0, as_of))
    whole = MetadataState(is_whole=True)
    snapshot: BrokerState | None = None
    for index, change in enumerate(log):
        whole.take(changes(index, change))
        if index == as_of:
            snapshot = whole.as_state()
    assert snapshot is not None
    entries = parts(len(log), snapshot)
    late = MetadataState()
    for index in range(begin, len(log)):
        late.take(changes(index, log[index]))
    for one in entries:
        whole.take(one)
        late.take(one)
    assert late.as_state() == whole.as_state() and late.is_whole
