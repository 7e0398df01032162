"""Transactions: half messages, their ends, and producers that are asked for their decision, also by the next master."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from node.broker import transactions as transactions_module
from node.broker.requests.context import Context, Identity
from node.broker.requests.table import BrokerRequests
from node.broker.transaction_table import HalfTable
from node.broker.transactions import GROUP, TransactionTimes
from node.message_store.errors import MessageStoreError
from node.message_store.new_message import NewMessage
from node.message_store.properties import join_properties
from node.message_store.put_result import PutStatus
from node.message_store.queue_units import SCHEDULE_TOPIC
from node.message_store.record import MessageRecord, TransactionType, decode_record
from node.rocketmq.bodies import Heartbeat
from node.rocketmq.codes import FLAG_ONE_WAY, Request
from node.rocketmq.command import Command
from node.rocketmq.dispatch import Dispatcher
from tests.unit.broker_kit import HOST, STORE, send_fields
from tests.unit.client_wire import FakePeer
from tests.unit.engine_kit import until
from tests.unit.memory_messages import MemoryMessages
from tests.unit.message_kit import record

HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GIVEN_UP = "TRANS_CHECK_MAX_TIME_TOPIC"
COMMIT, ROLLBACK, UNKNOWN = int(TransactionType.COMMIT), int(TransactionType.ROLLBACK), 0
TIMES = TransactionTimes(timeout_ms=6_000, check_interval_ms=1 << 30, checks_max=2)  # rounds are the test's


class Group:
    """A log that is there for every master, and the one that leads now."""

    def __init__(self, times: TransactionTimes = TIMES) -> None:
        self.now_ms, self.times = 1_000_000, times
        self.store = MemoryMessages(now_ms=lambda: self.now_ms)
        self.producer = FakePeer()
        self.noted: list[str] = []
        self.kept: dict[str, Any] = {}
        self.requests = self.mastered()

    def mastered(self) -> BrokerRequests:
        """The next master's; offsets are what the log has of them."""
        context = Context(Identity("C", "b", "127.0.0.1", 10911), self.store, lambda: self.now_ms)
        for topic in (HALF, OP):
            if topic in self.kept:
                context.offsets.take(topic, GROUP, self.kept[topic])
        context.offsets.on_change = lambda name: self.kept.__setitem__(name[0], dict(context.offsets.queues(*name)))
        self.requests = BrokerRequests(context, self.times, lambda *said: self.noted.append(said[2]))
        self.store.on_dispatched = [self.requests.arrived]
        self.requests.transactions.start()
        self.dispatcher = Dispatcher(self.requests.handlers())
        return self.requests

    def beat(self) -> None:
        said = Heartbeat("c", ("G",), ())
        answer = self.producer.ask(self.dispatcher, Command(Request.HEART_BEAT, 1, 0, None, None, said.encode()))
        assert answer is not None and answer.code == 0

    def send(self, body: bytes = b"m", *, unique: str = "U1", more: str = "", **fields: str) -> Command:
        properties = f"TRAN_MSG\x01true\x02PGROUP\x01G\x02UNIQ_KEY\x01{unique}\x02{more}TAGS\x01A"
        sent = send_fields(f="4", g=str(self.now_ms), i=properties, e="1") | fields
        answer = self.producer.ask(self.dispatcher, Command(Request.SEND_MESSAGE_V2, 2, 0, sent, None, body))
        assert answer is not None
        return answer

    async def end(self, sent: Command, decision: int, **changes: str) -> Command:
        fields = sent.fields or {}
        asked = {
            "producerGroup": "G", "tranStateTableOffset": fields["queueOffset"], "msgId": "U1",
            "commitLogOffset": str(int(fields["msgId"][16:], 16)), "commitOrRollback": str(decision),
            "fromTransactionCheck": "false",
        }  # fmt: skip
        peer = FakePeer()
        peer.ask(self.dispatcher, Command(Request.END_TRANSACTION, 3, 0, asked | changes, None, b""))
        await until(lambda: bool(peer.sent))
        assert peer.open == 0
        return peer.sent[0]

    async def check(self, after_ms: int = 60_000) -> list[Command]:
        """What producers were asked."""
        self.now_ms += after_ms
        before = len(self.producer.sent)
        await self.requests.transactions.check()
        return [one for one in self.producer.sent[before:] if one.code == Request.CHECK_TRANSACTION_STATE]

    def records(self, topic: str, queue_id: int = 0) -> list[MessageRecord]:
        return [decode_record(one) for one in self.store.queues.get((topic, queue_id), [])]

    @property
    def consumed(self) -> list[MessageRecord]:
        return self.records("TopicTest", 1)


