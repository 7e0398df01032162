"""Crowds that take all locks of queues together, and renew them: whoever comes anew gets some, and no queue has two.

How many there are, how much each asks for and when comes from a seed that is printed. The clock is the test's own.
"""

from __future__ import annotations

import random
from typing import Final

import pytest

from node.broker.requests import locks
from node.rocketmq.bodies import MessageQueue
from tests.attack.remoting_kit import drawn

ALL: Final = 10_000
RENEWED_MS: Final = 20_000
BELIEVED_MS: Final = 30_000  # by a client, since it was answered
NEEDED: Final = 4


class Clients:
    """Each believes in what it was answered for as long as RocketMQ's do, and all of them ask for the same groups."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.now = rng, 0
        self.table = locks.QueueLocks(lambda: self.now)
        self.believed: dict[tuple[str, int], tuple[str, int]] = {}

    def lock(self, client: str, group: str, numbers: list[int], connection: object) -> int:
        given = self.table.lock(group, client, [MessageQueue("T", "b", number) for number in numbers], connection)
        for one in given:
            before, until = self.believed.get((group, one.queue_id), (client, 0))
            assert before == client or until < self.now, f"{client} and {before} hold queue {one.queue_id} of {group}"
            self.believed[group, one.queue_id] = (client, self.now + BELIEVED_MS)
        return len(given)

    def crowd(self, size: int) -> None:
        """Each asks for more than there is, in requests of any size, under its own group or one of all."""
        for number in self.rng.sample(range(size), size):
            group = self.rng.choice([f"g{number}", f"g{number}", "shared"])
            asked = self.rng.choice([100, 1000, ALL])
            step = self.rng.choice([7, 64, 4096])
            for at in range(0, asked, step):
                if not self.lock(f"c{number}", group, list(range(at, min(asked, at + step))), number):
                    break


@pytest.mark.parametrize("size", [20, pytest.param(77, marks=pytest.mark.long), 150])
def test_a_crowd_that_takes_all_locks_makes_room_for_whoever_comes(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "LOCKS_MAX", ALL)
    clients = Clients(drawn(f"hoarders {size}"))
    small = list(range(NEEDED))
    assert clients.lock("small", "small", small, "small") == NEEDED
    for _ in range(3):
        clients.crowd(size)
    got = 0
    for _ in range(0, 4 * locks.LOCK_MS, RENEWED_MS):
        clients.now += RENEWED_MS
        for _ in range(ALL // locks.FREED_AT_ONCE + 1):
            clients.table.look()
        clients.crowd(size)
        assert clients.lock("small", "small", small, "small") == NEEDED, "who holds few goes on holding them"
        got = clients.lock("newcomer", "newcomer", small, "newcomer")
    assert got == NEEDED


def test_nobody_is_refused_a_renewal_while_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "LOCKS_MAX", ALL)
    clients = Clients(drawn("renewals"))
    held = [clients.lock(f"c{n}", f"g{n}", list(range(ALL)), n) for n in range(5)]
    assert held[0] == ALL // locks.SHARE
    for _ in range(5):
        clients.now += RENEWED_MS
        assert [clients.lock(f"c{n}", f"g{n}", list(range(held[n])), n) for n in range(5)] == held
