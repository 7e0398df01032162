"""The table of a broker's requests, by code, and what happens now and then.

Heartbeats and groups (34, 35, 38), locks (41, 42), topics (17) and what a slave asks for (21, 43, 45, 201) are small
enough to be here; sends, pulls and lookups have files of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from node.background import Background
from node.broker.requests.context import Changes, Context
from node.broker.requests.groups import offsets_of
from node.broker.requests.key_queries import KeyQueries
from node.broker.requests.lookups import Lookups
from node.broker.requests.pulls import TAG, Pulls
from node.broker.requests.sends import Sends
from node.broker.requests.topics import RETRY_PREFIX, check_name
from node.broker.transactions import Note, Transactions, TransactionTimes
from node.rocketmq.bodies import (
    TopicConfig,
    delay_offsets_answer,
    groups_answer,
    lock_answer,
    read_heartbeat,
    read_lock_request,
    topics_answer,
)
from node.rocketmq.codes import Answer, Request
from node.rocketmq.dispatch import Call, Handler, Peer, Refusal, Reply
from node.rocketmq.header_fields import read_header
from node.rocketmq.headers import CreateTopicRequest, DeleteTopicRequest, GroupRequest, UnregisterClientRequest
from node.rocketmq.java_json import dump, load, object_in, text_in
from node.rocketmq.whole_tables import WholeTable

KEPT_WITHIN_S: Final = 2.5  # RocketMQ's clients wait 3 s


class BrokerRequests:
    """`look` is to be called every second or so, `arrived` when queues have got messages, `gone` when a connection has
    ended."""

    def __init__(
        self, context: Context, times: TransactionTimes | None = None, note: Note = lambda *_said: None
    ) -> None:
        self.context = context
        self.pulls = Pulls(context)
        self.transactions = Transactions(context, times or TransactionTimes(), note)
        self.sends, self._lookups = Sends(context, self.transactions.check_room), Lookups(context)
        self._keys = KeyQueries(context)
        self._background = Background()

    def handlers(self) -> Mapping[int, Handler]:
        """By request code. What another broker could answer otherwise rests on a lease or a linearizable read."""

        def as_master(handler: Handler) -> Handler:
            return self.context.as_master(self._kept_first(handler))

        linearizable = self.context.linearizable
        return {
            Request.SEND_MESSAGE: self.sends.send,
            Request.SEND_MESSAGE_V2: self.sends.send,
            Request.SEND_BATCH_MESSAGE: self.sends.send,
            Request.CONSUMER_SEND_MSG_BACK: self.sends.send_back,
            Request.END_TRANSACTION: self.transactions.end,
            Request.PULL_MESSAGE: self._kept_first(self.pulls.pull),
            Request.QUERY_MESSAGE: self._keys.ask,
            Request.VIEW_MESSAGE_BY_ID: self._lookups.view,
            Request.QUERY_CONSUMER_OFFSET: linearizable(self._lookups.query_offset),
            Request.UPDATE_CONSUMER_OFFSET: as_master(self._lookups.update_offset),
            Request.GET_MAX_OFFSET: linearizable(self._lookups.max_offset),
            Request.GET_MIN_OFFSET: linearizable(self._lookups.min_offset),
            Request.SEARCH_OFFSET_BY_TIMESTAMP: linearizable(self._lookups.search_offset),
            Request.GET_EARLIEST_MSG_STORETIME: linearizable(self._lookups.earliest_time),
            Request.HEART_BEAT: self._kept_first(self._heartbeat),
            Request.UNREGISTER_CLIENT: self._unregister,
            Request.GET_CONSUMER_LIST_BY_GROUP: self._consumers,
            Request.CHECK_CLIENT_CONFIG: self._check_client,
            Request.LOCK_BATCH_MQ: as_master(self._lock),
            Request.UNLOCK_BATCH_MQ: as_master(self._unlock),
            Request.UPDATE_AND_CREATE_TOPIC: as_master(self._create_topic),
            Request.DELETE_TOPIC_IN_BROKER: as_master(self._delete_topic),
            Request.GET_ALL_TOPIC_CONFIG: self._all_topics(),
            Request.GET_ALL_CONSUMER_OFFSET: self._all_offsets(),
            Request.GET_ALL_DELAY_OFFSET: self._delay_offsets,
            Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._all_groups(),
        }

    def _kept_first(self, handler: Handler) -> Handler:
        """Where it changes a table, its answer waits until the change is committed. Sends need not: their messages lie
        behind the change."""

        def handle(call: Call) -> Reply | None:
            changes = self.context.changes
            before = 0 if changes is None else changes.asked
            reply = handler(call)
            if changes is None or reply is None or changes.asked == before:
                return reply
            self._background.run("a change of tables", _answer_when_kept(call, reply, changes))
            return None

        return handle

    def arrived(self, queues: Iterable[tuple[str, int]]) -> None:
        self.learn(queues)
        self.pulls.arrived(queues)
        self.transactions.arrived(queues)

    def learn(self, queues: Iterable[tuple[str, int]]) -> None:
        """The log has messages there, perhaps of another master's time: so the topic exists, with that queue."""
        topics = self.context.topics
        for name, queue_id in queues:
            known = topics.get(name)
            if known is None or queue_id >= max(known.read_queues, known.write_queues):
                topics.seen(name, queue_id)

    def gone(self, peer: Peer) -> None:
        self.pulls.gone(peer)
        self._keys.gone(peer)
        self.context.clients.gone(peer)
        self.context.locks.gone(peer)

    def look(self) -> None:
        self.pulls.look()
        self.context.clients.expire()
        if self.context.store.is_master:
            with suppress(Refusal):  # it is tried again
                self.context.locks.look()

    # --- clients ------------------------------------------------------------------------------------------------
    def _heartbeat(self, call: Call) -> Reply:
        """Also a slave takes them, so that it knows the whole group when it becomes master."""
        said, context = read_heartbeat(call.request.body), self.context
        for one in said.consumers:
            group = context.groups.find(one.group)
            notify = True
            if group is not None:
                notify = group.notify_ids_changed
                retries = f"{RETRY_PREFIX}{one.group}"
                if context.store.is_master and context.topics.get(retries) is None:
                    check_name(retries)
                    context.topics.create_own(retries, group.retry_queues)
            if not said.without_subscriptions:
                context.clients.consumes(call.peer, said.client_id, one, notify=notify)
        for name in said.producers:
            context.clients.produces(call.peer, said.client_id, name)
        return Reply()

    def _unregister(self, call: Call) -> Reply:
        said = read_header(UnregisterClientRequest, call.request.fields)
        if said.producer_group is not None:
            self.context.clients.produces_no_more(call.peer, said.producer_group)
        if said.consumer_group is not None:
            self.context.clients.consumes_no_more(call.peer, said.consumer_group)
        return Reply(fields={})

    def _consumers(self, call: Call) -> Reply:
        name = read_header(GroupRequest, call.request.fields).consumer_group
        group = self.context.clients.consumers.get(name)
        if group is None:
            raise Refusal(Answer.SYSTEM_ERROR, f"no consumer for this group, {name}", {})
        return Reply(fields={}, body=dump({"consumerIdList": group.client_ids}))

    def _check_client(self, call: Call) -> Reply:
        """What a consumer asks before it starts with a filter other than tags."""
        wanted = object_in(load(call.request.body), "subscriptionData")
        kind = text_in(wanted, "expressionType", TAG)
        if kind != TAG:
            text = f"The broker does not support consumer to filter message by {kind}"
            return Reply(Answer.SYSTEM_ERROR, None, text)
        return Reply()

    # --- locks --------------------------------------------------------------------------------------------------
    def _lock(self, call: Call) -> Reply:
        said = read_lock_request(call.request.body)
        self.context.check_master()
        return Reply(body=lock_answer(self.context.locks.lock(said.group, said.client_id, said.queues, call.peer)))

    def _unlock(self, call: Call) -> Reply:
        said = read_lock_request(call.request.body)
        self.context.check_master()
        self.context.locks.unlock(said.group, said.client_id, said.queues)
        return Reply()

    # --- topics and groups --------------------------------------------------------------------------------------
    def _create_topic(self, call: Call) -> Reply:
        said = read_header(CreateTopicRequest, call.request.fields)
        try:
            self.context.check_master()
            self.context.topics.create_by_hand(
                TopicConfig(
                    said.topic, said.read_queue_nums, said.write_queue_nums, said.perm, said.topic_filter_type,
                    said.topic_sys_flag or 0, said.order,
                )
            )  # fmt: skip
        except Refusal as refusal:
            return refusal.reply._replace(fields=None)
        return Reply()

    def _delete_topic(self, call: Call) -> Reply:
        """Also one that is not there, as RocketMQ does."""
        try:
            self.context.check_master()
            self.context.topics.delete(read_header(DeleteTopicRequest, call.request.fields).topic)
        except Refusal as refusal:
            return refusal.reply._replace(fields=None)
        return Reply()

    def _all_topics(self) -> Handler:
        topics = self.context.topics

        def take() -> Callable[[], bytes]:
            return partial(topics_answer, topics.version, list(topics.topics.values()))

        return WholeTable(lambda: len(topics.topics), take, {}).handle

    def _all_offsets(self) -> Handler:
        offsets = self.context.offsets
        return WholeTable(lambda: offsets.count, lambda: partial(offsets_of, offsets.items())).handle

    def _delay_offsets(self, call: Call) -> Reply:
        return Reply(body=delay_offsets_answer(self.context.delay_offsets()))

    def _all_groups(self) -> Handler:
        groups = self.context.groups

        def take() -> Callable[[], bytes]:
            return partial(groups_answer, groups.version, list(groups.groups.values()))

        return WholeTable(lambda: len(groups.groups), take).handle


async def _answer_when_kept(call: Call, reply: Reply, changes: Changes) -> None:
    try:
        async with asyncio.timeout(KEPT_WITHIN_S):
            await changes.settled()
    except Exception as error:
        text = str(error) or "no quorum has it in time"
        reply = Reply(Answer.SYSTEM_ERROR, None, f"it is not known whether the change is kept: {text}")
    call.answer(reply)
