"""A broker's tables (topics, groups, offsets, locks of queues) and the metadata in the log: each follows the other.

What the log says is taken into the tables by every member. At the master a change of a table is asked of the log: of
topics, groups and locks at once, and the request that made it is answered when it is committed; of offsets together, at
most `OFFSETS_EVERY_S` after the first, and only those that changed. What no log will ever say (a member that stopped
leading) is undone, so the tables of a slave and of a new master are what is committed, and no more.

Invariant: a value of the log never replaces a newer one that the log has been asked for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from node.broker.metadata import Metadata, NotNow
from node.broker.requests.context import Context
from node.broker.requests.locks import QueueLock, read_key
from node.message_store.broker_tables import CONSUMER_OFFSETS, DELAY_OFFSETS, GROUPS, QUEUE_LOCKS, TOPICS
from node.protocol.broker_state import Tables
from node.rocketmq.bodies import GroupConfig, TopicConfig, read_groups, read_topics
from node.rocketmq.codes import Answer
from node.rocketmq.dispatch import Refusal
from node.rocketmq.java_json import BodyError

log = logging.getLogger(__name__)

OFFSETS_EVERY_S: Final = 0.2
AGAIN_S: Final = 0.05


class TablesInLog:
    """Of one context. `learn` is called where all tables were read anew: topics that only messages tell of."""

    def __init__(self, context: Context, metadata: Metadata, learn: Callable[[], None] = lambda: None) -> None:
        self._context, self._metadata, self._learn = context, metadata, learn
        self._dirty: dict[tuple[str, str], None] = {}  # topic and group whose offsets changed
        self._timer: asyncio.TimerHandle | None = None
        context.changes = metadata
        context.topics.write = self._write_topic
        context.groups.write = self._write_group
        context.groups.keeps = lambda: context.store.is_master
        context.offsets.on_change = self._offset_changed
        context.locks.write = self._write_locks
        context.delay_offsets = lambda: delay_offsets(metadata.table(DELAY_OFFSETS))
        metadata.on_change.append(self._take)
        metadata.on_reset.append(self._take_all)
        metadata.on_replaced.append(self._take_replaced)
        self._take_all()

    # --- into the log -------------------------------------------------------------------------------------------
    def _ask(self, change: Tables) -> None:
        """Raises Refusal, and then nothing is changed."""
        try:
            self._metadata.change(change)
        except NotNow as error:
            code = Answer.SYSTEM_BUSY if self._context.store.is_master else Answer.SERVICE_NOT_AVAILABLE
            raise Refusal(code, str(error), {}) from error

    def _write_topic(self, name: str, topic: TopicConfig | None) -> None:
        if topic is not None:
            self._ask({TOPICS: {name: topic.as_said()}})
            return
        groups = self._context.offsets.of_topic(name)  # or its next messages would lie far behind these
        self._ask({TOPICS: {name: None}, CONSUMER_OFFSETS: {_name(name, group): None for group in groups}})
        for group in groups:
            self._context.offsets.take(name, group, {})
            self._dirty.pop((name, group), None)

    def _write_group(self, group: GroupConfig) -> None:
        self._ask({GROUPS: {group.name: group.as_said()}})

    def _write_locks(self, change: Mapping[QueueLock, str | None]) -> None:
        self._ask({QUEUE_LOCKS: {name.key: client_id for name, client_id in change.items()}})

    def _offset_changed(self, name: tuple[str, str]) -> None:
        if self._context.store.is_master:
            self._dirty[name] = None
            self._later(OFFSETS_EVERY_S)

    def _later(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._write_offsets)

    def _write_offsets(self) -> None:
        self._timer = None
        if not self._context.store.is_master:
            self._dirty.clear()
            return
        said = {_name(topic, group): _said(self._context.offsets.queues(topic, group)) for topic, group in self._dirty}
        changed = {key: value for key, value in said.items() if self._is_new(key, value)}
        try:
            self._metadata.change({CONSUMER_OFFSETS: changed})
        except NotNow:  # the lane has no room
            self._later(AGAIN_S)
        else:
            self._dirty.clear()

    def _is_new(self, key: str, value: dict[str, int]) -> bool:
        metadata = self._metadata
        return metadata.is_asked(CONSUMER_OFFSETS, key) or metadata.value(CONSUMER_OFFSETS, key) != value

    # --- out of the log -----------------------------------------------------------------------------------------
    def _take(self, change: Tables) -> None:
        for name, value in change.get(TOPICS, {}).items():
            if not self._metadata.is_asked(TOPICS, name):
                self._context.topics.take(name, _topic(name, value))
        for name, value in change.get(GROUPS, {}).items():
            if not self._metadata.is_asked(GROUPS, name):
                self._context.groups.take(name, _group(name, value))
        for name, value in change.get(CONSUMER_OFFSETS, {}).items():
            topic, _at, group = name.partition("@")
            if not self._metadata.is_asked(CONSUMER_OFFSETS, name) and (topic, group) not in self._dirty:
                self._context.offsets.take(topic, group, _queues(name, value))
        for name, value in change.get(QUEUE_LOCKS, {}).items():
            if not self._metadata.is_asked(QUEUE_LOCKS, name):
                self._take_lock(name, value)

    def _take_lock(self, key: str, client_id: Any) -> None:
        name = read_key(key)
        if name is not None:
            self._context.locks.take(name, client_id if isinstance(client_id, str) else None)

    def _take_replaced(self) -> None:
        """A snapshot of the log's first part is complete; offsets that changed here since then still wait for theirs.
        Without them a group would go back behind what this master has answered it."""
        changed = {name: dict(self._context.offsets.queues(*name)) for name in self._dirty}
        self._take_all()
        for (topic, group), queues in changed.items():
            self._context.offsets.take(topic, group, queues)
            self._dirty[topic, group] = None

    def _take_all(self) -> None:
        """All that is committed, and what the log was asked for: that is nothing where this member stopped leading."""
        self._dirty.clear()
        context, table = self._context, self._metadata.as_asked
        topics = {name: _topic(name, value) for name, value in table(TOPICS).items()}
        groups = {name: _group(name, value) for name, value in table(GROUPS).items()}
        context.topics.take_all({name: one for name, one in topics.items() if one is not None})
        context.groups.take_all({name: one for name, one in groups.items() if one is not None})
        context.offsets.clear()
        for name, value in table(CONSUMER_OFFSETS).items():
            topic, _at, group = name.partition("@")
            context.offsets.take(topic, group, _queues(name, value))
        context.locks.clear()
        for name, value in table(QUEUE_LOCKS).items():
            self._take_lock(name, value)
        self._learn()

    @property
    def is_known(self) -> bool:
        return self._metadata.is_known

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _name(topic: str, group: str) -> str:
    return f"{topic}@{group}"


def _said(queues: Mapping[int, int]) -> dict[str, int]:
    return {str(queue_id): offset for queue_id, offset in queues.items()}


def _topic(name: str, value: Any) -> TopicConfig | None:
    """What another release wrote and this one does not understand is left out here; the log keeps it."""
    if value is None:
        return None
    try:
        return read_topics({name: value}, 1).get(name)
    except BodyError as error:
        log.warning("topic %s in the log cannot be read: %s", name, error)
        return None


def _group(name: str, value: Any) -> GroupConfig | None:
    """The same."""
    if value is None:
        return None
    try:
        return read_groups({name: value}, 1).get(name)
    except BodyError as error:
        log.warning("group %s in the log cannot be read: %s", name, error)
        return None


def _queues(name: str, value: Any) -> dict[int, int]:
    """The same of offsets by queue."""
    if not isinstance(value, Mapping):
        return {}
    found = {int(queue): at for queue, at in value.items() if str(queue).isdigit() and type(at) is int}
    if len(found) != len(value):
        log.warning("offsets %s in the log cannot be read whole", name)
    return found


def delay_offsets(table: Mapping[str, Any]) -> dict[int, int]:
    """By level, of the table in the log."""
    return {int(level): at for level, at in table.items() if level.isdigit() and type(at) is int}
