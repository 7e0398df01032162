"""What a range of the commit log says should be in the consume queues and in the index.

A range is read once and leaves columns: no message stays in memory. Ranges of one log can be read apart (each begins
at the start of a file) and joined; joined they say the same as one reading of the whole.

Invariants: rows are in the order of the log; what cannot be read leaves damage, never a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from node.message_store.commit_log import BlankSpace, Damage, Item
from node.message_store.delay_levels import parse_delay_levels
from node.message_store.java_text import key_hash
from node.message_store.properties import index_keys
from node.message_store.queue_units import is_indexed, is_queued, unit_tags_code

DUE_UNIT: Final = np.dtype([("queue", "i4"), ("number", "i8"), ("offset", "i8"), ("size", "i4"), ("tags_code", "i8")])
KEY: Final = np.dtype([("hash", "i4"), ("offset", "i8")])
Rows = npt.NDArray[Any]


@dataclass(slots=True)
class Facts:
    """`queues[n]` is the topic and the number of the queue that rows with `queue` n belong to."""

    queues: list[tuple[str, int]] = field(default_factory=list)
    units: Rows = field(default_factory=lambda: np.zeros(0, DUE_UNIT))
    keys: Rows = field(default_factory=lambda: np.zeros(0, KEY))
    messages: int = 0
    damage: list[Damage] = field(default_factory=list)
    bad_bodies: list[int] = field(default_factory=list)
    out_of_place: list[tuple[int, int]] = field(default_factory=list)  # offset, what the record says
    end: int = 0
    messages_before_bad: int | None = None
    """How many messages lie before the first that a recovery would stop at; None: there is none."""

    @property
    def first_bad(self) -> int | None:
        """Where a recovery that looks here stops: at the first body that is not sound, or the first damage."""
        places = self.bad_bodies[:1] + [one.offset for one in self.damage[:1]]
        return min(places, default=None)


def facts_of(items: Iterable[Item], delay_levels_ms: tuple[int, ...] | None = None) -> Facts:
    """Reads what a scan gives. Entries that are no message of a client's (`channel`) say nothing of queues and keys."""
    levels = parse_delay_levels() if delay_levels_ms is None else delay_levels_ms
    found = Facts()
    numbers: dict[tuple[str, int], int] = {}
    units: list[tuple[int, int, int, int, int]] = []
    keys: list[tuple[int, int]] = []
    for item in items:
        if isinstance(item, Damage):
            if found.messages_before_bad is None:
                found.messages_before_bad = found.messages
            found.damage.append(item)
            continue
        if isinstance(item, BlankSpace):
            found.end = item.offset + item.size_bytes
            continue
        record, offset = item.record, item.offset
        found.end = item.end
        if not record.is_body_sound:
            if found.messages_before_bad is None:
                found.messages_before_bad = found.messages
            found.bad_bodies.append(offset)
        if not item.is_in_place:
            found.out_of_place.append((offset, record.physical_offset))
        found.messages += 1
        if item.channel:
            continue
        properties = record.properties
        if is_queued(record):
            queue = numbers.setdefault((record.topic, record.queue_id), len(numbers))
            units.append(
                (queue, record.queue_offset, offset, item.size_bytes, unit_tags_code(record, levels, properties))
            )
        if is_indexed(record):
            keys += [(key_hash(record.topic, key), offset) for key in index_keys(properties)]
    found.queues = list(numbers)
    found.units = np.array(units, DUE_UNIT)
    found.keys = np.array(keys, KEY)
    return found


def joined(parts: Sequence[Facts]) -> Facts:
    """The facts of ranges that follow one another."""
    whole = Facts()
    numbers: dict[tuple[str, int], int] = {}
    units: list[Rows] = []
    for part in parts:
        renamed = np.array([numbers.setdefault(one, len(numbers)) for one in part.queues], "i4")
        rows = part.units.copy()
        if len(rows):
            rows["queue"] = renamed[rows["queue"]]
        units.append(rows)
        if whole.messages_before_bad is None and part.messages_before_bad is not None:
            whole.messages_before_bad = whole.messages + part.messages_before_bad
        whole.messages += part.messages
        whole.damage += part.damage
        whole.bad_bodies += part.bad_bodies
        whole.out_of_place += part.out_of_place
        whole.end = max(whole.end, part.end)
    whole.queues = list(numbers)
    whole.units = np.concatenate(units) if units else whole.units
    whole.keys = np.concatenate([part.keys for part in parts]) if parts else whole.keys
    return whole


def in_damage(offsets: npt.NDArray[Any], damage: Sequence[Damage], head_bytes: int = 0) -> npt.NDArray[np.bool_]:
    """Which offsets lie in damaged bytes: of messages there only their units and keys are left."""
    found = np.zeros(len(offsets), np.bool_)
    for one in damage:
        found |= (offsets >= one.offset) & (offsets < one.offset + one.size_bytes + head_bytes)
    return found
