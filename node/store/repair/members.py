"""Who belongs to the group, from the log itself: where the hard state that named the entries is lost (SAFETY M1)."""

from __future__ import annotations

from node.protocol.entry import EntryError
from node.protocol.group_entries import members_named_in
from node.protocol.group_kind import PLAIN_NAME
from node.store.errors import StoreError
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
