"""The tables of a broker group's metadata, and the files in `config/` that RocketMQ keeps the same in.

A table's keys are those of the file's map: topics by name, groups by name, consumer offsets by `topic@group` (a map of
queues in turn), delay offsets by level. Values are as the file has them.

Invariants: a table written to its file and read back is the same; other members of a file (`dataVersion`) and other
files stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from node.message_store.errors import MessageFormatError
from node.message_store.store_files import parse_config

TOPICS: Final = "topics"
GROUPS: Final = "groups"
CONSUMER_OFFSETS: Final = "consumer_offsets"
DELAY_OFFSETS: Final = "delay_offsets"
QUEUE_LOCKS: Final = "queue_locks"  # `topic@queue@group`: the client; RocketMQ's brokers keep none in a file
# Table, file in config/, name of the map in it.
TABLES: Final[Mapping[str, tuple[str, str]]] = {
    TOPICS: ("topics.json", "topicConfigTable"),
    GROUPS: ("subscriptionGroup.json", "subscriptionGroupTable"),
    CONSUMER_OFFSETS: ("consumerOffset.json", "offsetTable"),
    DELAY_OFFSETS: ("delayOffset.json", "offsetTable"),
}
READ_WRITE: Final = 6


def table_in(name: str, data: bytes) -> dict[str, Any]:
    """A table as its file says it. Raises MessageFormatError."""
    file, member = TABLES[name]
    found = parse_config(data).get(member, {})
    if not isinstance(found, dict):
        raise MessageFormatError(f"{file}: {member} is no map")
    return found


def file_of(name: str, table: Mapping[str, Any], before: bytes = b"") -> bytes:
    """The file's content with this table, and whatever else `before` holds."""
    value: dict[str, Any] = {"dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 0}}
    if before:
        value |= parse_config(before)
    value[TABLES[name][1]] = dict(table)
    return (_java_json(value) + "\n").encode()


def _java_json(value: Any) -> str:
    """JSON with bare numbers for names, as fastjson writes maps of numbers."""
    if isinstance(value, dict):
        names = ((name if name.isascii() and name.isdigit() else json.dumps(name)) for name in value)
        return (
            "{" + ",".join(f"{name}:{_java_json(one)}" for name, one in zip(names, value.values(), strict=True)) + "}"
        )
    if isinstance(value, list):
        return "[" + ",".join(map(_java_json, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def topic_config(name: str, queues: int) -> dict[str, Any]:
    """What RocketMQ keeps of a topic, for one that is known by its queues alone."""
    return {
        "attributes": {}, "order": False, "perm": READ_WRITE, "readQueueNums": queues, "topicFilterType": "SINGLE_TAG",
        "topicName": name, "topicSysFlag": 0, "writeQueueNums": queues,
    }  # fmt: skip
