"""The first snapshot of a log replaces what its master knows: what was changed there and is not committed counts on."""

from __future__ import annotations

from node.message_store.broker_tables import CONSUMER_OFFSETS, QUEUE_LOCKS, TOPICS
from node.message_store.metadata_state import own_entry
from node.protocol.broker_state import encode_metadata, encode_state
from node.protocol.group_kind import Channel
from node.protocol.inert_records import inert_record
from node.protocol.snapshot_parts import split_snapshot
from node.rocketmq.bodies import MessageQueue, TopicConfig
from tests.unit.engine_kit import until
from tests.unit.test_metadata_changes import Story, run, tables_of

QUEUE = MessageQueue("T", "b", 0)


def is_snapshotted(story: Story) -> None:
    """All that is committed now comes as a snapshot."""
    state = story.log.state
    assert state is not None and not state.is_whole
    for part in split_snapshot(encode_state(state.as_state()), 7, state.index, 1 << 16):
        record = inert_record(Channel.SNAPSHOT_PART, part, 1)
        applied = state.take(own_entry(state.index + 1, Channel.SNAPSHOT_PART, record))
        for hear in story.log.on_applied:
            hear(applied)
    assert state.is_whole


def test_an_offset_that_waits_for_its_entry_outlives_a_snapshot() -> None:
    async def work(story: Story) -> None:
        context = tables_of(story)
        story.log.applies(encode_metadata({CONSUMER_OFFSETS: {"T@G": {"0": 3}, "T@H": {"0": 4}}}))
        context.offsets.put("G", "T", 0, 9)
        is_snapshotted(story)
        assert (context.offsets.get("G", "T", 0), context.offsets.get("H", "T", 0)) == (9, 4)
        await until(lambda: bool(story.lane.sent))
        assert story.lane.sent == [encode_metadata({CONSUMER_OFFSETS: {"T@G": {"0": 9}}})]

    run(work)


def test_what_was_asked_of_the_log_outlives_a_snapshot() -> None:
    """A lock that is on its way into the log is nobody else's."""

    async def work(story: Story) -> None:
        context = tables_of(story)
        story.log.applies(encode_metadata({TOPICS: {"Old": TopicConfig("Old", 1, 1).as_said()}}))
        context.topics.create_by_hand(TopicConfig("New", 4, 4))
        context.topics.delete("Old")
        assert context.locks.lock("G", "c1", [QUEUE]) == [QUEUE]
        context.offsets.put("G", "T", 0, 9)
        await until(lambda: len(story.lane.sent) == 4)
        is_snapshotted(story)
        assert context.topics.get("New") == TopicConfig("New", 4, 4) and context.topics.get("Old") is None
        assert context.locks.lock("G", "c2", [QUEUE]) == []
        assert context.offsets.get("G", "T", 0) == 9
        story.commits()
        assert story.metadata.table(TOPICS).keys() == {"New"} and "T@0@G" in story.metadata.table(QUEUE_LOCKS)

    run(work)


def test_who_stopped_leading_has_what_a_snapshot_says() -> None:
    async def work(story: Story) -> None:
        context = tables_of(story)
        story.log.applies(encode_metadata({CONSUMER_OFFSETS: {"T@G": {"0": 3}}}))
        context.offsets.put("G", "T", 0, 9)
        context.topics.create_by_hand(TopicConfig("Lost", 4, 4))
        story.lane.leaves()
        is_snapshotted(story)
        assert context.offsets.get("G", "T", 0) == 3 and context.topics.get("Lost") is None

    run(work)
