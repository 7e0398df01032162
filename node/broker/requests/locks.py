"""Locks of queues: an orderly consumer pulls from a queue only while it holds the queue's lock.

Who holds what is in the log (`write`, `take`), so that the next master has it; when a lock was renewed is in the
master's memory alone. A lock that came with the log counts as renewed when a master first looks at it: that is later
than every renewal which an earlier master answered, so no lock ends before LOCK_MS have passed since its client renewed
it. Clients renew every 20 s, and believe in a lock for 30 s.

Invariants: one client of a group holds a queue at a time, also across changes of master; a lock that is not renewed
within LOCK_MS is free; the table is bounded, and a look at it costs what is over, not what is held. A lock that was
given cannot be taken back, since its client believes in it: so one connection gets a part of what the others leave, and
there is some left for the next one. Many connections could take all of it together: so while more than three quarters
are held, none gets or renews more than an equal part of these. What is not renewed ends as ever, after its client has
ceased to believe in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from node.rocketmq.bodies import MessageQueue

LOCK_MS: Final = 60_000
LOCKS_MAX: Final = 100_000
SHARE: Final = 8  # one connection holds at most a part of what the others leave: one in so many
FREED_AT_ONCE: Final = 2048  # by one look: each is written into the log


class QueueLock(NamedTuple):
    """What is locked: a queue, for a group. In the log it is `topic@queue@group`."""

    topic: str
    queue_id: int
    group: str

    @property
    def key(self) -> str:
        return f"{self.topic}@{self.queue_id}@{self.group}"


def read_key(key: str) -> QueueLock | None:
    """None: this release writes no such key."""
    topic, _at, rest = key.partition("@")
    queue_id, _at, group = rest.partition("@")
    return QueueLock(topic, int(queue_id), group) if queue_id.isdecimal() and group else None


class QueueLocks:
    """See the module's docstring. `write` is given each change of holders (None: free) before it counts, and raises
    Refusal where it may not be."""

    def __init__(self, steady_ms: Callable[[], int]) -> None:
        self._steady_ms = steady_ms
        self._renewed_by: dict[QueueLock, object] = {}  # over which connection, where it is still there
        self._by_connection: dict[object, set[QueueLock]] = {}  # the same, by connection
        self._held: dict[QueueLock, tuple[str, int | None]] = {}  # by whom, and when renewed: the longest ago first
        self._from_log: dict[QueueLock, None] = {}  # whose time has not begun: None stands for it above
        self.write: Callable[[Mapping[QueueLock, str | None]], None] = lambda _change: None

    # --- at the master ------------------------------------------------------------------------------------------
    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], connection: object = None
    ) -> list[MessageQueue]:
        """Those that this client holds now, in the order asked for. Raises Refusal, and then nothing is changed."""
        now = self._steady_ms()
        found: list[MessageQueue] = []
        new: dict[QueueLock, str | None] = {}
        part, mine, beyond = self._equal_part(), len(self._by_connection.get(connection, ())), list[QueueLock]()
        for queue in dict.fromkeys(queues):
            name = QueueLock(queue.topic, queue.queue_id, group)
            holder = self._holder(name, now)
            if holder is None:
                if "@" in queue.topic or queue.queue_id < 0 or not self._has_room(name, len(new), connection, part):
                    continue  # no topic has such a name, and no queue such a number
                new[name] = client_id
            elif holder == client_id and part is not None:
                counted = self._renewed_by.get(name, self) is connection
                if mine + (not counted) > part:
                    beyond.append(name)
                    mine -= counted
                    continue
                mine += not counted
            if holder in (None, client_id):
                found.append(queue)
        if new:
            self.write(new)
        for queue in found:
            name = QueueLock(queue.topic, queue.queue_id, group)
            self._renew(name, client_id, now)
            self._count(name, connection)
        for name in beyond:
            self._count(name, None)
        return found

    def _renew(self, name: QueueLock, client_id: str, now: int) -> None:
        self._held.pop(name, None)
        self._held[name] = (client_id, now)
        self._from_log.pop(name, None)

    def _count(self, name: QueueLock, connection: object) -> None:
        """Over which connection it was renewed last; None: over one that has ended, or none is known."""
        before = self._renewed_by.pop(name, None)
        if before is not None:
            self._by_connection[before].discard(name)
            if not self._by_connection[before]:
                del self._by_connection[before]
        if connection is not None:
            self._renewed_by[name] = connection
            self._by_connection.setdefault(connection, set()).add(name)

    def gone(self, connection: object) -> None:
        """It ended. What was renewed over it is still its client's, who may come back."""
        for name in self._by_connection.pop(connection, ()):
            del self._renewed_by[name]

    def _holder(self, name: QueueLock, now: int) -> str | None:
        """Who has a lock that is not over. The first look at one that came with the log begins its time."""
        client_id, at = self._held.get(name, (None, now))
        if client_id is not None and at is None:
            self._renew(name, client_id, now)
        return None if at is not None and now - at > LOCK_MS else client_id

    def _equal_part(self) -> int | None:
        """How many one connection may have and renew; None: that is not asked yet, for the table is not that full."""
        crowded = LOCKS_MAX * 3 // 4
        return crowded // (len(self._by_connection) + 1) if len(self._held) > crowded else None

    def _has_room(self, name: QueueLock, more: int, connection: object, part: int | None) -> bool:
        """For one more, beside `more` new ones of the same request. One that is over takes no more room than it has."""
        mine = len(self._by_connection.get(connection, ()))
        left = LOCKS_MAX - (len(self._held) - mine) + (name in self._held)
        return (mine + more) * SHARE < left and (part is None or mine + more < part)

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Those that this client holds. Raises Refusal, and then nothing is changed."""
        names = [QueueLock(queue.topic, queue.queue_id, group) for queue in dict.fromkeys(queues)]
        self._free([name for name in dict.fromkeys(names) if self._held.get(name, ("", 0))[0] == client_id])

    def look(self) -> None:
        """What nobody renewed in time is free. Raises Refusal, and then it is still held."""
        now = self._steady_ms()
        for name in list(self._from_log):
            self._holder(name, now)
        over: list[QueueLock] = []
        for name in self._held:
            if len(over) == FREED_AT_ONCE or self._holder(name, now) is not None:
                break
            over.append(name)
        self._free(over)

    def _free(self, names: list[QueueLock]) -> None:
        if names:
            self.write(dict.fromkeys(names))
            for name in names:
                del self._held[name]
                self._from_log.pop(name, None)
                self._count(name, None)

    # --- out of the log, and for views ----------------------------------------------------------------------------
    def take(self, name: QueueLock, client_id: str | None) -> None:
        """As the log has it from now on; None: it is free."""
        if client_id is None:
            self._held.pop(name, None)
            self._from_log.pop(name, None)
            self._count(name, None)
        elif self._held.get(name, ("", None))[0] != client_id:  # else this master has just given it
            self._held.pop(name, None)
            self._count(name, None)
            self._held[name] = (client_id, None)
            self._from_log[name] = None

    def clear(self) -> None:
        self._held.clear()
        self._from_log.clear()
        self._renewed_by.clear()
        self._by_connection.clear()

    def of_group(self, group: str) -> dict[tuple[str, int], str]:
        """Who holds which of its queues."""
        return {(name.topic, name.queue_id): held[0] for name, held in self._held.items() if name.group == group}