def tell(story_of: Callable[[Group], Awaitable[None]], times: TransactionTimes = TIMES) -> None:
    async def whole() -> None:
        group = Group(times)
        await until(lambda: group.requests.transactions.is_known)
        try:
            await story_of(group)
        finally:
            group.requests.transactions.stop()

    asyncio.run(whole())


def test_a_half_message_waits_and_a_commit_makes_it_a_message() -> None:
    async def story_of(group: Group) -> None:
        sent = group.send(b"paid")
        assert sent.code == 0 and (sent.fields or {})["queueId"] == "1"
        [half] = group.records(HALF)
        assert (half.queue_id, half.sys_flag, group.consumed) == (0, 0, [])
        known = dict(half.properties)
        assert (known["REAL_TOPIC"], known["REAL_QID"], known["__transactionId__"]) == ("TopicTest", "1", "U1")
        assert group.requests.transactions.open_count == 1
        assert (await group.end(sent, COMMIT)).code == 0
        [final] = group.consumed
        assert (final.body, final.sys_flag, final.prepared_transaction_offset) == (b"paid", 8, half.physical_offset)
        assert final.properties == half.properties  # as 4.9.8 stores it
        [op] = group.records(OP)
        assert (op.body, op.properties) == (b"%d" % half.queue_offset, {"TAGS": "d"})
        assert group.requests.transactions.open_count == 0
        again = await group.end(sent, COMMIT)
        assert again.code == 1 and len(group.consumed) == 1  # once

    tell(story_of)


def test_what_is_rolled_back_never_is_a_message_and_unknown_is_not_answered() -> None:
    async def story_of(group: Group) -> None:
        sent = group.send()
        peer = FakePeer()
        fields = {
            "producerGroup": "G", "tranStateTableOffset": "0", "commitLogOffset": "0", "commitOrRollback": "0",
            "fromTransactionCheck": "false", "msgId": "x",
        }  # fmt: skip
        assert peer.ask(group.dispatcher, Command(Request.END_TRANSACTION, 3, 0, fields)) is None
        assert (peer.sent, peer.open, group.requests.transactions.open_count) == ([], 0, 1)
        assert (await group.end(sent, ROLLBACK)).code == 0
        assert (group.consumed, len(group.records(OP)), group.requests.transactions.open_count) == ([], 1, 0)

    tell(story_of)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"producerGroup": "other"}, "The producer group wrong"),
        ({"tranStateTableOffset": "7"}, "The transaction state table offset wrong"),
        ({"commitLogOffset": "99999"}, "Find prepared transaction message failed"),
        ({"commitLogOffset": "0"}, "Find prepared transaction message failed"),  # of another message
    ],
)
def test_an_end_of_something_else_changes_nothing(changes: dict[str, str], text: str) -> None:
    async def story_of(group: Group) -> None:
        await group.store.put(NewMessage("T", 0, b"plain", HOST, STORE, join_properties([("PGROUP", "G")])))
        sent = group.send()
        answer = await group.end(sent, COMMIT, **changes)
        assert (answer.code, answer.remark) == (1, text)
        assert (group.consumed, group.records(OP)) == ([], [])

    tell(story_of)


def test_a_slave_ends_no_transaction() -> None:
    async def story_of(group: Group) -> None:
        sent = group.send()
        group.requests.transactions.stop()
        answer = await group.end(sent, COMMIT)
        assert (answer.code, group.consumed) == (11, [])

    tell(story_of)


