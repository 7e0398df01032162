"""`DATA/config/*.json`: topics, groups and offsets as RocketMQ's broker keeps them, so that a restart knows them again.

Each file is written whole beside the old one and renamed, the one before stays as `.bak`. Invariants: a file that
cannot be read costs no start (the one before it is taken, else none); what is not changed is not written.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from node.broker.requests.context import Context
from node.broker.requests.groups import GROUPS_MAX, OFFSETS_MAX
from node.broker.requests.topics import TOPICS_MAX
from node.rocketmq.bodies import (
    groups_answer,
    offsets_answer,
    read_data_version,
    read_groups,
    read_topics,
    topics_answer,
)
from node.rocketmq.dispatch import Refusal
from node.rocketmq.java_json import BodyError, load, object_in

log = logging.getLogger(__name__)

TOPICS: Final = "topics.json"
GROUPS: Final = "subscriptionGroup.json"
OFFSETS: Final = "consumerOffset.json"
BYTES_MAX: Final = 64 * 1024 * 1024
VALUES_MAX: Final = 2_000_000


class ConfigFiles:
    """`load` once, before anybody is answered; then `due` on the loop and `write` off it, now and then."""

    def __init__(self, data: Path, context: Context) -> None:
        self._folder, self._context = data / "config", context
        self._written: dict[str, bytes] = {}

    # --- reading ------------------------------------------------------------------------------------------------
    def load(self) -> None:
        for name, take in ((TOPICS, self._take_topics), (GROUPS, self._take_groups), (OFFSETS, self._take_offsets)):
            for path in (self._folder / name, self._folder / f"{name}.bak"):
                if self._taken(path, take):
                    break

    def _taken(self, path: Path, take: Callable[[dict[Any, Any]], None]) -> bool:
        try:
            take(load(path.read_bytes(), BYTES_MAX, VALUES_MAX))
        except FileNotFoundError:
            return False
        except (OSError, BodyError, Refusal) as error:
            log.warning("%s cannot be read: %s", path, error)
            return False
        return True

    def _take_topics(self, said: dict[Any, Any]) -> None:
        found = read_topics(object_in(said, "topicConfigTable"), TOPICS_MAX)
        topics = self._context.topics
        topics.topics.update(found)
        topics.version = read_data_version(object_in(said, "dataVersion"))

    def _take_groups(self, said: dict[Any, Any]) -> None:
        found = read_groups(object_in(said, "subscriptionGroupTable"), GROUPS_MAX)
        groups = self._context.groups
        groups.groups.update(found)
        groups.version = read_data_version(object_in(said, "dataVersion"))

    def _take_offsets(self, said: dict[Any, Any]) -> None:
        table = object_in(said, "offsetTable")
        found: list[tuple[str, str, int, int]] = []
        for name, queues in table.items():
            topic, sign, group = str(name).partition("@")
            if not sign or not isinstance(queues, dict) or len(found) + len(queues) > OFFSETS_MAX:
                raise BodyError("offsetTable is no table of offsets by topic@group")
            for queue_id, offset in queues.items():
                if not str(queue_id).isdigit() or type(offset) is not int:
                    raise BodyError(f"{name}: no offsets by queue")
                found.append((group, topic, int(queue_id), offset))
        for group, topic, queue_id, offset in found:
            self._context.offsets.put(group, topic, queue_id, offset)

    # --- writing ------------------------------------------------------------------------------------------------
    def due(self) -> dict[str, bytes]:
        """What is not in its file as it is now. On the loop: the tables do not change meanwhile."""
        topics, groups = self._context.topics, self._context.groups
        now = {
            TOPICS: topics_answer(topics.version, topics.topics.values()),
            GROUPS: groups_answer(groups.version, groups.groups.values()),
            OFFSETS: offsets_answer(self._context.offsets.as_said()),
        }
        return {name: data for name, data in now.items() if self._written.get(name) != data}

    def write(self, files: dict[str, bytes]) -> None:
        """Raises OSError: then it is due again."""
        self._folder.mkdir(exist_ok=True)
        for name, data in files.items():
            path, fresh = self._folder / name, self._folder / f"{name}.tmp"
            with fresh.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if path.exists():
                path.replace(self._folder / f"{name}.bak")
            fresh.replace(path)
            self._written[name] = data
