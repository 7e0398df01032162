"""What a broker group's log says beside its messages, as of one entry: tables of metadata and incarnations of topics.

Every member applies the metadata entries (channel 3) in the log's order, so all have the same tables at the same entry;
whoever becomes master has exactly what is committed. A member may begin with less than the log said (a base in the
middle of it), or with something else (what an adopted directory knew), so the first complete snapshot that it sees
replaces what it has.

Invariants: `take` is given entries in the log's order, each once, but for those behind `index` again, which change
nothing; values are replaced, never changed in place; `is_whole`: it is that of a snapshot and what came behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field
from typing import Any, Final

from node.message_store.broker_tables import TOPICS
from node.message_store.errors import MessageFormatError
from node.protocol.broker_state import (
    SINCE_THE_BEGINNING,
    BodyInvalid,
    BrokerState,
    Tables,
    TopicOffsets,
    apply_metadata,
    decode_metadata,
    decode_state,
)
from node.protocol.entry import BytesLike
from node.protocol.group_kind import Channel
from node.protocol.inert_records import content_of
from node.protocol.snapshot_parts import FoundSnapshot, SnapshotFinder
from node.protocol.value_class import value_class

QueueName = tuple[str, int]
DELETED_MAX: Final = 10_000  # topics that were deleted and not made again


@value_class(slots=True, frozen=True)
class OwnEntry:
    """An entry that is no message. `content`: what its record was made of; `change`: of metadata, what it changes."""

    index: int
    channel: int
    content: bytes
    change: Tables = field(default_factory=dict)

    @property
    def dropped(self) -> list[str]:
        """Topics that are deleted by it."""
        return [name for name, value in self.change.get(TOPICS, {}).items() if value is None]


@value_class(slots=True, frozen=True)
class Applied:
    """What an entry did. `is_new` False: all of it was known. `snapshot`: the one that became complete with it;
    `places`: where a snapshot replaced the state, the next offset of each queue by it, but for topics made since."""

    entry: OwnEntry
    is_new: bool
    snapshot: FoundSnapshot | None = None
    is_replaced: bool = False
    places: Mapping[QueueName, int] = field(default_factory=dict)


def state_at_begin(begin_index: int, adopted: BrokerState | None) -> MetadataState:
    """Where entry `begin_index` is the log's first; `adopted`: what a directory knew that was RocketMQ's."""
    if adopted is not None and adopted.as_of_index >= begin_index - 1:
        return MetadataState(adopted)
    return MetadataState(BrokerState(begin_index - 1))


def own_entry(index: int, channel: int, record: BytesLike) -> OwnEntry:
    """Raises MessageFormatError where this release does not understand what it says."""
    content = content_of(record)
    if channel != Channel.METADATA:
        return OwnEntry(index, channel, content)
    try:
        return OwnEntry(index, channel, content, decode_metadata(content))
    except BodyInvalid as error:
        raise MessageFormatError(f"entry {index} is metadata that cannot be read: {error}") from error


class MetadataState:
    """See the module's docstring. `base`: as of which entry it begins with what; None: with nothing, before the first.

    A snapshot of an earlier entry than that is of no use here: what changed between the two is not known.
    """

    def __init__(self, base: BrokerState | None = None, *, is_whole: bool = False) -> None:
        base = base or BrokerState(-1)
        self.index = self.since = base.as_of_index  # behind `since` every entry was seen
        self.tables: dict[str, dict[str, Any]] = {name: dict(table) for name, table in base.tables.items()}
        # Of topics that were deleted once: with which entry the last time. Messages before it are not theirs any more.
        self.incarnations = {name: one.incarnation for name, one in base.topics.items() if one.incarnation >= 0}
        self.places = _places(base)  # next offsets of queues whose messages may all have expired
        self.is_whole = is_whole
        self.snapshot: FoundSnapshot | None = None  # the newest complete one ...
        self.snapshot_at = -1  # ... and where in the log it ends, which the owner sets
        self.changes = 0  # that were applied, so that it is seen when there are more
        self._changed_at: dict[tuple[str, str], int] = {}  # of each key, while a snapshot may replace the state
        self._finder = SnapshotFinder(keep=not is_whole)

    def take(self, one: OwnEntry) -> Applied:
        """The next entry that is no message."""
        if one.index <= self.index:
            return Applied(one, is_new=False)
        self.index = one.index
        if one.channel == Channel.METADATA:
            self._change(one)
            return Applied(one, is_new=True)
        if one.channel == Channel.SNAPSHOT_PART:
            return self._part(one)
        return Applied(one, is_new=True)

    def passed(self, index: int) -> None:
        """Up to there are messages only."""
        self.index = max(self.index, index)

    def _change(self, one: OwnEntry) -> None:
        for name, value in one.change.get(TOPICS, {}).items():
            if value is None:
                self._deleted(name, one.index)
                self.places = {queue: at for queue, at in self.places.items() if queue[0] != name}
        apply_metadata(self.tables, one.change)
        self.changes += 1
        if not self.is_whole:
            for table, keys in one.change.items():
                self._changed_at.update(((table, key), one.index) for key in keys)

    def _deleted(self, topic: str, index: int) -> None:
        """Of the topics that are not there now so many are remembered, those that were deleted last."""
        self.incarnations[topic] = index
        if len(self.incarnations) > DELETED_MAX:
            gone = self.incarnations.keys() - self.tables.get(TOPICS, {}).keys()
            if len(gone) > DELETED_MAX:
                del self.incarnations[min(gone, key=lambda one: self.incarnations[one])]

    def _part(self, one: OwnEntry) -> Applied:
        """A snapshot that is not sound is none."""
        found: FoundSnapshot | None = None
        with suppress(BodyInvalid):
            found = self._finder.add(one.index, one.content)
            if found is not None and found.as_of_index < self.since:
                found = None
            if found is not None and not self.is_whole:
                return self._replace(one, found, decode_state(found.content))
        if found is not None:
            self.snapshot = _without_content(found)
        return Applied(one, is_new=True, snapshot=self.snapshot if found is not None else None)

    def _replace(self, one: OwnEntry, found: FoundSnapshot, state: BrokerState) -> Applied:
        """Its tables, and behind its as-of index what entries said since: of each key the last word is here."""
        tables = {name: dict(table) for name, table in state.tables.items()}
        incarnations = {name: topic.incarnation for name, topic in state.topics.items() if topic.incarnation >= 0}
        places = _places(state)
        for (table, key), index in self._changed_at.items():
            if index > found.as_of_index:
                apply_metadata(tables, {table: {key: self.tables.get(table, {}).get(key)}})
                if table == TOPICS:
                    self._take_over(key, found.as_of_index, incarnations, places)
        self.tables, self.incarnations, self.places = tables, incarnations, places
        self.is_whole, self._changed_at = True, {}
        self._finder = SnapshotFinder(keep=False)
        self.snapshot = _without_content(found)
        self.changes += 1
        return Applied(one, is_new=True, snapshot=self.snapshot, is_replaced=True, places=places)

    def _take_over(
        self, topic: str, as_of_index: int, incarnations: dict[str, int], places: dict[QueueName, int]
    ) -> None:
        """Of a topic that was changed since: it may have been deleted, and its queues begin at 0."""
        own = self.incarnations.get(topic, SINCE_THE_BEGINNING)
        if own > as_of_index:
            incarnations[topic] = own
            for queue in [one for one in places if one[0] == topic]:
                del places[queue]

    def as_state(self, next_offsets: Mapping[QueueName, int] | None = None) -> BrokerState:
        """All of it, as of `index`; `next_offsets`: of each queue that was dispatched, at that entry."""
        by_topic: dict[str, dict[int, int]] = {name: {} for name in self.incarnations}
        for (topic, queue_id), offset in (self.places | dict(next_offsets or {})).items():
            by_topic.setdefault(topic, {})[queue_id] = offset
        topics = {
            name: TopicOffsets(self.incarnations.get(name, SINCE_THE_BEGINNING), offsets)
            for name, offsets in by_topic.items()
        }
        return BrokerState(self.index, topics, {name: dict(table) for name, table in self.tables.items()})


def _places(state: BrokerState) -> dict[QueueName, int]:
    return {
        (topic, queue_id): offset
        for topic, one in state.topics.items()
        for queue_id, offset in one.next_offsets.items()
    }


def _without_content(found: FoundSnapshot) -> FoundSnapshot:
    return FoundSnapshot(found.snapshot_id, found.as_of_index, found.first_index, found.last_index)
