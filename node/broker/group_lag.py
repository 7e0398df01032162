"""How far consumer groups are behind: for each queue, what they committed, what there is, and since when it waits.

A group reads the topics that its members want now, and those that it has committed offsets of. The lag of a queue is
what lies between its committed offset and its end; in time, how long ago the first of these was stored.

Which client has which queue no broker decides: orderly clients lock theirs, all others compute the same from the list
of the group's clients (AllocateMessageQueueAveragely, RocketMQ's default), and so does this. It holds for clients that
use the default, where no other group's broker has the topic as well.

Invariants: an offset that was never committed is unknown, not 0; a look at many queues lets others in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from node.broker.requests.clients import BROADCASTING
from node.broker.requests.context import Context

LET_IN_EVERY: Final = 64
NAMES_AT_ONCE: Final = 4096
TOPICS_MAX: Final = 1000  # of one group, that are listed: whoever commits offsets names them
Json = dict[str, Any]
Topics = dict[str, set[str]]  # by group


@dataclass(slots=True)
class QueueLag:
    """`committed` None: the group has committed none, and begins where its clients choose."""

    topic: str
    queue_id: int
    committed: int | None
    min_offset: int
    max_offset: int
    first_stored_ms: int | None = None  # of the first message that is not consumed

    @property
    def first_offset(self) -> int:
        """Of the first message that is not consumed."""
        return max(self.committed or 0, self.min_offset)

    @property
    def messages(self) -> int | None:
        """What expired before it was consumed is not waited for."""
        return None if self.committed is None else max(0, self.max_offset - self.first_offset)


def age_order(one: QueueLag) -> tuple[int, str, int]:
    """The queue with the oldest waiting message first; among those of one time always the same one."""
    return one.first_stored_ms or 0, one.topic, one.queue_id


class Holder(NamedTuple):
    """Of a queue: the client, and how that is known."""

    client_id: str
    by: str  # lock, average


def averagely(queues: int, client_ids: Iterable[str]) -> list[str]:
    """The client of each queue, as RocketMQ's clients compute it: contiguous, as even as can be."""
    clients = sorted(set(client_ids))
    found: list[str] = []
    for at, client_id in enumerate(clients):
        each, rest = divmod(queues, len(clients))
        found += [client_id] * (each + (at < rest))
    return found