def test_a_producer_is_asked_for_its_decision_with_the_message_as_it_was_stored_again() -> None:
    """As in vectors/rocketmq/rpc/transaction: 39 has the new half message's place, the body its old storing time."""

    async def story_of(group: Group) -> None:
        group.beat()
        sent = group.send(b"check me")
        stored_at = group.records(HALF)[0].store_timestamp_ms
        assert await group.check(5_999) == []
        [asked] = await group.check(1)
        half = group.records(HALF)[1]
        assert asked.flag == FLAG_ONE_WAY and asked.fields == {
            "tranStateTableOffset": "1", "commitLogOffset": str(half.physical_offset), "msgId": "U1",
            "transactionId": "U1", "offsetMsgId": half.message_id,
        }  # fmt: skip
        body = decode_record(asked.body)
        assert (body.topic, body.queue_id, body.queue_offset, body.body) == ("TopicTest", 1, 1, b"check me")
        assert (body.physical_offset, body.store_timestamp_ms) == (half.physical_offset, stored_at)
        assert (body.properties["TRANSACTION_CHECK_TIMES"], body.properties["WAIT"]) == ("1", "false")
        assert half.properties == body.properties
        assert group.requests.transactions.open_count == 1
        # the answer to the question, or the first, late: the transaction is the same
        assert (await group.end(sent, COMMIT)).code == 0
        assert [one.body for one in group.records(OP)] == [b"1"] and len(group.consumed) == 1
        assert await group.check() == []

    tell(story_of)


def test_who_never_decides_is_given_up() -> None:
    async def story_of(group: Group) -> None:
        group.send(b"a")
        for checks in (1, 2):
            assert await group.check() == []  # there is no producer
            assert group.records(HALF)[-1].properties["TRANSACTION_CHECK_TIMES"] == str(checks)
        await group.check()
        assert [one.body for one in group.records(GIVEN_UP)] == [b"a"] and "U1 of G" in group.noted[0]
        assert group.requests.transactions.open_count == 0 and len(group.records(HALF)) == 3

    tell(story_of)


def test_the_next_master_asks_what_the_last_one_left_open() -> None:
    async def story_of(group: Group) -> None:
        ended, kept = group.send(unique="U1"), group.send(unique="U2")
        await group.end(ended, COMMIT)
        await group.check()
        assert (group.kept[HALF], group.kept[OP]) == ({0: 2}, {0: 1})  # the second lies at 2 now
        late = group.send(unique="U3")
        await group.end(late, ROLLBACK)
        group.requests.transactions.stop()
        group.mastered()
        group.beat()
        await until(lambda: group.requests.transactions.is_known)
        assert group.requests.transactions.open_count == 1
        [asked] = await group.check()
        assert (asked.fields or {})["msgId"] == "U2"
        assert (await group.end(kept, COMMIT)).code == 0
        assert [one.properties["UNIQ_KEY"] for one in group.consumed] == ["U1", "U2"]

    tell(story_of)


def test_what_ends_a_transaction_is_waited_for_and_a_producers_half_message_is_not() -> None:
    """A commit whose outcome is not known would be asked for again, and delivered twice."""

    async def story_of(group: Group) -> None:
        group.beat()
        sent = group.send()
        assert await group.check() and (await group.end(sent, COMMIT)).code == 0
        assert group.store.patient == [False, True, True, True], "half message, again for its check, message, op"

    tell(story_of)


def test_a_commit_whose_op_message_is_missing_is_not_delivered_again_by_the_same_master() -> None:
    async def story_of(group: Group) -> None:
        group.beat()
        sent = group.send()
        lane, ops = group.store.put_own, 0

        def refuses(message: NewMessage, **given: Any) -> asyncio.Future[Any]:
            nonlocal ops
            ops += 1
            group.store.answers_with = PutStatus.OS_PAGE_CACHE_BUSY
            put = lane(message, **given)
            group.store.answers_with = None
            return put

        group.store.put_own = refuses  # type: ignore[method-assign]
        assert (await group.end(sent, COMMIT)).code == 1 and ops == 1
        group.store.put_own = lane  # type: ignore[method-assign]
        assert (await group.end(sent, ROLLBACK)).code == 1
        assert await group.check() == []  # it is known here how it ended
        assert (len(group.consumed), len(group.records(OP))) == (1, 1)

    tell(story_of)


