"""For whom a member speaks where it says, or goes by, what all members of the group hold.

Theory. Whoever removes the front of its log asks who needs it: a leader those whom it knows, a follower its leader's
last heartbeat, which speaks for those whom that leader knew when it made it. Each is told of a new learner at its own
moment (by an operator, or by the log), and who comes later is to learn what there is: its own log begins where its
leader's does. So who has to be asked is not who belongs to the group by now. And who has the disk of that moment yet
has forgotten nothing since: what is not on it was never said to be.

Invariants: whoever came into a leader's configuration in one step is spoken for by the heartbeats that are made after
it; what is made may be sent later, so their numbers are compared; a follower that no leader of its term has spoken to
speaks for those whom it knows itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from node.protocol.codes import Role
from node.protocol.messages import HeartBeatRequest

if TYPE_CHECKING:
    from node.consensus.configuration import Configuration
    from node.protocol.messages import Message
    from tests.simulation.member import Member
    from tests.simulation.world import World

BEFORE_ALL_FRAMES = -1
Beat = tuple[str, str, int, int]  # from, to, term, number
Told = Mapping[str, str]  # who is spoken for, and the disk that it had when it became known


@dataclass(slots=True)
class Known:
    """Whom one member knows in one life; `since`: the last frame it had made by then, and the other's disk."""

    incarnation: int
    configuration: Configuration
    since: dict[str, tuple[int, str]]


class SpokenFor:
    """Hears what `Trims` does."""

    def __init__(self) -> None:
        self._known: dict[str, Known] = {}
        self._said: dict[Beat, Told] = {}
        self._heard: dict[str, tuple[int, int, Told]] = {}  # member -> (incarnation, term, for whom)

    def stepped(self, world: World) -> None:
        for member in world.touched:
            replica = member.replica
            if replica is None:
                continue
            known, now = self._known.get(member.id), replica.configuration
            if known is None or known.incarnation != member.incarnation:
                since = {one: (BEFORE_ALL_FRAMES, world.members[one].disk_id) for one in now.members}
                self._known[member.id] = Known(member.incarnation, now, since)
            elif known.configuration is not now:
                last = replica.member.last_seq
                known.configuration = now
                known.since = {one: known.since.get(one) or (last, world.members[one].disk_id) for one in now.members}

    def sent(self, member: Member, to: str, message: Message) -> None:
        if isinstance(message, HeartBeatRequest):
            since = self._known[member.id].since
            told = {one: disk_id for one, (number, disk_id) in since.items() if number < message.seq}
            self._said[member.id, to, message.term, message.seq] = told

    def delivered(self, sender: str, to: Member, message: Message) -> None:
        """About to enter the core, which takes it in from the leader of its own term only."""
        if not isinstance(message, HeartBeatRequest) or to.replica is None:
            return
        replica = to.replica
        follows = replica.role is not Role.LEADER and replica.leader_id in (None, sender)
        if follows and message.term == replica.term and replica.member.configurations.knows(sender):
            told = self._said[sender, to.id, message.term, message.seq]
            self._heard[to.id] = to.incarnation, message.term, told

    def by(self, member: Member) -> Told:
        """By what it knows, or has heard, until this step."""
        replica, known = member.replica, self._known[member.id]
        assert replica is not None
        incarnation, term, told = self._heard.get(member.id, (-1, -1, {}))
        if replica.leadership is None and (incarnation, term) == (member.incarnation, replica.term):
            return told
        return {one: disk_id for one, (_, disk_id) in known.since.items()}
