"""What `config/*.json` says, against the queues that are there.

Invariant: a store without these files (a copy of the messages alone) has nothing wrong with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from node.message_store.checking.findings import Fault, Finding
from node.message_store.consume_queue import ConsumeQueue
from node.message_store.errors import MessageFormatError
from node.message_store.message_store import MessageStore
from node.message_store.queue_units import SCHEDULE_TOPIC

TOPICS: Final = "topics.json"
OFFSETS: Final = "consumerOffset.json"
_MADE_AS_NEEDED: Final = ("%RETRY%", "%DLQ%", "RMQ_SYS_", SCHEDULE_TOPIC, "%LMQ%", "rmq_sys_")


def check_metadata(store: MessageStore, queues: Mapping[tuple[str, int], ConsumeQueue]) -> list[Finding]:
    """Queues of topics that are in no list, and consumers that stand behind a queue's end."""
    found: list[Finding] = []
    topics = _table(store, TOPICS, "topicConfigTable", found)
    if topics is not None:
        for topic in sorted({topic for topic, _ in queues if topic not in topics}):
            if not topic.startswith(_MADE_AS_NEEDED):
                detail = f"it does not list topic {topic!r}, which has queues: its messages are not served"
                found.append(Finding(Fault.METADATA_MISMATCH, f"config/{TOPICS}", detail, topic=topic))
    offsets = _table(store, OFFSETS, "offsetTable", found)
    for name, by_queue in (offsets or {}).items():
        topic, _, group = name.partition("@")
        for queue_id, offset in by_queue.items() if isinstance(by_queue, dict) else ():
            queue = queues.get((topic, int(queue_id))) if queue_id.isdigit() else None
            if queue is None or not isinstance(offset, int):
                continue
            end = queue.max_offset()
            if offset > end:
                why = "it lost messages that the group had, or new ones up to there are skipped"
                detail = f"group {group!r} is at {offset}, the queue ends at {end}: {why}"
                found.append(
                    Finding(
                        Fault.METADATA_MISMATCH, f"config/{OFFSETS}", detail, None, topic, int(queue_id), end,
                        offset - 1, offset - end,
                    )
                )  # fmt: skip
    return found


def _table(store: MessageStore, name: str, field: str, found: list[Finding]) -> dict[str, Any] | None:
    """One table of one file; what cannot be read is a finding."""
    try:
        content = store.config(name)
    except MessageFormatError as error:
        found.append(Finding(Fault.METADATA_MISMATCH, f"config/{name}", str(error)))
        return None
    table = content.get(field) if content is not None else None
    return table if isinstance(table, dict) else None
