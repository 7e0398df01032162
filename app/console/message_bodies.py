"""Entries of a broker's log as the messages they hold, for the pages that list entries.

A body there is RocketMQ's record: binary, whose text form would be base64. What does not decode as one whole record is
left as it came.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

from node.message_store.java_text import printable
from node.message_store.record import decode_record

Json = dict[str, Any]


def with_messages(items: Iterable[Json]) -> list[Json]:
    """The same entries; of one that holds a message, `message` says which, and `body` is its text (None: no text)."""
    return [one | message_of(one) for one in items]


def message_of(item: Json) -> Json:
    """Empty where it holds none."""
    body = item.get("body")
    if item.get("as") != "base64" or not isinstance(body, str):
        return {}
    try:
        data = base64.b64decode(body, validate=True)
        record = decode_record(data)
    except ValueError:  # MessageFormatError is one; a member may say anything
        return {}
    if record.total_size != len(data):
        return {}
    names = [f"{printable(record.topic)}, queue {record.queue_id}, offset {record.queue_offset:,}"]
    names += [f"keys {', '.join(map(printable, record.index_keys))}"] if record.index_keys else []
    names += [f"tag {printable(record.tags)}"] if record.tags else []
    try:
        text = record.body.decode()
    except UnicodeDecodeError:
        text = None
    return {"message": "; ".join(names)} | ({"body": text, "note": None} if text is not None else {})