@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
@pytest.mark.parametrize(
    "status", [PutStatus.SLAVE_NOT_AVAILABLE, PutStatus.FLUSH_SLAVE_TIMEOUT, PutStatus.FLUSH_DISK_TIMEOUT]
)
def test_an_end_that_is_stored_at_the_master_alone_is_an_end(decision: int, status: PutStatus) -> None:
    """A SYNC_MASTER without its slave answered an error, though consumers had the message."""

    async def story_of(group: Group) -> None:
        sent = group.send(b"paid")
        store = group.store._store
        group.store._store = lambda messages: replace(store(messages), status=status)  # type: ignore[method-assign]
        ended = await group.end(sent, decision)
        assert (ended.code, ended.remark) == (0, status.name)
        assert [one.body for one in group.consumed] == [b"paid"] * (decision == COMMIT)
        assert group.requests.transactions.open_count == 0

    tell(story_of)


@pytest.mark.parametrize("asks_again", [True, False])
def test_a_commit_that_could_not_be_stored_has_decided_nothing(asks_again: bool) -> None:
    """The message is nowhere then: whoever asks next, the producer or the check, must still be able to commit it."""

    async def story_of(group: Group) -> None:
        group.beat()
        sent = group.send(b"paid")
        group.store.answers_with = PutStatus.OS_PAGE_CACHE_BUSY
        assert (await group.end(sent, COMMIT)).code == 1
        group.store.answers_with = None
        assert (group.consumed, group.records(OP)) == ([], [])
        if asks_again:
            assert (await group.end(sent, COMMIT)).code == 0
            assert [one.body for one in group.consumed] == [b"paid"]
        else:
            assert len(await group.check()) == 1  # its producer is asked, as for any that is not decided
        assert group.requests.transactions.open_count == (0 if asks_again else 1)

    tell(story_of)


def test_a_half_message_that_cannot_be_read_now_stays_open_and_one_that_expired_does_not() -> None:
    """It counted as expired, whatever the reason, and its offset as done: no master asked any more, and no commit was
    taken."""

    async def story_of(group: Group) -> None:
        group.beat()
        sent = group.send(b"paid")
        read = group.store.message_at

        def damaged(offset: int) -> bytes:
            raise MessageStoreError(f"the message at offset {offset} cannot be read here: it is damaged")

        group.store.message_at = damaged  # type: ignore[method-assign]
        assert await group.check() == []
        assert group.requests.transactions.open_count == 1 and group.kept.get(HALF, {0: 0}) == {0: 0}
        group.store.message_at = read  # type: ignore[method-assign]
        assert len(await group.check()) == 1
        assert (await group.end(sent, COMMIT)).code == 0 and len(group.consumed) == 1
        group.send(unique="U2")
        # Nobody may be asked about this one for a hundred years: it was open, and held its room, for as long.
        group.send(unique="U3", more="CHECK_IMMUNITY_TIME_IN_SECONDS\x013153600000\x02")
        group.store.message_at = damaged  # type: ignore[method-assign]
        group.store.min_offset = lambda *_: 1 << 40  # type: ignore[method-assign]
        assert await group.check() == []
        assert group.requests.transactions.open_count == 0

    tell(story_of)


def test_a_queue_that_cannot_be_read_is_read_on_later_and_no_error_of_the_dispatch() -> None:
    """It was raised into the dispatch of the message that came, which ended the broker."""

    async def story_of(group: Group) -> None:
        get, left = group.store.get, [OSError(5, "Input/output error")] * 2

        def first_fails(*args: Any, **named: Any) -> Any:
            if left:
                raise left.pop()
            return get(*args, **named)

        group.store.get = first_fails  # type: ignore[method-assign]
        sent = group.send(b"paid")
        assert sent.code == 0 and not group.requests.transactions.is_known
        await until(lambda: group.requests.transactions.is_known)
        assert group.requests.transactions.open_count == 1 and not left
        assert (await group.end(sent, COMMIT)).code == 0 and len(group.consumed) == 1

    tell(story_of)


