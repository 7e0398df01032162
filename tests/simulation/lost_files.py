"""A file of a member's store that is removed or shortened while nobody runs on it (SAFETY S6).

Invariants: of data files only old ones go, behind which the log goes on, and only entries that are committed, durable,
and intact on somebody who remembers: what is lost can be fetched. An index file may always go.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from node.store.recovery.damage import read_unit
from node.store.recovery.walk import first_index_in

if TYPE_CHECKING:
    from node.store.file_store import FileStore
    from tests.simulation.member import Member

KEPT_BYTES = (0, 0, 0, 1, 700)  # of the file; 0: the whole file goes


def lose_a_file(member: Member, rng: random.Random, is_elsewhere: Callable[[int], bool]) -> str:
    """Takes one away; which, and how much of it stays; "" where none may go."""
    store, replica = member.store, member.replica
    if store is None or replica is None or member.lost_memory or store.faults:
        return ""
    keep_bytes = rng.choice(KEPT_BYTES)
    if rng.random() < 0.3:
        found: list[tuple[Path, list[tuple[int, int]]]] = [(segment.path, []) for segment in store.files.index]
    else:
        found = _old_files(store, min(replica.committed_index, store.durable_index))
        found = [one for one in found if all(is_elsewhere(index) for _, index in one[1])]
    if not found:
        return ""
    path, held = found[rng.randrange(len(found))]
    member.damage.lose_file(path, keep_bytes, held)
    return f"{path} {keep_bytes}"


def _old_files(store: FileStore, last_index: int) -> list[tuple[Path, list[tuple[int, int]]]]:
    """The data files with entries up to `last_index` only; with each entry's offset and index."""
    found: list[tuple[Path, list[tuple[int, int]]]] = []
    for segment in store.files.data:
        following = store.files.data.find(segment.end)
        end = None if following is None else first_index_in(following)
        if end is None or not store.begin_index < end <= last_index + 1:
            continue
        units = [read_unit(store.files.index, index) for index in range(store.begin_index, end)]
        inside = [unit for unit in units if unit is not None and segment.start <= unit.pos < segment.end]
        if inside:
            found.append((segment.path, [(unit.pos - segment.start, unit.index) for unit in inside]))
    return found
