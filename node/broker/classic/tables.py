"""A classic broker's topics, groups and offsets, in `DATA/config/*.json` as RocketMQ keeps them.

A change of a topic or a group is on disk before it is answered; offsets follow within seconds, as in RocketMQ.

Invariant: a file that cannot be read ends the start, and is left as it is; the one before it lies beside it (`.bak`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from node.broker.classic.deleted_topics import DeletedTopics
from node.broker.requests.config_files import DELAYS, GROUPS, OFFSETS, TOPICS, ConfigFiles
from node.broker.requests.context import Context
from node.broker.requests.groups import GROUPS_MAX
from node.broker.requests.topics import TOPICS_MAX
from node.message_store.errors import MessageStoreError
from node.rocketmq.bodies import (
    DataVersion,
    GroupConfig,
    TopicConfig,
    delay_offsets_answer,
    read_data_version,
    read_delay_offsets,
    read_groups,
    read_offsets,
    read_topics,
)
from node.rocketmq.dispatch import Reply
from node.rocketmq.java_json import BodyError, load, object_in

FILE_BYTES_MAX: Final = 64 << 20
VALUES_MAX: Final = 4_000_000
LOG_END: Final = "logEndOffset"  # beside a master's delay offsets


class TablesInFiles:
    """See the module's docstring. Raises MessageStoreError. It is the context's `changes`, too."""

    def __init__(self, data: Path, context: Context, files: ConfigFiles, deleted: DeletedTopics) -> None:
        self.deleted = deleted
        self._folder, self._context, self._files = data / "config", context, files
        self.asked = 0
        self.delays: dict[int, int] = {}
        context.topics.version = context.groups.version = DataVersion()  # of nobody, until somebody changes something
        self._load()
        context.changes = self
        context.topics.counts = lambda: context.store.is_master
        context.topics.write = self._write_topic
        context.groups.write = lambda _group: self._changes()
        context.groups.keeps = lambda: context.store.is_master
        context.delay_offsets = lambda: self.delays

    @property
    def is_known(self) -> bool:
        return True

    def close(self) -> None:
        """Nothing waits."""

    @property
    def topics_of_ms(self) -> int:
        """When the topics were written last; -1: never. Sends make topics, and do not wait for that."""
        path = self._file(TOPICS)
        return -1 if path is None else path.stat().st_mtime_ns // 1_000_000

    # --- what changed -----------------------------------------------------------------------------------------------
    def _changes(self) -> None:
        self.asked += 1

    def _write_topic(self, name: str, topic: TopicConfig | None) -> None:
        self._changes()
        if topic is None:  # or its next messages would lie far behind these offsets
            for group in self._context.offsets.of_topic(name):
                self._context.offsets.take(name, group, {})
            self.deleted.delete(name)

    async def settled(self) -> None:
        """Returns once every change made so far is on disk. Raises OSError."""
        gone = self.deleted.waiting  # what is deleted meanwhile may be on disk still
        await self._files.save()
        await self.deleted.save(gone)

    # --- delay offsets ----------------------------------------------------------------------------------------------
    def get(self, level: int) -> int | None:
        return self.delays.get(level)

    def commit(self, offsets: Mapping[int, int]) -> bool:
        self.delays |= offsets
        return True

    def delay_offsets(self, end: int) -> Reply:
        """As RocketMQ's (45), and where the log that they are of ends: a slave takes them once it has all of that."""
        return Reply(fields={LOG_END: str(end)}, body=delay_offsets_answer(self.delays))

    # --- consumer offsets -------------------------------------------------------------------------------------------
    def lower_offsets(self, ends: Mapping[tuple[str, int], int]) -> set[str]:
        """To the ends of their queues, where the log lacks what was consumed: this slave had not got it when it was
        promoted, or a power loss took it. A consumer would pass over what comes in its place. The topics of these."""
        self.deleted.lower()
        offsets, topics = self._context.offsets, set[str]()
        for (topic, group), queues in offsets.items():
            there = {queue: min(at, ends.get((topic, queue), 0)) for queue, at in queues.items()}
            if there != queues:
                offsets.take(topic, group, there)
                topics.add(topic)
        return topics

    # --- a start ----------------------------------------------------------------------------------------------------
    def _load(self) -> None:
        context = self._context
        with self._reading(TOPICS) as said:
            if said:
                table = read_topics(object_in(said, "topicConfigTable"), TOPICS_MAX)
                context.topics.load(table, table_version(said))
        with self._reading(GROUPS) as said:
            if said:
                groups: dict[str, GroupConfig] = read_groups(object_in(said, "subscriptionGroupTable"), GROUPS_MAX)
                context.groups.load(groups, table_version(said))
        with self._reading(OFFSETS) as said:
            for (topic, group), queues in read_offsets(said).items() if said else ():
                context.offsets.take(topic, group, queues)
        with self._reading(DELAYS) as said:
            self.delays = read_delay_offsets(said) if said else {}

    @contextlib.contextmanager
    def _reading(self, name: str) -> Any:
        path = self._file(name)
        try:
            yield None if path is None else load(path.read_bytes(), FILE_BYTES_MAX, VALUES_MAX)
        except (OSError, BodyError, ValueError) as error:
            before = f"{self._folder / name}.bak"
            text = f"{path} cannot be read ({error}): put {before} in its place, or a slave's, and start again"
            raise MessageStoreError(text) from error

    def _file(self, name: str) -> Path | None:
        """Where a table is kept. An earlier release, as RocketMQ, may have ended between two renames: then the one
        before it is there alone. None: neither is."""
        path = self._folder / name
        return next((one for one in (path, path.with_name(f"{name}.bak")) if one.exists()), None)


def table_version(said: Mapping[Any, Any]) -> DataVersion:
    version = said.get("dataVersion")
    return read_data_version(version) if isinstance(version, dict) else DataVersion()
