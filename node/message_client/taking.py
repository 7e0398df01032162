"""One queue while one client of a group has it: what it has got of it, what is done, what is committed.

Messages are done in any order: an application may have several at work. What is committed is the offset before which
all of them are done, so that none is passed over by one behind it.

Invariants: `done_to` <= `handed_to` <= `next_offset`; another turn at the same queue is another `Taking`, and what was
got in an earlier one counts for nothing here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from node.message_client.routes import Queue
from node.message_store.record import MessageRecord


class Taking:
    """See the module's docstring. `begin`: the queue offset at which the group goes on; `committed`: what the broker
    has, None: nothing."""

    def __init__(self, queue: Queue, begin: int, committed: int | None = None) -> None:
        self.queue, self.committed = queue, committed
        self.next_offset = self.handed_to = self.done_to = begin
        self._done_ahead: dict[int, int] = {}  # by where each begins, its end: of what is done behind something open

    def received(self, record: MessageRecord) -> Received:
        """The next message. What lies before it, of other tags, is done with it."""
        return Received(record, self.queue, self, self.handed_to)

    def handed(self, message: Received) -> None:
        """It waits for the application now: a pull that is ended before that begins again with it."""
        self.next_offset = self.handed_to = message.record.queue_offset + 1

    def skip_to(self, offset: int) -> None:
        """Nothing up to there is for this group."""
        if self.done_to == self.handed_to:
            self.done_to = self.handed_to = offset
        self.next_offset = offset

    def done(self, message: Received) -> None:
        if message.begin >= self.done_to:
            self._done_ahead[message.begin] = message.record.queue_offset + 1
        while (end := self._done_ahead.pop(self.done_to, None)) is not None:
            self.done_to = end


@dataclass(frozen=True, slots=True)
class Received:
    """One message, and where it came from."""

    record: MessageRecord
    queue: Queue
    taking: Taking = field(repr=False, compare=False)
    begin: int = field(repr=False, compare=False)  # behind the message before it

    @property
    def body(self) -> bytes:
        return self.record.body
