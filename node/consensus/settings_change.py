"""A change of this member's settings while it runs: flush, lease reads, timings, limits.

Theory. Members are changed one after the other, so for a while they differ, and each must be safe beside any other.
- Flush: a leader counts a peer's entries before they are on its disk only where both of them say async
  (`Progress.flush`); so nothing counts beyond what is durable from the moment either says sync. A member that said
  async rejoins after a power loss (E8), so it is on durable record that it did, before anything leaves that says so.
- Lease reads: a lease lasts, for each voter that granted it, as long as that voter says it keeps its vote (`reads.py`).
  A member that keeps it longer from now on says so; one that would keep it shorter, or not at all, keeps to what it
  promised, across restarts (E9), until every member has said that it knows better and the last lease granted
  before is over.
- Heartbeats and election time-outs: no member's heartbeat may come later than half of another's shortest time-out;
  what would is refused. Longer: first the time-outs everywhere, then the heartbeats. Shorter: the other way round.

Invariants: what is promised is durable before it is said, and is given up only after all members know of it; a
refusal changes nothing.
"""

from __future__ import annotations

from node.consensus.api import MS, ReplicaConfig
from node.consensus.leader_elector import LeaderElector
from node.consensus.leadership import Leadership
from node.consensus.member_state import MemberState
from node.consensus.membership import Membership
from node.consensus.office import Office
from node.consensus.progress import Peers
from node.consensus.settings_book import SettingsBook, settings_of
from node.protocol.codes import FlushMode
from node.protocol.group_settings import KeptSettings


class SettingsChange:
    """One per replica. `under_way`: whether the others have not all said that they have, and know of, our settings;
    asked at each look at the time, so it is worked out where that changes."""

    def __init__(
        self, member: MemberState, peers: Peers, membership: Membership, elector: LeaderElector, office: Office
    ) -> None:
        self._member, self._peers, self._membership = member, peers, membership
        self._elector, self._office = elector, office
        self._book: SettingsBook = membership.settings
        self._known_at: int | None = None  # since when everybody knows our present settings
        self._known_end = -1  # our log's end then: what was acknowledged before is below
        self._say_at = 0
        ours, kept = self._book.settings, member.hard.kept
        if kept is None:
            kept = KeptSettings(ours, ours.promises)
        self._keep(KeptSettings(kept.agreed, kept.promises.and_also(ours.promises)))

    def _keep(self, kept: KeptSettings) -> None:
        if self._member.hard.kept != kept:
            self._member.save(kept=kept)
        self._member.config.promised_ns = kept.promises.lease_ms * MS
        ours = self._book.settings
        self.under_way = self._book.was is not None or kept != KeptSettings(ours, ours.promises)

    # --- asked for ----------------------------------------------------------------------------------------------
    def refusal(self, wanted: ReplicaConfig) -> str | None:
        """Why that would not be safe now; None: it is."""
        ours, theirs = self._book.settings, settings_of(wanted)
        beat_ms, min_ms = wanted.timing.heartbeat_ns // MS, theirs.election_min_ms
        now_ms = self._member.config.timing.heartbeat_ns // MS
        if (ours, now_ms) == (theirs, beat_ms):
            return None
        if self._membership.strangers.plain:
            return "a plain DLedger process stands at a member's address, and knows no change of settings: end it first"
        for peer in self._peers.of.values():
            if peer.hello is None:
                continue
            said = peer.hello.settings
            if said is None:
                return f"{peer.peer_id} is of a release that refuses members with other settings: upgrade it first"
            if 2 * beat_ms > said.election_min_ms and beat_ms > now_ms:
                return (
                    f"heart_beat_time_interval_ms {beat_ms} would be more than half of {peer.peer_id}'s"
                    f" election_timeout_min_ms {said.election_min_ms}: raise that one on all members first"
                )
            if 2 * said.heartbeat_ms > min_ms and min_ms < ours.election_min_ms:
                return (
                    f"election_timeout_min_ms {min_ms} would be less than twice {peer.peer_id}'s"
                    f" heart_beat_time_interval_ms {said.heartbeat_ms}: lower that one on all members first"
                )
        return None

    def change(self, wanted: ReplicaConfig, now: int) -> str | None:
        """Puts it in force at once; otherwise why not."""
        refused = self.refusal(wanted)
        if refused is not None:
            return refused
        member, book = self._member, self._book
        config, before, timing = member.config, book.settings, member.config.timing
        config.take(wanted)
        after = book.settings
        if timing != config.timing:
            self._elector.retimed(now)
            self._office.unless_damaged(lambda leadership: self._beat(leadership, now))
        if before != after or timing.heartbeat_ns != config.timing.heartbeat_ns:
            self._say_anew(now)
        if before.flush is not after.flush:
            self._reflush(now)
        return None

    def _beat(self, leadership: Leadership, now: int) -> None:
        leadership.contact.retimed()
        leadership.beat(now)

    def _say_anew(self, now: int) -> None:
        member, book = self._member, self._book
        kept, after = member.hard.kept, book.settings
        assert kept is not None
        book.number += 1
        book.was = kept.agreed if kept.agreed.differences(after) else None
        self._known_at = None
        self._keep(KeptSettings(kept.agreed, kept.promises.and_also(after.promises)))
        for peer_id, peer in self._peers.of.items():
            if peer.hello is not None:
                book.compare(peer_id, peer.hello, now)
        self._say(now)

    def _say(self, now: int) -> None:
        self._say_at = now + self._member.config.timing.election_max_ns
        self._membership.introduce()

    def _reflush(self, now: int) -> None:
        """Nothing that was counted before it was durable counts any more; or what is written counts from now on."""
        if self._member.config.flush is FlushMode.SYNC:
            for peer in self._peers.of.values():
                peer.count_durable()
        else:
            self._office.unless_damaged(lambda leadership: leadership.advance_commit(now))

    # --- until all know -------------------------------------------------------------------------------------------
    def tick(self, now: int) -> None:
        """Says it again to whoever has not answered, and gives up what nobody relies on any more."""
        if not self.under_way:
            return
        member, book = self._member, self._book
        if not all(book.known_by(peer.hello) for peer in self._peers.of.values()):
            self._known_at = None
            if now >= self._say_at:
                self._say(now)
            return
        if self._known_at is None:
            self._known_at, self._known_end = now, member.store.end_index
        kept = member.hard.kept
        assert kept is not None
        if now < self._known_at + kept.promises.lease_ms * MS:
            return
        if kept.promises.unsynced and member.durable_index < min(self._known_end, member.store.end_index):
            self._say_at = now + member.config.timing.heartbeat_ns
            return
        agreed, book.was = book.settings, None
        self._keep(KeptSettings(agreed, agreed.promises))
        reason = "all members have them, and know it"
        member.event("settings_agreed", now, reason=reason, **{**agreed._asdict(), "flush": agreed.flush.value})
        self._membership.introduce()

    def next_deadline(self) -> int | None:
        """When `tick` has something to do; what it waits for comes with a HELLO or a sync."""
        if not self.under_way:
            return None
        kept = self._member.hard.kept
        if self._known_at is None or kept is None:
            return self._say_at
        return max(self._known_at + kept.promises.lease_ms * MS, self._say_at)
