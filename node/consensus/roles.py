"""The roles of a member and the table of transitions between them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from node.protocol.codes import Role


class RoleEvent(StrEnum):
    """What can change a role."""

    CAMPAIGN = "campaign"  # no live leader for an election time-out, or asked to take leadership
    ELECTED = "elected"  # a quorum voted for us
    FOLLOW = "follow"  # a leader of our term spoke
    DEPOSED = "deposed"  # a higher term, or no quorum of answers


ROLE_TRANSITIONS: Mapping[tuple[Role, RoleEvent], Role] = {
    (Role.CANDIDATE, RoleEvent.CAMPAIGN): Role.CANDIDATE,
    (Role.FOLLOWER, RoleEvent.CAMPAIGN): Role.CANDIDATE,
    (Role.CANDIDATE, RoleEvent.ELECTED): Role.LEADER,
    (Role.CANDIDATE, RoleEvent.FOLLOW): Role.FOLLOWER,
    (Role.FOLLOWER, RoleEvent.FOLLOW): Role.FOLLOWER,
    (Role.CANDIDATE, RoleEvent.DEPOSED): Role.CANDIDATE,
    (Role.FOLLOWER, RoleEvent.DEPOSED): Role.CANDIDATE,
    (Role.LEADER, RoleEvent.DEPOSED): Role.CANDIDATE,
}
