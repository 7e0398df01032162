"""Sends messages in transactions: each is delivered only once what belongs to it was done, or not at all.

    async def booked(message: MessageRecord) -> Decision:       # asked by a broker that waits for a decision
        return Decision.COMMIT if await is_booked(message.properties["KEYS"]) else Decision.ROLLBACK

    async with TransactionProducer(["127.0.0.1:9876"], "Bookings", booked) as producer:
        await producer.send_transaction(OutgoingMessage("Flights", b"...", keys=("N123",)), book)

The broker stores the message where no consumer sees it; then `book()` is called, and its decision ends the transaction.
Where that does not reach the broker, or the decision is UNKNOWN, the master asks for it later, whichever it is then:
slaves hear of this producer as well, and who is master is asked for anew at each heartbeat.

Invariants: nothing is done before the message is stored, where its broker promises it to be; if `book()` raises, the
transaction is rolled back; what brokers ask is bounded, and a check that fails decides nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from node.background import Background
from node.message_client.errors import ClientError, Unavailable
from node.message_client.outgoing import OutgoingMessage
from node.message_client.producer import MessageProducer, SendStatus, Sent
from node.message_client.routes import Routes
from node.message_store.errors import MessageFormatError
from node.message_store.properties import UNIQ_KEY
from node.message_store.record import MessageRecord, TransactionType, decode_record, parse_message_id
from node.rocketmq.bodies import Heartbeat
from node.rocketmq.codes import Answer, Request
from node.rocketmq.command import Command
from node.rocketmq.header_fields import HeaderError, read_header, write_header
from node.rocketmq.headers import CheckTransactionRequest, EndTransactionRequest, UnregisterClientRequest

HEARTBEAT_EVERY_S: Final = 5.0
AGAIN_S: Final = 0.2
ANSWER_WITHIN_S: Final = 5.0
BEAT_WITHIN_S: Final = 2.0
ELSEWHERE: Final = (Answer.SLAVE_NOT_AVAILABLE, Answer.SERVICE_NOT_AVAILABLE, Answer.SYSTEM_BUSY)
CHECKS_MAX: Final = 256  # under way; a broker asks again for the others


class Decision(IntEnum):
    """What becomes of a transaction."""

    UNKNOWN = 0
    COMMIT = TransactionType.COMMIT
    ROLLBACK = TransactionType.ROLLBACK


@dataclass(frozen=True, slots=True)
class Ended:
    """`is_ended`: the broker has the decision; else it will ask."""

    half: Sent
    decision: Decision
    is_ended: bool


class TransactionProducer:
    """See the module's docstring."""

    def __init__(
        self, name_servers: Sequence[str], group: str, check: Callable[[MessageRecord], Awaitable[Decision]],
        deadline_s: float = 10.0,
    ) -> None:  # fmt: skip
        self._group, self._check = group, check
        self._producer = MessageProducer(name_servers, group, deadline_s)
        self._routes = Routes(name_servers, self._asked)
        self.client_id = f"{socket.gethostname()}@{secrets.token_hex(4)}"
        self._topics: dict[str, None] = {}
        self._new_topic = asyncio.Event()
        self._background = Background()
        self._checks = 0

    async def __aenter__(self) -> TransactionProducer:
        self._routes.home.check()
        await self._producer.__aenter__()
        self._background.keep("heartbeats", self._beat_on)
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._routes.home.check()
        await self._background.stop()
        masters, slaves = await self._brokers()
        self._topics.clear()
        await asyncio.gather(*(self._leave(one) for one in masters | slaves))
        await self._routes.close()
        await self._producer.close()

    async def _leave(self, address: str) -> None:
        said = write_header(UnregisterClientRequest(self.client_id, self._group))
        with contextlib.suppress(Unavailable):  # it notices by itself that this client is gone
            await self._routes.link(address).ask(Request.UNREGISTER_CLIENT, said, b"", BEAT_WITHIN_S)

    async def send_transaction(
        self, message: OutgoingMessage, work: Callable[[], Awaitable[Decision]]
    ) -> Ended:  # fmt: skip
        """Raises NotSent, SendUnknown, Unavailable, WrongLoop (then `work` was not called), and what `work` raises.

        Where too few brokers have the message (`half.status`), `work` is not called and the transaction rolled back.
        """
        self._routes.home.check()
        if message.delay_level:
            raise ClientError("a message of a transaction cannot wait for its time as well")
        more = (("TRAN_MSG", "true"), ("PGROUP", self._group))
        half = await self._producer.send(replace(message, own=more))
        self._know(message.topic)
        decision = Decision.ROLLBACK
        try:
            if half.status is SendStatus.SEND_OK:
                decision = Decision(await work())
        finally:
            is_ended = await self._end(message.topic, half, decision)
        return Ended(half, decision, is_ended)

    async def _end(self, topic: str, half: Sent, decision: Decision) -> bool:
        """Whether the master has it now."""
        if decision is Decision.UNKNOWN:
            return False
        with contextlib.suppress(MessageFormatError, TimeoutError):
            place = parse_message_id(half.message_id)[1]
            header = EndTransactionRequest(
                self._group, half.queue_offset, place, int(decision), False, half.message_id
            )  # fmt: skip
            async with asyncio.timeout(ANSWER_WITHIN_S):
                while (code := await self._ended_by(topic, half.broker_name, header)) in ELSEWHERE:
                    self._routes.forget(topic)
                    await asyncio.sleep(AGAIN_S)
                return code == Answer.SUCCESS
        return False

    async def _ended_by(self, topic: str, broker_name: str, header: EndTransactionRequest) -> int:
        """What the master of that broker answers; SLAVE_NOT_AVAILABLE where there is none now. However often it is
        asked, a transaction ends once."""
        with contextlib.suppress(ClientError):
            route = await self._routes.of(topic, make=True)
            at = next((one.address for one in route.write if one.broker_name == broker_name), None)
            if at is not None:
                return await self._end_at(at, header)
        return Answer.SLAVE_NOT_AVAILABLE

    async def _end_at(self, address: str, header: EndTransactionRequest) -> int:
        """The answer's code. Raises Unavailable."""
        fields = write_header(header)
        answer = await self._routes.link(address).ask(Request.END_TRANSACTION, fields, b"", ANSWER_WITHIN_S)
        return answer.code

    # --- what brokers ask -------------------------------------------------------------------------------------------
    def _asked(self, address: str, command: Command) -> None:
        if command.code == Request.CHECK_TRANSACTION_STATE and self._checks < CHECKS_MAX:
            self._checks += 1
            self._background.run("a check", self._decide(address, command))

    async def _decide(self, address: str, command: Command) -> None:
        try:
            asked = read_header(CheckTransactionRequest, command.fields)
            record = decode_record(command.body)
            decision = Decision(await self._check(record))
            if decision is Decision.UNKNOWN:
                return
            header = EndTransactionRequest(
                self._group, asked.tran_state_table_offset, asked.commit_log_offset, int(decision), True,
                asked.msg_id or record.properties.get(UNIQ_KEY, ""), asked.transaction_id,
            )  # fmt: skip
            await self._end_at(address, header)
        except (HeaderError, MessageFormatError, Unavailable):  # it is asked again
            return
        finally:
            self._checks -= 1

    # --- who we are -------------------------------------------------------------------------------------------------
    def _know(self, topic: str) -> None:
        if topic not in self._topics:
            self._topics[topic] = None
            self._new_topic.set()

    def watch(self, topic: str) -> None:
        """To be asked about its transactions also before the first send: by a process that began anew."""
        self._know(topic)

    async def _brokers(self) -> tuple[set[str], set[str]]:
        """Addresses of the masters and of the slaves, as name servers know them now."""
        masters, slaves = set[str](), set[str]()
        for topic in self._topics:
            self._routes.forget(topic)
            with contextlib.suppress(Unavailable):
                route = await self._routes.of(topic, make=True)
                masters |= {one.address for one in route.write}
                slaves |= set(route.slaves)
        return masters, slaves

    async def _beat_on(self) -> None:
        """Brokers know a group's producers by their heartbeats, and the next master from when it was a slave."""
        said = Heartbeat(self.client_id, (self._group,), ()).encode()
        while True:
            self._new_topic.clear()
            masters, slaves = await self._brokers()
            heard = await asyncio.gather(*(self._beat(one, said) for one in (*masters, *slaves)))
            gone = (not masters and bool(self._topics)) or not all(heard[: len(masters)])
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S if gone else HEARTBEAT_EVERY_S):
                    await self._new_topic.wait()

    async def _beat(self, address: str, said: bytes) -> bool:
        with contextlib.suppress(Unavailable):
            await self._routes.link(address).ask(Request.HEART_BEAT, None, said, BEAT_WITHIN_S)
            return True
        return False
