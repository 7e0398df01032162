"""What brokers answer their clients, judged as it leaves: by what is committed then, and by what was said before.

Invariant: nothing here changes or delays a byte.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from node.message_store.batch import decode_batch
from node.message_store.broker_tables import CONSUMER_OFFSETS
from node.message_store.record import SIZE_AND_MAGIC, decode_record, parse_message_id
from node.rocketmq.codes import Answer, Request
from node.rocketmq.command import Command
from node.rocketmq.command_stream import CommandStream
from tests.simulation.driver.sockets import Socket
from tests.simulation.observer import Violation

if TYPE_CHECKING:
    from tests.simulation.broker.process import BrokerProcess
    from tests.simulation.broker.world import BrokerWorld

SENDS: Final = frozenset({Request.SEND_MESSAGE_V2, Request.SEND_MESSAGE, Request.SEND_BATCH_MESSAGE})
NOT_TAKEN: Final = frozenset({Answer.SERVICE_NOT_AVAILABLE, Answer.SYSTEM_BUSY})  # clients send it again elsewhere
READS: Final = frozenset({Request.PULL_MESSAGE, Request.QUERY_MESSAGE, Request.VIEW_MESSAGE_BY_ID})


@dataclass(slots=True)
class _Asked:
    """`floor`: no answer that is given from now on may say less; `floor_here`: none of the same master's."""

    command: Command
    floor: int
    floor_here: int = 0
    group: tuple[str, int, str, str, int] | None = None  # whose offset it is about, and who was asked, in which term


class _End:
    __slots__ = ("asked", "stream")

    def __init__(self) -> None:
        self.stream: CommandStream[Command] = CommandStream()
        self.asked: dict[int, _Asked] = {}


