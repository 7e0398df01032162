"""What all members of a group have alike and may change while they run, and what a member keeps to meanwhile.

Theory. What a leader concludes from a member's answer rests on that member's settings: with flush async an entry counts
that is not on its disk yet (SAFETY R2), with lease reads on it keeps its vote for a while (C1, E9). So a member that
changes them keeps to what others may still believe of it, until each of them has said that it knows better.
"""

from __future__ import annotations

from typing import NamedTuple

from node.protocol.codes import FlushMode


class GroupSettings(NamedTuple):
    """The same on all members, but while they are being changed."""

    flush: FlushMode
    lease_reads: bool
    election_min_ms: int

    @property
    def promises(self) -> Promises:
        """What a member that says this lets others rely on."""
        return Promises(self.election_min_ms if self.lease_reads else 0, self.flush is FlushMode.ASYNC)

    def differences(self, theirs: GroupSettings) -> list[str]:
        """The names of what is not alike; how long an election takes matters with lease reads only."""
        found = [name for name in ("flush", "lease_reads") if getattr(self, name) != getattr(theirs, name)]
        if self.lease_reads and theirs.lease_reads and self.election_min_ms != theirs.election_min_ms:
            found.append("election_min_ms")
        return found


class Promises(NamedTuple):
    """What a member keeps to, also after a restart.

    `lease_ms`: it gives no vote for so long after its leader spoke, and after its own start. `unsynced`: what it
    acknowledged may not have been on its disk, so that it rejoins after a power loss (E8).
    """

    lease_ms: int
    unsynced: bool

    def and_also(self, more: Promises) -> Promises:
        """Both."""
        return Promises(max(self.lease_ms, more.lease_ms), self.unsynced or more.unsynced)


class KeptSettings(NamedTuple):
    """On record in a member's hard state: what all agreed on last, and what it keeps to."""

    agreed: GroupSettings
    promises: Promises


class SaidSettings(NamedTuple):
    """What a HELLO says beside flush and lease reads.

    `mark` names this word of the sender's settings, `knows` is the receiver's mark that the sender took in last. `was`:
    what the group agreed on before the sender changed its settings; None: nothing is under way.
    """

    heartbeat_ms: int
    election_min_ms: int
    mark: str
    knows: str
    was: GroupSettings | None = None
