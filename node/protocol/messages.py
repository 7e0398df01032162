"""The messages that members and clients exchange, as values.

A request carries `seq`, chosen by its sender; the answer carries the same `seq`. On the wire `seq` is the remoting
frame's `opaque`, never a body field, so it survives a plain DLedger peer. Node ids are DLedger's ("n0"). `code`
fields are body response codes (FORMATS 2). -1 means "known to be none" for every index and term.
"""

from __future__ import annotations

from dataclasses import field
from enum import IntEnum

from node.protocol.codes import FlushMode, ResponseCode, VoteResult, VoterState
from node.protocol.entry import Slab
from node.protocol.group_settings import SaidSettings
from node.protocol.value_class import value_class


class PushKind(IntEnum):
    """What a push asks for; the number is the slab frame's `kind` (SAFETY, "Frames")."""

    APPEND = 0
    COMMIT = 1
    COMPARE = 2
    TRUNCATE = 3


@value_class(slots=True, frozen=True)
class PeerRecord:
    """What its sender has on record about the receiver (SAFETY E8): the store, its newest life, and an entry that it
    acknowledged as durable and that is committed. `life_id` None, `mark_index` -1: none.

    `leadership`: not -1: the mark is only what was acknowledged to the leader of that term, and is void in a later one.
    """

    store_id: str
    life_id: str | None = None
    mark_index: int = -1
    mark_term: int = -1
    leadership: int = -1


@value_class(slots=True, frozen=True)
class Hello:
    """Opens a member connection; sent by both ends (request and answer have the same shape)."""

    seq: int
    group: str
    node_id: str
    store_id: str
    voter_state: VoterState
    end_index: int
    sealed_from: int
    # For version 1 only, which compares it; sent for as long as the downgrade policy reaches back to that version.
    peers_hash: str
    data_file_size: int
    index_file_size: int
    flush: FlushMode
    lease_reads: bool = False
    api_url: str | None = None
    token: str | None = None
    caps: tuple[str, ...] = ()
    version_min: int = 1
    version_max: int = 1
    # Our answer's verdict on the sender: SUCCESS, or why the connection is refused (400, 401, 402, 411).
    code: ResponseCode = ResponseCode.SUCCESS
    detail: str | None = None
    # What this node recorded as its peers' stores (E8: "no peer has recorded another store_id for it").
    recorded: dict[str, str] = field(default_factory=dict)
    # Whether this is the answer to a HELLO. Not a body field: the frame's response flag says it.
    answer: bool = False
    # --- since version 2 ---
    term: int = -1  # stored by the sender (E10)
    group_id: str | None = None  # C9; None: it has none yet
    life_ids: tuple[str, ...] = ()  # drawn at each open for serving, the newest last (E8)
    election_min_ms: int | None = None  # only where lease reads are on (E9)
    marks_from: int = -1  # marks of earlier terms say nothing against the sender's store (E8)
    record: PeerRecord | None = None  # what the sender has on record about the receiver (E8)
    nonce: str | None = None  # C11: drawn for this connection
    mac: str | None = None  # C11: in an answer, the accepter's proof
    ended: bool = False  # in a refusal: the group of the id that was asked with went on without that member (C9)
    # Whether TLS or C11 proved the sender a member. Never on the wire: the receiving driver sets it.
    proven: bool = False
    settings: SaidSettings | None = None  # None: a release whose members refuse those with other settings


@value_class(slots=True, frozen=True)
class TransferTicket:
    """Lets a vote through although the leader is alive (SAFETY E4)."""

    term: int
    transferee_id: str
    nonce: str


@value_class(slots=True, frozen=True)
class VoteRequest:
    """Asks for a vote; with `pre=True` it changes nothing at the receiver (SAFETY E3)."""

    seq: int
    candidate_id: str
    term: int
    ledger_end_index: int
    ledger_end_term: int
    pre: bool = False
    ticket: TransferTicket | None = None
    # Asks every member, REJOINING ones too, to form the group again from the longest log (SAFETY E8, async only).
    reform: bool = False


@value_class(slots=True, frozen=True)
class VoteResponse:
    seq: int
    term: int
    result: VoteResult
    pre: bool = False


@value_class(slots=True, frozen=True)
class MemberMark:
    """An entry that a member acknowledged as durable, and that is committed (SAFETY E8)."""

    member_id: str
    index: int
    term: int


@value_class(slots=True, frozen=True)
class HeartBeatRequest:
    """The leader lives. `commit_index`, `commit_chain` let a follower check a whole prefix in one comparison.

    `marks`: what the leader knows each proven member to hold durably, committed (SAFETY E8). `held_index`: up to where
    it knows every member to hold the log, durable and sound (-1: nowhere); retention removes no more than that.
    """

    seq: int
    leader_id: str
    term: int
    commit_index: int = -1
    commit_chain: int | None = None
    marks: tuple[MemberMark, ...] = ()
    held_index: int = -1


@value_class(slots=True, frozen=True)
class HeartBeatResponse:
    seq: int
    term: int
    code: ResponseCode
    end_index: int = -1
    voter_state: VoterState = VoterState.VOTER
    needs_state_from: int = -1  # its state machine's state is lost, and has to reach up to that entry at least