def test_how_many_may_be_open_and_what_cannot_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story_of(group: Group) -> None:
        monkeypatch.setattr(transactions_module, "OPEN_MAX", 1)
        assert group.send().code == 0
        assert group.send(unique="U2").code == 2
        batch = group.send(unique="U3", m="true")
        assert (batch.code, batch.remark) == (16, "sending transaction message is forbidden: it is a batch, or has the"
                                              " flag without TRAN_MSG=true")  # fmt: skip
        assert group.send(i="PGROUP\x01G").code == 16
        assert group.send(more="TIMER_DELAY_SEC\x015\x02").code == 1
        assert len(group.records(HALF)) == 1
        # a consumer's own retry of what a transaction committed
        retry = group.send(b="%RETRY%G", e="0", j="1", f="0", more="DELAY\x011\x02")
        assert retry.code == 0 and len(group.records(SCHEDULE_TOPIC)) == 1

    tell(story_of)


def test_a_half_message_leaves_room_for_its_later_forms() -> None:
    async def story_of(group: Group) -> None:
        assert group.send(more=f"X\x01{'x' * 32_600}\x02").code == 13
        assert group.send(more=f"X\x01{'x' * 32_400}\x02").code == 0

    tell(story_of)


# --- the table --------------------------------------------------------------------------------------------------------
def test_what_is_open_is_counted_by_group_and_by_how_often_it_was_asked_about() -> None:
    async def story(group: Group) -> None:
        transactions = group.requests.transactions
        assert transactions.pending() is not None and transactions.pending()["open"] == 0  # type: ignore[index]
        group.beat()
        began_ms = group.now_ms
        group.send(unique="U1")
        group.now_ms += 500
        ended = group.send(unique="U2")
        group.send(unique="U3")

        def said() -> dict[str, Any]:
            found = transactions.pending()
            assert found is not None
            return found

        of_group = {"producer_group": "G", "open": 3, "producers": 1}
        assert (said()["open"], said()["oldest_born_ms"], said()["groups"]) == (3, began_ms, [of_group])
        await group.end(ended, COMMIT)
        assert (said()["open"], said()["oldest_born_ms"], said()["unanswered"]) == (2, began_ms, 0)
        for unanswered in (0, 0, 2):
            await group.check()
            assert (said()["open"], said()["unanswered"], said()["oldest_born_ms"]) == (2, unanswered, began_ms)
        group.producer.closed = True
        group.requests.gone(group.producer)
        assert said()["groups"] == [{"producer_group": "G", "open": 2, "producers": 0}]
        transactions.stop()
        assert transactions.pending() is None

    tell(story, TransactionTimes(timeout_ms=6_000, check_interval_ms=1 << 30, checks_max=9))


def half(offset: int, unique: str = "", checks: int = 0) -> MessageRecord:
    pairs = [("PGROUP", "G"), ("REAL_TOPIC", "T"), ("TRANSACTION_CHECK_TIMES", str(checks))]
    pairs += [("UNIQ_KEY", unique)] if unique else []
    return record(topic=HALF, queue_offset=offset, properties_data=join_properties(pairs))


def op(offset: int, body: bytes, tag: str = "d") -> MessageRecord:
    return record(body, topic=OP, queue_offset=offset, properties_data=join_properties([("TAGS", tag)]))


@pytest.mark.parametrize("ops_first", [True, False])
def test_what_is_open_does_not_depend_on_which_queue_is_read_first(ops_first: bool) -> None:
    halves = [half(0, "A"), half(1, "B"), half(2), half(3, "A", 1), half(4, "C"), half(5)]
    ops = [op(0, b"3"), op(1, b"x"), op(2, b"4", "e"), op(3, b"2,5,"), op(4, b"9" * 40)]
    table = HalfTable(0, 0)
    for _ in range(2):
        for one in ops if ops_first else halves:
            (table.take_op if ops_first else table.take_half)(one)
        ops_first = not ops_first
    assert list(table.open) == [1, 4]  # A was ended as its check stored it
    assert table.begins() == (1, 0) and (table.next_half, table.next_op) == (6, 5)
    table.drop(1)
    assert table.begins() == (4, 3)
    table.drop(4)
    assert table.begins() == (6, 5)
