"""A state machine loses all its snapshots, and starts anew: its log, if it was trimmed, does not bring the state back.

Fence. Somebody else has to have that state: all others of the group run, and hold one from which their logs go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from node.snapshots.directory import FOLDER
from tests.simulation.disk_files import Folder

if TYPE_CHECKING:
    from tests.simulation.member import Member


def lose_state(member: Member, others: list[Member]) -> str:
    """What went; "" where nothing may."""
    machine, store = member.state_machine, member.store
    if machine is None or store is None or not machine.alive or not all(map(_has_state, others)):
        return ""
    there = member.platform._find(member.directory / FOLDER)
    if isinstance(there, Folder):
        for name in [one for one in there.entries if one.startswith("snapshot_")]:
            del there.entries[name]
            there.durable.pop(name, None)
    lost = machine.saved
    machine.lose_snapshots()
    return f"{member.id} {-1 if lost is None else lost.meta.index}, its log begins at {store.begin_index}"


def _has_state(member: Member) -> bool:
    machine, store = member.state_machine, member.store
    return machine is not None and store is not None and machine.alive and machine.at + 1 >= store.begin_index
