"""What the committed log of a broker group says, message by message, in the plainest way; and who sent it.

`Book` reads each entry once, as soon as it is committed anywhere: the messages of each queue, by place and by their
words (a body is in the world once), the tables of metadata, and what was delivered and committed of what waited. The
brokers' own dispatch is held against it. `LaneBook` knows over which lane each record left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from node.broker.open_puts import as_sent
from node.broker.requests.topics import HALF_TOPIC, OP_TOPIC
from node.broker.transaction_records import TRAN_MSG
from node.message_store.broker_tables import DELAY_OFFSETS
from node.message_store.broker_tables import TOPICS as TOPIC_TABLE
from node.message_store.delay_levels import parse_delay_levels
from node.message_store.properties import DELAY, REAL_TOPIC
from node.message_store.queue_units import SCHEDULE_TOPIC
from node.message_store.record import (
    TRANSACTION_BITS,
    MessageRecord,
    TransactionType,
    body_crc_of,
    decode_record,
)
from node.protocol.broker_state import Tables, apply_metadata, decode_metadata
from node.protocol.entry import HEAD_BYTES
from node.protocol.group_kind import Channel
from node.protocol.inert_records import TOPICS, is_reserved
from tests.simulation.invariants_log import Logs
from tests.simulation.mirror import Held
from tests.simulation.observer import Observer, Violation

if TYPE_CHECKING:
    from node.client import Lane
    from tests.simulation.broker.world import BrokerWorld

Queue = tuple[str, int]
SYSTEM = (SCHEDULE_TOPIC, HALF_TOPIC, OP_TOPIC)


@dataclass(slots=True, frozen=True)
class Message:
    """A message of the committed log. `writer`: which incarnation of a broker sent it, and in which term."""

    index: int
    place: int
    raw: bytes
    record: MessageRecord
    writer: tuple[str, int]


@dataclass(slots=True)
class OpenedLane:
    """One that a broker opened."""

    owner: str
    term: int
    number: int
    end_index: int

    @property
    def order(self) -> tuple[int, int]:
        return self.term, self.number


class LaneBook:
    """Who may write: the lane that was opened last, and behind its end nothing of any before it."""

    def __init__(self) -> None:
        self.lanes: dict[tuple[int, int], OpenedLane] = {}
        self._sent: dict[bytes, OpenedLane] = {}
        self._highest: OpenedLane | None = None
        self._changes: Counter[bytes] = Counter()  # asked for, and not in the log

    def asked(self, contents: Iterable[bytes]) -> None:
        """A broker asked for changes of metadata."""
        self._changes.update(contents)

    def changed(self, index: int, content: bytes) -> None:
        """One is committed. Raises Violation."""
        self._changes[content] -= 1
        if self._changes[content] < 0:
            text = f"entry {index} changes metadata once more than was asked for: {content[:200]!r}"
            raise Violation("changed_once", text)

    def opened(self, owner: str, lane: Lane) -> None:
        found = OpenedLane(owner, lane.term, lane.number, lane.end_index)
        self.lanes[found.order] = found

    def sent(self, owner: str, lane: Lane, bodies: Sequence[bytes]) -> None:
        known = self.lanes[lane.term, lane.number]
        for body in bodies:
            self._sent[as_sent(body)] = known

    def committed(self, index: int, term: int, raw: bytes) -> OpenedLane:
        """Whose record that is. Raises Violation."""
        lane = self._sent.get(as_sent(raw))
        if lane is None:
            raise Violation("sent_by_a_broker", f"entry {index} was sent by no broker")
        if lane.term != term or index <= lane.end_index:
            text = f"entry {index} of term {term} came over lane {lane.number} of term {lane.term}, of {lane.owner}"
            raise Violation("one_writer", f"{text}, which began behind {lane.end_index}")
        if self._highest is not None and lane.order < self._highest.order:
            text = f"entry {index} came over lane {lane.order} of {lane.owner}, behind entries of"
            raise Violation("one_writer", f"{text} {self._highest.order} of {self._highest.owner}")
        self._highest = lane
        return lane


class Book(Observer):
    """See the module's docstring. Comes after `Logs`."""

    def __init__(self, logs: Logs) -> None:
        self._log = logs.committed
        self.lanes = LaneBook()
        self.index = -1
        self.queues: dict[Queue, list[Message]] = {}
        self.by_place: dict[int, Message] = {}
        self.by_word: dict[bytes, list[Message]] = {}
        self.tables: dict[str, dict[str, Any]] = {}
        self.last_ms = -1
        self.levels_ms: tuple[int, ...] = ()
        self.unknown: set[bytes] = set()  # words that a broker put and heard no outcome of
        self.turned_away: set[bytes] = set()  # words that a producer was told are not stored
        self.rolled_back: set[bytes] = set()  # what producers were told so of
        self.wall_is_true = True
        self.kept_from = 0  # what lies before that place has expired at some member
        self._world: BrokerWorld | None = None

    def started(self, world: Any) -> None:
        self._world = world
        self.index = self._log.index
        self.levels_ms = parse_delay_levels(world.members[world.ids[0]].settings.broker.delay_levels)
        self.wall_is_true = not (world.config.wall_back or world.config.wall_apart_ms)

    def stepped(self, world: Any) -> None:
        while self.index < self._log.index:
            held = self._log.entries[self.index + 1]
            self._take(self.index + 1, held)
            self.index += 1
        for one in world.brokers:
            self.kept_from = max(self.kept_from, one.machine.log_begin)
            broker = one.broker
            if broker is not None and broker.log.dispatched_index > self.index:
                text = f"{one.id} has dispatched entry {broker.log.dispatched_index}, {self.index} is committed"
                raise Violation("visible_is_committed", text)

    # --- one entry ------------------------------------------------------------------------------------------------
    def _take(self, index: int, held: Held) -> None:
        raw, place = held.raw, held.pos + HEAD_BYTES
        if raw is None:  # the engine's own
            return
        record = decode_record(raw)
        if record.store_timestamp_ms < self.last_ms:
            text = f"entry {index} was stored at {record.store_timestamp_ms}, one before it at {self.last_ms}"
            raise Violation("time_goes_on", text)
        self.last_ms = record.store_timestamp_ms
        lane = self.lanes.committed(index, held.term, raw)
        if record.topic == TOPICS[Channel.METADATA]:
            self.lanes.changed(index, record.body)
            self._change(index, decode_metadata(record.body))
        if is_reserved(record.topic):
            return
        if record.physical_offset != place or record.body_crc != body_crc_of(record.body):
            text = f"entry {index} lies at {place}, its record says {record.physical_offset}, CRC {record.body_crc}"
            raise Violation("record_is_sound", text)
        message = Message(index, place, raw, record, (lane.owner, lane.term))
        queue = self.queues.setdefault((record.topic, record.queue_id), [])
        if record.queue_offset != len(queue):
            where = f"queue {record.queue_id} of {record.topic}"
            text = f"entry {index} has offset {record.queue_offset} in {where}, {len(queue)} comes next"
            raise Violation("queue_offsets_dense", text)
        if record.body in self.turned_away:
            raise Violation("refused_is_not_stored", f"entry {index} is {record.body[:24]!r}, which was refused")
        self._judge(message)
        queue.append(message)
        self.by_place[place] = message
        self.by_word.setdefault(record.body, []).append(message)

    def _change(self, index: int, change: Tables) -> None:
        apply_metadata(self.tables, change)
        for level, offset in change.get(DELAY_OFFSETS, {}).items():
            for message in self.queues.get((SCHEDULE_TOPIC, int(level) - 1), [])[:offset]:
                if not self._is_delivered(message):
                    text = f"entry {index} says level {level} is delivered up to {offset}, entry {message.index} is not"
                    raise Violation("delivered_before_its_offset", text)
        for topic, value in change.get(TOPIC_TABLE, {}).items():
            if value is None:
                for queue in [one for one in self.queues if one[0] == topic]:
                    del self.queues[queue]

    # --- what waited ------------------------------------------------------------------------------------------------
    def _judge(self, message: Message) -> None:
        record = message.record
        before = self.by_word.get(record.body, [])
        if record.topic not in SYSTEM and record.properties.get(TRAN_MSG) == "true" and not self._kind(record):
            text = f"entry {message.index} shows {record.body[:24]!r} of a transaction, which nothing has committed"
            raise Violation("half_is_not_visible", text)
        if record.topic in SYSTEM or not before:
            if record.topic not in SYSTEM and (DELAY in record.properties or self._kind(record)):
                text = f"entry {message.index} ends what waited for it, and nothing did: {record.body[:24]!r}"
                raise Violation("half_is_not_visible" if self._kind(record) else "not_before_its_time", text)
            return
        same = [one for one in before if one.record.topic == record.topic]
        own = [one for one in same if one.writer == message.writer]
        if own and record.body not in self.unknown:
            text = f"{message.writer} put {record.body[:24]!r} at entry {own[-1].index} and at {message.index}"
            raise Violation("once_by_one_master", text)
        if self._kind(record) and record.body in self.rolled_back:
            raise Violation("rolled_back_stays_so", f"entry {message.index} commits {record.body[:24]!r}")
        waited = next((one for one in before if one.record.topic == SCHEDULE_TOPIC), None)
        if waited is not None and self.wall_is_true:
            due_ms = waited.record.store_timestamp_ms + self.levels_ms[waited.record.queue_id]
            if record.store_timestamp_ms < due_ms:
                text = f"entry {message.index} delivers at {record.store_timestamp_ms} what is due at {due_ms}"
                raise Violation("not_before_its_time", text)

    @staticmethod
    def _kind(record: MessageRecord) -> bool:
        """Whether it ends a transaction."""
        return record.sys_flag & TRANSACTION_BITS == TransactionType.COMMIT

    def _is_delivered(self, message: Message) -> bool:
        """Or never will be: it has expired."""
        real = message.record.properties.get(REAL_TOPIC)
        return message.place < self.kept_from or any(
            one.record.topic == real for one in self.by_word[message.record.body]
        )

    # --- at the end -------------------------------------------------------------------------------------------------
    def healed(self, world: Any) -> None:
        for message in [one for queue in (SCHEDULE_TOPIC, HALF_TOPIC) for one in self._of(queue)]:
            if message.place < self.kept_from:
                continue
            word, stored = message.record.body, self._is_delivered(message)
            if message.record.topic == SCHEDULE_TOPIC and not stored:
                raise Violation("delayed_is_delivered", f"{word[:24]!r} of entry {message.index} never was")
            if message.record.topic == HALF_TOPIC and stored != world.workload.commits(word):
                what = "was committed" if stored else "never was committed"
                raise Violation("transaction_ends_as_decided", f"{word[:24]!r} of entry {message.index} {what}")

    def _of(self, topic: str) -> list[Message]:
        return [one for name, queue in self.queues.items() if name[0] == topic for one in queue]

    def lost(self, topic: str, queue_id: int, numbers: range) -> Message | None:
        """The first of these messages that has not expired anywhere."""
        queue = self.queues.get((topic, queue_id), [])
        return next((one for one in queue[numbers.start : numbers.stop] if one.place >= self.kept_from), None)

    def end(self, topic: str, queue_id: int) -> int:
        return len(self.queues.get((topic, queue_id), ()))