class GroupLag:
    """How far each consumer group of one broker is behind."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def topics(self) -> Topics:
        """Of all groups that are configured, that have members, or that have committed offsets."""
        context = self._context
        found: Topics = {name: set() for name in context.groups.groups}
        for name, members in context.clients.consumers.items():
            found.setdefault(name, set()).update(members.subscriptions)
        for at, name in enumerate(list(context.offsets.as_said())):
            topic, _sign, group = name.partition("@")
            found.setdefault(group, set()).add(topic)
            if at % NAMES_AT_ONCE == NAMES_AT_ONCE - 1:
                await asyncio.sleep(0)
        return found

    async def _queues(self, group: str, topics: Iterable[str]) -> list[QueueLag]:
        """All with messages or an offset."""
        context, found = self._context, []
        reads = context.store.reads
        for topic in sorted(topics):
            config = context.topics.get(topic)
            if config is None:
                continue
            for queue_id in range(config.read_queues):
                committed, high = context.offsets.get(group, topic, queue_id), reads.max_offset(topic, queue_id)
                if committed is not None or high:
                    low = reads.min_offset(topic, queue_id)
                    one = QueueLag(topic, queue_id, committed, low, high)
                    if one.messages:
                        first_ms = reads.stored_at_ms(topic, queue_id, one.first_offset)
                        one.first_stored_ms = first_ms if first_ms >= 0 else None
                    found.append(one)
                if queue_id % LET_IN_EVERY == LET_IN_EVERY - 1:
                    await asyncio.sleep(0)
        return found

    def _holders(self, group: str) -> dict[tuple[str, int], Holder]:
        """By topic and queue, of what the group's clients want now; nothing where each has all (broadcasting)."""
        context, found = self._context, {}
        known = context.clients.consumers.get(group)
        if known is not None and known.message_model != BROADCASTING:
            for topic in known.subscriptions:
                config = context.topics.get(topic)
                queues = 0 if config is None else config.read_queues
                for queue_id, client_id in enumerate(averagely(queues, known.client_ids)):
                    found[topic, queue_id] = Holder(client_id, "average")
        for queue, client_id in context.locks.of_group(group).items():
            found[queue] = Holder(client_id, "lock")
        return found

    def _members(self, group: str) -> list[Json]:
        known = self._context.clients.consumers.get(group)
        if known is None:
            return []
        since_ms = self._context.now_ms() - self._context.steady_ms()  # silence is counted by a clock of its own
        members = [
            {"client_id": one.client_id, "address": peer.address, "heard_ms": since_ms + one.heard_at_ms}
            for peer, one in known.clients.items()
        ]
        return sorted(members, key=lambda one: str(one["client_id"]))

    async def summary(self, group: str, topics: Iterable[str], *, brief: bool = False) -> Json:
        """One of a list; `brief`: without what it wants, of its members only how many there are, and where the oldest
        message that waits for it lies."""
        return self._summed(group, topics, await self._queues(group, topics), brief)

    def _summed(self, group: str, topics: Iterable[str], queues: list[QueueLag], brief: bool = False) -> Json:
        known = self._context.clients.consumers.get(group)
        config = self._context.groups.groups.get(group)
        oldest = min((one for one in queues if one.first_stored_ms is not None), key=age_order, default=None)
        oldest_ms = None if oldest is None else oldest.first_stored_ms
        now_ms = self._context.now_ms()
        summed = {
            "group": group,
            "consume_enabled": True if config is None else config.consume_enable,
            "lag_messages": sum(one.messages or 0 for one in queues),
            "lag_ms": 0 if oldest_ms is None else max(0, now_ms - oldest_ms),
            "lag_since_ms": oldest_ms,
        }
        if brief:
            oldest_at = None if oldest is None else [oldest.topic, oldest.queue_id, oldest.first_offset]
            return summed | {"members": 0 if known is None else len(known.clients), "oldest_at": oldest_at}
        subscriptions = {} if known is None else known.subscriptions
        named = sorted(topics)
        return summed | {
            "members": self._members(group),
            "message_model": None if known is None else known.message_model.lower(),
            "subscriptions": [
                {"topic": topic, "expression": one.expression, "type": one.expression_type or "TAG"}
                for topic, one in sorted(subscriptions.items())
            ],
            "topics": named[:TOPICS_MAX],
            "topics_left_out": max(0, len(named) - TOPICS_MAX),
            "queues_without_offset": sum(1 for one in queues if one.committed is None),
        }

    async def described(self, group: str, topics: Iterable[str], queues_max: int) -> Json:
        """All of one: with its queues, those first that are furthest behind where there are too many to list."""
        queues = await self._queues(group, topics)
        listed = queues
        if len(queues) > queues_max:
            listed = sorted(queues, key=lambda one: -(one.messages or 0))[:queues_max]
        now_ms, holders = self._context.now_ms(), self._holders(group)
        items = [
            {
                "topic": one.topic, "queue_id": one.queue_id, "committed_offset": one.committed,
                "min_offset": one.min_offset, "max_offset": one.max_offset, "lag_messages": one.messages,
                "lag_ms": None if one.committed is None else
                0 if one.first_stored_ms is None else max(0, now_ms - one.first_stored_ms),
                "client_id": None if (holder := holders.get((one.topic, one.queue_id))) is None else holder.client_id,
                "assigned_by": None if holder is None else holder.by,
            }
            for one in sorted(listed, key=lambda one: (one.topic, one.queue_id))
        ]  # fmt: skip
        return {**self._summed(group, topics, queues), "queues": items, "queues_left_out": len(queues) - len(listed)}
