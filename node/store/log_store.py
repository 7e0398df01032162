"""The one interface through which the core and the driver see a log.

Who calls what: the core calls the *loop* half (appends, look-ups, hard state are memory or page-cache work); the
driver calls the *thread* half (`prepare_sync().run()`, `truncate`, `read_slab`) off the loop, never two of them that
write at once, and never a loop append while a truncation runs (the core answers busy meanwhile).

Invariants: begin <= end + 1; durable <= end; terms never decrease along the log; `term_start` is exact.
An empty log has `end_index` = `begin_index` - 1, and `base` names the entry before `begin_index`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Protocol

from node.protocol.codes import VoterState
from node.protocol.entry import CHAIN_START, Entry, EntryError, Magic, Slab
from node.protocol.group_kind import NO_PATCH, PLAIN_NAME
from node.protocol.group_settings import KeptSettings
from node.protocol.messages import MemberMark
from node.protocol.value_class import value_class
from node.store.errors import StoreCorrupt
from node.store.faults.results import Fault, Mended, Scrubbed
from node.store.retention import Survey

if TYPE_CHECKING:
    from node.store.files.identity import Base
    from node.store.pins import Pins


@value_class(slots=True, frozen=True)
class EntryMeta:
    """What COMPARE needs to know of one entry. `chain` is computed also for unsealed entries; None: no anchor."""

    index: int
    term: int
    chain: int | None


# "Before the first entry there ever was": chain 0, no index, no term.
ORIGIN = EntryMeta(-1, -1, CHAIN_START)


@value_class(slots=True, frozen=True)
class HardState:
    """What must be durable before an answer that depends on it leaves (SAFETY E2, E8).

    `vote_floor`: no vote in terms <= this one (a repaired term file, a finished rejoin). `store_ids`: the stores of the
    peers, recorded before their first vote or ack counts; `peer_lives`: the newest life of each proven peer.
    `life_ids`: our own, the newest last, one for each open for serving. `store_id`: drawn anew while running, when this
    store turned out to be a restored copy; it counts instead of the identity's. `group_id`: C9; None: none yet.
    `marks_from`: this store holds all that was committed in earlier terms, or an operator accepted what is gone, so
    that marks of such terms say nothing against it (E8).
    `naming`: where the entry is that will name the group once it is committed (-1: not known), and the id in it.
    `configurations`: where entries are that say who belongs to the group, and their bodies: the newest committed one
    and those behind it. It is here before the entry is in the log: so one that cannot be found there never was.
    `kept`: the settings that this member keeps to (`consensus/settings_change.py`). `owner`: whose state this is.
    `founders`: the voters that the group was born with, as configured. `replaced_id`: the one that `recover-members`
    replaced last. Of these four None, or (): not on record. Readers of version 1 drop all after `store_ids`.
    """

    term: int = 0
    voted_for: str | None = None
    voter_state: VoterState = VoterState.FORMING
    vote_floor: int = -1
    store_ids: dict[str, str] = field(default_factory=dict)
    life_ids: tuple[str, ...] = ()
    peer_lives: dict[str, str] = field(default_factory=dict)
    store_id: str | None = None
    group_id: str | None = None
    marks_from: int = -1
    naming: tuple[int, str] | None = None
    configurations: tuple[tuple[int, str], ...] = ()
    kept: KeptSettings | None = None
    owner: str | None = field(default=None, compare=False)
    founders: tuple[str, ...] = field(default=(), compare=False)
    replaced_id: str | None = None


@value_class(slots=True, frozen=True)
class TruncationRecord:
    """`truncated/<seq>/meta.json`: who ordered which cut, and why (SAFETY S4).
    `begins_behind`: the log that was archived as a whole was replaced by one that begins behind that entry (M6).
    """

    by: str
    leader_id: str | None
    term: int
    from_index: int
    to_index: int
    reason: str
    committed_index: int
    time: str = ""
    seq: int = -1
    begins_behind: int = -1


class SyncTicket(Protocol):
    """One group commit: taken on the loop, run in a thread, then handed back to `finish_sync` on the loop."""

    @property
    def end_index(self) -> int:
        """Everything up to here is durable once `run` has returned."""

    def run(self) -> None:
        """fdatasync of all that was written since the last round, and a checkpoint slot. Raises StoreIOError."""


class LogStore(ABC):
    """A log of entries with its hard state. See the module's docstring for who may call what when."""

    # --- identity and watermarks: plain reads -------------------------------------------------------------------
    @property
    @abstractmethod
    def store_id(self) -> str:
        """What peers tell a wiped disk from the one they knew by."""

    @property
    @abstractmethod
    def begin_index(self) -> int:
        """The first entry held; end_index + 1 when empty."""

    @property
    @abstractmethod
    def end_index(self) -> int:
        """The last entry held; begin_index - 1 when empty."""

    @property
    @abstractmethod
    def end_term(self) -> int:
        """Term of the entry at end_index (of `base` when empty)."""

    @property
    @abstractmethod
    def end_chain(self) -> int | None:
        """Chain at end_index."""

    @property
    @abstractmethod
    def durable_index(self) -> int:
        """On this disk up to here."""

    @property
    @abstractmethod
    def base(self) -> EntryMeta:
        """The entry before begin_index."""

    @property
    @abstractmethod
    def sealed_from(self) -> int:
        """From here on an unsealed entry is corruption."""

    @property
    @abstractmethod
    def recovered_commit_index(self) -> int:
        """From the checkpoint, never above end_index; -1: unknown."""

    @property
    @abstractmethod
    def applied_index(self) -> int:
        """What `note_progress` said last; at the open what the checkpoint says; never above end_index."""

    @property
    @abstractmethod
    def hard_state(self) -> HardState:
        """Term, vote and what else is saved with them."""

    @property
    @abstractmethod
    def data_file_size(self) -> int:
        """In bytes."""

    @property
    @abstractmethod
    def index_file_size(self) -> int:
        """In bytes."""

    @property
    def kind(self) -> str:
        """The name of the kind of group that this log was made for (`protocol/group_kind.py`)."""
        return PLAIN_NAME

    def kept_for_snapshot(self, committed_index: int) -> int | None:
        """From which entry on a broker group's newest committed snapshot needs the log; None: it is not about that."""
        return None

    @property
    def recovered_marks(self) -> tuple[MemberMark, ...]:
        """What peers are known to hold: from the checkpoint, and what `note_marks` said since (E8)."""
        return ()

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Sorted, disjoint; empty = sound as far as is known. End index, term and chain are known in spite of them."""
        return ()

    @property
    def faults_unsaved(self) -> bool:
        """Whether they are not all kept on disk yet: see `save_faults`."""
        return False

    @property
    def mends_alone(self) -> bool:
        """Whether `mend_alone` is worth a try."""
        return False

    # --- loop half ---------------------------------------------------------------------------------------------
    @abstractmethod
    def append_as_leader(
        self, bodies: Sequence[bytes], term: int, magic: int = Magic.NORMAL, channel: int = 0, patch_at: int = NO_PATCH
    ) -> list[Slab]:
        """Encodes, seals and writes; rolls files with the blank filler. One slab per data file touched, <= 1 MiB each.

        `patch_at`: where in each body its own position is written first (`protocol/position_patch.py`).

        All or nothing. Raises StoreFull, StoreIOError, EntryError (a body that fits no file).
        """

    @abstractmethod
    def append_slab(self, slab: Slab) -> None:
        """Writes a verified slab that continues the log, the same bytes at the same position (SAFETY S5).

        Checks index continuity, term order, chain (`verify_slab`) first: raises EntryError and changes nothing.
        """

    @abstractmethod
    def meta(self, index: int) -> EntryMeta | None:
        """Term and chain at `index`; `base` itself is known; None outside [base.index, end_index].

        Always known at the end. Raises StoreCorrupt where the entry is damaged and memory does not know it either.
        """

    def meta_at_hand(self, index: int) -> EntryMeta | None:
        """`meta` from memory alone. Raises ColdEntry where it would have to be read, StoreCorrupt for known damage."""
        return self.meta(index)

    def position_at_hand(self, index: int) -> int | None:
        """Where the entry lies, from memory alone."""
        return None

    @abstractmethod
    def get(self, index: int) -> Entry | None:
        """The entry, its head checked against `index`; None outside the log. Raises StoreCorrupt."""

    @abstractmethod
    def recent_slab(self, first_index: int, max_bytes: int) -> Slab | None:
        """A slab that starts at `first_index`, from memory only; None if that is not in the ring any more."""

    @abstractmethod
    def term_start(self, index: int) -> int:
        """The first index of the run of equal terms that `index` is in (for xIndex)."""

    @abstractmethod
    def term_at(self, index: int) -> int:
        """The term of an entry inside the log, from memory; only a neighbour's where the entry is damaged."""

    @abstractmethod
    def last_index_of_term(self, term: int) -> int:
        """The last index with a term <= `term`, or begin_index - 1."""

    def note_faults(self, faults: Sequence[Fault]) -> None:
        """Remembers what a read or a scrub met, inside the log only: `faults` grows by them; nothing is written.

        Raises StoreCorrupt in a store that cannot go on with damage.
        """
        raise StoreCorrupt(f"this store cannot live with damage: {[fault.detail for fault in faults]}", faults)

    @abstractmethod
    def save_faults(self) -> None:
        """Keeps `faults` on disk, where the next start looks again; a writer's work. Raises StoreIOError."""

    def has_space(self) -> bool:
        """Whether there is space to allocate ahead (S8), once a cut has its zeros. A writer's work; StoreIOError."""
        return True

    def is_in_place(self) -> bool:
        """Whether the next start would find what is written here (S1). A writer's work."""
        return True

    @abstractmethod
    def save_hard_state(self, state: HardState) -> None:
        """Durable on return; writes currterm too; a writer's work. Raises StoreIOError."""

    @abstractmethod
    def note_progress(self, committed_index: int, applied_index: int) -> None:
        """Remembers what the next checkpoint slot will say; writes nothing by itself."""

    @abstractmethod
    def note_marks(self, marks: tuple[MemberMark, ...]) -> None:
        """The same for what peers are known to hold; `recovered_marks` returns it after the next open (E8)."""

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
        """From disk, body CRCs verified so that rot never travels; >= 1 entry. Raises StoreCorrupt, KeyError.

        Ends before the next known fault; where the entry before it is damaged, `prev_chain` is None.
        """

    def read_meta(self, index: int) -> EntryMeta:
        """`meta` of an entry inside the log: its head is read, never its body. Raises StoreCorrupt, KeyError."""
        found = self.meta(index)
        if found is None:
            raise KeyError(index)
        return found

    def mend(self, slab: Slab, vouched: EntryMeta | None = None) -> Mended:
        """Writes a peer's entries into a fault (SAFETY S6), archived before, synced and read back after.

        The slab starts where the fault starts, or continues what was mended so far; it links the intact chain on the
        left at once. The fault stays one until the chain also links on its right. A writer's work, like `truncate`.
        `vouched`: an entry of the fault that is known by other proof; up to it the fault heals, and it is the right
        link. What of the fault lies behind it stays damaged.
        Raises EntryError (the slab fits no fault), StoreFull, StoreIOError.
        """
        raise EntryError(f"slab {slab.first_index}..{slab.last_index} fits no fault: this log has none")

    def mend_alone(self, first_index: int) -> Mended:
        """Heals the fault that begins at `first_index` with what is on this very disk, where that is possible.

        A record that is sound itself, and that the chain links on both sides, only needs its index record or the
        position in its head written anew. Otherwise nothing is changed, and a peer is asked. A writer's work.
        """
        return Mended(first_index - 1, (), self.faults, "this store keeps no other copy")

    def scrub(self, from_index: int, max_bytes: int) -> Scrubbed:
        """Reads from the disk itself and verifies everything; a reader's work. At the end `next_index` is end + 1."""
        slab = self.read_slab(from_index, max_bytes)
        return Scrubbed(slab.last_index + 1, (), len(slab.data))

    @abstractmethod
    def truncate(self, cut_index: int, record: TruncationRecord) -> None:
        """Archives [cut_index, end], lowers both checkpoint slots, zeroes the cut; all synced on return (SAFETY S4).

        Raises StoreFull when the archive or the slots cannot be written: then nothing was cut. Where only the zeros
        find no space it is cut all the same, and appends are refused (StoreFull) until `has_space` could write them.
        """

    @property
    @abstractmethod
    def base_on_record(self) -> Base:
        """The entry before the first one, with all that another member needs to begin there, too (M6)."""

    @abstractmethod
    def begin_behind(self, base: Base, record: TruncationRecord) -> None:
        """Archives the whole log; from then on it begins, empty, behind `base`, and all that is durable on return.

        A writer's work, like `truncate`; nothing is appended meanwhile. Raises EntryError where no log can begin there,
        StoreFull where there is no space for it: then nothing has changed. Raises StoreIOError.
        """

    @abstractmethod
    def survey(self, files_max: int) -> Survey:
        """The oldest data files, so many at most, and how full the disk is: what `retention` judges by."""

    @abstractmethod
    def remove_prefix(self, through_index: int, *, forced: bool = False) -> None:
        """Drops whole files that hold only entries <= through_index, durable and applied; `base` is persisted first.

        The first entry that is left is durable and applied as well: one that may be cut yet could lie elsewhere (S5).
        -1: the oldest file of RocketMQ's old commit log. A writer's work: the loop may append, read and sync meanwhile.
        Raises PinnedError, and removes nothing, where an entry <= through_index is pinned, unless `forced`.
        """

    @property
    @abstractmethod
    def pins(self) -> Pins:
        """Who needs which entries; in memory."""

    def pin(self, index: int, owner: str) -> None:
        """Keeps entries from `index` on until `release`; an owner's newer pin replaces the one before.

        Raises EntryError where the entry is gone already, or too many owners hold pins.
        """
        self.pins.pin(index, owner, self.begin_index)

    def release(self, owner: str) -> None:
        """The owner needs nothing any more; one without a pin is fine."""
        self.pins.release(owner)

    @abstractmethod
    def close(self) -> None:
        """Syncs, writes a checkpoint slot that says "clean", releases the lock."""
