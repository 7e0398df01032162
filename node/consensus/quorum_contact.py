"""Check-quorum: when a leader last heard a quorum of its peers, and whether it still leads (SAFETY E6).

Invariants: only answers of peers with a share in the quorum are noted (`Progress.answered`); silence is counted in
ticks (`ticks.py`), the clock only ends a leadership that no quorum answered for `quorum_silence_max_ns`; a tick is
judged before it is reported (`silent_peers.py`).
"""

from __future__ import annotations

from typing import Final

from node.consensus.member_state import MemberState
from node.consensus.progress import Peers
from node.consensus.reads import ALWAYS
from node.consensus.silent_peers import SilentPeers, in_words
from node.consensus.ticks import Ticks

FRESH_TICKS: Final = 4  # two heartbeats


class QuorumContact:
    """One per leadership."""

    def __init__(self, member: MemberState, peers: Peers, now: int) -> None:
        self._member, self._peers = member, peers
        self.ticks = Ticks(member.config.timing.tick_ns, now)
        self._silent_ticks_max = self._fresh_ticks = 0
        self._silent_peers = SilentPeers(member, peers)
        self.retimed()

    def retimed(self) -> None:
        """These time-outs are in force; what was counted counts."""
        timing = self._member.config.timing
        self.ticks.period_ns = timing.tick_ns
        self._silent_ticks_max = self.ticks.split(timing.election_max_ns)[0]
        self._silent_peers.retimed(self._silent_ticks_max)
        self._fresh_ticks = min(FRESH_TICKS, self._silent_ticks_max // 2 - 1)

    def at(self) -> int:
        """Since when a quorum has answered; we ourselves always do."""
        times = [peer.answered_at for peer in self._peers.voters]
        return self._member.configuration.reached_by(self._member.self_id, ALWAYS, times)

    def silent_ticks(self) -> int:
        """For how many ticks no quorum has answered: whether a tick came late does not matter."""
        ticks = [peer.answered_tick for peer in self._peers.voters]
        return self.ticks.count - self._member.configuration.reached_by(self._member.self_id, ALWAYS, ticks)

    def is_fresh(self, now: int) -> bool:
        """Whether every voter answered so lately, by ticks and by the clock, that a tick more or less judges nobody."""
        ticks, since = self.ticks.count - self._fresh_ticks, now - FRESH_TICKS * self.ticks.period_ns
        return all(peer.answered_tick > ticks and peer.answered_at > since for peer in self._peers.voters)

    def lost(self, now: int) -> str:
        """Why this member cannot go on leading; empty: it can. Counts the tick that is due."""
        if self.ticks.passed(now) and self.silent_ticks() > self._silent_ticks_max:
            return "no quorum of answers for an election time-out"
        if now >= self.at() + self._member.config.timing.quorum_silence_max_ns:
            return "no quorum of answers for long by the clock"
        return ""

    def tell(self, now: int) -> None:
        """After each tick: whom nothing, or late, was heard of."""
        self._silent_peers.look(self.ticks.count, now)

    def in_words(self, now: int) -> str:
        """Since when each voter has been silent."""
        return in_words(self._peers.voters, now)

    @property
    def due_at(self) -> int:
        """When the next tick is due."""
        return self.ticks.due_at
