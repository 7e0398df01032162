"""What can be wrong with a message store, and what each of it means for those who use the store.

Invariant: one finding is one cause in one place: neighbouring units or entries with the same fault are one finding
with a count.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final


class Fault(StrEnum):
    """The classes of `audit --messages` (MESSAGES, "Audits on Spark"), and behind them what only files show."""

    CQ_MISSING = "cq_missing"
    CQ_EXTRA = "cq_extra"
    CQ_MISMATCH = "cq_mismatch"
    QUEUE_OFFSET_GAP = "queue_offset_gap"
    QUEUE_OFFSET_DUPLICATE = "queue_offset_duplicate"
    PHYSICAL_OFFSET_MISMATCH = "physical_offset_mismatch"
    INDEX_MISSING = "index_missing"
    INDEX_EXTRA = "index_extra"
    BODY_CRC_INVALID = "body_crc_invalid"
    METADATA_MISMATCH = "metadata_mismatch"
    RECORD_INVALID = "record_invalid"
    TORN_END = "torn_end"
    FILE_INVALID = "file_invalid"


MEANS: Final = {
    Fault.CQ_MISSING: "no consumer gets it, though it is in the commit log and its sender was answered",
    Fault.CQ_EXTRA: "a consumer that reads it gets nothing; RocketMQ brings such units back after a start, and new"
    " messages behind them are ordered wrongly",
    Fault.CQ_MISMATCH: "a consumer gets another message than the one that was sent there, or none",
    Fault.QUEUE_OFFSET_GAP: "messages of this queue are missing in the commit log: lost, or never there",
    Fault.QUEUE_OFFSET_DUPLICATE: "two messages have one place in their queue: consumers get only one of them",
    Fault.PHYSICAL_OFFSET_MISMATCH: "bytes of another place or log lie here; RocketMQ does not look, and serves them",
    Fault.INDEX_MISSING: "it cannot be found by this key",
    Fault.INDEX_EXTRA: "a search by key meets it for nothing, or finds one message twice",
    Fault.BODY_CRC_INVALID: "the body is not what was sent; RocketMQ serves it until a recovery comes by",
    Fault.METADATA_MISMATCH: "what config/ says does not fit the queues",
    Fault.RECORD_INVALID: "whatever was here cannot be read by anybody",
    Fault.TORN_END: "the last write is incomplete; nothing that was acknowledged with a sync flush lies behind it",
    Fault.FILE_INVALID: "RocketMQ does not start with it, or passes it over",
}

# What consumers or senders lose by is critical; what only costs a search, or is no loss, is not.
MILDER: Final = {
    Fault.CQ_EXTRA: "warning",
    Fault.INDEX_MISSING: "warning",
    Fault.INDEX_EXTRA: "warning",
    Fault.METADATA_MISMATCH: "warning",
    Fault.TORN_END: "info",
}


@dataclass(slots=True, frozen=True)
class Finding:
    """`offset`: in the commit log, where that is known; `queue_offset` to `last_queue_offset`: units of one queue."""

    fault: Fault
    file: str
    detail: str
    offset: int | None = None
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    last_queue_offset: int | None = None
    count: int = 1
    means: str = ""

    @property
    def severity(self) -> str:
        return MILDER.get(self.fault, "critical")

    def as_json(self) -> dict[str, Any]:
        """One of `problems` in `store verify --json`. `index` is of entries of a replicated log."""
        return {
            "class": self.fault.value,
            "index": None,
            "file": self.file,
            "offset": self.offset,
            "topic": self.topic,
            "queue_id": self.queue_id,
            "queue_offset": self.queue_offset,
            "last_queue_offset": self.last_queue_offset,
            "count": self.count,
            "detail": self.detail,
            "means": self.means or MEANS[self.fault],
        }
