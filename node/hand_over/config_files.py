"""`config/*.json` of a Java broker from a group's metadata: topics, groups, consumer offsets, delay offsets.

Invariants: what the log says counts; where it says nothing of a table, the file stays as it is; every topic that has
queues is in `topics.json` with at least as many, or Java would not serve them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from node.hand_over.report import Report
from node.message_store.broker_tables import DELAY_OFFSETS, TABLES, TOPICS, file_of, table_in, topic_config
from node.message_store.queue_units import SCHEDULE_TOPIC
from node.message_store.write_files import Disk

CONFIG: Final = "config"
# Topics that a broker makes for itself at its start.
_OWN_TOPICS: Final = frozenset({SCHEDULE_TOPIC, "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"})


def config_files(
    root: Path, tables: Mapping[str, Mapping[str, Any]], queues: Mapping[tuple[str, int], int], disk: Disk,
    report: Report,
) -> None:  # fmt: skip
    """Raises MessageFormatError where a file that is there cannot be read, OSError."""
    written: list[str] = []
    for name, (file, _member) in TABLES.items():
        path = root / CONFIG / file
        before = path.read_bytes() if path.is_file() else b""
        has = table_in(name, before) if before else {}
        table = dict(tables.get(name, has))
        if name == TOPICS:
            table |= _missing_topics(table, queues)
        if name == DELAY_OFFSETS and not table and any(topic == SCHEDULE_TOPIC for topic, _queue in queues):
            report.notes.append(
                "Nothing says how far messages that wait for their time were delivered (config/delayOffset.json):"
                " Java delivers those that are left in the log again."
            )
        if table and (table != has or not before):
            disk.replace(path, file_of(name, table, before))
            written.append(file)
    if written:
        report.done.append(f"config/ has {', '.join(written)} as the group's metadata and queues say.")


def _missing_topics(
    table: Mapping[str, Any], queues: Mapping[tuple[str, int], int]
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Entries of topics that have queues and no entry, or one with too few."""
    counts: dict[str, int] = {}
    for topic, queue_id in queues:
        counts[topic] = max(counts.get(topic, 0), queue_id + 1)
    found: dict[str, dict[str, Any]] = {}
    for topic, count in sorted(counts.items()):
        entry = table.get(topic)
        if not isinstance(entry, dict):
            if topic not in _OWN_TOPICS:
                found[topic] = topic_config(topic, count)
        elif isinstance(entry.get("readQueueNums"), int) and entry["readQueueNums"] < count:
            found[topic] = entry | {"readQueueNums": count}
    return found
