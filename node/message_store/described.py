"""A message as JSON: what it says, its body opened, and where it lies: entry, position, queue unit, index files.

Invariants: bytes that are no UTF-8 are replaced in names, and base64 in a body; a body is opened up to a bound, and
where that fails it is shown as it lies, with the reason.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from node.message_store.checking.verify import name_at
from node.message_store.commit_log import Placed
from node.message_store.errors import MessageFormatError
from node.message_store.java_text import key_hash, printable
from node.message_store.message_store import MessageStore
from node.message_store.queue_units import is_queued
from node.message_store.record import Compression, MessageRecord

# The body as it was sent, of a record that may be compressed. Raises MessageFormatError.
Opener = Callable[[MessageRecord], bytes]


def message_json(store: MessageStore, placed: Placed, opener: Opener) -> dict[str, Any]:
    """All of one message."""
    return {**record_json(placed.record, opener), "where": where_json(store, placed)}


def record_json(record: MessageRecord, opener: Opener) -> dict[str, Any]:
    """What its record says."""
    return {
        "message_id": record.message_id,
        "topic": printable(record.topic),
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "born_at": in_time(record.born_timestamp_ms),
        "born_host": str(record.born_host),
        "stored_at": in_time(record.store_timestamp_ms),
        "store_host": str(record.store_host),
        "tags": printable(record.tags) if record.tags is not None else None,
        "keys": [printable(one) for one in record.index_keys],
        "properties": {printable(name): printable(value) for name, value in record.pairs},
        "transaction": record.transaction_type.name.lower(),
        "prepared_transaction_offset": record.prepared_transaction_offset,
        "reconsume_times": record.reconsume_times,
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "version": record.version,
        "body": body_json(record, opener),
    }


def body_json(record: MessageRecord, opener: Opener) -> dict[str, Any]:
    """As it was sent: opened where it is compressed; where that fails, as it lies, and why."""
    kind = record.compression
    name = (
        "none"
        if kind is Compression.NONE
        else kind.name.lower().removeprefix("old_")
        if kind is not None
        else "unknown"
    )
    found: dict[str, Any] = {"stored_bytes": len(record.body), "compression": name, "crc_ok": record.is_body_sound}
    try:
        body = opener(record)
        found |= {"bytes": len(body), "opened": True}
    except MessageFormatError as error:
        body = record.body
        found |= {"bytes": None, "opened": False, "why": str(error)}
    try:
        return found | {"text": body.decode()}
    except UnicodeDecodeError:
        return found | {"base64": base64.b64encode(body).decode()}


def where_json(store: MessageStore, placed: Placed) -> dict[str, Any]:
    """File, entry, queue unit and index files."""
    record, offset = placed.record, placed.offset
    file = next((one for _queue, one in store.log.files if one.start <= offset < one.end), None)
    unit: dict[str, Any] | None = None
    queue = store.queue(record.topic, record.queue_id) if is_queued(record) else None
    if queue is not None:
        rows = queue.units(record.queue_offset, 1)
        there = int(rows[0]["offset"]) if len(rows) else None
        name = queue.queue.find(record.queue_offset * 20)
        unit = {
            "file": f"consumequeue/{printable(record.topic)}/{record.queue_id}/{name.name if name else ''}",
            "queue_offset": record.queue_offset, "points_here": there == offset, "points_to_offset": there,
        }  # fmt: skip
    hashes = {key_hash(record.topic, key) for key in record.index_keys}
    index = [f"index/{name}" for name, one in store.index_files() if one.has(offset, hashes)]
    return {
        "offset": offset, "size_bytes": placed.size_bytes, "file": name_at(store, offset),
        "file_position": offset - file.start if file is not None else None,
        "entry_index": placed.entry_index, "queued": is_queued(record), "queue_unit": unit, "index_files": index,
    }  # fmt: skip


def in_time(timestamp_ms: int) -> str | None:
    """RFC 3339 UTC; None where no calendar has it."""
    try:
        return (
            datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        )
    except (ValueError, OverflowError, OSError):
        return None
