"""Changes of metadata that a master asks for, over a lane and a log that the test moves by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from node.broker.metadata import Metadata, NotKept, NotNow
from node.broker.metadata_tables import TablesInLog
from node.broker.requests import locks
from node.broker.requests.context import Context, Identity
from node.broker.requests.locks import LOCK_MS, QueueLock, QueueLocks, read_key
from node.message_store.broker_tables import CONSUMER_OFFSETS, DELAY_OFFSETS, GROUPS, QUEUE_LOCKS, TOPICS
from node.message_store.metadata_state import Applied, MetadataState, own_entry
from node.protocol.broker_state import Tables, encode_metadata
from node.protocol.group_kind import Channel
from node.protocol.inert_records import inert_record
from node.rocketmq.bodies import GroupConfig, MessageQueue, TopicConfig
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


# --- locks of queues -------------------------------------------------------------------------------------------------
class Member:
    """A broker's tables over a copy of the log, with a clock of its own, which stands until it is moved."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.story = Story()
        self.story.lane.is_open = self.story.lane.is_master = False
        self.context = tables_of(self.story, lambda: self.now_ms)

    @property
    def locks(self) -> QueueLocks:
        return self.context.locks

    def leads(self) -> None:
        self.story.lane.is_master = True
        self.story.lane.opens()

    def asks(self, client: str, *queues: int, topic: str = "T") -> list[int]:
        found = self.locks.lock("G", client, [MessageQueue(topic, "b", queue) for queue in queues], client)
        return [one.queue_id for one in found]

    def unlocks(self, client: str, *queues: int) -> None:
        self.locks.unlock("G", client, [MessageQueue("T", "b", queue) for queue in queues])


class Members:
    """Two of them, one log: what the one sent and is committed is applied by both."""

    def __init__(self) -> None:
        self.both = [Member(1_000), Member(5_000_000)]  # clocks say nothing of each other

    def commit(self, member: Member) -> None:
        sent, member.story.lane.sent = member.story.lane.sent, []
        for content in sent:
            for one in self.both:
                one.story.log.applies(content)

    def later(self, ms: int) -> None:
        for one in self.both:
            one.now_ms += ms


def two_masters(work: Callable[[Members, Member, Member], None]) -> None:
    async def run() -> None:
        members = Members()
        first, second = members.both
        first.leads()
        work(members, first, second)

    asyncio.run(run())


def test_the_next_master_gives_no_queue_to_another_while_the_old_lock_may_be_believed_in() -> None:
    def work(members: Members, first: Member, second: Member) -> None:
        assert (first.asks("c1", 0, 1), first.asks("c2", 1, 2)) == ([0, 1], [2])
        members.commit(first)
        for _round in range(5):  # renewed every 20 s, which is in no log
            members.later(20_000)
            assert first.asks("c1", 0, 1) == [0, 1] and not first.story.lane.sent
        members.later(LOCK_MS)  # an election, however long it took
        first.story.lane.leaves()
        second.leads()
        assert (second.asks("c2", 0, 1, 2), second.asks("c1", 0)) == ([2], [0])
        members.later(LOCK_MS)
        assert (second.asks("c2", 0), second.asks("c2", 1)) == ([], [])  # the last millisecond of both
        members.later(1)
        assert second.asks("c2", 0, 1) == [0, 1], "nobody renewed them at this master"
        members.commit(second)
        second.story.lane.leaves()
        first.story.lane.opens()
        assert first.asks("c1", 0, 1) == [], "and the master after it knows that"

    two_masters(work)


def test_a_master_that_comes_back_gives_the_locks_of_its_first_time_their_whole_time_again() -> None:
    def work(members: Members, first: Member, _second: Member) -> None:
        assert first.asks("c1", 0) == [0]
        members.commit(first)
        first.story.lane.leaves()
        members.later(LOCK_MS + 1)  # c1 renewed it at the other master meanwhile
        first.story.lane.opens()
        assert first.asks("c2", 0) == []

    two_masters(work)


def test_a_lock_that_no_quorum_has_is_none_at_the_next_master_and_its_client_was_not_answered() -> None:
    def work(members: Members, first: Member, second: Member) -> None:
        assert first.asks("c1", 0) == [0]  # the answer waits for the commit
        first.story.lane.leaves()
        second.leads()
        assert second.asks("c2", 0) == [0]
        members.commit(second)
        assert first.locks.of_group("G") == second.locks.of_group("G") == {("T", 0): "c2"}

    two_masters(work)


def test_locks_that_ended_leave_the_log_and_a_refused_change_leaves_locks_as_they_are() -> None:
    def work(members: Members, first: Member, second: Member) -> None:
        first.asks("c1", 0, 1, 2)
        members.commit(first)
        first.unlocks("c2", 0)
        assert not first.story.lane.sent, "it is not its own"
        first.unlocks("c1", 0, 0)
        members.commit(first)
        assert set(second.locks.of_group("G")) == {("T", 1), ("T", 2)}
        members.later(LOCK_MS + 1)
        first.story.lane.room = 0
        for change in (lambda: first.unlocks("c1", 1), lambda: first.asks("c2", 1), first.locks.look):
            with pytest.raises(Refusal):
                change()
        assert set(first.locks.of_group("G").values()) == {"c1"}
        first.story.lane.room = 9
        first.locks.look()
        members.commit(first)
        assert first.story.metadata.table(QUEUE_LOCKS) == second.locks.of_group("G") == {}

    two_masters(work)


def test_names_that_no_queue_has_are_not_locked_and_locks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "LOCKS_MAX", 2 * locks.SHARE)

    def work(members: Members, first: Member, _second: Member) -> None:
        assert (first.asks("c", 0, topic="T@1"), first.asks("c", -1), first.asks("c", 0, 1, 2)) == ([], [], [0, 1])
        members.commit(first)
        assert (first.asks("c", 2), first.asks("c", 0)) == ([], [0])
        assert read_key("T@0@G") == QueueLock("T", 0, "G") and QueueLock("T", 0, "a@b") == read_key("T@0@a@b")
        assert [read_key(one) for one in ("T@x@G", "T", "T@1@", "")] == [None] * 4

    two_masters(work)
