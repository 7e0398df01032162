"""What an append's end means for a put: DLedger's mapping, and what a lane adds to it.

Invariant: where the messages may be in the log, the status is one that says so (IN_SYNC_REPLICAS_NOT_ENOUGH, which
clients get as code 1), never one that lets a client believe that nothing happened.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from node.client.errors import LedgerError, NotAppended, OutcomeUnknown
from node.message_store.put_result import PutResult, PutStatus, refused
from node.protocol.codes import ResponseCode

_AWAY: Final = PutStatus.SERVICE_NOT_AVAILABLE
_NOT_STORED: Final[Mapping[ResponseCode, PutStatus]] = {
    ResponseCode.LEADER_PENDING_FULL: PutStatus.OS_PAGE_CACHE_BUSY,
    ResponseCode.DISK_ERROR: PutStatus.CREATE_MAPPED_FILE_FAILED,
    ResponseCode.UNEXPECTED_ARGUMENT: PutStatus.UNKNOWN_ERROR,  # a record that the leader refuses is a bug of ours
    ResponseCode.REQUEST_WITH_EMPTY_BODYS: PutStatus.UNKNOWN_ERROR,
}


def result_of(error: LedgerError) -> PutResult:
    """The result of a put whose append did not succeed."""
    if isinstance(error, OutcomeUnknown):
        return unknown(str(error))
    status = _NOT_STORED.get(error.code, _AWAY) if isinstance(error, NotAppended) else _AWAY
    return refused(status, str(error))


def unknown(why: str) -> PutResult:
    """The result of a put of which nobody knows whether it is in the log."""
    return refused(PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH, why)


def busy(why: str) -> PutResult:
    """The result of a put that was refused for load, before it took a queue offset."""
    return refused(PutStatus.OS_PAGE_CACHE_BUSY, why)


def away(why: str) -> PutResult:
    """The result of a put at a broker that takes no messages now."""
    return refused(_AWAY, why)
