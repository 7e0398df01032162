"""When a leader last heard a quorum of its peers, and whether it still leads by that: check-quorum (SAFETY E6).

Invariants: only answers of peers with a share in the quorum are given to `heard`; silence is counted in ticks
(`ticks.py`), the clock only ends a leadership that no quorum answered for `quorum_silence_max_ns`; a tick is judged
before it is told about to people (`silent_peers.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from node.consensus.entry_dispatcher import EntryDispatcher
from node.consensus.member_state import MemberState
from node.consensus.reads import ALWAYS
from node.consensus.silent_peers import SilentPeers, in_words
from node.consensus.ticks import Ticks


class QuorumContact:
    """One per leadership. `counts` says who has a share in the quorum."""

    def __init__(self, member: MemberState, counts: Callable[[str], bool], now: int) -> None:
        self._member = member
        self._timing = member.config.timing
        self._answered_at = dict.fromkeys(member.others, now)
        self._ticks = Ticks(self._timing.tick_ns, now)
        self._silent_ticks_max = self._ticks.split(self._timing.election_max_ns)[0]
        self._answered_tick = dict.fromkeys(member.others, 0)  # how many ticks had passed then
        self._silent_peers = SilentPeers(member, self._silent_ticks_max, counts)

    def heard(self, peer_id: str, now: int) -> None:
        """That peer answered, and counts."""
        self._answered_at[peer_id] = now
        self._answered_tick[peer_id] = self._ticks.count

    def at(self) -> int:
        """Since when a quorum has answered; we ourselves always do."""
        member = self._member
        return member.configuration.reached([ALWAYS, *(self._answered_at[peer] for peer in member.other_voters)])

    def silent_ticks(self) -> int:
        """For how many ticks no quorum has answered: whether a tick came late does not matter."""
        member = self._member
        heard_at = member.configuration.reached([ALWAYS, *(self._answered_tick[peer] for peer in member.other_voters)])
        return self._ticks.count - heard_at

    def lost(self, now: int) -> str:
        """Why this member cannot go on leading; empty: it can. Counts the tick that is due."""
        if self._ticks.passed(now) and self.silent_ticks() > self._silent_ticks_max:
            return "no quorum of answers for an election time-out"
        if now >= self.at() + self._timing.quorum_silence_max_ns:
            return "no quorum of answers for long by the clock"
        return ""

    def tell(self, dispatchers: Mapping[str, EntryDispatcher], now: int) -> None:
        """After each tick: whom nothing, or late, was heard of."""
        self._silent_peers.look(self._ticks.count, self._answered_tick, self._answered_at, dispatchers, now)

    def in_words(self, now: int) -> str:
        """Since when each peer has been silent."""
        return in_words(self._answered_at, now)

    @property
    def due_at(self) -> int:
        """When the next tick is due."""
        return self._ticks.due_at
