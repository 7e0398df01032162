"""Transactions: END_TRANSACTION (37), and the check service, which asks producers for their decision (39).

On the master only. What is open follows from the half and the op queue; where they have to be read from is kept as
offsets of the group CID_RMQ_SYS_TRANS, as RocketMQ does, so a new master goes on there.

Invariants: a transaction is committed at most once by one master, however often its end is asked for and however long
the log takes; its message is stored before its op message, so that no commit is lost, and only a change of master
between the two may deliver it twice; a half message is stored again before its producer is asked; how many are open is
bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from node.background import Background, reason_of
from node.broker.requests.context import Context
from node.broker.requests.topics import HALF_TOPIC, OP_TOPIC
from node.broker.transaction_records import (
    GIVEN_UP_TOPIC,
    again,
    asked,
    final_message,
    given_up,
    op_message,
    real_place,
)
from node.broker.transaction_table import PRODUCER_GROUP, Half, HalfTable
from node.message_store.consume_queue import PullStatus
from node.message_store.errors import MessageFormatError, MessageStoreError
from node.message_store.new_message import NewMessage
from node.message_store.properties import UNIQ_KEY
from node.message_store.put_result import PutResult, PutStatus
from node.message_store.record import MessageRecord, TransactionType, decode_record
from node.rocketmq.codes import FLAG_ONE_WAY, Answer, Request
from node.rocketmq.command import Command
from node.rocketmq.dispatch import Call, Peer, Refusal, Reply
from node.rocketmq.header_fields import read_header, write_header
from node.rocketmq.headers import CheckTransactionRequest, EndTransactionRequest

GROUP: Final = "CID_RMQ_SYS_TRANS"
OPEN_MAX: Final = 1_000_000
AT_ONCE: Final = 32  # checks that are under way together
READ_AT_ONCE: Final = 32
UNANSWERED_CHECKS: Final = 3  # asked so often, a producer should have decided
GROUPS_SHOWN: Final = 20
KEEP_OFFSETS_S: Final = 5.0
AGAIN_S: Final = 0.1
FULL: Final = f"[TRANSACTIONS]{OPEN_MAX} transactions are open, the most that there may be"
SLAVE: Final = "Message store is slave mode, so end transaction is forbidden. "
NOT_FOUND: Final = "Find prepared transaction message failed"
OVER: Final = "the transaction is not open: it was committed, rolled back or given up"
# What lay there has expired, or the queue began anew.
_ELSEWHERE: Final = (
    PullStatus.OFFSET_TOO_SMALL, PullStatus.MESSAGE_WAS_REMOVING, PullStatus.OFFSET_OVERFLOW_BADLY,
)  # fmt: skip
_QUEUES: Final = frozenset({(HALF_TOPIC, 0), (OP_TOPIC, 0)})
Note = Callable[[str, str, str], None]


@dataclass(frozen=True, slots=True)
class TransactionTimes:
    """RocketMQ's transactionTimeOut, transactionCheckInterval and transactionCheckMax."""

    timeout_ms: int = 6_000
    check_interval_ms: int = 60_000
    checks_max: int = 15


