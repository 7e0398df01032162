"""Offsets, and single messages: 14, 15, 29 to 33."""

from __future__ import annotations

from typing import Final

from node.broker.requests.context import Context
from node.message_store.errors import MessageStoreError
from node.rocketmq.codes import Answer
from node.rocketmq.dispatch import Call, Refusal, Reply
from node.rocketmq.header_fields import read_header, write_header
from node.rocketmq.headers import (
    OffsetAnswer,
    QueryOffsetRequest,
    QueueRequest,
    SearchOffsetRequest,
    TimestampAnswer,
    UpdateOffsetRequest,
    ViewRequest,
)

NOT_FOUND: Final = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"


class Lookups:
    """See the module's docstring."""

    def __init__(self, context: Context) -> None:
        self._context = context

    # --- a group's offsets --------------------------------------------------------------------------------------
    def query_offset(self, call: Call) -> Reply:
        """Of a group that has committed none: 0 where the queue's beginning is still at hand, so that a new group of a
        young topic misses nothing; else nothing is found, and the client chooses."""
        said = read_header(QueryOffsetRequest, call.request.fields)
        found = self._context.offsets.get(said.consumer_group, said.topic, said.queue_id)
        if found is None:
            if said.set_zero_if_not_found is False or not self._begins_at_hand(said.topic, said.queue_id):
                raise Refusal(Answer.QUERY_NOT_FOUND, NOT_FOUND, {})
            found = 0
        return _offset(found)

    def _begins_at_hand(self, topic: str, queue_id: int) -> bool:
        reads = self._context.store.reads
        return reads.min_offset(topic, queue_id) <= 0 and not reads.get(topic, queue_id, 0, 1).suggests_slave

    def update_offset(self, call: Call) -> Reply:
        said = read_header(UpdateOffsetRequest, call.request.fields)
        if not self._context.takes_offsets:
            self._context.check_master()
        offsets = self._context.offsets
        known = offsets.get(said.consumer_group, said.topic, said.queue_id) if said.only_forward else None
        if known is None or known < said.commit_offset:
            offsets.put(said.consumer_group, said.topic, said.queue_id, said.commit_offset)
        return Reply(fields={})

    # --- a queue's offsets --------------------------------------------------------------------------------------
    def max_offset(self, call: Call) -> Reply:
        said = read_header(QueueRequest, call.request.fields)
        return _offset(self._context.store.reads.max_offset(said.topic, said.queue_id))

    def min_offset(self, call: Call) -> Reply:
        said = read_header(QueueRequest, call.request.fields)
        return _offset(self._context.store.reads.min_offset(said.topic, said.queue_id))

    def search_offset(self, call: Call) -> Reply:
        said = read_header(SearchOffsetRequest, call.request.fields)
        return _offset(self._context.store.reads.offset_at(said.topic, said.queue_id, said.timestamp))

    def earliest_time(self, call: Call) -> Reply:
        said = read_header(QueueRequest, call.request.fields)
        reads = self._context.store.reads
        first = reads.min_offset(said.topic, said.queue_id)
        return Reply(fields=write_header(TimestampAnswer(reads.stored_at_ms(said.topic, said.queue_id, first))))

    # --- messages -----------------------------------------------------------------------------------------------
    def view(self, call: Call) -> Reply:
        """By place. The id that a client has may name another broker of the group: the place is the same here."""
        said = read_header(ViewRequest, call.request.fields)
        try:
            return Reply(body=self._context.store.reads.message_at(said.offset))
        except MessageStoreError:
            return Reply(Answer.SYSTEM_ERROR, None, f"can not find message by the offset, {said.offset}")


def _offset(value: int) -> Reply:
    return Reply(fields=write_header(OffsetAnswer(value)))
