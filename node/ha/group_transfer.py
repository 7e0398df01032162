"""GroupTransferService: puts that wait until enough slaves have them.

Woken by acknowledgements; RocketMQ looks every millisecond, one request after the other.

Invariants: each request ends once: PUT_OK when as many distinct slaves as it needs have acknowledged its place,
FLUSH_SLAVE_TIMEOUT when its time is over; the message stays either way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from node.message_store.put_result import PutStatus
from node.protocol.value_class import value_class


@value_class(slots=True, frozen=True)
class GroupTransferRequest:
    """Waits until `slaves_needed` slaves have everything below `next_offset`."""

    next_offset: int
    slaves_needed: int
    deadline_ms: int
    done: Callable[[PutStatus], None]


class GroupTransferService:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._waiting: deque[GroupTransferRequest] = deque()
        self.timed_out = 0  # requests so far that ended FLUSH_SLAVE_TIMEOUT

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def waiting(self) -> Sequence[GroupTransferRequest]:
        """The oldest first; not to be changed."""
        return self._waiting

    @property
    def next_deadline_ms(self) -> int | None:
        return min((one.deadline_ms for one in self._waiting), default=None)

    def put_request(self, request: GroupTransferRequest) -> None:
        self._waiting.append(request)

    def acknowledged(self, acks: Iterable[int]) -> None:
        """`acks`: the place up to which each slave has the log, one number a slave."""
        ordered = sorted(acks, reverse=True)
        while self._waiting:
            first = self._waiting[0]
            if first.slaves_needed > len(ordered) or ordered[first.slaves_needed - 1] < first.next_offset:
                return
            self._waiting.popleft()
            first.done(PutStatus.PUT_OK)

    def expire(self, now_ms: int) -> None:
        late = [one for one in self._waiting if one.deadline_ms <= now_ms]
        if late:
            self.timed_out += len(late)
            self._waiting = deque(one for one in self._waiting if one.deadline_ms > now_ms)
            for one in late:
                one.done(PutStatus.FLUSH_SLAVE_TIMEOUT)

    def end(self) -> None:
        """This broker is no master any more: nobody will know."""
        waiting, self._waiting = self._waiting, deque()
        self.timed_out += len(waiting)
        for one in waiting:
            one.done(PutStatus.FLUSH_SLAVE_TIMEOUT)
