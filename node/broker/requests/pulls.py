"""PULL_MESSAGE (11), and pulls that wait for a message.

The order of checks, codes and texts are those of RocketMQ 4.9.8. A pull that finds nothing new and may wait is held: a
message that it wants wakes it at once; every LOOK_MS it is tried again where the queue has grown at all (by messages of
other tags), and when its time is over.

Invariants: no pull is held longer than it asked for, nor longer than HOLD_MS_MAX; how many are held is bounded
(`held_pulls.py`); each is answered once, and not at all when its connection has ended; a message that many wait for
wakes so many of them in one turn of the loop, and the others in the next ones; an offset that rides on a pull counts
only at a broker that is certainly the master, and never takes a group back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final

from node.broker.requests.clients import BROADCASTING
from node.broker.requests.context import FAQ, Context
from node.broker.requests.held_pulls import HeldPull, HeldPulls, Queue
from node.message_store.consume_queue import PullStatus
from node.message_store.errors import MessageStoreError
from node.message_store.java_text import tags_code
from node.message_store.live_reads import UNITS_LOOKED_AT, Got
from node.rocketmq.bodies import EXPRESSION_CHARS_MAX, PERM_READ, TAGS_MAX, Subscription
from node.rocketmq.codes import Answer
from node.rocketmq.dispatch import Call, Peer, Refusal, Reply, reply_of
from node.rocketmq.header_fields import read_header, write_header
from node.rocketmq.headers import PullAnswer, PullRequest

FLAG_COMMIT: Final = 1
FLAG_SUSPEND: Final = 2
FLAG_SUBSCRIPTION: Final = 4
LOOK_MS: Final = 5_000
HOLD_MS_MAX: Final = 60_000
MESSAGES_MAX: Final = 1024
BYTES_MAX: Final = 4 * 1024 * 1024
LOOKS_A_TURN: Final = 512  # at pulls that wait, by one turn of the loop ...
WOKEN_BYTES_A_TURN: Final = 4 * 1024 * 1024  # ... and the bodies of the answers that are made in it, and one more
ENDS_SEEN_MAX: Final = 64
TAG: Final = "TAG"
NOT_PARSED: Final = "parse the consumer's subscription failed"
TO_MASTER: Final = "this broker is a slave, and its master is there: pull from that one"
CODES: Final[Mapping[PullStatus, int]] = {
    PullStatus.FOUND: Answer.SUCCESS,
    PullStatus.NO_MATCHED_MESSAGE: Answer.PULL_RETRY_IMMEDIATELY,
    PullStatus.MESSAGE_WAS_REMOVING: Answer.PULL_RETRY_IMMEDIATELY,
    PullStatus.OFFSET_OVERFLOW_ONE: Answer.PULL_NOT_FOUND,
    PullStatus.OFFSET_FOUND_NULL: Answer.PULL_NOT_FOUND,
    PullStatus.OFFSET_OVERFLOW_BADLY: Answer.PULL_OFFSET_MOVED,
    PullStatus.OFFSET_TOO_SMALL: Answer.PULL_OFFSET_MOVED,
}


class Pulls:
    """See the module's docstring."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._held = HeldPulls()
        self._grown: dict[Queue, None] = {}  # queues that have got messages, and are to be looked at
        self._over: list[HeldPull] = []  # who waits no longer, and is to be answered, the next one last
        self._looking: list[HeldPull] = []  # of one queue, who is still to be looked at, the next one last
        self._codes: dict[int, list[int]] = {}  # that queue's hashes of tags, behind an offset
        self._goes_on = False  # in the next turn

    @property
    def held(self) -> int:
        return self._held.count

    def pull(self, call: Call) -> Reply | None:
        return self._try(call, read_header(PullRequest, call.request.fields), first=True)

    def _try(self, call: Call, said: PullRequest, *, first: bool, confirmed: bool = False) -> Reply | None:
        context = self._context
        tags = self._checked(said, call.peer.address)
        if context.slave_rules is not None and context.slave_rules.refuses_pulls():
            return Reply(Answer.PULL_RETRY_IMMEDIATELY, write_header(PullAnswer(0, said.queue_offset, 0, 0)), TO_MASTER)
        count, bytes_max = max(1, min(said.max_msg_nums, MESSAGES_MAX)), BYTES_MAX
        if said.max_msg_bytes is not None and said.max_msg_bytes > 0:
            bytes_max = min(said.max_msg_bytes, BYTES_MAX)
        got = context.store.reads.get(
            said.topic, said.queue_id, said.queue_offset, count, tags=tags, bytes_max=bytes_max,
            corrects=context.store.is_master,
        )  # fmt: skip
        if first and said.sys_flag & FLAG_COMMIT and context.takes_offsets:
            self._commit(said)
        code = code_of(got, said.queue_offset)
        if code == Answer.PULL_OFFSET_MOVED and not confirmed and context.must_confirm:
            # A correction makes the consumer begin elsewhere: an old master, which knows less of the queue, gives none.
            context.when_confirmed(call, lambda call: self._try(call, said, first=False, confirmed=True))
            return None
        if first and code == Answer.PULL_NOT_FOUND and said.sys_flag & FLAG_SUSPEND and self._hold(call, said, tags):
            return None
        answer = PullAnswer(self._suggested(said, got), got.next_offset, got.min_offset, got.max_offset)
        return Reply(code, write_header(answer), got.status.name, b"".join(got.records))

    def _suggested(self, said: PullRequest, got: Got) -> int:
        """The broker's id; 0 is the master."""
        rules, group = self._context.slave_rules, self._context.groups.groups.get(said.consumer_group)
        if rules is None or group is None:
            return 0
        return rules.suggests(group, is_slow=got.suggests_slave)

    # --- the offset that rides on a pull ------------------------------------------------------------------------
    def _commit(self, said: PullRequest) -> None:
        """Where this is certainly the master; else once a read has confirmed it, and not at all where none does. The
        pull does not wait for that: its answer says nothing of the offset."""
        if not self._context.must_confirm:
            self._advance(said)
            return

        def confirmed(done: asyncio.Future[bool]) -> None:
            if not done.cancelled() and done.result() and self._context.store.is_master:
                with suppress(Refusal):  # of no room: it comes again with the next pull
                    self._advance(said)

        self._context.store.confirm().add_done_callback(confirmed)

    def _advance(self, said: PullRequest) -> None:
        """Never back: a pull may be older than what another client of the group has committed since, and what lies
        behind the queue's end is of a queue that was there before. Raises Refusal."""
        offsets, end = self._context.offsets, self._context.store.reads.max_offset(said.topic, said.queue_id)
        if (offsets.get(said.consumer_group, said.topic, said.queue_id) or 0) <= said.commit_offset <= end:
            offsets.put(said.consumer_group, said.topic, said.queue_id, said.commit_offset)

    # --- who may pull what --------------------------------------------------------------------------------------
    def _checked(self, said: PullRequest, address: str) -> frozenset[str] | None:
        """The tags that are wanted, None for all. Raises Refusal."""
        context = self._context
        if not context.perm & PERM_READ:
            raise _no(Answer.NO_PERMISSION, f"the broker[{context.identity.ip}] pulling message is forbidden")
        group = context.groups.find(said.consumer_group)
        if group is None:
            text = f"subscription group [{said.consumer_group}] does not exist, {FAQ}"
            raise _no(Answer.SUBSCRIPTION_GROUP_NOT_EXIST, text)
        if not group.consume_enable:
            raise _no(Answer.NO_PERMISSION, f"subscription group no permission, {said.consumer_group}")
        topic = context.topics.get(said.topic)
        if topic is None:
            raise _no(Answer.TOPIC_NOT_EXIST, f"topic[{said.topic}] not exist, apply first please! {FAQ}")
        if not topic.perm & PERM_READ:
            raise _no(Answer.NO_PERMISSION, f"the topic[{said.topic}] pulling message is forbidden")
        if not 0 <= said.queue_id < topic.read_queues:
            text = f"queueId[{said.queue_id}] is illegal, topic:[{said.topic}] topicConfig.readQueueNums:"
            raise _no(Answer.SYSTEM_ERROR, f"{text}[{topic.read_queues}] consumer:[/{address}]")
        if said.sys_flag & FLAG_SUBSCRIPTION:
            kind = said.expression_type or TAG
            expression = said.subscription or ""
        else:
            known = self._known(said, broadcasts=group.consume_broadcast_enable)
            kind, expression = known.expression_type or TAG, known.expression
        if kind != TAG:
            raise _no(Answer.SYSTEM_ERROR, f"The broker does not support consumer to filter message by {kind}")
        return tags_of(expression)

    def _known(self, said: PullRequest, *, broadcasts: bool) -> Subscription:
        """What the group's heartbeats said. Raises Refusal."""
        group = self._context.clients.consumers.get(said.consumer_group)
        if group is None:
            raise _no(Answer.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{FAQ}")
        if not broadcasts and group.message_model == BROADCASTING:
            text = f"the consumer group[{said.consumer_group}] can not consume by broadcast way"
            raise _no(Answer.NO_PERMISSION, text)
        known = group.subscriptions.get(said.topic)
        if known is None:
            raise _no(Answer.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{FAQ}")
        if known.version < said.sub_version:
            raise _no(Answer.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        return known

    # --- waiting ------------------------------------------------------------------------------------------------
    def _hold(self, call: Call, said: PullRequest, tags: frozenset[str] | None) -> bool:
        if call.request.is_one_way:
            return False
        now = self._context.steady_ms()
        until = now + max(0, min(said.suspend_timeout_millis, HOLD_MS_MAX))
        codes = None if tags is None else frozenset(map(tags_code, tags))
        held = HeldPull(call, said, codes, until, now + LOOK_MS, said.queue_offset)
        for other in self._held.make_room(held):
            self._answer_again(other)
        if not self._held.has_room(held):
            return False
        call.hold()
        self._held.add(held)
        return True

    def arrived(self, queues: Iterable[Queue]) -> None:
        """These have got messages. Who waits for them hears of it in this turn, but for those beyond LOOKS_A_TURN."""
        for queue in queues:
            if queue in self._held.of_queue:
                self._grown[queue] = None
        self._look_now()

    def _look_now(self) -> None:
        if not self._goes_on:
            self._look_on()

    def _look_on(self) -> None:
        looks, room_bytes = LOOKS_A_TURN, WOKEN_BYTES_A_TURN
        while self._over or self._looking or self._grown:
            if not self._over and not self._looking:
                queue = next(iter(self._grown))
                del self._grown[queue]
                self._looking = list(reversed(self._held.of_queue.get(queue, {})))
                self._codes.clear()
                continue
            if looks <= 0 or room_bytes <= 0:
                self._goes_on = True
                asyncio.get_running_loop().call_soon(self._look_on)
                return
            looks -= 1
            is_over = bool(self._over)
            held = self._over.pop() if is_over else self._looking.pop()
            if held.is_held and (is_over or self._is_wanted(held)):
                room_bytes -= self._again(held)
        self._goes_on = False

    def _is_wanted(self, held: HeldPull) -> bool:
        """By hashes alone: who wait behind the same message share one look at the queue. Where that cannot be read, its
        answer says so: what is raised here would end the dispatch of the message."""
        said, reads = held.said, self._context.store.reads
        if held.codes is None:
            return reads.max_offset(said.topic, said.queue_id) > said.queue_offset
        codes = self._codes.get(held.looked_upto)
        if codes is None:
            if len(self._codes) >= ENDS_SEEN_MAX:
                self._codes.clear()
            try:
                units = reads.units(said.topic, said.queue_id, held.looked_upto, UNITS_LOOKED_AT)
            except (OSError, MessageStoreError):
                return True
            codes = self._codes[held.looked_upto] = [code for _place, _size, code in units]
        if not held.codes.isdisjoint(codes):
            return True
        held.looked_upto += len(codes)
        return False

    def look(self) -> None:
        """Now and then: whose time is over, and whose queue has grown by what it does not want."""
        if self._over:  # those of the last look are still being answered
            return
        now = self._context.steady_ms()
        for held in self._held.all():
            said = held.said
            if now >= held.until_ms:
                self._over.append(held)
            elif now >= held.look_at_ms:
                held.look_at_ms = now + LOOK_MS
                if self._context.store.reads.max_offset(said.topic, said.queue_id) > said.queue_offset:
                    self._over.append(held)
        self._over.reverse()
        self._look_now()

    def gone(self, peer: Peer) -> None:
        """Its connection ended."""
        for held in self._held.of_peer(peer):
            self._held.take_out(held)
            held.call.resume()
            held.call.drop()

    def _again(self, held: HeldPull) -> int:
        """Answers it. How many bytes of messages."""
        self._held.take_out(held)
        return self._answer_again(held)

    def _answer_again(self, held: HeldPull) -> int:
        """Once more, from the beginning: what was right when it came may not be any more."""
        held.call.resume()
        reply, _sound = reply_of(lambda call: self._try(call, held.said, first=False), held.call)
        if reply is None:
            return 0
        held.call.answer(reply)
        return len(reply.body)


def code_of(got: Got, asked: int) -> int:
    if got.status in CODES:
        return CODES[got.status]
    return Answer.PULL_OFFSET_MOVED if asked else Answer.PULL_NOT_FOUND  # an empty queue


def tags_of(expression: str) -> frozenset[str] | None:
    """`A || B`; None for all. Raises Refusal, also where there are more than a heartbeat may have."""
    if not expression or expression == "*":
        return None
    if len(expression) > EXPRESSION_CHARS_MAX or expression.count("||") >= TAGS_MAX:
        text = f"{NOT_PARSED}: {TAGS_MAX} tags and {EXPRESSION_CHARS_MAX} characters at most"
        raise _no(Answer.SUBSCRIPTION_PARSE_FAILED, text)
    tags = frozenset(one.strip() for one in expression.split("||")) - {""}
    if not tags:
        raise _no(Answer.SUBSCRIPTION_PARSE_FAILED, NOT_PARSED)
    return tags


def _no(code: int, text: str) -> Refusal:
    """Java makes this answer with a header class, so it has fields, none of them set."""
    return Refusal(code, text, {})