class Transactions:
    """See the module's docstring."""

    def __init__(self, context: Context, times: TransactionTimes, note: Note) -> None:
        self._context, self._times, self._note = context, times, note
        self._background = Background(lambda name, error: note("transactions_failed", "error", f"{name}: {error}"))
        self._table: HalfTable | None = None  # None: not the master
        self._read = asyncio.Event()  # all that was open when this master began is known
        self._ending: dict[Call, None] = {}
        self._turn = 0
        self._opaque = 0

    # --- as a master ------------------------------------------------------------------------------------------------
    def start(self) -> None:
        offsets = self._context.offsets
        self._table = HalfTable(offsets.get(GROUP, HALF_TOPIC, 0) or 0, offsets.get(GROUP, OP_TOPIC, 0) or 0)
        self._read.clear()
        self._background.keep("open transactions", self._read_all)
        self._background.keep("transaction checks", self._check_now_and_then)
        self._background.keep("transaction offsets", self._keep_offsets)

    def stop(self) -> None:
        """Nobody is asked any more, and what was to be ended is not."""
        self._table = None
        for task in self._background.tasks:
            task.cancel()
        ending, self._ending = self._ending, {}
        for call in ending:
            call.answer(Reply(Answer.SLAVE_NOT_AVAILABLE, None, SLAVE))

    @property
    def open_count(self) -> int:
        return 0 if self._table is None else len(self._table.open)

    @property
    def is_known(self) -> bool:
        """Whether all that is open has been read."""
        return self._table is not None and self._read.is_set()

    def pending(self) -> dict[str, Any] | None:
        """What is open; None: another broker is master, and knows."""
        table = self._table
        if table is None:
            return None
        producers = self._context.clients.producers
        return {
            "open": len(table.open), "all_read": self.is_known, "oldest_born_ms": table.oldest_born_ms,
            "unanswered": table.asked_at_least(UNANSWERED_CHECKS), "checks_max": self._times.checks_max,
            "groups": [
                {"producer_group": group, "open": count, "producers": len(producers.get(group, ()))}
                for group, count in table.by_group.most_common(GROUPS_SHOWN)
            ],
        }  # fmt: skip

    def arrived(self, queues: Iterable[tuple[str, int]]) -> None:
        """These queues have got messages."""
        if self._table is not None and self.is_known and not _QUEUES.isdisjoint(queues):
            try:
                while self._read_some(self._table):
                    continue
            except (OSError, MessageStoreError, MessageFormatError):  # read on beside the dispatch, which is to go on
                self._read.clear()
                self._background.keep("open transactions", self._read_all)

    async def _read_all(self) -> None:
        """What is open, as far back as the offsets say."""
        table = self._table
        while table is not None:
            found = self._read_some(table)
            if found is False:
                break
            await asyncio.sleep(0 if found else AGAIN_S)
        self._read.set()

    def _read_some(self, table: HalfTable) -> bool | None:
        """Whether there was more; None: it cannot be read now. Op messages come first: most half messages are ended,
        and need no room then."""
        reads = self._context.store.reads
        for topic in (OP_TOPIC, HALF_TOPIC):
            is_op = topic == OP_TOPIC
            offset = table.next_op if is_op else table.next_half
            got = reads.get(topic, 0, offset, READ_AT_ONCE)
            if got.status is PullStatus.FOUND:
                for record in got.records:
                    (table.take_op if is_op else table.take_half)(decode_record(record))
                return True
            if got.status is PullStatus.OFFSET_FOUND_NULL:
                return None
            if got.status in _ELSEWHERE and got.next_offset != offset:
                table.next_op, table.next_half = (
                    (got.next_offset, table.next_half) if is_op else (table.next_op, got.next_offset)
                )
                return True
        return False

    async def _keep_offsets(self) -> None:
        while True:
            await asyncio.sleep(KEEP_OFFSETS_S)
            self.keep_offsets()

    def keep_offsets(self) -> None:
        """Keeps the offsets of both system queues from which the next master has to read."""
        if self._table is None or not self.is_known:
            return
        begins = self._context.durable_places(self._table.begins())
        if begins is not None:
            half, op = begins
            with contextlib.suppress(Refusal):  # no room: it reads more
                self._context.offsets.put(GROUP, HALF_TOPIC, 0, half)
                self._context.offsets.put(GROUP, OP_TOPIC, 0, op)

    # --- sends ------------------------------------------------------------------------------------------------------
    def check_room(self) -> None:
        """For one more half message; its topic is made. Raises Refusal."""
        if self.open_count >= OPEN_MAX:
            raise Refusal(Answer.SYSTEM_BUSY, FULL)
        if self._context.store.is_master:
            self._context.topics.create_own(HALF_TOPIC, 1)

    # --- 37 ---------------------------------------------------------------------------------------------------------
    def end(self, call: Call) -> Reply | None:
        said = read_header(EndTransactionRequest, call.request.fields)
        if self._table is None:
            return Reply(Answer.SLAVE_NOT_AVAILABLE, None, SLAVE)
        if said.commit_or_rollback not in (TransactionType.COMMIT, TransactionType.ROLLBACK):
            call.drop()  # the producer does not know yet
            return None
        self._ending[call] = None
        self._background.run("the end of a transaction", self._answer_end(call, said))
        return None

    async def _answer_end(self, call: Call, said: EndTransactionRequest) -> None:
        reply = Reply(Answer.SLAVE_NOT_AVAILABLE, None, SLAVE)  # of a master that ends
        try:
            reply = await self._end(said)
        except Refusal as refusal:
            reply = refusal.reply
        except Exception as error:
            reply = Reply(Answer.SYSTEM_ERROR, None, reason_of(error))
            raise
        finally:
            if self._ending.pop(call, call) is None:
                call.answer(reply)

    async def _end(self, said: EndTransactionRequest) -> Reply:
        """Raises Refusal."""
        await self._read.wait()
        table = self._table
        try:
            record = decode_record(self._context.store.reads.message_at(said.commit_log_offset))
        except MessageStoreError:
            return Reply(Answer.SYSTEM_ERROR, None, NOT_FOUND)
        wrong = _wrong(record, said)
        if wrong or table is None:
            return Reply(Answer.SYSTEM_ERROR, None, wrong or SLAVE)
        half = table.find(record)
        if half is None:
            return Reply(Answer.SYSTEM_ERROR, None, OVER)
        async with half.lock:
            half = table.find(record)
            if half is None:
                return Reply(Answer.SYSTEM_ERROR, None, OVER)
            decision = TransactionType(said.commit_or_rollback)
            if half.decision not in (None, decision):
                return Reply(Answer.SYSTEM_ERROR, None, f"the transaction was ended already: {half.decision}")
            return _reply(await self._ended(table, half, record, decision))

    async def _ended(
        self, table: HalfTable, half: Half, record: MessageRecord, decision: TransactionType
    ) -> PutResult | None:
        """How its last put ended; None: its real topic is not known."""
        if half.decision is None and decision is TransactionType.COMMIT:
            place = real_place(record)
            if place is None:
                return None
            result = await self._context.store.lane.put(final_message(record, *place), patient=True)
            if not result.status.is_stored:
                return result
        half.decision = decision
        return await self._op(table, half)

    async def _op(self, table: HalfTable, half: Half) -> PutResult:
        """Puts the op message which says that a half message is no longer open. Raises Refusal."""
        context = self._context
        context.topics.create_own(OP_TOPIC, 1)
        op = op_message(half.offset, context.identity.host, context.now_ms())
        result = await context.store.lane.put_own(op, patient=True)
        if result.status.is_stored:
            table.drop(half.offset)
        return result

    # --- checks -----------------------------------------------------------------------------------------------------
    async def _check_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(self._times.check_interval_ms / 1000)
            await self._read.wait()
            await self.check()

    async def check(self) -> None:
        """All that are due now, each once, and those that have expired, however long nobody is to be asked."""
        table, now = self._table, self._context.now_ms()
        if table is None:
            return
        begin, timeout_ms = self._context.store.reads.min_offset(HALF_TOPIC, 0), self._times.timeout_ms
        halves = table.open.values()
        due = [half for half in halves if half.decision or half.offset < begin or half.is_due(now, timeout_ms)]
        for begin in range(0, len(due), AT_ONCE):
            await asyncio.gather(*(self._check(table, half) for half in due[begin : begin + AT_ONCE]))
        self.keep_offsets()

    async def _check(self, table: HalfTable, half: Half) -> None:
        async with half.lock:
            if table.open.get(half.offset) is not half:
                return
            try:
                record = decode_record(self._context.store.reads.message_at(half.place))
            except MessageStoreError:  # one that is there and cannot be read now is asked about later
                if half.offset < self._context.store.reads.min_offset(HALF_TOPIC, 0):
                    table.drop(half.offset)
                return
            try:
                if half.decision is not None:
                    await self._op(table, half)
                elif half.checks >= self._times.checks_max:
                    await self._give_up(table, half, record)
                else:
                    await self._ask(table, half, record)
            except Refusal:  # the lane has no room: the next round
                return

    async def _give_up(self, table: HalfTable, half: Half, record: MessageRecord) -> None:
        self._context.topics.create_own(GIVEN_UP_TOPIC, 1)
        result = await self._context.store.lane.put_own(given_up(record), patient=True)
        if result.status.is_stored:
            unique = record.properties.get(UNIQ_KEY)
            why = f"{unique} of {record.properties.get(PRODUCER_GROUP)}: no decision in {half.checks} checks"
            self._note("transaction_given_up", "warning", f"{why}; it is in {GIVEN_UP_TOPIC}")
            half.decision = TransactionType.ROLLBACK
            await self._op(table, half)

    async def _ask(self, table: HalfTable, half: Half, record: MessageRecord) -> None:
        """Stored again, with the count of this check, and then its producer is asked."""
        place = real_place(record)
        message: NewMessage = again(record, half.checks + 1)
        result = await self._context.store.lane.put_own(message, patient=True)
        if not result.status.is_stored:
            return
        table.drop(half.offset)  # where it has no unique key, nothing else says that it was replaced
        if place is None or not result.physical_offsets:
            return
        known = record.properties
        peer = self._producer(known.get(PRODUCER_GROUP, ""))
        if peer is None:
            return
        unique = known.get(UNIQ_KEY)
        fields = CheckTransactionRequest(
            result.queue_offset, result.physical_offsets[0], unique, unique, result.message_ids
        )  # fmt: skip
        self._opaque = (self._opaque + 1) & 0x7FFFFFFF
        body = asked(record, result, message.properties_data, *place)
        peer.send(
            Command(Request.CHECK_TRANSACTION_STATE, self._opaque, FLAG_ONE_WAY, write_header(fields), None, body)
        )

    def _producer(self, group: str) -> Peer | None:
        """One after the other of the group's."""
        peers: Sequence[Peer] = [one for one in self._context.clients.producers.get(group, {}) if not one.closed]
        self._turn += 1
        return peers[self._turn % len(peers)] if peers else None


def _wrong(record: MessageRecord, said: EndTransactionRequest) -> str:
    """Why that record is not the one that was meant; empty: it is."""
    if record.topic != HALF_TOPIC:
        return NOT_FOUND
    if record.properties.get(PRODUCER_GROUP) != said.producer_group:
        return "The producer group wrong"
    if record.queue_offset != said.tran_state_table_offset:
        return "The transaction state table offset wrong"
    return ""


def _reply(result: PutResult | None) -> Reply:
    if result is None:
        return Reply(Answer.SYSTEM_ERROR, None, NOT_FOUND)
    if result.status is PutStatus.PUT_OK:
        return Reply()
    if result.status.is_stored:
        return Reply(remark=result.status.name)  # at the master alone, and over: RocketMQ's answers success, too
    code = Answer.SERVICE_NOT_AVAILABLE if result.status is PutStatus.SERVICE_NOT_AVAILABLE else Answer.SYSTEM_ERROR
    return Reply(code, None, f"{result.status.name} {result.reason}".strip())
