"""Who belongs to the group, from the log itself: where the hard state that named the entries is lost (SAFETY M1)."""

from __future__ import annotations

from node.protocol.entry import EntryError, Magic, decode_slab
from node.protocol.group_members import members_in
from node.store.errors import StoreError
from node.store.reader import StoreReader


def configurations_in_log(reader: StoreReader) -> tuple[tuple[int, str], ...]:
    """Every entry about the members that the log holds; reads all of it. Damage hides none but its own entries."""
    found: list[tuple[int, str]] = []
    index = reader.begin_index
    while index <= reader.end_index:
        try:
            for slab in reader.slabs(index, reader.end_index):
                for entry in decode_slab(slab) if bytes([Magic.CONFIG_CHANGE]) in slab.index_records[3::32] else ():
                    if entry.magic == Magic.CONFIG_CHANGE and members_in(entry.body) is not None:
                        found.append((entry.index, entry.body.decode()))
                index = slab.last_index + 1
        except (StoreError, EntryError):
            index += 1  # behind it the log goes on
    return tuple(found)