@value_class(slots=True, frozen=True)
class PushRequest:
    """A leader's order to one follower (SAFETY, "Slab push").

    APPEND: `slab` follows the entry (prev_index, prev_term, prev_chain). COMPARE: "do you hold (prev_index, prev_term,
    prev_chain)?". TRUNCATE: `first_index` = the cut, `prev_term` = the leader's term at the cut or -1. COMMIT: only
    `commit_index`. `prev_chain` None: chain unknown.
    """

    seq: int
    kind: PushKind
    leader_id: str
    term: int
    dispatch_epoch: int
    commit_index: int
    prev_index: int = -1
    prev_term: int = -1
    prev_chain: int | None = None
    first_index: int = -1
    slab: Slab | None = None


@value_class(slots=True, frozen=True)
class InstallRequest:
    """A leader's order to a follower that needs entries which its log no longer holds: to begin where that begins (M6).

    `base_*`: the entry before the leader's first one, and the position where that first one lies (S5). `group_id` (C9).
    `members`: where the newest entry about the members up to there was, and its body (M1). Answered by a PushResponse.
    """

    seq: int
    leader_id: str
    term: int
    dispatch_epoch: int
    commit_index: int
    base_index: int
    base_term: int
    base_chain: int | None
    base_pos: int
    group_id: str | None = None
    members: tuple[int, str] | None = None


@value_class(slots=True, frozen=True)
class SnapshotPart:
    """A piece of a state machine's snapshot, for a member that is to begin its log behind it (M6).

    `base_*`, `group_id`, `members`: as in InstallRequest; the base is the last entry that is in the snapshot. With
    `total_bytes` and `data_crc` of the whole they say which snapshot it is; `more`: what else is kept with it, as JSON.
    `data` lies at `offset`; without any it is the question how far the member has it. Answered by a PushResponse whose
    `x_term` is that snapshot's last entry and whose `x_index` how many bytes of it are held; -1: nothing is said of it.
    """

    seq: int
    leader_id: str
    term: int
    dispatch_epoch: int
    commit_index: int
    base_index: int
    base_term: int
    base_chain: int | None
    base_pos: int
    group_id: str | None
    members: tuple[int, str] | None
    total_bytes: int
    data_crc: int
    more: str
    offset: int
    data: bytes = b""


@value_class(slots=True, frozen=True)
class PushResponse:
    """A follower's answer, with absolute watermarks (SAFETY R1). `seq` -1: nobody asked, a sync is done."""

    seq: int
    code: ResponseCode
    dispatch_epoch: int
    term: int
    verified_index: int
    durable_index: int
    end_index: int
    x_term: int = -1
    x_index: int = -1
    # The lowest entry whose bytes are damaged here (S6), -1: none. From there on nothing counts towards a quorum.
    faulty_from: int = -1


@value_class(slots=True, frozen=True)
class TransferRequest:
    """`ticket` None: a client or operator asks the leader. Otherwise the leader tells the transferee to campaign."""

    seq: int
    term: int
    transferee_id: str
    take_leadership_index: int = -1
    ticket: TransferTicket | None = None


@value_class(slots=True, frozen=True)
class TransferResponse:
    seq: int
    term: int
    code: ResponseCode


class ReadWay(IntEnum):
    """How a leader makes sure that it still is one, before a read is served: all are linearizable (SAFETY C1)."""

    USUAL = 0  # by its lease where the group has lease reads on, else as INDEX
    LEASE = 1  # the same, by name
    INDEX = 2  # a quorum answers frames that left after the read came
    LOG = 3  # an entry that was appended after the read came is committed


@value_class(slots=True, frozen=True)
class ReadIndexRequest:
    """A follower asks its leader from which index a linearizable read may be served (SAFETY C1)."""

    seq: int
    term: int
    way: ReadWay = ReadWay.INDEX


@value_class(slots=True, frozen=True)
class ReadIndexResponse:
    seq: int
    term: int
    code: ResponseCode
    read_index: int = -1
    # The leader's end when it was confirmed: what a REJOINING member has to reach (SAFETY E8).
    end_index: int = -1


@value_class(slots=True, frozen=True)
class FetchRequest:
    """A member whose log is damaged asks any peer, leader or not, for entries (SAFETY S6); both ends inclusive."""

    seq: int
    first_index: int
    last_index: int
    max_bytes: int


@value_class(slots=True, frozen=True)
class FetchResponse:
    """SUCCESS: `slab` begins at the first index asked for, and may end before the last. Otherwise why it cannot help:
    INDEX_OUT_OF_RANGE (its log ends before), INDEX_LESS_THAN_LOCAL_BEGIN (begins behind), DISK_ERROR (damaged there as
    well), PUSH_REQUEST_IS_FULL (busy, ask again). `end_index`: where its log ends."""

    seq: int
    code: ResponseCode
    end_index: int
    slab: Slab | None = None


Message = (
    Hello
    | VoteRequest
    | VoteResponse
    | HeartBeatRequest
    | HeartBeatResponse
    | PushRequest
    | InstallRequest
    | SnapshotPart
    | PushResponse
    | TransferRequest
    | TransferResponse
    | ReadIndexRequest
    | ReadIndexResponse
    | FetchRequest
    | FetchResponse
)
