"""What this member says of its settings in HELLO, and what it makes of what its peers say (SAFETY R2, E9).

A member whose settings differ is refused, unless it or this one is changing them: then what a HELLO says was agreed on
before fits, and an alarm names the difference until both are alike (`settings_change.py` says why that is safe).

Invariant: nothing here changes what is in force.
"""

from __future__ import annotations

from node.consensus.api import MS, ReplicaConfig
from node.consensus.member_state import MemberState
from node.consensus.progress import NEVER_NS, Peers, Progress
from node.protocol.codes import FlushMode
from node.protocol.group_settings import GroupSettings, SaidSettings
from node.protocol.messages import Hello

DIFFER = "settings_differ"
CONFLICT = "timings_conflict"


def settings_of(config: ReplicaConfig) -> GroupSettings:
    """What this member has in common with the others."""
    return GroupSettings(config.flush, config.lease_reads, config.timing.election_min_ns // MS)


def settings_in(hello: Hello, ours: GroupSettings) -> GroupSettings:
    """A peer's; what it does not say (version 1: how long elections take) is as ours."""
    election_min_ms = hello.election_min_ms  # said where lease reads are on
    if election_min_ms is None and hello.settings is not None:
        election_min_ms = hello.settings.election_min_ms
    return GroupSettings(hello.flush, hello.lease_reads, election_min_ms or ours.election_min_ms)


def is_older(hello: Hello | None) -> bool:
    """Whether a peer that said this is of a release before this one; None: nothing is known of it."""
    return hello is not None and hello.settings is None


def spelled(settings: GroupSettings, name: str) -> str:
    """A setting's value as the configuration has it."""
    return str(getattr(settings, name)).lower()


class SettingsBook:
    """One per replica."""

    def __init__(self, member: MemberState, peers: Peers) -> None:
        self._member, self._peers = member, peers
        self.number = 0  # how often the settings were changed in this life
        kept = member.hard.kept
        now = self.settings
        self.was = kept.agreed if kept is not None and kept.agreed.differences(now) else None

    @property
    def settings(self) -> GroupSettings:
        return settings_of(self._member.config)

    @property
    def mark(self) -> str:
        """Names our present settings: another word of them has another mark, in whatever life."""
        lives = self._member.hard.life_ids
        return f"{lives[-1] if lives else ''}.{self.number}"

    def said(self, to: str, answers: Hello | None) -> SaidSettings:
        """For a HELLO to that peer."""
        timing = self._member.config.timing
        peer = self._peers.of.get(to)
        heard = answers if answers is not None else None if peer is None else peer.hello
        knows = "" if heard is None or heard.settings is None else heard.settings.mark
        return SaidSettings(timing.heartbeat_ns // MS, timing.election_min_ns // MS, self.mark, knows, self.was)

    def refusal(self, hello: Hello) -> str | None:
        """Why that peer's settings do not go with ours; None: they do, or one of us is changing them."""
        if is_older(hello) and self._member.configuration.index >= 0:  # it would count by who belonged to it at birth
            return f"the release of {hello.node_id} knows no changes of members, and there were some: upgrade it"
        ours = self.settings
        theirs = settings_in(hello, ours)
        differences = ours.differences(theirs)
        was = None if hello.settings is None else hello.settings.was
        if not differences or (self.was is not None and not self.was.differences(theirs)):
            return None
        if was is not None and (not was.differences(ours) or (self.was is not None and not was.differences(self.was))):
            return None
        name = differences[0]
        mine, other = spelled(ours, name), spelled(theirs, name)
        return f"{name} differs: {other} at {hello.node_id}, {mine} at {self._member.self_id}"

    def heard(self, peer: Progress, before: Hello | None, hello: Hello, now: int) -> None:
        """A peer's HELLO was taken in, after that one: what it said of itself until now does not count any more."""
        ours = self.settings
        if before is not None and settings_in(before, ours).promises != settings_in(hello, ours).promises:
            peer.lease_at = -NEVER_NS
            if hello.flush is FlushMode.SYNC:
                peer.count_durable()
        self.compare(peer.peer_id, hello, now)

    def compare(self, peer_id: str, hello: Hello, now: int) -> None:
        """The alarms about a peer that is let in all the same."""
        self._compare_timings(peer_id, hello, now)
        ours = self.settings
        theirs = settings_in(hello, ours)
        differences = ours.differences(theirs)
        if not differences:
            self._member.clear_alarm(DIFFER, now, peer_id=peer_id)
            return
        own = self._member.self_id
        words = [
            f"{name} is {spelled(theirs, name)} at {peer_id}, {spelled(ours, name)} at {own}" for name in differences
        ]
        text = (
            f"settings are being changed, and are not alike yet: {', '.join(words)}; change them on the other members"
        )
        self._member.alarm(DIFFER, text, now, peer_id=peer_id, severity="warning")

    def _compare_timings(self, peer_id: str, hello: Hello, now: int) -> None:
        """A start has taken what a running member would have been refused: a heartbeat too slow for that peer."""
        member, own = self._member, self._member.self_id
        beat_ms = member.config.timing.heartbeat_ns // MS
        min_ms = hello.settings.election_min_ms if hello.settings is not None else None
        if min_ms is None or 2 * beat_ms <= min_ms:
            member.clear_alarm(CONFLICT, now, peer_id=peer_id)
            return
        text = (
            f"heart_beat_time_interval_ms {beat_ms} at {own} is more than half of election_timeout_min_ms {min_ms} at"
            f" {peer_id}, which may take {own} for lost whenever it leads: raise that one there, or lower this one"
        )
        member.alarm(CONFLICT, text, now, peer_id=peer_id, severity="warning")

    def known_by(self, hello: Hello | None) -> bool:
        """Whether a peer that said this knows our present settings, and has the same."""
        if hello is None or hello.settings is None or hello.settings.knows != self.mark:
            return False
        ours = self.settings
        return not ours.differences(settings_in(hello, ours))
