"""What RocketMQ's next start would make of a store: where its recovery begins to look, and where it would cut.

A clean stop left no `abort`: it looks from the newest file on whose first message the queues know. After a crash, from
the newest file on whose first message is older than the checkpoint. Either way it stops at the first message that is
not sound, and what lies behind it is gone. The replicated log is another's: DLedger cuts by its entries' heads alone.
"""

from __future__ import annotations

from typing import Any

from node.message_store.checking.facts import Facts
from node.message_store.commit_log import Placed
from node.message_store.errors import MessageFormatError, MessageStoreError
from node.message_store.message_store import MessageStore, StoreKind
from node.protocol.value_class import value_class


@value_class(slots=True, frozen=True)
class Recovery:
    """`cut_at` None: it keeps all. `messages_left` are those before `cut_at`."""

    after_crash: bool
    looks_from: int
    cut_at: int | None = None
    messages_left: int = 0
    messages_lost: int = 0

    def as_json(self) -> dict[str, Any]:
        return {
            "after_crash": self.after_crash,
            "looks_from_offset": self.looks_from,
            "cut_at_offset": self.cut_at,
            "messages_left": self.messages_left,
            "messages_lost": self.messages_lost,
        }


def next_start(store: MessageStore, facts: Facts) -> Recovery | None:
    """None where DLedger recovers the log: it looks at no body."""
    if store.kind is not StoreKind.LOCAL:
        return None
    crashed = store.has_abort
    begin = _looks_from(store, crashed)
    bad = sorted([*facts.bad_bodies, *(one.offset for one in facts.damage)])
    stops = [one for one in bad if one >= begin]
    if not stops:
        return Recovery(crashed, begin, None, facts.messages, 0)
    left = facts.messages_before_bad or 0
    if stops[0] != facts.first_bad:
        left = _messages_before(store, stops[0])
    return Recovery(crashed, begin, stops[0], left, facts.messages - left)


def _messages_before(store: MessageStore, offset: int) -> int:
    return sum(isinstance(one, Placed) and one.offset < offset for one in store.log.scan(end=offset))


def _looks_from(store: MessageStore, crashed: bool) -> int:
    """The beginning of the file at which the recovery begins."""
    checkpoint = None
    try:
        checkpoint = store.checkpoint()
    except MessageFormatError:
        crashed = True  # what it would make of such a checkpoint is unknown: it looks at everything
    files = [file for _queue, file in store.log.files]
    if not files:
        return 0
    upto = 0
    for queue in store.queues():
        last = queue.units(queue.max_offset() - 1, 1)
        upto = max(upto, int(last[0]["offset"]) + int(last[0]["size"])) if len(last) else upto
    for file in reversed(files):
        try:
            first = store.log.message_at(file.start).record
        except MessageStoreError:
            continue
        if crashed:
            limit = checkpoint.min_timestamp_ms if checkpoint is not None else 0
            if 0 != first.store_timestamp_ms <= limit:
                return file.start
        elif first.physical_offset <= upto:
            return file.start
    return files[0].start
