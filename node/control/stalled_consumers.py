"""Which consumer groups get nowhere: what waits for them grows, and nobody takes it. Pure.

A group that is slow, or behind after a pause, moves on: the message that has waited longest is another one at the next
look. Invariants: a group is named once it has stood still for STANDS_STILL_S by our own looks, and more waits for it
than then; one whose consuming an operator has disabled is not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from node.views.broker import GroupStand

STANDS_STILL_S: Final = 60.0
NAMED_MAX: Final = 3
GONE: Final = "broker_consumers_gone"  # perhaps on purpose
STUCK: Final = "broker_consumers_stuck"


@dataclass(frozen=True, slots=True)
class Stand:
    """Since when a group stands where it does, and how much waited for it then."""

    began_s: float
    oldest: tuple[object, ...]  # its storing time, which many share behind a clock that was set back, and its place
    waiting: int
    has_members: bool


class StalledConsumers:
    """Looks at the groups of one master, some of them at a time; `forget` where it is none any more."""

    def __init__(self) -> None:
        self._stands: dict[str, Stand] = {}
        self.forget()

    def forget(self) -> None:
        self._stands = {}
        self._begin()

    def _begin(self) -> None:
        self._seen: dict[str, Stand] = {}
        self._named: dict[str, list[str]] = {GONE: [], STUCK: []}

    def observe(self, groups: Iterable[GroupStand], now_s: float) -> None:
        """Some of the groups, each of them once until `stalled`."""
        for one in groups:
            waiting, members = one.lag_messages, one.members
            if not waiting or not one.consume_enabled:
                continue
            stand = Stand(now_s, (one.lag_since_ms, one.oldest_at), waiting, bool(members))
            before = self._stands.get(one.group)
            nobody = before is not None and not before.has_members and not members  # the oldest may expire meanwhile
            if before is not None and (nobody or before.oldest == stand.oldest):
                stand = replace(before, has_members=stand.has_members)
            self._seen[one.group] = stand
            if now_s - stand.began_s < STANDS_STILL_S or waiting <= stand.waiting:
                continue
            oldest_s = max(one.lag_ms / 1000, now_s - stand.began_s)
            text = f"{one.group} ({waiting:,} wait, the oldest for {oldest_s:.0f} s)"
            self._named[STUCK if members else GONE].append(text)

    def stalled(self) -> dict[str, str]:
        """By code, what is wrong, once all groups were looked at."""
        self._stands, named = self._seen, self._named
        self._begin()
        return {code: listed(texts) for code, texts in named.items() if texts}


def listed(texts: list[str]) -> str:
    more = len(texts) - NAMED_MAX
    return ", ".join(texts[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
