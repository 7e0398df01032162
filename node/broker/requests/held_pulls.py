"""Pulls that wait for a message, by queue and by connection.

Invariants: how many there are is bounded, and so is the memory that they take in sum; where there is no room, whoever
has most of it gives its longest waiting ones up for a connection that has less: nobody keeps others from waiting by
having many; what a connection has is found by it, however many others wait.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from node.rocketmq.dispatch import Call, Peer
from node.rocketmq.headers import PullRequest

HELD_MAX: Final = 20_000
HELD_BYTES_MAX: Final = 48 * 1024 * 1024
PULL_BYTES: Final = 2 * 1024  # one takes about so much without its tags ...
CHARACTER_BYTES: Final = 8  # ... and so much for each character of them: the text, and the set of their hashes
Queue = tuple[str, int]


@dataclass(slots=True, eq=False)
class HeldPull:
    """`codes`: the hashes of the tags that are wanted, None for all. `looked_upto`: none that it wants lies below."""

    call: Call
    said: PullRequest
    codes: frozenset[int] | None
    until_ms: int
    look_at_ms: int
    looked_upto: int
    is_held: bool = True

    @property
    def queue(self) -> Queue:
        return self.said.topic, self.said.queue_id

    @property
    def size_bytes(self) -> int:
        characters = len(self.said.subscription or "") + len(self.said.consumer_group)
        return PULL_BYTES + CHARACTER_BYTES * characters


@dataclass(slots=True)
class _Share:
    """What one connection has, longest waiting first."""

    pulls: dict[HeldPull, None] = field(default_factory=dict)
    size_bytes: int = 0


class HeldPulls:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.of_queue: dict[Queue, dict[HeldPull, None]] = {}
        self._shares: dict[Peer, _Share] = {}
        self.count = self._size_bytes = 0

    def make_room(self, held: HeldPull) -> list[HeldPull]:
        """Who gives way for this one; they are taken out already. There may be no room all the same (`has_room`):
        where nobody has more than its connection would have with it."""
        gone: list[HeldPull] = []
        mine_bytes = self._shares.get(held.call.peer, _Share()).size_bytes + held.size_bytes
        while not self.has_room(held):
            most = max(self._shares.values(), key=lambda share: share.size_bytes, default=_Share())
            if most.size_bytes <= mine_bytes:
                break
            while most.size_bytes > mine_bytes and not self.has_room(held):
                gone.append(next(iter(most.pulls)))
                self.take_out(gone[-1])
        return gone

    def has_room(self, held: HeldPull) -> bool:
        return self.count < HELD_MAX and self._size_bytes + held.size_bytes <= HELD_BYTES_MAX

    def add(self, held: HeldPull) -> None:
        self.of_queue.setdefault(held.queue, {})[held] = None
        share = self._shares.setdefault(held.call.peer, _Share())
        share.pulls[held] = None
        share.size_bytes += held.size_bytes
        self.count += 1
        self._size_bytes += held.size_bytes

    def take_out(self, held: HeldPull) -> None:
        """Once; nothing where it is not held any more."""
        if not held.is_held:
            return
        held.is_held = False
        self.count -= 1
        self._size_bytes -= held.size_bytes
        queue, share = self.of_queue[held.queue], self._shares[held.call.peer]
        del queue[held], share.pulls[held]
        share.size_bytes -= held.size_bytes
        if not queue:
            del self.of_queue[held.queue]
        if not share.pulls:
            del self._shares[held.call.peer]

    def of_peer(self, peer: Peer) -> list[HeldPull]:
        share = self._shares.get(peer)
        return [] if share is None else list(share.pulls)

    def all(self) -> list[HeldPull]:
        return [held for queue in self.of_queue.values() for held in queue]
