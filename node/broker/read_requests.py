"""Reads as RocketMQ's clients make them: 11 (pull), 12 (by key), 29 to 33 (by time, ends of queues, by place).

A pull that finds nothing is answered at once. Invariant: nothing is answered that is not dispatched, so committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from node.message_store.consume_queue import PullStatus
from node.message_store.errors import MessageStoreError
from node.message_store.live_reads import LiveReads
from node.rocketmq.codes import Answer, Request
from node.rocketmq.dispatch import Call, Handler, Refusal, Reply
from node.rocketmq.header_fields import read_header, write_header
from node.rocketmq.headers import (
    OffsetAnswer,
    PullAnswer,
    PullRequest,
    QueryAnswer,
    QueryRequest,
    QueueRequest,
    SearchOffsetRequest,
    TimestampAnswer,
    ViewRequest,
)

PULL_BYTES_MAX: Final = 262_144
ANSWERS: Final[Mapping[PullStatus, Answer]] = {
    PullStatus.FOUND: Answer.SUCCESS,
    PullStatus.NO_MATCHED_MESSAGE: Answer.PULL_RETRY_IMMEDIATELY,
    PullStatus.MESSAGE_WAS_REMOVING: Answer.PULL_RETRY_IMMEDIATELY,
    PullStatus.OFFSET_OVERFLOW_ONE: Answer.PULL_NOT_FOUND,
    PullStatus.OFFSET_FOUND_NULL: Answer.PULL_NOT_FOUND,
    PullStatus.OFFSET_OVERFLOW_BADLY: Answer.PULL_OFFSET_MOVED,
    PullStatus.OFFSET_TOO_SMALL: Answer.PULL_OFFSET_MOVED,
}


class ReadRequests:
    """See the module's docstring."""

    def __init__(self, reads: LiveReads) -> None:
        self._reads = reads

    def handlers(self) -> Mapping[int, Handler]:
        """By request code."""
        return {
            Request.PULL_MESSAGE: self._pull,
            Request.QUERY_MESSAGE: self._query,
            Request.SEARCH_OFFSET_BY_TIMESTAMP: self._by_time,
            Request.GET_MAX_OFFSET: self._max,
            Request.GET_MIN_OFFSET: self._min,
            Request.GET_EARLIEST_MSG_STORETIME: self._earliest,
            Request.VIEW_MESSAGE_BY_ID: self._view,
        }

    def _pull(self, call: Call) -> Reply:
        header = read_header(PullRequest, call.request.fields)
        if (header.expression_type or "TAG") != "TAG":
            text = "The broker does not support consumer to filter message by SQL92"
            raise Refusal(Answer.SYSTEM_ERROR, text)
        got = self._reads.get(
            header.topic, header.queue_id, header.queue_offset, max(header.max_msg_nums, 1),
            tags=tags_of(header.subscription), bytes_max=header.max_msg_bytes or PULL_BYTES_MAX,
        )  # fmt: skip
        code = ANSWERS.get(got.status)
        if code is None:  # an empty queue: 0 is where its first message will be
            code = Answer.PULL_NOT_FOUND if header.queue_offset == 0 else Answer.PULL_OFFSET_MOVED
        answer = PullAnswer(0, got.next_offset, got.min_offset, got.max_offset)
        return Reply(code, write_header(answer), got.status.value, b"".join(got.records))

    def _query(self, call: Call) -> Reply:
        header = read_header(QueryRequest, call.request.fields)
        found = self._reads.query(
            header.topic, header.key, min(max(header.max_num, 1), 64), header.begin_timestamp, header.end_timestamp
        )
        mark = self._reads.index_end()
        if not found:
            raise Refusal(Answer.QUERY_NOT_FOUND, "can not find message, maybe time range not correct")
        return Reply(Answer.SUCCESS, write_header(QueryAnswer(*mark)), None, b"".join(found))

    def _by_time(self, call: Call) -> Reply:
        header = read_header(SearchOffsetRequest, call.request.fields)
        found = self._reads.offset_at(header.topic, header.queue_id, header.timestamp)
        return Reply(Answer.SUCCESS, write_header(OffsetAnswer(found)))

    def _max(self, call: Call) -> Reply:
        header = read_header(QueueRequest, call.request.fields)
        found = self._reads.max_offset(header.topic, header.queue_id)
        return Reply(Answer.SUCCESS, write_header(OffsetAnswer(found)))

    def _min(self, call: Call) -> Reply:
        header = read_header(QueueRequest, call.request.fields)
        found = self._reads.min_offset(header.topic, header.queue_id)
        return Reply(Answer.SUCCESS, write_header(OffsetAnswer(found)))

    def _earliest(self, call: Call) -> Reply:
        header = read_header(QueueRequest, call.request.fields)
        low = self._reads.min_offset(header.topic, header.queue_id)
        found = self._reads.stored_at_ms(header.topic, header.queue_id, low)
        return Reply(Answer.SUCCESS, write_header(TimestampAnswer(found)))

    def _view(self, call: Call) -> Reply:
        header = read_header(ViewRequest, call.request.fields)
        try:
            record = self._reads.message_at(header.offset)
        except MessageStoreError as error:
            text = f"can not find message by the offset, {header.offset}"
            raise Refusal(Answer.SYSTEM_ERROR, text) from error
        return Reply(Answer.SUCCESS, {}, None, bytes(record))


def tags_of(subscription: str | None) -> frozenset[str] | None:
    """The tags of "A || B"; None: all."""
    if subscription is None or subscription.strip() in ("", "*"):
        return None
    return frozenset(one.strip() for one in subscription.split("||") if one.strip())
