"""The one interface through which the core and the driver see a log.

Who calls what: the core calls the *loop* half (appends, look-ups, hard state are memory or page-cache work); the
driver calls the *thread* half (`prepare_sync().run()`, `truncate`, `read_slab`) off the loop, never two of them that
write at once, and never a loop append while a truncation runs (the core answers busy meanwhile).

Invariants: begin <= end + 1; durable <= end; terms never decrease along the log; `term_starts` is exact.
An empty log has `end_index` = `begin_index` - 1, and `base` names the entry before `begin_index`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from node.protocol.codes import VoterState
from node.protocol.entry import CHAIN_START, Entry, Magic, Slab


class StoreError(Exception):
    """Base of everything a store raises; the message says what was being attempted and what to do."""


class StoreRefused(StoreError):
    """The directory may not be opened as it is: a person must settle it (lock held, wrong node, lost hard state)."""


class StoreCorrupt(StoreError):
    """Bytes at or below the durable index are not what was written; names the entries."""


class StoreFull(StoreError):
    """No space: nothing was written, or what was written short has been zeroed (SAFETY S8)."""


class StoreIOError(StoreError):
    """A write or fsync failed: the engine must end; it is never retried (SAFETY S1)."""


@dataclass(slots=True, frozen=True)
class EntryMeta:
    """What COMPARE needs to know of one entry. `chain` is computed also for unsealed entries; None: no anchor."""

    index: int
    term: int
    chain: int | None


# "Before the first entry there ever was": chain 0, no index, no term.
ORIGIN = EntryMeta(-1, -1, CHAIN_START)


@dataclass(slots=True, frozen=True)
class HardState:
    """What must be durable before an answer that depends on it leaves (SAFETY E2, E8).

    `vote_floor`: no vote in terms <= this one (a repaired term file, a finished rejoin). `store_ids`: the stores of the
    peers, recorded before their first vote or ack counts.
    """

    term: int = 0
    voted_for: str | None = None
    voter_state: VoterState = VoterState.FORMING
    vote_floor: int = -1
    store_ids: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class TruncationRecord:
    """`truncated/<seq>/meta.json`: who ordered which cut, and why (SAFETY S4)."""

    by: str
    leader_id: str | None
    term: int
    from_index: int
    to_index: int
    reason: str
    committed_index: int
    time: str = ""
    seq: int = -1


class SyncTicket(Protocol):
    """One group commit: taken on the loop, run in a thread, then handed back to `finish_sync` on the loop."""

    @property
    def end_index(self) -> int:
        """Everything up to here is durable once `run` has returned."""
        ...

    def run(self) -> None:
        """fdatasync of all that was written since the last round, and a checkpoint slot. Raises StoreIOError."""
        ...


class LogStore(ABC):
    """A log of entries with its hard state. See the module's docstring for who may call what when."""

    # --- identity and watermarks: plain reads -------------------------------------------------------------------
    store_id: str
    begin_index: int  # the first entry held; end_index + 1 when empty
    end_index: int  # the last entry held; begin_index - 1 when empty
    end_term: int  # term of the entry at end_index (of `base` when empty)
    end_chain: int | None  # chain at end_index
    durable_index: int  # on this disk up to here
    base: EntryMeta  # the entry before begin_index
    sealed_from: int  # from here on an unsealed entry is corruption
    recovered_commit_index: int  # from the checkpoint, never above end_index; -1: unknown
    hard_state: HardState
    data_file_size: int
    index_file_size: int

    # --- loop half ---------------------------------------------------------------------------------------------
    @abstractmethod
    def append_as_leader(self, bodies: Sequence[bytes], term: int, magic: int = Magic.NORMAL) -> list[Slab]:
        """Encodes, seals and writes; rolls files with the blank filler. One slab per data file touched, <= 1 MiB each.

        All or nothing. Raises StoreFull, StoreIOError, EntryError (a body that fits no file).
        """

    @abstractmethod
    def append_slab(self, slab: Slab) -> None:
        """Writes a verified slab that continues the log, the same bytes at the same position (SAFETY S5).

        Checks index continuity, term order, chain (`verify_slab`) first: raises EntryError and changes nothing.
        """

    @abstractmethod
    def meta(self, index: int) -> EntryMeta | None:
        """Term and chain at `index`; `base` itself is known; None outside [base.index, end_index]."""

    @abstractmethod
    def get(self, index: int) -> Entry | None:
        """The entry, its head checked against `index`; None outside the log. Raises StoreCorrupt."""

    @abstractmethod
    def recent_slab(self, first_index: int, max_bytes: int) -> Slab | None:
        """A slab that starts at `first_index`, from memory only; None if that is not in the ring any more."""

    @abstractmethod
    def term_start(self, index: int) -> int:
        """The first index of the run of equal terms that `index` lies in (for xIndex)."""

    @abstractmethod
    def last_index_of_term(self, term: int) -> int:
        """The last index with a term <= `term`, or begin_index - 1."""

    @abstractmethod
    def save_hard_state(self, state: HardState) -> None:
        """Durable on return (temp, fsync, rename, fsync directory); writes currterm too. Raises StoreIOError."""

    @abstractmethod
    def note_progress(self, committed_index: int, applied_index: int) -> None:
        """Remembers what the next checkpoint slot will say; writes nothing by itself."""

    @abstractmethod
    def prepare_sync(self) -> SyncTicket | None:
        """What the next group commit has to make durable, or None when everything is."""

    def prepare_checkpoint(self) -> SyncTicket | None:
        """For a driver that has been idle for 20 ms (SAFETY S2): a ticket that also writes a checkpoint slot.

        None when the newest slot says all there is to say. Run and finished like a ticket of `prepare_sync`.
        """
        return None

    @abstractmethod
    def finish_sync(self, ticket: SyncTicket) -> int:
        """After `run`: moves durable_index (not past a cut made meanwhile) and returns it."""

    # --- thread half -------------------------------------------------------------------------------------------
    @abstractmethod
    def read_slab(self, first_index: int, max_bytes: int) -> Slab:
        """From disk, body CRCs verified so that rot never travels; >= 1 entry. Raises StoreCorrupt, KeyError."""

    @abstractmethod
    def truncate(self, cut_index: int, record: TruncationRecord) -> None:
        """Archives [cut_index, end], lowers both checkpoint slots, zeroes the cut; all synced on return (SAFETY S4).

        Raises StoreFull when the archive cannot be written: then nothing was cut.
        """

    @abstractmethod
    def remove_prefix(self, through_index: int) -> None:
        """Drops whole files that hold only entries <= through_index; `base` is persisted first."""

    @abstractmethod
    def close(self) -> None:
        """Syncs, writes a checkpoint slot that says "clean", releases the lock."""
