"""All that is checked in the broker's world, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from node.message_store.consume_queue import PullStatus
from node.message_store.properties import UNIQ_KEY
from node.message_store.queue_units import UNIT_BYTES
from node.message_store.read_files import MappedFileQueue
from tests.simulation.broker.books import Book
from tests.simulation.driver.callers import Promptness
from tests.simulation.invariants_log import Logs
from tests.simulation.invariants_members import Memberships
from tests.simulation.invariants_records import RECORD_INVARIANTS, Records
from tests.simulation.mirror import Mirrors
from tests.simulation.observer import Observer, Violation

if TYPE_CHECKING:
    from tests.simulation.broker.process import BrokerProcess

BROKER_INVARIANTS: Final[Mapping[str, str]] = {
    "queue_offsets_dense": "the messages of a queue have the offsets 0, 1, 2, ... in the order of the log",
    "visible_is_committed": "what a broker shows, counts or dispatches is committed, and as it is in the log",
    "acknowledged_is_stored": "what is answered PUT_OK is committed, at the place and queue offset of the answer",
    "acknowledged_is_readable": "what is answered PUT_OK can be read by queue at the broker that says so",
    "refused_is_not_stored": "what is answered as not taken (a client sends it again) never is in the log",
    "committed_is_readable": "in the end every message can be read at every broker by queue, by id and by key",
    "queues_as_the_log": "in the end the consume queues of every broker are what the log makes of them, to the byte",
    "tables_as_the_log": "in the end the tables of metadata of every broker are what the log says",
    "record_is_sound": "a record says its place, and the CRC of its body agrees",
    **RECORD_INVARIANTS,
    "one_writer": "behind the end of a lane nothing lies that came over an earlier one",
    "sent_by_a_broker": "what is no entry of the engine's own was sent by a broker",
    "expired_only": "a reader is sent on past messages only where they have expired with the log's files",
    "changed_once": "a change of metadata is in the log as often as it was asked for, at most",
    "one_master": "no two brokers may answer as the master at one moment",
    "answers_are_current": "the end of a queue is never less than was said before the question, a group's offset never "
    "less than that master said or the log has",
    "answered_once": "a broker answers each request once",
    "once_by_one_master": "one master delivers and commits what waited once, unless an outcome was unknown",
    "not_before_its_time": "what waits for its time is not delivered before it",
    "delivered_before_its_offset": "a level's offset is committed behind every delivery that it counts",
    "delayed_is_delivered": "in the end everything that waited for its time was delivered",
    "half_is_not_visible": "a message of a transaction gets to its topic only by a commit of a half message",
    "rolled_back_stays_so": "what a producer was told is rolled back is never committed",
    "transaction_ends_as_decided": "in the end every transaction is what its producer decided",
    "consumed_in_order": "a consumer gets every message of a queue once, in order",
    "liveness": "once the faults are over there is one master, and nothing waits for ever",
}


class OneMaster(Observer):
    """Looks at every step who would answer as the master without asking anybody."""

    def stepped(self, world: Any) -> None:
        sure = [one.id for one in world.brokers if _is_sure(one)]
        if len(sure) > 1:
            raise Violation("one_master", f"{' and '.join(sure)} both answer as the master")


def _is_sure(one: BrokerProcess) -> bool:
    broker = one.broker
    if broker is None or not broker.is_master or one.loop is None:
        return False
    sure: bool = one.loop.run_here(broker.may_answer)
    return sure


class Recovered(Observer):
    """In the end, at each broker: queues, index, ids and tables against the log."""

    def __init__(self, book: Book) -> None:
        self._book = book

    def healed(self, world: Any) -> None:
        for one in world.brokers:
            one.loop.run_here(self._look, one)

    def _look(self, process: BrokerProcess) -> None:
        book, broker = self._book, process.broker
        assert broker is not None and broker.log.state is not None
        tables = {name: table for name, table in broker.log.state.tables.items() if table}
        expected = {name: table for name, table in book.tables.items() if table}
        if tables != expected:
            raise Violation("tables_as_the_log", f"{process.id} has {tables}, the log says {expected}")
        ends = {queue: len(messages) for queue, messages in book.queues.items()}
        if broker.log.next_offsets != ends:
            raise Violation("queues_as_the_log", f"{process.id} goes on with {broker.log.next_offsets}, not {ends}")
        broker.reads.refresh()
        begin = broker.reads.store.log.min_offset
        if begin != process.machine.log_begin:
            raise Violation("expired_only", f"{process.id}: messages begin at {begin}, {process.machine.log_begin}")
        for queue in book.queues:
            self._queue(process, *queue, begin)
        for message in book.by_place.values():
            if message.place >= begin:
                self._message(process, message)

    def _queue(self, process: BrokerProcess, topic: str, queue_id: int, begin: int) -> None:
        broker, messages = process.broker, self._book.queues[topic, queue_id]
        assert broker is not None
        disk = process.disk()
        row = MappedFileQueue(process.machine.settings.node.data / "consumequeue" / topic / str(queue_id), disk)
        low = next((number for number, one in enumerate(messages) if one.place >= begin), len(messages))
        if broker.reads.min_offset(topic, queue_id) != low:
            text = f"{process.id}: {topic}.{queue_id} begins at {broker.reads.min_offset(topic, queue_id)}, not {low}"
            raise Violation("expired_only", text)
        for number, message in enumerate(messages[low:], low):
            unit = row.read(number * UNIT_BYTES, UNIT_BYTES)
            expected = message.place.to_bytes(8, "big") + len(message.raw).to_bytes(4, "big")
            if unit[:12] != expected:
                text = f"{process.id}: unit {number} of {topic}.{queue_id} is {unit.hex()}, not {expected.hex()}"
                raise Violation("queues_as_the_log", text)
        rest = row.read(len(messages) * UNIT_BYTES, row.end_offset)
        if any(rest):
            raise Violation("queues_as_the_log", f"{process.id}: {topic}.{queue_id} goes on behind {len(messages)}")
        offset = low
        while offset < len(messages):
            got = broker.reads.get(topic, queue_id, offset, 32)
            shown = [bytes(one) for one in got.records]
            if got.status is not PullStatus.FOUND or shown != [
                one.raw for one in messages[offset : offset + len(shown)]
            ]:
                text = f"{process.id}: offset {offset} of {topic}.{queue_id}: {got.status}, {len(shown)} records"
                raise Violation("committed_is_readable", text)
            offset += len(shown)

    def _message(self, process: BrokerProcess, message: Any) -> None:
        broker, record = process.broker, message.record
        assert broker is not None
        if bytes(broker.reads.message_at(message.place)) != message.raw:
            raise Violation("committed_is_readable", f"{process.id}: another message at {message.place}")
        key = record.properties.get(UNIQ_KEY)
        if key is None:
            return
        found = [bytes(one) for one in broker.reads.query(record.topic, key) if one is not None]
        if message.raw not in found:
            text = f"{process.id}: key {key} of {record.topic} does not lead to {message.place}"
            raise Violation("committed_is_readable", text)


def broker_checks() -> tuple[Book, list[Observer]]:
    """One set of observers for one world, in the order in which they must hear of things."""
    mirrors = Mirrors()
    members = Memberships(mirrors)
    logs = Logs(mirrors, members)
    book = Book(logs)
    return book, [mirrors, Records(mirrors), members, logs, book, OneMaster(), Promptness(), Recovered(book)]
