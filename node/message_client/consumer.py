"""Consumes topics in a group: their queues are shared out among the group's clients, each message comes at least once.

    async with MessageConsumer(["127.0.0.1:9876"], "Departures", "Flights", tags="AA || UA") as consumer:
        async for message in consumer:
            ...                                     # asking for the next one says that this one is done

Offsets are committed every COMMIT_EVERY_S, when a queue is lost to another client, and at the end. When another broker
becomes the master, a queue goes on there behind what was taken from it. All clients of a group name the same topics.

Invariants: only what is done is committed, and nothing behind a message that is not; what waits here is bounded
(WAITING_MAX); a queue that another client has is not pulled from, once this one knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from node.background import Background
from node.message_client.errors import ClientError, Closed, Unavailable
from node.message_client.routes import Queue, Routes
from node.message_client.taking import Received, Taking
from node.message_store.errors import MessageFormatError
from node.message_store.record import SIZE_AND_MAGIC, MessageRecord, decode_record
from node.protocol.entry import BytesLike
from node.rocketmq.bodies import ConsumerData, Heartbeat, Subscription
from node.rocketmq.codes import Answer, Request
from node.rocketmq.command import Command
from node.rocketmq.header_fields import HeaderError, read_header, write_header
from node.rocketmq.headers import (
    GroupRequest,
    OffsetAnswer,
    PullAnswer,
    PullRequest,
    QueryOffsetRequest,
    QueueRequest,
    UnregisterClientRequest,
    UpdateOffsetRequest,
)
from node.rocketmq.java_json import BodyError, items_in, load

SHARE_OUT_EVERY_S: Final = 3.0
SHARE_OUT_WITHIN_S: Final = (
    2.0  # so long a master that is stopped or cut off is waited for, before others are looked for
)
COMMIT_EVERY_S: Final = 5.0
HOLD_MS: Final = 10_000
ANSWER_WITHIN_S: Final = 5.0
AGAIN_S: Final = 0.1
WAITING_MAX: Final = 1024
PULLED_MAX: Final = 32
SUSPEND_AND_SUBSCRIBE: Final = 2 | 4
Key = tuple[str, str, int]  # of a queue, whoever its master is


class MessageConsumer:
    """See the module's docstring. `from_first`: where a group begins that has committed nothing. `report`: called
    with why no queues are found, once until that changes; it is tried again all the while."""

    def __init__(
        self, name_servers: Sequence[str], group: str, topic: str | Sequence[str], *, tags: str = "*",
        from_first: bool = True, report: Callable[[str], None] | None = None,
    ) -> None:  # fmt: skip
        self._report, self._reported = report, ""
        self._routes = Routes(name_servers, self._asked)
        self._topics = (topic,) if isinstance(topic, str) else tuple(topic)
        self._group, self._tags, self._from_first = group, tags, from_first
        wanted = frozenset(one.strip() for one in tags.split("||")) - {""}
        self._wanted = None if tags in ("", "*") else wanted
        self.client_id = f"{socket.gethostname()}@{secrets.token_hex(4)}"
        self._version = time.time_ns() // 1_000_000
        self._waiting: asyncio.Queue[Received | None] = asyncio.Queue(WAITING_MAX)  # None: it is closed
        self._closed = False
        self._queues: dict[Key, Queue] = {}  # what this client pulls from now
        self._takings: dict[Key, Taking] = {}  # of those whose begin is known
        self._pulling: dict[Key, asyncio.Task[None]] = {}
        self._at_slaves: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._background = Background()

    async def __aenter__(self) -> MessageConsumer:
        self._routes.home.check()
        self._background.keep("sharing out", self._share_out)
        self._background.keep("commits", self._commit_now_and_then)
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Commits what is done, and leaves the group. Again: nothing. Raises WrongLoop."""
        self._routes.home.check()
        if self._closed:
            return
        self._closed = True
        await self._background.stop()
        if not self._waiting.full():  # else nobody waits
            self._waiting.put_nowait(None)
        await self._commit(list(self._takings.values()))
        for address in {one.address for one in self._queues.values()}:
            fields = write_header(UnregisterClientRequest(self.client_id, None, self._group))
            try:
                await self._routes.link(address).ask(Request.UNREGISTER_CLIENT, fields, b"", ANSWER_WITHIN_S)
            except Unavailable:  # it notices by itself that this client is gone
                continue
        await self._routes.close()

    async def __aiter__(self) -> AsyncIterator[Received]:
        while True:
            message = await self.receive()
            yield message
            self.done(message)

    async def receive(self) -> Received:
        """The next message, which counts as done once `done` was called with it. Raises Closed, also for
        whoever waits while it is being closed, and WrongLoop."""
        self._routes.home.check()
        while not self._closed:
            message = await self._waiting.get()
            if message is None:
                self._waiting.put_nowait(None)  # for whoever else waits
                break
            if self._takings.get(message.queue.key) is message.taking:  # else another client has it by now
                return message
        raise Closed("the consumer is closed")

    def done(self, message: Received) -> None:
        """It will not come again to this group; in any order. (Asking `async for` for the next one says so, too.)"""
        if self._takings.get(message.queue.key) is message.taking:
            message.taking.done(message)

    @property
    def queues(self) -> list[Queue]:
        """What this client pulls from now."""
        return list(self._queues.values())

    # --- the group ----------------------------------------------------------------------------------------------
    def _asked(self, _address: str, command: Command) -> None:
        if command.code == Request.NOTIFY_CONSUMER_IDS_CHANGED:
            self._changed.set()

    async def _share_out(self) -> None:
        while True:
            self._changed.clear()
            try:
                await self._share_out_once()
                within_s, self._reported = SHARE_OUT_EVERY_S, ""
            except (ClientError, BodyError) as error:
                self._forget_routes()
                within_s = AGAIN_S
                if self._report is not None and self._reported != str(error):
                    self._reported = str(error)
                    self._report(self._reported)
            # Not `wait_for`: in Python 3.11 it may lose a cancellation that comes with its time-out, and this went on.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await self._changed.wait()

    def _forget_routes(self) -> None:
        for topic in self._topics:
            self._routes.forget(topic)

    async def _share_out_once(self) -> None:
        routes = [await self._routes.of(topic) for topic in self._topics]
        subscriptions = tuple(Subscription(topic, self._tags, version=self._version) for topic in self._topics)
        said = Heartbeat(self.client_id, (), (ConsumerData(self._group, subscriptions),)).encode()
        self._tell_slaves({one for route in routes for one in route.slaves}, said)
        ids = await self._clients({one.address for route in routes for one in route.read}, said)
        clients = sorted(ids | {self.client_id})
        mine: dict[Key, Queue] = {}
        for route in routes:
            queues = sorted(route.read, key=lambda one: (one.broker_name, one.queue_id))
            mine |= {one.key: one for one in share_of(queues, clients, self.client_id)}
        await self._take(mine)

    async def _clients(self, masters: set[str], said: bytes) -> set[str]:
        """Of this group. Each master knows all of them, so one that is gone holds up nobody. Raises ClientError where
        none says it, or one refuses."""
        ids, trouble, heard = set[str](), Unavailable("there is no master of these topics now"), False
        for address in masters:
            link = self._routes.link(address)
            try:
                await link.ask(Request.HEART_BEAT, None, said, SHARE_OUT_WITHIN_S)
                fields = write_header(GroupRequest(self._group))
                answer = await link.ask(Request.GET_CONSUMER_LIST_BY_GROUP, fields, b"", SHARE_OUT_WITHIN_S)
            except Unavailable as error:
                self._forget_routes()
                trouble = error
                continue
            if answer.code != Answer.SUCCESS:
                raise ClientError(f"{address}: {answer.remark} (code {answer.code})")
            heard = True
            ids |= {one for one in items_in(load(answer.body), "consumerIdList") if isinstance(one, str)}
        if not heard:
            raise trouble
        return ids

    async def _take(self, mine: dict[Key, Queue]) -> None:
        lost = [one for one in self._queues if one not in mine]
        for key in lost:
            self._pulling.pop(key).cancel()
        await self._commit([self._takings[key] for key in lost if key in self._takings])
        for key in lost:
            del self._queues[key]
            self._takings.pop(key, None)
        for key, queue in mine.items():
            before, self._queues[key] = self._queues.get(key), queue
            if key in self._takings:
                self._takings[key].queue = queue
            if before is not None and before.address != queue.address:
                self._pulling.pop(key).cancel()  # what the old master still owes may never come
            if key not in self._pulling or self._pulling[key].done():
                self._pulling[key] = self._background.run(f"pulls of {queue.topic} {queue.queue_id}", self._pull(key))

    def _tell_slaves(self, addresses: set[str], said: bytes) -> None:
        """So that the next master knows the whole group at once; one that does not answer holds up nobody."""
        for address in addresses:
            known = self._at_slaves.get(address)
            if known is None or known.done():
                self._at_slaves[address] = self._background.run(f"heartbeat at {address}", self._tell(address, said))

    async def _tell(self, address: str, said: bytes) -> None:
        with contextlib.suppress(Unavailable):
            await self._routes.link(address).ask(Request.HEART_BEAT, None, said, ANSWER_WITHIN_S)

    # --- one queue ----------------------------------------------------------------------------------------------
    async def _pull(self, key: Key) -> None:
        while True:
            try:
                taking = self._takings.get(key)
                if taking is None:
                    taking = self._takings[key] = await self._begin(self._queues[key])
                following = await self._pull_once(taking)
                if following < taking.next_offset:  # the queue was cut or set back: what comes there are other messages
                    self._takings[key] = Taking(taking.queue, following)
                else:
                    taking.skip_to(following)
            except (ClientError, HeaderError, MessageFormatError):
                self._changed.set()  # its broker may be another one by now
                await asyncio.sleep(AGAIN_S)

    async def _begin(self, queue: Queue) -> Taking:
        """Where the group stands. Raises ClientError, HeaderError."""
        link = self._routes.link(queue.address)
        fields = write_header(QueryOffsetRequest(self._group, queue.topic, queue.queue_id, self._from_first))
        answer = await link.ask(Request.QUERY_CONSUMER_OFFSET, fields, b"", ANSWER_WITHIN_S)
        is_new = answer.code == Answer.QUERY_NOT_FOUND
        if is_new:
            code = Request.GET_MIN_OFFSET if self._from_first else Request.GET_MAX_OFFSET
            fields = write_header(QueueRequest(queue.topic, queue.queue_id))
            answer = await link.ask(code, fields, b"", ANSWER_WITHIN_S)
        if answer.code != Answer.SUCCESS:
            raise ClientError(f"{queue.address}: {answer.remark} (code {answer.code})")
        begin = read_header(OffsetAnswer, answer.fields).offset
        return Taking(queue, begin, None if is_new else begin)

    async def _pull_once(self, taking: Taking) -> int:
        """The next offset to ask for. Raises ClientError, HeaderError, MessageFormatError."""
        queue = taking.queue
        header = PullRequest(
            self._group, queue.topic, queue.queue_id, taking.next_offset, PULLED_MAX, SUSPEND_AND_SUBSCRIBE, 0, HOLD_MS,
            self._version, self._tags, "TAG",
        )  # fmt: skip
        within_s = ANSWER_WITHIN_S + HOLD_MS / 1000
        answer = await self._routes.link(queue.address).ask(
            Request.PULL_MESSAGE, write_header(header), b"", within_s
        )  # fmt: skip
        if answer.fields is None or "nextBeginOffset" not in answer.fields:
            raise ClientError(f"{queue.address}: {answer.remark} (code {answer.code})")
        for record in records_of(answer.body):
            if self._wanted is not None and record.tags not in self._wanted:
                continue  # the broker compares hashes, which other tags may have as well
            message = taking.received(record)
            await self._waiting.put(message)
            taking.handed(message)
        return read_header(PullAnswer, answer.fields).next_begin_offset

    # --- offsets ------------------------------------------------------------------------------------------------
    async def _commit_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_EVERY_S)
            await self._commit(list(self._takings.values()))

    async def _commit(self, takings: Sequence[Taking]) -> None:
        """Where that fails, the messages come again."""
        await asyncio.gather(*(self._commit_one(one) for one in takings if one.done_to != one.committed))

    async def _commit_one(self, taking: Taking) -> None:
        done_to, queue = taking.done_to, taking.queue
        fields = write_header(UpdateOffsetRequest(self._group, queue.topic, queue.queue_id, done_to))
        try:
            answer = await self._routes.link(queue.address).ask(
                Request.UPDATE_CONSUMER_OFFSET, fields, b"", ANSWER_WITHIN_S
            )
        except Unavailable:
            self._moved()
            return
        if answer.code == Answer.SUCCESS:
            taking.committed = done_to
        elif answer.code == Answer.SERVICE_NOT_AVAILABLE:
            self._moved()

    def _moved(self) -> None:
        """Another broker is the master by now, or nobody is yet."""
        self._forget_routes()
        self._changed.set()


def records_of(body: BytesLike) -> list[MessageRecord]:
    """Of a pull's answer. Raises MessageFormatError."""
    found: list[MessageRecord] = []
    at = 0
    while at < len(body):
        found.append(decode_record(body, at))
        at += SIZE_AND_MAGIC.unpack_from(body, at)[0]
    return found


def share_of(queues: Sequence[Queue], clients: Sequence[str], client: str) -> list[Queue]:
    """As RocketMQ's AllocateMessageQueueAveragely: contiguous, as even as can be; all clients compute the same."""
    each, rest = divmod(len(queues), len(clients))
    at = clients.index(client)
    begin = at * each + min(at, rest)
    return list(queues[begin : begin + each + (at < rest)])
