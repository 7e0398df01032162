"""One record as a finding shows it beside the other's: what it says, and its bytes around the first difference."""

from __future__ import annotations

from typing import Any, Final

from node.message_store.errors import MessageFormatError
from node.message_store.local_records import flaw_of
from node.message_store.record import decode_record
from node.protocol.entry import crc32

CONTEXT_BYTES: Final = 16
SHOWN_BYTES: Final = 48


def side_of(log: str, data: bytes, offset: int, differs: int) -> dict[str, Any]:
    """`differs`: the first byte of it that is another one; `bytes`: hex, from `bytes_at` on, an offset of the log."""
    begin = max(0, differs - CONTEXT_BYTES)
    said: dict[str, Any] = {
        "replicas": [log], "offset": offset, "size_bytes": len(data), "crc": f"{crc32(data):08x}",
        "differs_at": offset + differs, "bytes_at": offset + begin, "bytes": data[begin : begin + SHOWN_BYTES].hex(),
        "topic": None, "queue_id": None, "queue_offset": None, "stored_ms": None, "flaw": None,
    }  # fmt: skip
    try:
        flaw = flaw_of(data, 0, offset)
        record = decode_record(data)
    except (MessageFormatError, IndexError, ValueError) as error:
        return {**said, "flaw": str(error) or "it cannot be read as a record"}
    except Exception as error:  # struct.error of bytes that end early
        return {**said, "flaw": f"it cannot be read as a record: {error}"}
    return {
        **said, "topic": record.topic, "queue_id": record.queue_id, "queue_offset": record.queue_offset,
        "stored_ms": record.store_timestamp_ms, "flaw": flaw or None,
    }  # fmt: skip
