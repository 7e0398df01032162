"""Which entries are about the group itself, and what they say, by the name of the group's kind alone.

For whoever has a log's bytes and no `GroupKind`: the store, back-ups, repairs. They need no code of the kind to read
such an entry, or to append one where an operator makes a group anew.

Invariants: what an entry is, its head alone says; what is made here is what a leader's own `GroupKind` would make.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from node.protocol.entry import INDEX_UNIT_BYTES, BytesLike, Entry, Magic, Slab, decode_slab
from node.protocol.group_kind import BROKER_NAME, NO_PATCH, PLAIN_NAME, Channel
from node.protocol.group_members import members_in
from node.protocol.inert_records import PLACE_AT, content_of, inert_record, time_of

# What stands before the content of each body in a group with a state machine: its type, and a time in ms.
STAMP: Final = struct.Struct(">Bq")
STAMPED_CONFIG_CHANGE: Final = 4


def about_group(kind_name: str, entry: Entry) -> bytes | None:
    """What an entry says of the group itself; None: it is another entry."""
    if kind_name == PLAIN_NAME:
        return bytes(entry.body) if entry.magic == Magic.CONFIG_CHANGE else None
    return content_in(kind_name, entry.body) if entry.channel == Channel.CONFIG_CHANGE else None


def content_in(kind_name: str, body: BytesLike) -> bytes:
    """The content of a body that is about the group itself; empty where nothing can be read."""
    if kind_name == PLAIN_NAME:
        return bytes(body)
    return content_of(body) if kind_name == BROKER_NAME else bytes(body[STAMP.size :])


def members_named_in(kind_name: str, slab: Slab) -> list[tuple[int, str]]:
    """A slab's entries that say who belongs to the group: where each is, and what it says. Raises EntryError."""
    if kind_name == PLAIN_NAME and bytes([Magic.CONFIG_CHANGE]) not in slab.index_records[3::INDEX_UNIT_BYTES]:
        return []
    said = [(entry.index, about_group(kind_name, entry)) for entry in decode_slab(slab)]
    return [(index, body.decode()) for index, body in said if body is not None and members_in(body) is not None]


class ToAppend(NamedTuple):
    """What `LogStore.append_as_leader` takes for an entry about the group itself."""

    body: bytes
    magic: Magic
    channel: int = Channel.MESSAGE
    patch_at: int = NO_PATCH


def entry_about_group(kind_name: str, content: bytes, last: Entry | None) -> ToAppend:
    """One that says `content`, behind the entry `last`, whose time it has."""
    if kind_name == PLAIN_NAME:
        return ToAppend(content, Magic.CONFIG_CHANGE)
    time_ms = 0 if last is None else max(_time_in(kind_name, last.body), 0)
    if kind_name == BROKER_NAME:
        record = inert_record(Channel.CONFIG_CHANGE, content, time_ms)
        return ToAppend(record, Magic.NORMAL, Channel.CONFIG_CHANGE, PLACE_AT)
    return ToAppend(STAMP.pack(STAMPED_CONFIG_CHANGE, time_ms) + content, Magic.NORMAL, Channel.CONFIG_CHANGE)


def _time_in(kind_name: str, body: BytesLike) -> int:
    if kind_name == BROKER_NAME:
        return time_of(body)
    return int(STAMP.unpack_from(body)[1]) if len(body) >= STAMP.size else -1
