"""How a put ends: RocketMQ's PutMessageStatus, and where the messages are.

Invariants: the first four say that the messages are in the log, so they have offsets and ids; every other says that
they are not, or (IN_SYNC_REPLICAS_NOT_ENOUGH) that it is not known.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from node.message_store.record import Host, message_id
from node.protocol.value_class import value_class


class PutStatus(Enum):
    """In RocketMQ's order."""

    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    CREATE_MAPPED_FILE_FAILED = "CREATE_MAPPED_FILE_FAILED"
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
    OS_PAGE_CACHE_BUSY = "OS_PAGE_CACHE_BUSY"
    UNKNOWN_ERROR = "UNKNOWN_ERROR"
    IN_SYNC_REPLICAS_NOT_ENOUGH = "IN_SYNC_REPLICAS_NOT_ENOUGH"
    PUT_TO_REMOTE_BROKER_FAIL = "PUT_TO_REMOTE_BROKER_FAIL"
    LMQ_CONSUME_QUEUE_NUM_EXCEEDED = "LMQ_CONSUME_QUEUE_NUM_EXCEEDED"
    WHEEL_TIMER_FLOW_CONTROL = "WHEEL_TIMER_FLOW_CONTROL"
    WHEEL_TIMER_MSG_ILLEGAL = "WHEEL_TIMER_MSG_ILLEGAL"
    WHEEL_TIMER_NOT_ENABLE = "WHEEL_TIMER_NOT_ENABLE"

    @property
    def is_stored(self) -> bool:
        """Whether the messages are in the log, and count as sent towards the client."""
        return self in _STORED


_STORED: Final = frozenset(
    {
        PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT, PutStatus.FLUSH_SLAVE_TIMEOUT, PutStatus.SLAVE_NOT_AVAILABLE,
    }
)  # fmt: skip


@value_class(slots=True, frozen=True)
class PutResult:
    """Of one put. `queue_offset`: the first message's; the others of a batch follow it without gaps.

    `queue_id` and `topic` are where it lies: a message that waits for its time is in the schedule topic.
    """

    status: PutStatus
    reason: str = ""
    topic: str = ""
    queue_id: int = -1
    queue_offset: int = -1
    physical_offsets: tuple[int, ...] = ()
    store_timestamp_ms: int = -1
    store_host: Host | None = None

    @property
    def message_ids(self) -> str:
        """As an answer carries them: joined with commas."""
        host = self.store_host
        return "" if host is None else ",".join(message_id(host, one) for one in self.physical_offsets)


def refused(status: PutStatus, reason: str) -> PutResult:
    """Nothing of it is in the log, or (IN_SYNC_REPLICAS_NOT_ENOUGH) nobody knows."""
    return PutResult(status, reason)
