"""The entries that a leader makes by itself, in the form that the group's kind asks for.

In a plain log they are known by their magic, with bodies as they are. In a group of any other kind they are known by
the `channel` in their heads, and their bodies are made by the kind's own encoder, with the time of the entry before.

Invariants: nothing here asks anybody or waits; what an entry is, its head alone says.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from node.protocol.entry import INDEX_DTYPE, INDEX_UNIT_BYTES, Entry, Magic, Slab, iter_bodies, unpack_record
from node.protocol.group_kind import NO_PATCH, Channel, GroupKind
from node.store.errors import StoreCorrupt
from node.store.log_store import LogStore

_MAGIC_AT: Final = 3  # the lowest byte of a unit's magic, in an index record
_CHANNEL_AT: Final = 35  # and that of the channel, in a head
_CONFIG_CHANGE: Final = bytes([Magic.CONFIG_CHANGE])


class OwnEntry(NamedTuple):
    """What `LogStore.append_as_leader` takes for one of them."""

    body: bytes
    magic: Magic
    channel: int = 0
    patch_at: int = NO_PATCH


def first_of_term(kind: GroupKind, last_time: LastTime) -> OwnEntry:
    """A leader's first entry."""
    if kind.is_plain:
        return OwnEntry(b"", Magic.NOOP)
    body = kind.first_of_term(last_time.milliseconds())
    return OwnEntry(body, Magic.NORMAL, Channel.FIRST_OF_TERM, kind.position_at)


def config_change(kind: GroupKind, last_time: LastTime, content: bytes) -> OwnEntry:
    """An entry about the group itself."""
    if kind.is_plain:
        return OwnEntry(content, Magic.CONFIG_CHANGE)
    body = kind.config_change(content, last_time.milliseconds())
    return OwnEntry(body, Magic.NORMAL, Channel.CONFIG_CHANGE, kind.position_at)


class LastTime:
    """The time that the log's last entry carries, which the next one must not be before.

    Asked for where a term or a lane begins, and answered from memory: the end is there once anything was appended, and
    at the start it is read once, before anything is served (SAFETY S9). Where a cut leaves an end that is not in
    memory, the answer is the time of an entry that lay behind it, which is no earlier.
    """

    def __init__(self, kind: GroupKind, store: LogStore) -> None:
        self._kind, self._store = kind, store
        self._known_ms = -1
        if not kind.is_plain:
            with suppress(StoreCorrupt):  # who has damage does not lead for long (SAFETY S6)
                entry = store.get(store.end_index)
                self._known_ms = -1 if entry is None else kind.time_ms(entry.body)

    def milliseconds(self) -> int:
        """-1: the log is empty, or its kind's entries carry no time."""
        store = self._store
        if self._kind.is_plain or store.end_index < store.begin_index:
            return -1
        slab = store.recent_slab(store.end_index, 1)
        if slab is not None:
            self._known_ms = self._kind.time_ms(next(iter_bodies(slab)))
        return self._known_ms


def is_config_change(kind: GroupKind, entry: Entry) -> bool:
    """Whether this entry is about the group itself."""
    if kind.is_plain:
        return entry.magic == Magic.CONFIG_CHANGE
    return entry.channel == Channel.CONFIG_CHANGE


def may_hold_change(kind: GroupKind, slab: Slab) -> bool:
    """Whether a slab may hold an entry about the group; asked for each slab, so by one look at all its heads."""
    if kind.is_plain:
        return _CONFIG_CHANGE in slab.index_records[_MAGIC_AT::INDEX_UNIT_BYTES]
    if slab.count == 1:
        return slab.data[_CHANNEL_AT] == Channel.CONFIG_CHANGE
    return len(_change_offsets(kind, slab)) > 0


def config_changes_in(kind: GroupKind, slab: Slab) -> list[Entry]:
    """Those of a slab's entries that are about the group itself, in order. Raises EntryError on what is malformed."""
    entries = [unpack_record(slab.data, int(offset)) for offset in _change_offsets(kind, slab)]
    return [entry for entry in entries if is_config_change(kind, entry)]


def _change_offsets(kind: GroupKind, slab: Slab) -> npt.NDArray[np.int64]:
    """Where in a slab's bytes entries lie that may be about the group itself."""
    units = np.frombuffer(slab.index_records, INDEX_DTYPE)
    offsets = units["pos"] - slab.pos
    if kind.is_plain:
        found = units["magic"] == Magic.CONFIG_CHANGE
    else:
        at = np.clip(offsets + _CHANNEL_AT, 0, len(slab.data) - 1)  # `unpack_record` says what is wrong
        found = np.frombuffer(slab.data, np.uint8)[at] == Channel.CONFIG_CHANGE
    at_changes: npt.NDArray[np.int64] = offsets[found]
    return at_changes
