"""Message clients that work on brokers while everything breaks, and what must hold of each message in the end.

They are our own producers and consumers (`node/message_client`), which the simulated worlds do not run: single sends,
batches, delayed messages, transactions, new topics, and a group of two consumers that share the queues out anew.

Invariants: each body is unique, and is sent by one call alone, so where it lies tells what became of that call; a body
is on record before its first byte leaves; what a call promised is held against every member's files.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from node.message_client import (
    ClientError,
    Decision,
    MessageConsumer,
    MessageProducer,
    NotSent,
    OutgoingMessage,
    SendUnknown,
    Sent,
    TransactionProducer,
)
from node.message_store.checking.verify import verify
from node.message_store.commit_log import Placed
from node.message_store.errors import MessageFormatError, MessageStoreError
from node.message_store.message_store import MessageStore
from node.message_store.record import MessageRecord
from tests.process.chaos_verdict import SAID_MAX, Violation

TOPICS: Final = ("Flights", "Bookings")
GROUP: Final = "boards"
DEADLINE_S: Final = 3.0
CONSUMED_WITHIN_S: Final = 90.0
MAY_COME_TWICE: Final = ("delayed", "transaction")  # around a change of master (docs/schedule.md, docs/transactions.md)
_BATCH_MAX: Final = 8
_BODY_BYTES: Final = (24, 500)
_PAUSE_S: Final = (0.004, 0.03)
_NEW_TOPIC_S: Final = (1.0, 4.0)
_CONSUMER_LIVES_S: Final = (3.0, 12.0)
_UNKNOWN_SHARE: Final = 0.2
_Loop = Callable[[str, random.Random], Awaitable[None]]
Place = tuple[str, int, int]  # topic, queue, offset


@dataclass(slots=True)
class Message:
    """What is known of one body. `kind`: of the call that sent it; `place`: as a single send or a batch was told;
    `is_wanted`: of a transaction, whether it is to be delivered."""

    kind: str
    topic: str
    result: str = "unknown"  # "ok": stored; "fail": not stored, for good
    place: Place | None = None
    is_wanted: bool = True
    error: str = ""


class MessageClients:
    """The workload of one run. `start` and `stop` it; `messages` holds what happened."""

    def __init__(self, name_servers: Sequence[str], seed: int) -> None:
        self.messages: dict[bytes, Message] = {}
        self.consumed: set[bytes] = set()
        self.repeated = 0
        self._name_servers, self._seed = list(name_servers), seed
        self._refusals: Counter[str] = Counter()
        self._senders: list[asyncio.Task[None]] = []
        self._receivers: list[asyncio.Task[None]] = []  # and whoever is asked what became of a transaction
        self._stopping, self._all_came = asyncio.Event(), asyncio.Event()

    # --- what a run asks of its clients -----------------------------------------------------------------------------
    async def begin(self, within_s: float) -> str:
        """The first message of each topic; why there is none, once the time is over."""
        async with MessageProducer(self._name_servers, deadline_s=within_s) as producer:
            for topic in TOPICS:
                body = b"first of " + topic.encode()
                await self._send(producer, "single", OutgoingMessage(topic, body))
                if self.messages[body].result != "ok":
                    return self.messages[body].error
        return ""

    def start(self) -> None:
        """Six that send, two that consume."""
        sending: list[tuple[str, _Loop]] = [
            ("s0", self._singles), ("s1", self._singles), ("b0", self._batches), ("d0", self._delayed),
            ("n0", self._new_topics),
        ]  # fmt: skip
        receiving: list[tuple[str, _Loop]] = [
            ("t0", self._transactions), ("c0", self._consume), ("c1", self._consume)
        ]  # fmt: skip
        for loops, tasks in ((sending, self._senders), (receiving, self._receivers)):
            for name, loop in loops:
                tasks.append(asyncio.ensure_future(loop(name, random.Random(f"client {name} {self._seed}"))))

    async def stop(self) -> None:
        """Lets each producer finish its call, and the consumers have what is theirs: `unconsumed` says what is not."""
        self._stopping.set()
        await asyncio.gather(*self._senders)
        loop = asyncio.get_running_loop()
        end = loop.time() + CONSUMED_WITHIN_S
        while self.unconsumed() and loop.time() < end:
            self._check(self._receivers)
            await asyncio.sleep(0.1)
        self._all_came.set()
        await asyncio.gather(*self._receivers)

    def check(self) -> None:
        """Raises the error of a client that ended early: a mistake of ours, or an answer that it could not read."""
        self._check(self._senders + self._receivers)

    @staticmethod
    def _check(tasks: Iterable[asyncio.Task[None]]) -> None:
        for task in tasks:
            if task.done():
                task.result()

    def count(self) -> dict[str, dict[str, int]]:
        """Kind -> outcome -> how many messages."""
        counts: dict[str, dict[str, int]] = {}
        for one in self.messages.values():
            outcomes = counts.setdefault(one.kind, {"ok": 0, "fail": 0, "unknown": 0})
            outcomes[one.result] += 1
        return counts

    def refusals(self) -> dict[str, int]:
        """Why messages were refused: RocketMQ's code, or "unreachable" -> how many."""
        return dict(sorted(self._refusals.items()))

    def acknowledged(self) -> int:
        return sum(one.result == "ok" for one in self.messages.values())

    def unconsumed(self) -> list[bytes]:
        """What consumers must get and did not yet."""
        return [
            body for body, one in self.messages.items()
            if one.result == "ok" and one.is_wanted and one.topic in TOPICS and body not in self.consumed
        ]  # fmt: skip

    # --- those that send --------------------------------------------------------------------------------------------
    def _body(self, name: str, number: int, chance: random.Random) -> bytes:
        return f"{name}:{number}:".encode().ljust(chance.randint(*_BODY_BYTES), b".")

    async def _pause(self, chance: random.Random) -> None:
        await asyncio.sleep(chance.uniform(*_PAUSE_S))

    async def _send(self, producer: MessageProducer, kind: str, *messages: OutgoingMessage) -> None:
        """One call: of several messages, a batch."""
        known = [self.messages.setdefault(one.body, Message(kind, one.topic)) for one in messages]
        try:
            if len(messages) == 1:
                found: list[Sent] = [await producer.send(messages[0])]
            else:
                found = await producer.send_batch(messages)
        except ClientError as error:
            self._ended(known, error)
        else:
            for message, sent in zip(known, found, strict=True):
                message.result, message.place = "ok", (message.topic, sent.queue_id, sent.queue_offset)

    def _ended(self, known: Sequence[Message], error: ClientError) -> None:
        """What the exception promises (node/message_client/errors.py), and nothing beyond it."""
        if not isinstance(error, SendUnknown):
            self._refusals[str(error.code) if isinstance(error, NotSent) else "unreachable"] += 1
        for one in known:
            one.result = "unknown" if isinstance(error, SendUnknown) else "fail"
            one.error = f"{type(error).__name__}: {error}"

    async def _singles(self, name: str, chance: random.Random) -> None:
        async with MessageProducer(self._name_servers, deadline_s=DEADLINE_S) as producer:
            number = 0
            while not self._stopping.is_set():
                body = self._body(name, number, chance)
                key = body.split(b".")[0].decode()
                await self._send(producer, "single", OutgoingMessage(chance.choice(TOPICS), body, (key,), "AA"))
                number += 1
                await self._pause(chance)

    async def _batches(self, name: str, chance: random.Random) -> None:
        async with MessageProducer(self._name_servers, deadline_s=DEADLINE_S) as producer:
            number = 0
            while not self._stopping.is_set():
                count, topic = chance.randint(2, _BATCH_MAX), chance.choice(TOPICS)
                bodies = [self._body(name, number + one, chance) for one in range(count)]
                await self._send(producer, "batch", *(OutgoingMessage(topic, body) for body in bodies))
                number += count
                await self._pause(chance)

    async def _delayed(self, name: str, chance: random.Random) -> None:
        async with MessageProducer(self._name_servers, deadline_s=DEADLINE_S) as producer:
            number = 0
            while not self._stopping.is_set():
                message = OutgoingMessage(chance.choice(TOPICS), self._body(name, number, chance), delay_level=1)
                await self._send(producer, "delayed", message)
                self.messages[message.body].place = None  # that was its place while it waits
                number += 1
                await self._pause(chance)

    async def _new_topics(self, name: str, chance: random.Random) -> None:
        async with MessageProducer(self._name_servers, deadline_s=DEADLINE_S) as producer:
            number = 0
            while not self._stopping.is_set():
                message = OutgoingMessage(f"New-{number}", self._body(name, number, chance))
                await self._send(producer, "new topic", message)
                number += 1
                await asyncio.sleep(chance.uniform(*_NEW_TOPIC_S))

    async def _transactions(self, name: str, chance: random.Random) -> None:
        """Some decide at once, the others when they are asked; whatever they decide stays so."""

        async def check(record: MessageRecord) -> Decision:
            return Decision.COMMIT if self.messages[record.body].is_wanted else Decision.ROLLBACK

        async with TransactionProducer(self._name_servers, "bookers", check, deadline_s=DEADLINE_S) as producer:
            number = 0
            while not self._stopping.is_set():
                body = self._body(name, number, chance)
                known = self.messages[body] = Message("transaction", chance.choice(TOPICS))
                known.is_wanted = chance.random() < 0.5
                decision = Decision.COMMIT if known.is_wanted else Decision.ROLLBACK
                said = Decision.UNKNOWN if chance.random() < _UNKNOWN_SHARE else decision

                async def work(said: Decision = said) -> Decision:
                    return said

                try:
                    await producer.send_transaction(OutgoingMessage(known.topic, body), work)
                except ClientError as error:
                    self._ended([known], error)
                else:
                    known.result = "ok"
                number += 1
                await self._pause(chance)
            await self._all_came.wait()  # brokers may still ask

    # --- those that consume -----------------------------------------------------------------------------------------
    async def _consume(self, _name: str, chance: random.Random) -> None:
        """One consumer after the other, so that the group shares its queues out again and again."""
        while not self._all_came.is_set():
            async with MessageConsumer(self._name_servers, GROUP, TOPICS) as consumer:
                lives_s = 1e9 if self._stopping.is_set() else chance.uniform(*_CONSUMER_LIVES_S)
                taking = asyncio.ensure_future(self._take(consumer))
                ended = asyncio.ensure_future(self._all_came.wait())
                await asyncio.wait({taking, ended}, timeout=lives_s, return_when=asyncio.FIRST_COMPLETED)
                for one in (taking, ended):
                    one.cancel()
                for found in await asyncio.gather(taking, ended, return_exceptions=True):
                    if isinstance(found, Exception):
                        raise found

    async def _take(self, consumer: MessageConsumer) -> None:
        async for message in consumer:
            self.repeated += message.body in self.consumed
            self.consumed.add(bytes(message.body))


