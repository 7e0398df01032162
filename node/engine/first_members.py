"""What a start may not change without a word: whose store a directory holds, and with which voters the group was born.

Another [node] id finds no store of its own, makes an empty one beside the old, and leaves the old one's entries behind.
Other [peers] count another majority than the members who still go by the old ones: two leaders of one term can be
elected, and what was acknowledged is lost (SAFETY M2). Once the log says who belongs to the group, [peers] is only
where to find them.

Invariants: nothing is changed where this refuses, but a new store's directory; a member that never voted may be
corrected freely.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from node.config import Settings
from node.protocol.codes import VoterState
from node.store.errors import StoreError, StoreRefused
from node.store.file_store import FileStore
from node.store.files.identity import IDENTITY, DirectoryLock, Identity, read_identity
from node.store.files.platform import Platform

STORE_PREFIX: Final = "dledger-"


def refuse_another_id(settings: Settings, platform: Platform) -> None:
    """Before a new store is made: not beside one of this group that nobody runs. Raises StoreRefused."""
    own = settings.store_directory
    if platform.exists(own / IDENTITY):
        return
    data = settings.node.data
    for name in platform.names(data):
        directory = data / name
        if not name.startswith(STORE_PREFIX) or directory == own or not platform.exists(directory / IDENTITY):
            continue
        found = _stopped(directory, platform)
        if found is not None and found.group == settings.node.group:
            raise StoreRefused(
                f"{data} holds the store of {found.node_id}, and none of {settings.node.id}: if this member was"
                f' {found.node_id} until now, set [node] id back to "{found.node_id}"; if it is another one, give it'
                f" another --data, or move {directory} away first"
            )


def _stopped(directory: Path, platform: Platform) -> Identity | None:
    """Whose store that is; None where somebody runs it (members may share a directory), or where nothing says so."""
    try:
        lock = DirectoryLock(directory, platform)
    except StoreRefused:
        return None
    except StoreError:
        pass
    else:
        lock.release()
    with suppress(StoreRefused):
        return read_identity(directory, platform)
    return None


def settle_founders(settings: Settings, store: FileStore) -> None:
    """Puts on record the voters that the group is born with, and holds a voter's [peers] to them. Raises StoreRefused,
    StoreIOError."""
    hard, node = store.hard_state, settings.node
    if hard.configurations or node.join:
        return  # the log says who belongs to the group
    wanted = tuple(sorted(settings.peers))
    if hard.founders == wanted:
        return
    if hard.founders and hard.voter_state is VoterState.VOTER:
        raise StoreRefused(
            f"[peers] names {', '.join(wanted)}, and this store's group was born with {', '.join(hard.founders)}:"
            " set [peers] back on every member; members come and go with `quorumscope members add`, `remove` and"
            " `replace` while the group runs"
        )
    store.save_hard_state(replace(hard, founders=wanted))
