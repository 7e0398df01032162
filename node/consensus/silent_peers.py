"""Which peers a leader hears nothing of, or late, told once when it begins and once when it is over: for people only.

Counted in ticks, like all silence (ticks.py). Invariant: nothing here decides anything; check-quorum does its own sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from node.consensus.api import MS, SECOND
from node.consensus.entry_dispatcher import EntryDispatcher
from node.consensus.member_state import MemberState

SHARE: Final = 2  # a peer is told to be silent after this part of the time after which a quorum's silence deposes
SLOW_AFTER_NS: Final = 500 * MS
SLOW_OVER_NS: Final = 10 * SECOND


class SilentPeers:
    """One per leadership. `counts` says of whom answers are expected at all."""

    def __init__(self, member: MemberState, silent_ticks_max: int, counts: Callable[[str], bool]) -> None:
        self._member, self._counts = member, counts
        self._after_ticks = max(2, silent_ticks_max // SHARE)
        self._told: dict[str, int] = {}  # peer -> when it had answered last
        self._slow: dict[str, int] = {}  # peer -> when a push had last waited too long

    def look(
        self, ticks: int, answered_tick: Mapping[str, int], answered_at: Mapping[str, int],
        dispatchers: Mapping[str, EntryDispatcher], now: int,
    ) -> None:  # fmt: skip
        """After each tick."""
        self._look_at_pushes(dispatchers, now)
        for peer_id, tick in answered_tick.items():
            at = answered_at[peer_id]
            told = self._told.get(peer_id)
            if told is not None and at > told:
                del self._told[peer_id]
                self._member.event("peer_answers", now, peer=peer_id, reason=f"after {(at - told) // MS} ms of silence")
            elif told is None and ticks - tick > self._after_ticks and self._counts(peer_id):
                self._told[peer_id] = at
                reason = f"no answer for {(now - at) // MS} ms"
                self._member.event("peer_silent", now, "warning", peer=peer_id, reason=reason)

    def _look_at_pushes(self, dispatchers: Mapping[str, EntryDispatcher], now: int) -> None:
        """Who takes long with what was pushed to it; over once it has not for SLOW_OVER_NS."""
        for peer_id, dispatcher in dispatchers.items():
            since, oldest = dispatcher.window.waiting_since(), dispatcher.window.oldest()
            if since is not None and oldest is not None and now - since > SLOW_AFTER_NS:
                if peer_id not in self._slow:
                    reason = f"entry {oldest.first_index} has waited {(now - since) // MS} ms for its answer"
                    self._member.event("peer_slow", now, "warning", peer=peer_id, reason=reason)
                self._slow[peer_id] = now
            elif now - self._slow.get(peer_id, now) > SLOW_OVER_NS:
                del self._slow[peer_id]
                self._member.event("peer_in_time", now, peer=peer_id)


def in_words(answered_at: Mapping[str, int], now: int) -> str:
    """Since when each peer has been silent."""
    return ", ".join(f"{peer} for {(now - at) // MS} ms" for peer, at in sorted(answered_at.items()))
