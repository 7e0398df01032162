"""Clients of a broker's world: producers, consumers and those who ask, over RocketMQ's protocol as it is on the wire.

They speak over the product's own connection (`node.message_client.link`), but decide everything themselves: nothing is
sent again behind their back. Every body is in the world once. What they are answered is judged where it leaves
(`wire.py`); what only a client can know is judged here: that it got every message of a queue once, in order.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from node.broker.requests.topics import HALF_TOPIC
from node.client import LedgerClient, LedgerError
from node.message_client.errors import Unavailable
from node.message_client.link import Link
from node.message_store.batch import BatchedMessage, encode_batch
from node.message_store.properties import DELAY, KEYS, UNIQ_KEY, join_properties
from node.message_store.record import SIZE_AND_MAGIC, TransactionType, decode_record, parse_message_id
from node.protocol.entry import HEAD_BYTES
from node.rocketmq.bodies import Heartbeat
from node.rocketmq.codes import Answer, Request
from node.rocketmq.command import Command
from node.rocketmq.header_fields import read_header, write_header
from node.rocketmq.headers import CheckTransactionRequest, EndTransactionRequest
from tests.simulation.broker.process import BROKER_PORT
from tests.simulation.broker.silence import Silence
from tests.simulation.driver.loop import SimulatedLoop
from tests.simulation.observer import Violation

if TYPE_CHECKING:
    from tests.simulation.broker.world import BrokerWorld

ANSWER_S = 3.0  # RocketMQ's clients wait so long
UNDER_WAY = 6  # requests of one client
GROUP = "P"
COMMIT_SHARE, CONFUSED_SHARE, SILENT_SHARE = 0.6, 0.3, 0.3
HEARTBEAT_S = 0.3


class BrokerWorkload:
    """All clients of one world."""

    def __init__(self, world: BrokerWorld, rng: random.Random) -> None:
        self.world, self._rng = world, rng
        self.running = True
        self.open_count = 0
        self.counts: dict[str, int] = {}
        self.transfers_started = self.transfers_done = self.transfers_lost = 0
        self.machines: list[str] = []
        self._words = 0
        self._decided: dict[bytes, bool] = {}
        self._halves: dict[int, bytes] = {}  # by place
        self._consumers: list[Consumer] = []
        self._silence = Silence(world, random.Random(rng.getrandbits(64))) if world.config.silences else None

    def start(self) -> None:
        config = self.world.config
        for number in range(config.producers):
            Producer(self, f"p{number}", self._new_rng()).start()
        for number in range(config.consumers):
            self._consumers.append(Consumer(self, f"c{number}", self._new_rng()))
            self._consumers[-1].start()
        Asker(self, "q0", self._new_rng()).start()
        if config.transfers:
            Operator(self, "o0", self._new_rng()).start()

    def _new_rng(self) -> random.Random:
        return random.Random(self._rng.getrandbits(64))

    def loop(self, name: str, rng: random.Random) -> SimulatedLoop:
        world = self.world
        self.machines.append(name)
        return SimulatedLoop(world.timeline, name, world.client_clock, world.network, rng, self._loop_error)

    def _loop_error(self, loop: SimulatedLoop, context: dict[str, Any]) -> None:
        text = f"{loop.machine}: {context.get('message')}: {context.get('exception')!r}"
        self.world.violate(Violation("no_exception", text))

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def word(self, client: str, rng: random.Random) -> bytes:
        """Once in the world."""
        self._words += 1
        return b"%s-%d." % (client.encode(), self._words) + b"x" * rng.randrange(self.world.config.body_bytes + 1)

    def queue(self, rng: random.Random) -> tuple[str, int]:
        config = self.world.config
        return f"T{rng.randrange(config.topics)}", rng.randrange(config.queues)

    def queue_to_send_to(self, rng: random.Random) -> tuple[str, int]:
        """Its neighbour in place of one that is silent."""
        topic, queue_id = self.queue(rng)
        if self._silence is not None and self._silence.keeps((topic, queue_id)):
            queue_id = (queue_id + 1) % self.world.config.queues
        return topic, queue_id

    # --- transactions -----------------------------------------------------------------------------------------------
    def decide(self, word: bytes, *, commits: bool) -> None:
        self._decided[word] = commits

    def commits(self, word: bytes) -> bool:
        """What its producer decided."""
        return self._decided[word]

    def ended(self, said: Mapping[str, str]) -> None:
        """A broker says that it has the decision."""
        asked = read_header(EndTransactionRequest, said)
        message = self.world.book.by_place.get(asked.commit_log_offset)
        if message is not None and asked.commit_or_rollback == TransactionType.ROLLBACK:
            self.world.book.rolled_back.add(message.record.body)

    # --- the end ----------------------------------------------------------------------------------------------------
    def consumed(self) -> bool:
        """Whether every consumer has every message."""
        return all(one.is_done() for one in self._consumers)

    def describe(self) -> list[str]:
        return [one.describe() for one in self._consumers]


class Client:
    """One machine with connections to all brokers; it looks for the master by trying."""

    def __init__(self, work: BrokerWorkload, name: str, rng: random.Random) -> None:
        self.work, self.name, self.rng = work, name, rng
        self.loop = work.loop(name, random.Random(rng.getrandbits(64)))
        self._links: dict[int, Link] = {}
        self._at = 0

    def start(self) -> None:
        self.loop.run_here(self.loop.create_task, self._run())

    async def _run(self) -> None:
        raise NotImplementedError

    def link(self, number: int) -> Link:
        if number not in self._links:
            self._links[number] = Link(f"127.0.0.1:{BROKER_PORT + number}", lambda asked: self._asked(number, asked))
        return self._links[number]

    def _asked(self, number: int, command: Command) -> None:
        """What a broker wants to know."""

    def elsewhere(self) -> None:
        """The next time another broker is asked."""
        self._at = self.rng.randrange(len(self.work.world.ids))

    async def ask(
        self, code: int, fields: Mapping[str, str], body: bytes = b"", at: int | None = None
    ) -> Command | None:
        """The answer; None: there was none."""
        number = self._at if at is None else at
        self.work.open_count += 1
        try:
            answer = await self.link(number).ask(code, dict(fields), body, ANSWER_S)
        except Unavailable:
            self.work.count(f"{Request(code).name} lost")
            if at is None:
                self.elsewhere()
            return None
        finally:
            self.work.open_count -= 1
        self.work.count(f"{Request(code).name} {answer.code}")
        if answer.code in (Answer.SERVICE_NOT_AVAILABLE, Answer.SLAVE_NOT_AVAILABLE) and at is None:
            self.elsewhere()
        return answer

    async def pause(self, rate: float) -> None:
        await asyncio.sleep(self.rng.expovariate(rate))


class Producer(Client):
    """Sends of all kinds, several under way; it ends its transactions, or is asked for its decision."""

    def __init__(self, work: BrokerWorkload, name: str, rng: random.Random) -> None:
        super().__init__(work, name, rng)
        self._under_way = 0

    async def _run(self) -> None:
        config = self.work.world.config
        if config.halves:
            self._in_background(self._beat())
        while self.work.running:
            await self.pause(config.sends)
            if self._under_way < UNDER_WAY and self.work.running:
                self._in_background(self._send())

    def _in_background(self, work: Awaitable[None]) -> None:
        self.loop.create_task(work)  # type: ignore[arg-type]  # kept by the loop

    async def _beat(self) -> None:
        """Also when no more is sent: it may be asked."""
        said = Heartbeat(self.name, (GROUP,), ()).encode()
        while True:
            for number in range(len(self.work.world.ids)):
                self._in_background(self._beat_at(number, said))
            await asyncio.sleep(HEARTBEAT_S)

    async def _beat_at(self, number: int, said: bytes) -> None:
        try:
            await self.link(number).ask(Request.HEART_BEAT, {}, said, ANSWER_S)
        except Unavailable:
            self.work.count("heartbeat lost")

    async def _send(self) -> None:
        self._under_way += 1
        try:
            await self._send_one()
        finally:
            self._under_way -= 1

    async def _send_one(self) -> None:
        work, rng, config = self.work, self.rng, self.work.world.config
        word, (topic, queue_id), kind = work.word(self.name, rng), work.queue_to_send_to(rng), rng.random()
        unique = word.split(b".")[0].decode()
        pairs = [(UNIQ_KEY, unique), (KEYS, f"key{rng.randrange(5)}")]
        if kind < config.batches:
            words = [word, *(work.word(self.name, rng) for _ in range(rng.randrange(5)))]
            await self._sent(topic, queue_id, [], encode_batch(_in_batch(one) for one in words), batch=True)
        elif kind < config.batches + config.delayed:
            await self._sent(topic, queue_id, [*pairs, (DELAY, str(rng.randrange(1, 4)))], word)
        elif kind < config.batches + config.delayed + config.halves:
            commits = rng.random() < COMMIT_SHARE
            work.decide(word, commits=commits)
            more = [*pairs, ("TRAN_MSG", "true"), ("PGROUP", GROUP)]
            answer = await self._sent(topic, queue_id, more, word)
            if answer is not None and answer.code == Answer.SUCCESS and rng.random() > SILENT_SHARE:
                await self._end(answer, commits=commits)
        else:
            await self._sent(topic, queue_id, pairs, word)

    async def _sent(
        self, topic: str, queue_id: int, pairs: list[tuple[str, str]], body: bytes, *, batch: bool = False
    ) -> Command | None:
        fields = {
            "a": GROUP, "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0",
            "g": "1700000000000", "h": "0", "i": join_properties(pairs).decode(), "j": "0", "k": "false",
            "m": "true" if batch else "false",
        }  # fmt: skip
        return await self.ask(Request.SEND_BATCH_MESSAGE if batch else Request.SEND_MESSAGE_V2, fields, body)

    # --- transactions -----------------------------------------------------------------------------------------------
    async def _end(self, sent: Command, *, commits: bool) -> None:
        """Now and then one that has rolled back says something else behind it."""
        fields = sent.fields or {}
        decision = TransactionType.COMMIT if commits else TransactionType.ROLLBACK
        place = parse_message_id(fields["msgId"])[1]
        header = EndTransactionRequest(
            GROUP, int(fields["queueOffset"]), place, int(decision), False, fields["msgId"]
        )  # fmt: skip
        answer = await self.ask(Request.END_TRANSACTION, write_header(header))
        if not commits and answer is not None and answer.code == Answer.SUCCESS and self.rng.random() < CONFUSED_SHARE:
            again = EndTransactionRequest(
                GROUP, int(fields["queueOffset"]), place, int(TransactionType.COMMIT), False, fields["msgId"]
            )  # fmt: skip
            await self.ask(Request.END_TRANSACTION, write_header(again))

    def _asked(self, number: int, command: Command) -> None:
        if command.code == Request.CHECK_TRANSACTION_STATE:
            self.work.count("checks")
            self._in_background(self._decide(number, command))

    async def _decide(self, number: int, command: Command) -> None:
        asked, record = read_header(CheckTransactionRequest, command.fields), decode_record(command.body)
        decision = TransactionType.COMMIT if self.work.commits(record.body) else TransactionType.ROLLBACK
        header = EndTransactionRequest(
            GROUP, asked.tran_state_table_offset, asked.commit_log_offset, int(decision), True,
            asked.msg_id or "", asked.transaction_id,
        )  # fmt: skip
        await self.ask(Request.END_TRANSACTION, write_header(header), at=number)


def _in_batch(word: bytes) -> BatchedMessage:
    unique = word.split(b".")[0].decode()
    return BatchedMessage(0, word, join_properties([(UNIQ_KEY, unique)]))


class Consumer(Client):
    """Of a group of its own: every queue, in order; what it has it commits, and now and then it begins anew there."""

    def __init__(self, work: BrokerWorkload, name: str, rng: random.Random) -> None:
        super().__init__(work, name, rng)
        self._next: dict[tuple[str, int], int] = {}
        self._got: dict[tuple[str, int], int] = {}  # how far it has every message that has not expired
        self._committed: dict[tuple[str, int], int] = {}

    async def _run(self) -> None:
        config = self.work.world.config
        for topic in range(config.topics):
            for queue_id in range(config.queues):
                self.loop.create_task(self._consume((f"T{topic}", queue_id)))

    async def _consume(self, queue: tuple[str, int]) -> None:
        while True:
            await self.pause(self.work.world.config.pulls)
            if queue not in self._next or self.rng.random() < 0.05:
                await self._where(queue)
            if queue in self._next:
                await self._pull(queue)

    async def _where(self, queue: tuple[str, int]) -> None:
        said = {"consumerGroup": self.name, "topic": queue[0], "queueId": str(queue[1])}
        answer = await self.ask(Request.QUERY_CONSUMER_OFFSET, said)
        if answer is not None and answer.code in (Answer.SUCCESS, Answer.QUERY_NOT_FOUND):
            found = int((answer.fields or {}).get("offset", "0"))
            self._next[queue] = found
            if found > self._got.get(queue, 0):
                text = f"{self.name} is said to be at {found} of {queue}, it has {self._got.get(queue, 0)}"
                self.work.world.violate(Violation("consumed_in_order", text))

    async def _pull(self, queue: tuple[str, int]) -> None:
        offset = self._next[queue]
        slave = self.rng.random() < 0.2
        at = self.rng.randrange(len(self.work.world.ids)) if slave else None
        flags = 4 | (0 if slave else 1) | (2 if self.rng.random() < 0.5 else 0)
        said = {
            "consumerGroup": self.name, "topic": queue[0], "queueId": str(queue[1]), "queueOffset": str(offset),
            "maxMsgNums": str(self.rng.choice((1, 8, 32))), "sysFlag": str(flags),
            "commitOffset": str(self._committed.get(queue, 0)),
            "suspendTimeoutMillis": "300", "subVersion": "0", "subscription": "*", "expressionType": "TAG",
        }  # fmt: skip
        answer = await self.ask(Request.PULL_MESSAGE, said, at=at)
        if answer is None or self._next.get(queue) != offset:
            return
        fields = answer.fields or {}
        if answer.code == Answer.SUCCESS:
            self._take(queue, offset, bytes(answer.body))
        elif answer.code == Answer.PULL_OFFSET_MOVED and not slave:
            self._next[queue] = int(fields["nextBeginOffset"])
            self._got[queue] = max(self._got.get(queue, 0), self._next[queue])
            self.work.count("offset moved")
            if self._next[queue] == offset:  # a slave leaves that to the master
                self.elsewhere()
        if answer.code == Answer.SUCCESS and self.rng.random() < 0.5:
            await self._commit(queue)

    def _take(self, queue: tuple[str, int], offset: int, data: bytes) -> None:
        at = 0
        while at < len(data):
            size, _magic = SIZE_AND_MAGIC.unpack_from(data, at)
            record = decode_record(data[at : at + size])
            at += size
            if record.queue_offset > offset and not self._is_kept(queue, range(offset, record.queue_offset)):
                offset = record.queue_offset  # those between expired while it was asking
            if (record.topic, record.queue_id, record.queue_offset) != (*queue, offset):
                text = f"{self.name} wants offset {offset} of {queue}, and gets {record.queue_offset}"
                self.work.world.violate(Violation("consumed_in_order", text))
            offset += 1
        self._next[queue] = offset
        self._got[queue] = max(self._got.get(queue, 0), offset)

    def _is_kept(self, queue: tuple[str, int], numbers: range) -> bool:
        """Whether one of these messages is still there."""
        return self.work.world.book.lost(*queue, numbers) is not None

    async def _commit(self, queue: tuple[str, int]) -> None:
        """It never goes back by itself."""
        self._committed[queue] = self._got.get(queue, 0)
        said = {
            "consumerGroup": self.name, "topic": queue[0], "queueId": str(queue[1]),
            "commitOffset": str(self._committed[queue]),
        }  # fmt: skip
        await self.ask(Request.UPDATE_CONSUMER_OFFSET, said)

    def is_done(self) -> bool:
        config = self.work.world.config
        queues = [(f"T{topic}", queue_id) for topic in range(config.topics) for queue_id in range(config.queues)]
        return all(map(self._has_all, queues))

    def _has_all(self, queue: tuple[str, int]) -> bool:
        return self._got.get(queue, 0) == self.work.world.book.end(*queue)

    def describe(self) -> str:
        return f"{self.name} at {self._next}, has {self._got}"


class Asker(Client):
    """Looks messages up, and asks where queues end: whom it takes for the master, and others."""

    async def _run(self) -> None:
        work, rng = self.work, self.rng
        questions: list[Callable[[], Awaitable[Command | None]]] = [
            self._end_of,
            self._begin_of,
            self._view,
            self._query,
        ]
        while work.running:
            await self.pause(work.world.config.questions)
            if work.running:
                await rng.choice(questions)()

    async def _end_of(self) -> Command | None:
        topic, queue_id = self.work.queue(self.rng)
        return await self.ask(Request.GET_MAX_OFFSET, {"topic": topic, "queueId": str(queue_id)}, at=self._anyone())

    async def _begin_of(self) -> Command | None:
        topic, queue_id = self.work.queue(self.rng)
        return await self.ask(Request.GET_MIN_OFFSET, {"topic": topic, "queueId": str(queue_id)}, at=self._anyone())

    def _anyone(self) -> int | None:
        return self.rng.randrange(len(self.work.world.ids)) if self.rng.random() < 0.5 else None

    def _some(self) -> Any:
        known = list(self.work.world.book.by_place.values())
        return self.rng.choice(known) if known else None

    async def _view(self) -> Command | None:
        """Also what comes behind one, which may not be committed yet."""
        message = self._some()
        if message is None:
            return None
        place = message.place
        if self.rng.random() < 0.3:
            last = max(self.work.world.book.by_place.values(), key=lambda one: one.place)
            place = last.place + len(last.raw) + HEAD_BYTES
        return await self.ask(Request.VIEW_MESSAGE_BY_ID, {"offset": str(place)}, at=self._anyone())

    async def _query(self) -> Command | None:
        message = self._some()
        key = None if message is None else message.record.properties.get(UNIQ_KEY)
        if key is None or message.record.topic == HALF_TOPIC:
            return None
        said = {
            "topic": message.record.topic, "key": key, "maxNum": "32", "beginTimestamp": "0",
            "endTimestamp": str(2**62),
        }  # fmt: skip
        return await self.ask(Request.QUERY_MESSAGE, said, at=self._anyone())


class Operator(Client):
    """Has leadership moved now and then."""

    async def _run(self) -> None:
        world, work = self.work.world, self.work
        members = ";".join(f"{one}-{world.members[one].settings.peers[one]}" for one in world.ids)
        client = LedgerClient(members, group="g", deadline_s=1.0)
        while work.running:
            await self.pause(world.config.transfers)
            if work.running:
                try:
                    await client.transfer(self.rng.choice([None, *world.ids]))
                    work.count("transferred")
                except LedgerError:
                    work.count("not transferred")
