"""Results of the search for damage and of its repair: values that store, engine and core share."""

from __future__ import annotations

from node.protocol.value_class import value_class


@value_class(slots=True, frozen=True)
class Fault:
    """Entries whose bytes are not what was written; both ends inclusive (SAFETY S6)."""

    first_index: int
    last_index: int
    kind: str  # a class of DESIGN 8: crc_invalid, record_invalid, index_record_mismatch, missing, ...
    detail: str = ""


@value_class(slots=True, frozen=True)
class Mended:
    """What became of a peer's entries that were to heal a fault.

    `mended_through`: the last index written so far, where the fault goes on behind it and the same peer may continue;
    below the fault's first index when these entries do not link the intact log and another peer must start anew.
    `wanted_through`: how far the same peer's entries are needed to tell, where that is behind the fault: the first
    record there may lie, too, and with the chain before it unknown only what follows it can show that.
    """

    mended_through: int
    healed: tuple[Fault, ...] = ()
    remaining: tuple[Fault, ...] = ()
    detail: str = ""
    wanted_through: int = -1


@value_class(slots=True, frozen=True)
class Scrubbed:
    """What one step of a scrub read: everything from where it began up to `next_index` - 1."""

    next_index: int
    faults: tuple[Fault, ...] = ()
    read_bytes: int = 0