# --- the verdict ------------------------------------------------------------------------------------------------------
def places_of(root: Path) -> dict[bytes, list[Place]]:
    """Where each body of a member's log lies. Raises MessageStoreError, MessageFormatError."""
    found: dict[bytes, list[Place]] = {}
    for item in MessageStore(root).log.scan():
        if isinstance(item, Placed):
            record = item.record
            found.setdefault(bytes(record.body), []).append((record.topic, record.queue_id, record.queue_offset))
    return found


def check_messages(clients: MessageClients, roots: Mapping[str, Path]) -> list[Violation]:
    """Every promise, on every member; and its queues and index beside its log."""
    found = [
        Violation("not_consumed", f"{body[:40].rstrip(b'.').decode()}: sent to {clients.messages[body].topic}")
        for body in clients.unconsumed()[:SAID_MAX]
    ]
    for body in sorted(clients.consumed - clients.messages.keys())[:SAID_MAX]:
        found.append(Violation("nobody_sent_it", f"consumed: {body[:40]!r}"))
    for member, root in roots.items():
        try:
            places = places_of(root)
            findings = verify(MessageStore(root)).findings
        except (MessageStoreError, MessageFormatError) as error:
            found.append(Violation("store_unreadable", f"{member}: {error}"))
            continue
        found += [Violation("store_damaged", f"{member}: {one.as_json()}") for one in findings[:SAID_MAX]]
        rules = (one for body, message in clients.messages.items() if (one := broken(body, message, places)))
        found += [Violation(rule, f"{member}: {text}") for rule, text in list(rules)[:SAID_MAX]]
    return found


def broken(body: bytes, message: Message, places: Mapping[bytes, Sequence[Place]]) -> tuple[str, str] | None:
    """The rule that one message breaks on one member, and how."""
    everywhere = places.get(body, ())
    lies = [one for one in everywhere if one[0] == message.topic]
    name = f"{message.kind} {body[:40].rstrip(b'.').decode()} ({message.result} {message.error})"
    if message.result == "ok" and message.is_wanted and not lies:
        return "acknowledged_lost", f"{name} is not in {message.topic}"
    if message.place is not None and message.place not in lies:
        return "acknowledged_elsewhere", f"{name} was to be at {message.place}, and is at {lies}"
    if message.result == "fail" and everywhere:
        return "refused_stored", f"{name} lies at {everywhere}"
    if not message.is_wanted and lies:
        return "rolled_back_delivered", f"{name} lies at {lies}"
    if len(lies) > 1 and message.kind not in MAY_COME_TWICE:
        return "stored_twice", f"{name} lies at {lies}"
    return None
