"""Who is master and who is served in a classic pair, by what each broker said last: read by rules, pages and gauges.

Invariant: only what answers now counts; a connection that is there still proves nothing of who hears whom.
"""

from __future__ import annotations

from typing import Final

from app.health.group_view import GroupView, MemberView
from node.views.ha import HaConnection, HaView

WAITS_MS: Final = 1000
HEARTBEAT_MS: Final = 5000  # haSendHeartbeatInterval, of brokers that do not say theirs


def ha_of(one: MemberView) -> HaView | None:
    """What it says now; None where it does not answer, or its broker does not run."""
    return one.ha if one.reach == "ok" and one.ha is not None and one.ha.broker == "ok" else None


def answering(view: GroupView) -> list[tuple[MemberView, HaView]]:
    return [(one, said) for one in view.members if (said := ha_of(one)) is not None]


def masters_of(view: GroupView) -> list[tuple[MemberView, HaView]]:
    """Those that take messages, the one of the newest epoch first."""
    found = [(one, said) for one, said in answering(view) if said.is_master]
    return sorted(found, key=lambda each: each[1].epoch or 0, reverse=True)


def master_of(view: GroupView) -> tuple[MemberView, HaView] | None:
    return next(iter(masters_of(view)), None)


def slaves_of(view: GroupView) -> list[tuple[MemberView, HaView]]:
    return [(one, said) for one, said in answering(view) if said.role == "SLAVE"]


def connection_of(master: HaView, slave: str) -> HaConnection | None:
    """The newest that the master has of a slave."""
    return next((one for one in reversed(master.connections or ()) if one.peer_id == slave), None)


def silent_ms_of(view: GroupView) -> int:
    """For how long nothing may come of a broker that has nothing to say; what a slave gets it reports at once."""
    said = [one.ha.heartbeat_ms or 0 for one in view.members if one.ha is not None]
    return max(HEARTBEAT_MS, *said) + WAITS_MS


def hangs(one: HaConnection, view: GroupView) -> bool:
    """Whether it says nothing any more, and its connection is there still: its process is stopped, or the way is cut. A
    master drops it after haHousekeepingInterval, and counts it as served so long. One that answers here says itself
    whether it hears its master."""
    member = view.member(one.peer_id)
    if one.state != "transfer" or member is None:
        return False
    said = ha_of(member)
    idle_ms = silent_ms_of(view)
    silent_ms = WAITS_MS if one.lag_bytes else idle_ms  # one that is only late reports what it gets
    if said is None:
        return one.last_heard_ms is None or one.last_heard_ms > silent_ms
    theirs = None if said.following is None else said.following.last_heard_ms
    return one.last_heard_ms is not None and (
        one.last_heard_ms > idle_ms or (theirs is not None and min(one.last_heard_ms, theirs) > silent_ms)
    )


def served_by(view: GroupView, master: HaView) -> list[HaConnection]:
    """The slaves that get its log."""
    return [one for one in master.connections or () if one.state == "transfer" and not hangs(one, view)]


def unchecked_of(view: GroupView) -> list[str]:
    """Peers of RocketMQ's own, of whose log nothing can be compared."""
    found = [
        f"{one.peer_id or one.address}" for _member, said in answering(view) for one in said.connections or ()
        if one.kind == "rocketmq"
    ]  # fmt: skip
    return found + [
        said.following.address or "a master"
        for _member, said in answering(view) if said.following is not None and said.following.kind == "rocketmq"
    ]  # fmt: skip
