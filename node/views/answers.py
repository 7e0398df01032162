"""What the control plane answers beside the views, as models: the OpenAPI document is made of them.

They describe and carry out nothing: an answer is written as its handler made it. Invariant: what a model does not name
is not answered; tests hold real answers against the document.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

Engine = Literal["ok", "stale", "down"]


class About(BaseModel):
    """What this is. `classic`: a broker in classic master/slave mode, which has no replicated log."""

    kind: Literal["node", "classic", "sidecar", "console"]
    version: str
    group: str
    self_id: str


class Entry(BaseModel):
    """One entry. `seal`: whether the body still matches its own CRC; `note`: why `as` is another than was asked for."""

    index: int
    term: int
    magic: str
    pos: int
    size_bytes: int
    body_bytes: int
    body_crc: int
    chain_crc: int
    seal: str
    as_: Literal["text", "json", "hex", "base64"] = Field(alias="as")
    body: Any
    note: str | None = None


class BrokenEntry(BaseModel):
    """A record that cannot be read, among its sound neighbours."""

    index: int
    body: None
    problem: str


class OneEntry(Entry):
    """An entry, and how true the answer is."""

    as_of: str
    engine: Engine
    view: Literal["committed", "raw"]
    consistency: str | None = None  # a node of an older release does not say it


class Entries(BaseModel):
    """`consistency` says what the answer vouches for; `next` is the next `from`, null at the end."""

    as_of: str
    engine: Engine
    view: Literal["committed", "raw"]
    consistency: str
    begin_index: int | None = None
    committed_index: int | None
    last_index: int | None = None
    items: list[Entry | BrokenEntry]
    next: str | None


class Appended(BaseModel):
    """Where the entries lie; `durable`: whether they are on disks, not only in memories."""

    first_index: int
    last_index: int
    term: int
    durable: bool


class Truncation(BaseModel):
    """One cut: by whose order, why, and what was committed then. `time` and `seq` are `at` and `id` once more."""

    id: int
    seq: int
    at: str
    time: str
    by: str
    leader_id: str | None
    term: int
    from_index: int
    to_index: int
    count: int
    reason: str
    committed_index: int
    begins_behind: int | None = None
    below_committed: bool


class Truncations(BaseModel):
    as_of: str
    items: list[Truncation]
    next: str | None


class TruncatedEntries(BaseModel):
    """What was cut; `next` is the cursor of the rest."""

    id: int
    items: list[Entry]
    next: str | None


class Segment(BaseModel):
    """One file of the log; without indexes where it holds no entry yet."""

    kind: Literal["data", "index"]
    name: str
    start: int
    size_bytes: int
    first_index: int | None
    last_index: int | None


class BaseMembers(BaseModel):
    """The newest entry about the group's members that is in front of the log: where it was, and its body."""

    index: int
    body: str


class Base(BaseModel):
    """The entry before the first one held; `position`: where the first one begins."""

    index: int
    term: int
    chain_crc: int | None
    position: int
    members: BaseMembers | None


class SegmentsStore(BaseModel):
    """Of which store the files are; `base` null: the log begins with entry 0."""

    kind: str
    data_file_size_bytes: int
    index_file_size_bytes: int
    sealed_from: int | None
    base: Base | None


class Segments(BaseModel):
    """`etag` is that of the files' bytes; it changes with every truncation and every start of the engine."""

    as_of: str
    etag: str
    store: SegmentsStore | None = None
    items: list[Segment]
    next: str | None


class SnapshotFile(BaseModel):
    """A file of a snapshot."""

    name: str
    size_bytes: int


class SnapshotItem(BaseModel):
    """A state machine's state as of entry `index`; sealed: a checksum of its data is kept (CRC-32)."""

    index: int
    term: int
    chain_crc: int | None
    data_bytes: int
    data_crc: int | None
    is_sealed: bool
    files: list[SnapshotFile]


class SnapshotList(BaseModel):
    """The whole ones, newest first."""

    as_of: str
    items: list[SnapshotItem]
    next: str | None


class Digest(BaseModel):
    """SHA-256 over a block as the disk holds it now; null with a `problem` where it cannot be read."""

    from_index: int
    to_index: int
    count: int
    digest: str | None
    read_at: str
    problem: str | None = None


class Digests(BaseModel):
    """`next`: the next `from`, where the range is answered in parts. `end_index`: a range may go on where it ends."""

    as_of: str
    begin_index: int
    end_index: int
    items: list[Digest]
    next: str | None


class OperationProblem(BaseModel):
    title: str
    detail: str
    code: int | None = None


class Operation(BaseModel):
    """What was started, how far it is, and how it ended."""

    id: str
    kind: Literal["leadership_transfer", "scrub", "repair", "trim", "members", "snapshot", "restart"]
    state: Literal["running", "done", "failed", "cancelled", "unknown"]
    progress: str | None
    outcome: dict[str, Any] | None
    problem: OperationProblem | None


class OperationList(BaseModel):
    """The newest first."""

    items: list[Operation]
    next: str | None


class Need(BaseModel):
    """Who keeps entries from being removed, from which one on, and why."""

    owner: str
    from_index: int
    why: str


class TrimPlan(BaseModel):
    """What would go, where the log would begin then, and who keeps the rest, or (forced) would be left behind."""

    files: int
    bytes: int
    begin_index: int
    kept_by: list[Need]


class Quorum(BaseModel):
    """How many voters have to answer, which ones do, and how many of these may fail; below 0: so many are missing."""

    voters: list[str]
    needed: int
    answering: list[str]
    survives: int


class Refusal(BaseModel):
    """Why a change would not be made now."""

    code: int
    detail: str


class MembersPreflight(BaseModel):
    """What a change of members would bring; null: nobody knows. Of the time it is the most, beside other work."""

    refused: Refusal | None
    before: Quorum
    after: Quorum
    lag_entries: int | None
    lag_bytes: int | None
    catch_up_s_at_most: float | None
    needs_disk_bytes: int | None


class DryRun(BaseModel):
    """What would be done; nothing was. `faults`: the damaged entries that it would be about; `trim`, `members`: of
    these."""

    dry_run: Literal[True]
    would: str
    faults: list[dict[str, Any]] | None = None
    trim: TrimPlan | None = None
    members: MembersPreflight | None = None


class Pin(BaseModel):
    """Who keeps entries, from which one on, and for how much longer; null: until the owner says so."""

    owner: str
    from_index: int
    expires_in_s: int | None


class Pins(BaseModel):
    as_of: str
    items: list[Pin]
    next: str | None


class Alive(BaseModel):
    status: Literal["ok"]


class Health(BaseModel):
    """`ok`, and what the member says of itself."""

    ok: bool
    engine: Engine
    role: str | None
    term: int | None
    leader_id: str | None