class BrokerWire:
    """One per world."""

    def __init__(self, world: BrokerWorld) -> None:
        self._world = world
        self._ends: dict[tuple[str, int], int] = {}  # how far each queue was said to reach
        # How far each group was said to be, by which incarnation of a broker in which term: it writes that into the log
        # a moment later, and one that crashes before has said it in vain, as in RocketMQ.
        self._consumed: dict[tuple[str, int, str, str, int], int] = {}
        self.answers = 0

    def written(self, socket: Socket, pieces: Sequence[memoryview]) -> None:
        """The network's watcher."""
        end = _end_of(socket)
        for piece in pieces:
            at = 0
            while at < len(piece):
                room = end.stream.writable()
                size = min(len(room), len(piece) - at)
                room[:size] = piece[at : at + size]
                at += size
                for command in end.stream.filled(size):
                    self._command(socket, command)

    def _command(self, socket: Socket, command: Command) -> None:
        asked = _end_of(socket if socket.dialled else socket.other).asked
        if socket.dialled and not command.is_response:
            asked[command.opaque] = self._asked(command, socket.other.loop.machine)
        elif not socket.dialled and command.is_response:
            question = asked.pop(command.opaque, None)
            if question is None:
                text = f"{socket.loop.machine} answers request {command.opaque}, which is answered or was never asked"
                self._world.violate(Violation("answered_once", text))
                return
            self.answers += 1
            try:
                self._judge(self._process(socket.loop.machine), question, command)
            except Violation as violation:
                self._world.violate(violation)

    # --- what may be said -------------------------------------------------------------------------------------------
    def _asked(self, command: Command, to: str) -> _Asked:
        said = command.fields or {}
        if command.code == Request.GET_MAX_OFFSET:
            return _Asked(command, self._ends.get((said["topic"], int(said["queueId"])), 0))
        if command.code == Request.QUERY_CONSUMER_OFFSET:
            in_log = self._world.book.tables.get(CONSUMER_OFFSETS, {}).get(
                f"{said['topic']}@{said['consumerGroup']}", {}
            )
            group = self._group(self._process(to), said)
            return _Asked(command, in_log.get(said["queueId"], 0), self._consumed.get(group, 0), group)
        return _Asked(command, 0)

    def _process(self, machine: str) -> BrokerProcess:
        return self._world.members["n" + machine[1:]].broker

    @staticmethod
    def _group(process: BrokerProcess, said: Mapping[str, str]) -> tuple[str, int, str, str, int]:
        term = process.broker.roles.term if process.broker is not None else -1
        return process.name, term, said["consumerGroup"], said["topic"], int(said["queueId"])

    def _judge(self, process: BrokerProcess, asked: _Asked, answer: Command) -> None:
        code, said = asked.command.code, asked.command.fields or {}
        if code in SENDS and answer.code in NOT_TAKEN:
            self._not_stored(process, asked.command)
        fields = answer.fields or {}
        if code == Request.PULL_MESSAGE and answer.code == Answer.PULL_OFFSET_MOVED:
            self._passed_over(process, said, range(int(said["queueOffset"]), int(fields["nextBeginOffset"])))
        if answer.code != Answer.SUCCESS:
            return
        if code in SENDS:
            self._stored(process, asked.command, fields)
        elif code in READS:
            self._shown(process, bytes(answer.body))
        elif code == Request.GET_MAX_OFFSET:
            self._not_less(process, f"the end of {said['topic']}.{said['queueId']}", fields["offset"], asked.floor)
            self._says_end(said["topic"], int(said["queueId"]), int(fields["offset"]))
        elif code == Request.GET_MIN_OFFSET:
            self._passed_over(process, said, range(int(fields["offset"])))
        elif code == Request.QUERY_CONSUMER_OFFSET:
            group = self._group(process, said)
            floor = max(asked.floor, asked.floor_here) if group == asked.group else asked.floor
            self._not_less(process, f"the offset of {group[2:]}", fields["offset"], floor)
            self._consumed[group] = max(self._consumed.get(group, 0), int(fields["offset"]))
        elif code == Request.END_TRANSACTION:
            self._world.workload.ended(said)

    def _passed_over(self, process: BrokerProcess, said: Mapping[str, str], numbers: range) -> None:
        """Who reads on behind these messages."""
        lost = self._world.book.lost(said["topic"], int(said["queueId"]), numbers)
        if lost is not None:
            text = f"{process.id} sends a reader of {said['topic']}.{said['queueId']} on to {numbers.stop}"
            raise Violation("expired_only", f"{text}, past {lost.record.queue_offset} of entry {lost.index}")

    def _not_less(self, process: BrokerProcess, what: str, offset: str, floor: int) -> None:
        if int(offset) < floor:
            text = f"{process.id} says that {what} is {offset}, {floor} was said before it was asked"
            raise Violation("answers_are_current", text)

    def _says_end(self, topic: str, queue_id: int, end: int) -> None:
        self._ends[topic, queue_id] = max(self._ends.get((topic, queue_id), 0), end)
        if end > self._world.book.end(topic, queue_id):
            text = f"{topic}.{queue_id} is said to reach to {end}, {self._world.book.end(topic, queue_id)} is committed"
            raise Violation("visible_is_committed", text)

    def _stored(self, process: BrokerProcess, request: Command, fields: Mapping[str, str]) -> None:
        """PUT_OK: each message is committed, where the answer says, and can be read here."""
        places = [parse_message_id(one)[1] for one in fields["msgId"].split(",")]
        words = _words_of(request)
        offset = int(fields["queueOffset"])
        if len(places) != len(words):
            raise Violation("acknowledged_is_stored", f"{len(words)} messages got ids {fields['msgId']!r}")
        for word, place in zip(words, places, strict=True):
            found = self._world.book.by_place.get(place)
            if found is None or found.record.body != word or found.record.queue_offset != offset:
                text = f"{process.id} says {word[:24]!r} lies at {place} with queue offset {offset}, there is {found}"
                raise Violation("acknowledged_is_stored", text)
            record = found.record
            queue = record.topic, record.queue_id
            broker = process.broker
            if broker is None or broker.log.queue_end(queue) <= offset:
                raise Violation("acknowledged_is_readable", f"{process.id}: offset {offset} of {queue} is not yet")
            self._says_end(record.topic, record.queue_id, offset + 1)
            offset += 1

    def _not_stored(self, process: BrokerProcess, request: Command) -> None:
        book = self._world.book
        for word in _words_of(request):
            book.turned_away.add(word)
            if word in book.by_word:
                text = f"{process.id} refuses {word[:24]!r}, which is entry {book.by_word[word][0].index}"
                raise Violation("refused_is_not_stored", text)

    def _shown(self, process: BrokerProcess, body: bytes) -> None:
        """Every record that is given away is committed, and as it is in the log."""
        data, at = body, 0
        while at < len(data):
            size, _magic = SIZE_AND_MAGIC.unpack_from(data, at)
            raw = data[at : at + size]
            at += size
            record = decode_record(raw)
            found = self._world.book.by_place.get(record.physical_offset)
            if found is None or found.raw != raw:
                text = f"{process.id} shows a record at {record.physical_offset} that is not committed there"
                raise Violation("visible_is_committed", text)


def _words_of(request: Command) -> list[bytes]:
    body = bytes(request.body)
    return [one.body for one in decode_batch(body)] if request.code == Request.SEND_BATCH_MESSAGE else [body]


def _end_of(socket: Socket) -> _End:
    if socket.tap is None:
        socket.tap = _End()
    end: _End = socket.tap
    return end
