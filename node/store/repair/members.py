"""Who belongs to the group, from the log itself: what the hard state names may be lost, or may never have come (M1)."""

from __future__ import annotations

from node.protocol.entry import EntryError
from node.protocol.group_entries import about_group, members_named_in
from node.protocol.group_kind import PLAIN_NAME
from node.store.errors import StoreError
from node.store.file_store import FileStore
from node.store.reader import StoreReader


def configurations_in_log(reader: StoreReader) -> tuple[tuple[int, str], ...]:
    """Every entry about the members that the log holds; reads all of it. Damage hides none but its own entries."""
    found: list[tuple[int, str]] = []
    kind = PLAIN_NAME if reader.identity is None else reader.identity.kind
    index = reader.begin_index
    while index <= reader.end_index:
        try:
            for slab in reader.slabs(index, reader.end_index):
                found += members_named_in(kind, slab)
                index = slab.last_index + 1
        except (StoreError, EntryError):
            index += 1  # behind it the log goes on
    return tuple(found)


def configurations_below(store: FileStore, cut_index: int) -> tuple[tuple[int, str], ...]:
    """What the hard state is to name once the log ends before that entry. It names the newest committed one and those
    behind it: where all of these go, the ones before are looked for in the log."""
    named = store.hard_state.configurations
    kept = tuple(record for record in named if record[0] < cut_index)
    if kept or not named:
        return kept
    found = configurations_in_log(StoreReader(store.directory, platform=store.files.platform))
    return tuple(record for record in found if record[0] < cut_index)


def configurations_held(store: FileStore) -> list[tuple[int, str]]:
    """Of the entries that the hard state names those that the log holds, there or behind, or held once. Raises
    StoreCorrupt."""
    return [record for record in store.hard_state.configurations if _holds(store, *record)]


def _holds(store: FileStore, index: int, body: str) -> bool:
    if index <= store.base.index:
        return True
    entries = (store.get(at) for at in range(index, store.end_index + 1))
    return any(one is not None and about_group(store.kind, one) == body.encode() for one in entries)
