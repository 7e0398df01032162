"""What the control plane of the same node asks its broker, beside what RocketMQ's clients ask: one request of our own.

The question is a JSON object (`ask`: broker, topics, topic, queues, offsets, groups, group, place, queue, key, time),
the answer too; records of messages are the answer's body, as a pull has them. Only this machine's own addresses are
answered: for all others there is no such request.

Invariants: an answer is bounded (ITEMS_MAX, RECORDS_BYTES_MAX), and so is how many are being made (ASKED_MAX); a long
one lets others in between; nothing is changed by asking.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, Final

from node.background import Background
from node.broker.group_lag import GroupLag
from node.broker.requests.context import Context
from node.broker.requests.key_queries import READ_BYTES_MAX, has_key
from node.broker.topic_sizes import TopicSizes
from node.message_store.errors import MessageFormatError, MessageStoreError
from node.message_store.record import decode_record, parse_message_id
from node.protocol.entry import BytesLike
from node.rocketmq.codes import Answer
from node.rocketmq.dispatch import Call, Refusal, Reply

INTROSPECT: Final = 29_101  # RocketMQ's numbers end far below
PROMOTE: Final = 29_102  # of a broker in classic mode: with the key that lies in its directory
PIN: Final = 29_103  # the same
DELETED_TOPICS: Final = 29_104  # of a classic master, by its slaves
QUEUE_ENDS: Final = 29_105  # the same
ASKED_MAX: Final = 8
QUESTION_BYTES_MAX: Final = 16 * 1024
ITEMS_MAX: Final = 1000
MESSAGES_MAX: Final = 256
RECORDS_BYTES_MAX: Final = 4 * 1024 * 1024
GROUPS_BYTES_MAX: Final = 4 * 1024 * 1024  # of one answer; whoever sends heartbeats says what its group wants
LET_IN_EVERY: Final = 64  # queues that are looked at in one turn of the loop
TIMES_QUEUES_MAX: Final = 256  # of one topic, that are searched by time
SYSTEM_GROUPS: Final = ("CID_ONS", "CID_RMQ_SYS_", "TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP")
Json = dict[str, Any]
Asked = Mapping[str, Any]


async def _answer_of(made: Callable[[Asked], Coroutine[Any, Any, Json]], asked: Asked) -> Reply:
    return _json(await made(asked))


class Introspection:
    """`state` says what the broker is now; `rates` by topic, messages a second."""

    def __init__(
        self, context: Context, state: Callable[[], Json], rates: Callable[[str], float | None],
        more: Mapping[str, Callable[[Asked], Coroutine[Any, Any, Json]]] | None = None,
    ) -> None:  # fmt: skip
        """`more`: further questions, by name; their answers are objects."""
        self._context, self._state, self._rates = context, state, rates
        self._lag, self._sizes = GroupLag(context), TopicSizes(context.store.reads)
        self._background = Background()
        self._answers: dict[str, Callable[[Asked], Coroutine[Any, Any, Reply]]] = {
            "broker": self._broker, "topics": self._topics, "topic": self._one_topic, "queues": self._queues,
            "groups": self._groups, "group": self._group, "offsets": self._offsets, "place": self._at_place,
            "queue": self._in_queue, "key": self._by_key, "time": self._by_time,
            **{name: partial(_answer_of, made) for name, made in (more or {}).items()},
        }  # fmt: skip

    def handle(self, call: Call) -> Reply | None:
        if not self._is_own(call.peer.address):
            remark = f" request type {call.request.code} not supported"
            return Reply(Answer.REQUEST_CODE_NOT_SUPPORTED, None, remark)
        if len(self._background) >= ASKED_MAX:
            return Reply(Answer.SYSTEM_BUSY, None, f"{ASKED_MAX} such questions are being answered: try again")
        try:
            asked = json.loads(bytes(call.request.body[:QUESTION_BYTES_MAX]))
            answer = self._answers[asked["ask"]]
        except (ValueError, TypeError, KeyError, RecursionError):
            return Reply(Answer.SYSTEM_ERROR, None, "no question that is known")
        self._background.run("an introspection", self._answered(call, answer(asked)))
        return None

    def _is_own(self, address: str) -> bool:
        try:
            ip = ipaddress.ip_address(address.rpartition(":")[0].strip("[]"))
        except ValueError:
            return False
        return ip.is_loopback or str(ip) == self._context.identity.ip

    async def _answered(self, call: Call, making: Coroutine[Any, Any, Reply]) -> None:
        try:
            reply = await making
        except Refusal as refusal:
            reply = refusal.reply
        except (KeyError, TypeError, ValueError, OSError, MessageStoreError, MessageFormatError) as error:
            reply = Reply(Answer.SYSTEM_ERROR, None, f"{type(error).__name__}: {error}"[:512])
        call.answer(reply)

    # --- the broker, its topics ---------------------------------------------------------------------------------
    async def _broker(self, _asked: Asked) -> Reply:
        context = self._context
        clients = context.clients
        counts = {
            "topics": len(context.topics.topics), "consumer_groups": len(clients.consumers),
            "consumers": sum(len(one.clients) for one in clients.consumers.values()),
            "producers": sum(map(len, clients.producers.values())),
        }  # fmt: skip
        return _json({**self._state(), "counts": counts})

    async def _topics(self, asked: Asked) -> Reply:
        table = self._context.topics
        known = [name for name in table.topics if asked.get("system") or not self._is_system(name)]
        names, following = page(known, asked)
        kept = [await self._topic(one) for one in names if one in table.topics]  # one may be deleted meanwhile
        return _json({"items": kept, "next": following})

    async def _one_topic(self, asked: Asked) -> Reply:
        name = str(asked["topic"])
        if self._context.topics.get(name) is None:
            raise Refusal(Answer.TOPIC_NOT_EXIST, f"there is no topic {name}")
        return _json(await self._topic(name))

    async def _topic(self, name: str) -> Json:
        context = self._context
        topic, reads = context.topics.topics[name], context.store.reads
        messages = total = size_bytes = 0
        newest_ms, oldest_ms, is_estimated = -1, None, False
        for queue_id in range(max(topic.read_queues, topic.write_queues)):
            high = reads.max_offset(name, queue_id)
            if high:
                low = reads.min_offset(name, queue_id)
                messages, total = messages + high - low, total + high
                if high > low:
                    newest_ms = max(newest_ms, reads.stored_at_ms(name, queue_id, high - 1))
                    first_ms = reads.stored_at_ms(name, queue_id, low)
                    oldest_ms = first_ms if oldest_ms is None or 0 <= first_ms < oldest_ms else oldest_ms
                    queue_bytes, estimated = self._sizes.of(name, queue_id)
                    size_bytes, is_estimated = size_bytes + queue_bytes, is_estimated or estimated
            if queue_id % LET_IN_EVERY == LET_IN_EVERY - 1:
                await asyncio.sleep(0)
        return {
            "topic": name, "read_queues": topic.read_queues, "write_queues": topic.write_queues, "perm": topic.perm,
            "is_ordered": bool(topic.order), "is_system": self._is_system(name), "messages": messages,
            "messages_ever": total, "messages_per_s": self._rates(name), "size_bytes": size_bytes,
            "size_is_estimated": is_estimated,
            "oldest_stored_ms": oldest_ms if oldest_ms is not None and oldest_ms >= 0 else None,
            "newest_stored_ms": newest_ms if newest_ms >= 0 else None,
        }  # fmt: skip

    def _is_system(self, topic: str) -> bool:
        return self._context.topics.is_system(topic) or topic == f"{self._context.identity.cluster}_REPLY_TOPIC"

    async def _queues(self, asked: Asked) -> Reply:
        name = str(asked["topic"])
        topic = self._context.topics.get(name)
        if topic is None:
            raise Refusal(Answer.TOPIC_NOT_EXIST, f"there is no topic {name}")
        count = max(topic.read_queues, topic.write_queues)
        first = int(asked.get("cursor") or 0)
        upto = min(count, first + limit_of(asked))
        items: list[Json] = []
        for queue_id in range(first, upto):
            items.append(self._queue(name, queue_id))
            if queue_id % LET_IN_EVERY == LET_IN_EVERY - 1:
                await asyncio.sleep(0)
        return _json({"items": items, "next": str(upto) if upto < count else None})

    def _queue(self, topic: str, queue_id: int) -> Json:
        reads = self._context.store.reads
        low, high = reads.min_offset(topic, queue_id), reads.max_offset(topic, queue_id)
        times = [-1, -1] if low >= high else [reads.stored_at_ms(topic, queue_id, one) for one in (low, high - 1)]
        head, tail = (one if one >= 0 else None for one in times)
        return {
            "queue_id": queue_id, "min_offset": low, "max_offset": high, "messages": high - low,
            "head_stored_ms": head, "tail_stored_ms": tail,
        }  # fmt: skip

    async def _offsets(self, asked: Asked) -> Reply:
        """Of all queues of a topic: the ends and, with `from_ms`, the first that was stored at that time or later."""
        name, from_ms = str(asked["topic"]), asked.get("from_ms")
        topic, reads = self._context.topics.get(name), self._context.store.reads
        if topic is None:
            raise Refusal(Answer.TOPIC_NOT_EXIST, f"there is no topic {name}")
        items: list[Json] = []
        for queue_id in range(max(topic.read_queues, topic.write_queues)):
            low, high = reads.min_offset(name, queue_id), reads.max_offset(name, queue_id)
            at = None if from_ms is None else self._begin(name, queue_id, int(from_ms)) if high > low else high
            items.append({"queue_id": queue_id, "min_offset": low, "max_offset": high, "at": at})
            if queue_id % LET_IN_EVERY == LET_IN_EVERY - 1:
                await asyncio.sleep(0)
        return _json({"items": items})

    # --- groups -------------------------------------------------------------------------------------------------
    async def _groups(self, asked: Asked) -> Reply:
        topics = await self._lag.topics()
        known = [one for one in topics if asked.get("system") or not one.startswith(SYSTEM_GROUPS)]
        names, following = page(known, asked)
        items: list[bytes] = []
        size_bytes = 0
        for at, name in enumerate(names):
            one = await self._lag.summary(name, topics[name], brief=bool(asked.get("brief")))
            items.append(bytes(_json(one).body))
            size_bytes += len(items[-1])
            if size_bytes > GROUPS_BYTES_MAX and at + 1 < len(names):
                following = name
                break
        return Reply(fields={}, body=b'{"items":[%s],"next":%s}' % (b",".join(items), json.dumps(following).encode()))

    async def _group(self, asked: Asked) -> Reply:
        name = str(asked["group"])
        topics = await self._lag.topics()
        if name not in topics:
            raise Refusal(Answer.SUBSCRIPTION_GROUP_NOT_EXIST, f"there is no consumer group {name}")
        return _json(await self._lag.described(name, topics[name], ITEMS_MAX))

    # --- messages -----------------------------------------------------------------------------------------------
    async def _at_place(self, asked: Asked) -> Reply:
        """By the place in the log, or by an id that holds it."""
        reads = self._context.store.reads
        offset = int(asked["offset"]) if "offset" in asked else parse_message_id(str(asked["id"]))[1]
        try:
            return _records([reads.message_at(offset)], None)
        except MessageStoreError as error:
            raise Refusal(Answer.QUERY_NOT_FOUND, str(error)) from error

    async def _in_queue(self, asked: Asked) -> Reply:
        topic, queue_id, offset = str(asked["topic"]), int(asked["queue_id"]), int(asked["queue_offset"])
        self._check_queue(topic, queue_id)
        if "from_ms" in asked:
            offset = self._begin(topic, queue_id, int(asked["from_ms"]))
        got = self._context.store.reads.get(
            topic, queue_id, offset, limit_of(asked, MESSAGES_MAX), bytes_max=RECORDS_BYTES_MAX
        )  # fmt: skip
        following = str(got.next_offset) if got.records and got.next_offset < got.max_offset else None
        return _records(list(got.records), following, min_offset=got.min_offset, max_offset=got.max_offset)

    def _check_queue(self, topic: str, queue_id: int) -> None:
        """Raises Refusal."""
        known = self._context.topics.get(topic)
        if known is None:
            raise Refusal(Answer.TOPIC_NOT_EXIST, f"there is no topic {topic}")
        if not 0 <= queue_id < max(known.read_queues, known.write_queues):
            count = max(known.read_queues, known.write_queues)
            raise Refusal(Answer.QUERY_NOT_FOUND, f"there is no queue {queue_id}: {topic} has {count}")

    async def _by_key(self, asked: Asked) -> Reply:
        topic, key, limit = str(asked["topic"]), str(asked["key"]), limit_of(asked, MESSAGES_MAX)
        found: list[BytesLike] = []
        size_bytes = read_bytes = 0
        for record in self._context.store.reads.query(topic, key, limit, asked.get("from_ms"), asked.get("to_ms")):
            if record is None:
                await asyncio.sleep(0)
                continue
            if has_key(decode_record(record), topic, key) and size_bytes + len(record) <= RECORDS_BYTES_MAX:
                found.append(record)
                size_bytes += len(record)
            read_bytes += len(record)
            if read_bytes > READ_BYTES_MAX:
                break
        return _records(found, None)

    async def _by_time(self, asked: Asked) -> Reply:
        """Of all queues of a topic, in the order in which they were stored."""
        topic, from_ms, to_ms, limit = (
            str(asked["topic"]), int(asked["from_ms"]), asked.get("to_ms"), limit_of(asked, MESSAGES_MAX)
        )  # fmt: skip
        known = self._context.topics.get(topic)
        if known is None:
            raise Refusal(Answer.TOPIC_NOT_EXIST, f"there is no topic {topic}")
        count = max(known.read_queues, known.write_queues)
        if count > TIMES_QUEUES_MAX:
            text = f"{topic} has {count} queues, {TIMES_QUEUES_MAX} at most are searched together: name one"
            raise Refusal(Answer.SYSTEM_ERROR, text)
        found: list[tuple[int, int, int, BytesLike]] = []
        for queue_id in range(count):
            if self._context.store.reads.max_offset(topic, queue_id):
                found += self._stored_between(topic, queue_id, from_ms, to_ms, limit)
                await asyncio.sleep(0)
        found.sort(key=lambda one: one[:3])
        chosen: list[BytesLike] = []
        size_bytes = 0
        for _time_ms, _queue_id, _offset, record in found[:limit]:
            size_bytes += len(record)
            if chosen and size_bytes > RECORDS_BYTES_MAX:
                break
            chosen.append(record)
        following = str(found[len(chosen)][0]) if len(chosen) < len(found) else None
        return _records(chosen, following)

    def _begin(self, topic: str, queue_id: int, from_ms: int) -> int:
        """The first that was stored at that time or later; behind the last one where all are older."""
        reads = self._context.store.reads
        offset = reads.offset_at(topic, queue_id, from_ms)
        stored_ms = reads.stored_at_ms(topic, queue_id, offset)
        return offset + 1 if 0 <= stored_ms < from_ms else offset

    def _stored_between(
        self, topic: str, queue_id: int, from_ms: int, to_ms: int | None, limit: int
    ) -> list[tuple[int, int, int, BytesLike]]:
        """One more than the limit, so that it is seen whether there are more."""
        found: list[tuple[int, int, int, BytesLike]] = []
        offset = self._begin(topic, queue_id, from_ms)
        while len(found) <= limit:
            got = self._context.store.reads.get(topic, queue_id, offset, limit + 1, bytes_max=RECORDS_BYTES_MAX)
            for data in got.records:
                record = decode_record(data)
                if to_ms is not None and record.store_timestamp_ms > to_ms:
                    return found
                found.append((record.store_timestamp_ms, queue_id, record.queue_offset, data))
            if not got.records or got.next_offset >= got.max_offset:
                return found
            offset = got.next_offset
        return found


def page(names: Iterable[str], asked: Asked) -> tuple[list[str], str | None]:
    """By name, those that contain what is asked for, behind the cursor, which is the last name of the page before; and
    the next cursor. Upper and lower case are one."""
    after, part = asked.get("cursor"), str(asked.get("contains") or "").casefold()
    rest = sorted(one for one in names if part in one.casefold() and (after is None or one > str(after)))
    chosen = rest[: limit_of(asked)]
    return chosen, chosen[-1] if len(chosen) < len(rest) else None


def limit_of(asked: Asked, most: int = ITEMS_MAX) -> int:
    return max(1, min(int(asked.get("limit") or 100), most))


def _json(value: Json) -> Reply:
    return Reply(fields={}, body=json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def _records(found: list[BytesLike], following: str | None, **more: int) -> Reply:
    fields = {name: str(value) for name, value in more.items()}
    if following is not None:
        fields["next"] = following
    return Reply(fields=fields, body=b"".join(found))
