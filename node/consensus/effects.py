"""Effects: the batch of work that the core asks of its driver, in the order of duty.

The driver carries out one batch of Effects top to bottom, and waits for nothing: what depends on `hard_state` is held
back until it is durable, the rest may overlap as each field's comment says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from node.protocol.entry import Slab
from node.protocol.messages import Message, SnapshotPart
from node.store.faults.results import Mended
from node.store.files.identity import Base
from node.store.log_store import EntryMeta, HardState, LogStore, TruncationRecord


class Send(NamedTuple):  # made for every message: a tenth of what a frozen dataclass costs
    """A message for one peer. Lost sends are fine: everything that matters is retried by the core."""

    to: str
    message: Message


new_send: Callable[[tuple[str, Message]], Send] = partial(tuple.__new__, Send)  # `Send()` itself is Python


@dataclass(slots=True, frozen=True)
class TruncateLog:
    """Archive and cut off the loop, then `replica.disk.truncated(log_epoch, cut_index, now)`."""

    log_epoch: int
    cut_index: int
    record: TruncationRecord


@dataclass(slots=True, frozen=True)
class BeginBehind:
    """Archive the whole log and begin it behind `base`, off the loop and in the writer's order like a cut; then
    `replica.disk.begun_behind(order, error, now)`: None, or why nothing was changed."""

    log_epoch: int
    base: Base
    record: TruncationRecord


@dataclass(slots=True, frozen=True)
class ReadSlab:
    """Read for a lagging peer off the loop, in `pause_ns`, then `replica.disk.slab_read(request, slab, now)`."""

    peer_id: str
    dispatch_epoch: int
    log_epoch: int
    first_index: int
    max_bytes: int
    pause_ns: int = 0


@dataclass(slots=True, frozen=True)
class OpenSnapshot:
    """Open the newest snapshot that goes up to `from_index` or beyond, for that peer; one that is open for it and does
    serves as well. Then `replica.disk.snapshot_opened(order, meta, why, now)`: None where there is none, and why.

    It stays readable, and the log behind it stays, for as long as pieces of it are asked for; where there is none, the
    state machine is to save one.
    """

    peer_id: str
    dispatch_epoch: int
    from_index: int


@dataclass(slots=True, frozen=True)
class ReadSnapshot:
    """Read a piece of the open one off the loop, in `pause_ns`, then `replica.disk.snapshot_read(order, piece, now)`;
    None where it cannot be read."""

    peer_id: str
    dispatch_epoch: int
    offset: int
    max_bytes: int
    pause_ns: int = 0


@dataclass(slots=True, frozen=True)
class TakePart:
    """Put this piece of a snapshot to those before, off the loop and one at a time; then
    `replica.disk.part_taken(order, taken, now)`, with None where the disk has no room for it.

    `keeps`: once it is whole it becomes one of this store's at once, and the state machine loads it: the log stays.
    """

    part: SnapshotPart
    keeps: bool = False


@dataclass(slots=True, frozen=True)
class LookUp:
    """Read an entry's head off the loop, then `replica.disk.looked(order, meta_or_None, now)` (SAFETY S9)."""

    log_epoch: int
    index: int


@dataclass(slots=True, frozen=True)
class FetchLog:
    """Read for a damaged peer (S6), or for this member itself, off the loop; then
    `replica.disk.fetched(order, slab, now)`, None where that cannot be given."""

    peer_id: str
    seq: int
    first_index: int
    last_index: int
    max_bytes: int


@dataclass(slots=True, frozen=True)
class MendLog:
    """Write a peer's entries into a fault, then `replica.disk.mended(log_epoch, mended_or_None, error, now)`.

    Without a slab: heal the fault that begins at `first_index` with what is on this disk. `vouched`: the last entry to
    heal, where the leader's word for it takes the place of the sound entry behind the fault.
    """

    log_epoch: int
    slab: Slab | None
    first_index: int
    vouched: EntryMeta | None = None

    def carry_out(self, store: LogStore) -> Mended:
        """The work itself, in the writer's thread. Raises EntryError, StoreFull, StoreIOError."""
        return store.mend_alone(self.first_index) if self.slab is None else store.mend(self.slab, self.vouched)


@dataclass(slots=True, frozen=True)
class ApplyLog:
    """Apply these committed entries in order, then `replica.applied(life, upto_index, results, now, error)`.

    Read them from the store, `max_bytes` at most and one entry at least; a part of the range may be reported, the rest
    is ordered again. At most one order of a life is open; a later life's voids it. See `consensus/applying.py`.
    """

    life: int
    first_index: int
    last_index: int
    max_bytes: int
    results_wanted: bool  # whether somebody here waits for what applying them answers


@dataclass(slots=True, frozen=True)
class Event:
    """Something an operator may want to know; the driver stamps wall time and a sequence number on it."""

    kind: str  # "role", "term", "truncation", "transfer", "dispatcher", "alarm", "voter_state", ...
    detail: dict[str, Any]
    severity: str = "info"  # info | warning | critical


class Effects:
    """One batch. Each append makes several: so no dataclass, whose defaults would take twice the time."""

    __slots__ = (
        "apply", "begin_behind", "events", "fetches", "hard_state", "is_unusual", "looks", "mend", "reads",
        "scrub_wanted", "sends", "snapshots", "spoken_of", "sync_wanted", "truncate",
    )  # fmt: skip

    def __init__(self) -> None:
        # Whether there may be more in it than sends and `sync_wanted`, which are all that an append brings.
        self.is_unusual = False
        # 1. Saved off the loop by the one writer, before any cut, mend or sync that is ordered later; then
        #    `replica.disk.hard_state_saved(state, now)`. Where messages speak of what changed (term, vote, what this
        #    member is), no send and no completion of this batch or a later one leaves before it is durable (E2); in
        #    what order they were made. Records about peers alone hold back nothing: the core counts nobody before the
        #    report (E8).
        self.hard_state: HardState | None = None
        self.spoken_of = False
        # 2. Leaves as soon as 1 allows. Answers carry watermarks, so an early answer never over-promises (R1, R2).
        self.sends: list[Send] = []
        # 3. Off the loop, one at a time; nothing is appended until it is done.
        self.truncate: TruncateLog | None = None
        self.begin_behind: BeginBehind | None = None
        # 4. Off the loop, any order.
        self.reads: list[ReadSlab] = []
        self.looks: list[LookUp] = []
        # 4a. Snapshots of state machines on their way: opened, read, put together; like 4, each in its order.
        self.snapshots: list[OpenSnapshot | ReadSnapshot | TakePart] = []
        # 4b. Reads for damaged peers, and of an own entry, like 4; and one mend, as a writer: never beside a sync or
        #     a cut.
        self.fetches: list[FetchLog] = []
        self.mend: MendLog | None = None
        # 4c. Read the whole log once and verify it, then `replica.disk.scrubbed(now)`; what it finds: `log_damaged`
        #     (R7).
        self.scrub_wanted = False
        # 5. The log end moved past its durable index: start a group commit unless one is running (flush sync), or let
        #    the background sync do it (async). Runs in parallel with 2.
        self.sync_wanted = False
        # 6. For the state machine, off the loop; never in the way of what stands above.
        self.apply: ApplyLog | None = None
        # 7. For people; never waited for.
        self.events: list[Event] = []
        # Completed closures need no field: a closure carries its callback, which only hands the outcome to the
        # driver's own queue; the core calls it at most once, after the quorum's watermarks promised it.


NOTHING: Final = Effects()  # what a driver gets where nothing gathered; nobody puts anything into it
