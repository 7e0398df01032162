"""Changes of metadata that a master asks for, over a lane and a log that the test moves by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from node.broker.metadata import Metadata, NotKept, NotNow
from node.broker.metadata_tables import TablesInLog
from node.broker.requests.context import Context, Identity
from node.message_store.broker_tables import CONSUMER_OFFSETS, DELAY_OFFSETS, GROUPS, TOPICS
from node.message_store.metadata_state import Applied, MetadataState, own_entry
from node.protocol.broker_state import Tables, encode_metadata
from node.protocol.group_kind import Channel
from node.protocol.inert_records import inert_record
from node.rocketmq.bodies import GroupConfig, TopicConfig
from node.rocketmq.codes import Answer
from node.rocketmq.dispatch import Refusal
from tests.unit.engine_kit import until
from tests.unit.memory_messages import MemoryMessages


class Lane:
    """What was sent over it lies in `sent` until the log has it."""

    def __init__(self) -> None:
        self.on_open: list[Callable[[], None]] = []
        self.on_left: list[Callable[[], None]] = []
        self.is_open = self.is_master = True
        self.room = 100
        self.sent: list[bytes] = []
        self.restarted: list[str] = []

    def append_own(self, channel: Channel, content: bytes, restarted: Sequence[str] = ()) -> bool:
        assert channel == Channel.METADATA
        if not self.is_open or len(self.sent) >= self.room:
            return False
        self.sent.append(content)
        self.restarted += restarted
        return True

    def opens(self) -> None:
        """Another one; what the earlier one had sent and the log does not have is lost."""
        self.is_open, self.sent = True, []
        for hear in self.on_open:
            hear()

    def leaves(self) -> None:
        self.is_open = self.is_master = False
        for hear in self.on_left:
            hear()


class Log:
    def __init__(self) -> None:
        self.state: MetadataState | None = MetadataState()
        self.on_applied: list[Callable[[Applied], None]] = []
        self.on_state: list[Callable[[], None]] = []

    def applies(self, content: bytes) -> None:
        assert self.state is not None
        record = inert_record(Channel.METADATA, content, 1)
        applied = self.state.take(own_entry(self.state.index + 1, Channel.METADATA, record))
        for hear in self.on_applied:
            hear(applied)


class Story:
    def __init__(self, content_bytes: int = 1 << 18) -> None:
        self.lane, self.log = Lane(), Log()
        self.metadata = Metadata(self.lane, self.log, content_bytes)

    def commits(self, count: int | None = None) -> None:
        """So many of those that were sent, the oldest."""
        sent = self.lane.sent[:count]
        del self.lane.sent[:count]
        for content in sent:
            self.log.applies(content)


def run(work: Callable[[Story], Awaitable[None]], content_bytes: int = 1 << 18) -> None:
    async def story() -> None:
        await work(Story(content_bytes))

    asyncio.run(story())


def test_a_change_ends_when_the_log_has_it() -> None:
    async def work(story: Story) -> None:
        done = story.metadata.change({DELAY_OFFSETS: {"3": 17}})
        await asyncio.sleep(0)
        assert not done.done() and story.metadata.value(DELAY_OFFSETS, "3") is None
        assert story.metadata.is_asked(DELAY_OFFSETS, "3")
        story.commits()
        await done
        assert story.metadata.table(DELAY_OFFSETS) == {"3": 17} and not story.metadata.is_asked(DELAY_OFFSETS, "3")
        await story.metadata.settled()

    run(work)


def test_what_a_lane_lost_is_sent_again_and_what_the_log_has_is_not() -> None:
    async def work(story: Story) -> None:
        futures = [story.metadata.change({TOPICS: {"T": value}}) for value in (None, 1, None, 2)]
        lost = story.lane.sent[2:]
        story.lane.is_open = False
        late = story.metadata.change({TOPICS: {"U": 1}})
        story.commits(2)  # the next lane's end index lies behind these
        story.lane.opens()
        assert story.lane.sent == [*lost, encode_metadata({TOPICS: {"U": 1}})], "in the order asked for, each once"
        assert [one.done() for one in futures] == [True, True, False, False]
        story.commits()
        await asyncio.gather(*futures, late)
        assert story.metadata.table(TOPICS) == {"T": 2, "U": 1}
        assert story.lane.restarted == ["T", "T", "T"], "the deletion was sent again, too"

    run(work)


def test_who_stops_leading_does_not_keep_what_was_not_committed() -> None:
    async def work(story: Story) -> None:
        resets: list[int] = []
        story.metadata.on_reset.append(lambda: resets.append(1))
        done = story.metadata.change({TOPICS: {"T": 1}})
        story.lane.leaves()
        with pytest.raises(NotKept):
            await done
        assert resets and not story.metadata.is_asked(TOPICS, "T")
        with pytest.raises(NotNow, match="not the master"):
            story.metadata.change({TOPICS: {"T": 1}})
        story.commits()  # the next master has it after all
        assert story.metadata.table(TOPICS) == {"T": 1}

    run(work)


def test_a_full_lane_refuses_before_anything_counts() -> None:
    async def work(story: Story) -> None:
        story.lane.room = 1
        first = story.metadata.change({TOPICS: {"T": 1}})
        with pytest.raises(NotNow, match="waits for its commit"):
            story.metadata.change({TOPICS: {"U": 1}})
        assert not story.metadata.is_asked(TOPICS, "U")
        story.commits()
        await first
        await story.metadata.settled()

    run(work)


def test_a_large_change_is_several_entries_and_ends_with_the_last() -> None:
    async def work(story: Story) -> None:
        change: Tables = {CONSUMER_OFFSETS: {f"T@G{n}": {"0": n} for n in range(20)}, TOPICS: {"T": None}}
        story.lane.room = 3
        done = story.metadata.change(change)
        assert len(story.lane.sent) == 3
        while not done.done():
            assert all(len(content) <= 120 for content in story.lane.sent)
            story.commits()
            await asyncio.sleep(0.001)
        assert story.metadata.table(CONSUMER_OFFSETS) == change[CONSUMER_OFFSETS]

    run(work, content_bytes=100)


# --- tables ----------------------------------------------------------------------------------------------------------
def tables_of(story: Story, now_ms: Callable[[], int] = lambda: 1) -> Context:
    store = MemoryMessages()
    context = Context(Identity("C", "b", "127.0.0.1", 10911), store, now_ms)
    TablesInLog(context, story.metadata)
    story.lane.on_left.append(lambda: setattr(store, "is_master", False))
    return context


def test_tables_are_what_is_committed_and_what_was_asked_for() -> None:
    async def work(story: Story) -> None:
        context = tables_of(story)
        context.topics.create_by_hand(TopicConfig("Mine", 4, 4))
        context.groups.find("G")
        assert set(story.metadata.table(TOPICS)) == set() and context.topics.get("Mine") == TopicConfig("Mine", 4, 4)
        context.topics.create_by_hand(TopicConfig("Mine", 5, 5))
        story.commits(1)
        assert context.topics.get("Mine") == TopicConfig("Mine", 5, 5), "a newer one was asked for"
        story.commits()
        assert story.metadata.table(TOPICS)["Mine"]["readQueueNums"] == 5
        assert story.metadata.table(GROUPS)["G"]["retryMaxTimes"] == 16
        story.log.applies(encode_metadata({TOPICS: {"Theirs": TopicConfig("Theirs", 1, 1).as_said()}}))
        assert context.topics.get("Theirs") == TopicConfig("Theirs", 1, 1)
        made = len(context.topics.topics)
        context.topics.create_by_hand(TopicConfig("Lost", 1, 1))
        story.lane.leaves()
        assert context.topics.get("Lost") is None and len(context.topics.topics) == made
        assert context.groups.find("H") == GroupConfig("H") and "H" not in context.groups.groups, "a slave keeps none"

    run(work)


def test_offsets_that_changed_go_together() -> None:
    async def work(story: Story) -> None:
        context = tables_of(story)
        for offset in range(50):
            context.offsets.put("G", "T", 0, offset)
            context.offsets.put("G", "T", 1, 3)
        context.offsets.put("H", "T", 0, 9)
        await until(lambda: bool(story.lane.sent))
        assert story.lane.sent == [encode_metadata({CONSUMER_OFFSETS: {"T@G": {"0": 49, "1": 3}, "T@H": {"0": 9}}})]
        context.offsets.put("G", "T", 0, 60)
        story.commits()
        assert context.offsets.get("G", "T", 0) == 60, "what was committed meanwhile is newer than what the log says"
        context.offsets.put("H", "T", 0, 9)
        await until(lambda: bool(story.lane.sent))
        assert story.lane.sent == [encode_metadata({CONSUMER_OFFSETS: {"T@G": {"0": 60, "1": 3}}})], "only what changed"
        story.commits()
        story.lane.leaves()
        assert context.offsets.get("G", "T", 0) == 60 and context.offsets.get("H", "T", 0) == 9

    run(work)


def test_a_topic_that_is_deleted_takes_its_offsets_along() -> None:
    async def work(story: Story) -> None:
        context = tables_of(story)
        context.topics.create_by_hand(TopicConfig("T", 4, 4))
        context.offsets.put("G", "T", 0, 7)
        context.offsets.put("G", "U", 0, 8)
        await until(lambda: len(story.lane.sent) == 2)
        context.topics.delete("T")
        context.topics.delete("T")
        assert len(story.lane.sent) == 3 and story.lane.restarted == ["T"]
        story.commits()
        assert story.metadata.table(TOPICS) == {} and story.metadata.table(CONSUMER_OFFSETS) == {"U@G": {"0": 8}}
        assert context.topics.get("T") is None and context.offsets.get("G", "T", 0) is None
        with pytest.raises(Refusal) as refused:
            context.topics.delete("TBW102")
        assert refused.value.reply.code == Answer.SYSTEM_ERROR
        story.lane.room = 0
        with pytest.raises(Refusal) as refused:
            context.topics.create_by_hand(TopicConfig("V", 1, 1))
        assert refused.value.reply.code == Answer.SYSTEM_BUSY and context.topics.get("V") is None
        assert context.groups.find("Later") == GroupConfig("Later") and "Later" not in context.groups.groups
        story.lane.room = 9
        assert context.groups.find("Later") == context.groups.groups["Later"]

    run(work)
