"""Input and result of recovery, as plain values between `opening` and `log_recovery`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from node.protocol.entry import Slab
from node.store.faults.results import Fault
from node.store.files.identity import Base
from node.store.log_store import EntryMeta
from node.store.recovery.walk import Cursor
from node.store.term_table import TermTable


@dataclass(slots=True)
class Recovered:
    """What `recover` found. `end` is the cursor for the next entry."""

    begin_index: int
    begin_pos: int
    base: EntryMeta
    end: Cursor
    terms: TermTable
    newest: Slab | None
    committed_index: int = -1
    applied_index: int = -1
    lost_history: str = ""  # why this store may not vote (SAFETY E8), "" where nothing was lost
    alarms: list[str] = field(default_factory=list)
    archived_bytes: int = 0
    faults: tuple[Fault, ...] = ()
    straight_from: int = 0  # for a Java directory: found by the walk
    members_at_base: tuple[int, str] | None = None  # see `Base.members`


@dataclass(slots=True, frozen=True)
class Circumstances:
    """What recovery has to know besides the files."""

    node_id: str
    boot_id: str
    java: bool  # no quorumscope.json: only the Java node wrote here
    sealed_from: int
    base: Base | None
    java_base_term: int | None = None  # from the Java node's snapshot, where there is one
    java_committed_index: int = -1  # from Java's checkpoint, at adoption
    slot_doubtful: bool = False  # the other checkpoint slot is rotten: it may have said more
    first_known_fault: int | None = None
    straight_from: int = 0  # from here on positions in heads are held against the records' places
    rejoin_first: Callable[[str], None] = lambda _: None  # makes REJOINING durable: called before a tail is cut
    origin_pos: int = 0  # where entry 0 lies, or lay
