"""Serves clients' reads of committed entries, in our own frames: from memory at once, from disk in their turn.

Invariants: every request gets one answer; what is being read for a connection and what it has not taken yet is no more
than it may have ahead; a read that waits for its turn takes nothing of the quota, which is everybody's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from node.consensus.replica import ReadOutcome, Replica
from node.engine.cold_turns import ColdTurns
from node.engine.log_reads import READ_BYTES_MAX, Found, LogReads
from node.engine.quota import Quota
from node.engine.slow_requests import SlowRequests
from node.protocol.codes import ResponseCode
from node.protocol.entry import BytesLike
from node.protocol.messages import ReadWay
from node.transport.connection import Connection
from node.transport.remoting import Frame
from node.transport.slab_frames import ReadAnswer, ReadMode, ReadRequest, decode_read, encode_read_answer


class Log(Protocol):
    """What is needed of the engine."""

    replica: Replica

    def read_index(self, done: Callable[[ReadOutcome], None], way: ReadWay = ReadWay.USUAL) -> None: ...


class ClientReads:
    """One per engine."""

    def __init__(self, log: Log, reads: LogReads, quota: Quota, slow: SlowRequests, cold: ColdTurns) -> None:
        self._log, self._reads, self._quota, self._slow, self._cold = log, reads, quota, slow, cold
        self._reading: dict[Connection, int] = {}  # bytes of reads that are under way

    def closed(self, connection: Connection) -> None:
        """It has ended: what waits of it is not read any more."""
        self._slow.drop(connection)
        self._cold.drop(connection)

    def handle(self, connection: Connection, frame: Frame) -> None:
        """A client's request. Raises BodyError."""
        request = decode_read(frame.body)
        if request.mode is ReadMode.UNSAFE:
            self.read(connection, frame, request)
            return
        self._quota.take(connection, 1, len(frame.body))

        def confirmed(outcome: ReadOutcome) -> None:
            self._quota.give(connection, 1, len(frame.body))
            if outcome.code is ResponseCode.SUCCESS:
                self.read(connection, frame, request)
            else:
                self._answer(connection, frame, request, outcome.code, 0, b"")

        self._log.read_index(confirmed, request.mode.way)

    def read(self, connection: Connection, frame: Frame, request: ReadRequest) -> None:
        """Answers with what is committed here."""
        self._slow.now_or_later(connection, partial(self._read_records, connection, frame, request))

    def one(self, connection: Connection, frame: Frame, index: int, done: Found) -> None:
        """Reads one committed entry, in its turn."""

        def found(code: ResponseCode, count: int, records: BytesLike) -> None:
            self._quota.give(connection, 1, len(frame.body))
            done(code, count, records)

        def look() -> None:
            self._quota.take(connection, 1, len(frame.body))
            committed = self._log.replica.committed_index
            self._reads.committed(index, 1, committed, found, partial(self._cold.add, connection))

        self._slow.now_or_later(connection, look)

    def _read_records(self, connection: Connection, frame: Frame, request: ReadRequest) -> None:
        under_way, ahead = self._reading.get(connection, 0), self._slow.ahead_bytes(connection)
        if under_way + connection.backlog_bytes > ahead:
            # It has not taken its earlier answers, or they are being read: memory is for those who do.
            self._slow.add(connection, partial(self._read_records, connection, frame, request))
            return
        wanted = min(request.limit_bytes, READ_BYTES_MAX, ahead)
        self._reading[connection] = under_way + wanted
        # Those that wait for their turn take none: it is everybody's, and they may be dropped with their connection.
        self._quota.take(connection, 1, len(frame.body))

        def done(code: ResponseCode, count: int, records: BytesLike) -> None:
            left = self._reading.pop(connection) - wanted
            if left:
                self._reading[connection] = left
            self._quota.give(connection, 1, len(frame.body))
            self._answer(connection, frame, request, code, count, records)
            self._slow.gave(connection, len(records))

        committed = self._log.replica.committed_index
        self._reads.committed(request.from_index, wanted, committed, done, partial(self._cold.add, connection))

    def _answer(
        self, connection: Connection, frame: Frame, request: ReadRequest, code: ResponseCode, count: int,
        records: BytesLike,
    ) -> None:  # fmt: skip
        replica = self._log.replica
        trimmed = code is ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN
        first_index = replica.store.begin_index if trimmed else request.from_index
        numbers = (replica.committed_index, first_index, replica.store.end_index)
        connection.answer(frame, *encode_read_answer(ReadAnswer(code, *numbers, count, records)))
