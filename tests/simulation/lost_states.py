"""A state machine loses all its snapshots, and starts anew: its log, if it was trimmed, does not bring the state back.

Fence. Somebody else has to have that state, and to be able to give it. All others of the group run, and hold a state
from which their logs go on; so does an empty member, and one that joins again, but neither of them can lead.
So one of the others that remember, and have a vote, holds the entry behind which this log begins: it can follow this
member without a snapshot, take over from it, and send it one. As long as the state is lost, the only such member loses
neither its memory nor its state, and does not leave the group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from node.snapshots.directory import FOLDER
from node.store.errors import StoreError
from node.store.log_store import EntryMeta
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
    machine = member.state_machine
    return machine is not None and member.store is not None and machine.alive and not has_lost_state(member)


def has_lost_state(member: Member) -> bool:
    """Whether its state ends before its log begins: of one that is down, as it was when its process ended."""
    return member.state_machine is not None and member.state_machine.at < member.base.index


def can_give(giver: Member, member: Member) -> bool:
    """Whether that one has a state from which this member's log goes on, and could have it from a log like its own."""
    store, base = giver.store, member.base
    if store is None or has_lost_state(giver):
        return False
    if store.base.index >= base.index:
        return True
    return store.durable_index >= base.index and meta_of(giver, base.index) == base


def meta_of(member: Member, index: int) -> EntryMeta | None:
    """Term and chain of its entry; None where it cannot be read."""
    assert member.store is not None
    try:
        return member.store.meta(index)
    except StoreError:
        return None
