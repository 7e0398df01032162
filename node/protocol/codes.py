"""DLedger's numbers: request codes, body response codes, remoting codes, vote results.

Sources: FORMATS 2 (measured on the Java nodes) and, for 52000 and above, SAFETY "Frames between our own nodes".
"""

from __future__ import annotations

from enum import IntEnum, StrEnum


class RequestCode(IntEnum):
    """The `code` of a request frame's header."""

    METADATA = 50000
    APPEND = 50001
    GET = 50002
    VOTE = 51001
    HEART_BEAT = 51002
    PULL = 51003
    PUSH = 51004
    LEADERSHIP_TRANSFER = 51005
    INSTALL_SNAPSHOT = 51006
    HELLO = 52000
    INTROSPECT = 52001
    PRE_VOTE = 52002
    SLAB_PUSH = 52003
    FAST_APPEND = 52004
    FAST_READ = 52005
    READ_INDEX = 52006
    FETCH = 52007
    OPERATOR_ACTION = 52008
    PROOF = 52009  # proves the secret that members share, and carries the whole HELLO (SAFETY C11)
    COMMITTED_STREAM = 52010  # subscribes to committed positions (docs/committed-stream.md)
    OPEN_LANE = 52011  # voids every earlier lane (docs/lanes.md)
    LANE_APPEND = 52012
    INSTALL_BASE = 52013  # a member is to begin its log where its leader's begins
    SNAPSHOT_PART = 52014  # a member is to begin its log behind a snapshot, of which this is a piece
    AWAITED_READ = 52015  # as FAST_READ of what is committed, once it is
    COMMAND = 52020  # to a group's state machine: appended, applied, answered with the result
    QUESTION = 52021  # to a member's state machine, behind a read index
    USER_DEFINE_REQUEST = 59999


class RemotingCode(IntEnum):
    """The `code` of a response frame's header."""

    SUCCESS = 200
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3


class ResponseCode(IntEnum):
    """The `code` inside a response body."""

    UNKNOWN = -1
    SUCCESS = 200
    TIMEOUT = 300
    METADATA_ERROR = 301
    NETWORK_ERROR = 302
    UNSUPPORTED = 303
    UNKNOWN_GROUP = 400
    UNKNOWN_MEMBER = 401
    UNEXPECTED_MEMBER = 402
    EXPIRED_TERM = 403
    NOT_LEADER = 404
    NOT_FOLLOWER = 405
    INCONSISTENT_STATE = 406
    INCONSISTENT_TERM = 407
    INCONSISTENT_INDEX = 408
    INCONSISTENT_LEADER = 409
    INDEX_OUT_OF_RANGE = 410
    UNEXPECTED_ARGUMENT = 411
    REPEATED_REQUEST = 412
    REPEATED_PUSH = 413
    DISK_ERROR = 414
    DISK_FULL = 415
    TERM_NOT_READY = 416
    FALL_BEHIND_TOO_MUCH = 417
    TAKE_LEADERSHIP_FAILED = 418
    INDEX_LESS_THAN_LOCAL_BEGIN = 419
    REQUEST_WITH_EMPTY_BODYS = 420
    PUSH_REQUEST_IS_FULL = 421
    NEWER_INSTALL_SNAPSHOT_REQUEST_EXIST = 422
    INTERNAL_ERROR = 500
    TERM_CHANGED = 501
    WAIT_QUORUM_ACK_TIMEOUT = 502
    LEADER_PENDING_FULL = 503
    ILLEGAL_MEMBER_STATE = 504
    LEADER_NOT_READY = 505
    LEADER_TRANSFERRING = 506
    LOAD_SNAPSHOT_ERROR = 507
    INSTALL_SNAPSHOT_ERROR = 508
    LANE_ENDED = 591  # ours: an append over a lane that is not open any more, or out of its sequence
    RESTORED_COPY = 590  # ours: a HELLO of a store that is not the one on record (SAFETY E8)


# SAFETY C2. 404 and 415 count only when the answering node refused before it appended or sent anything.
NOT_APPENDED: frozenset[ResponseCode] = frozenset(
    {
        ResponseCode.UNKNOWN_GROUP,
        ResponseCode.UNKNOWN_MEMBER,
        ResponseCode.UNEXPECTED_MEMBER,
        ResponseCode.NOT_LEADER,
        ResponseCode.INCONSISTENT_INDEX,
        ResponseCode.UNEXPECTED_ARGUMENT,
        ResponseCode.DISK_FULL,
        ResponseCode.REQUEST_WITH_EMPTY_BODYS,
        ResponseCode.LANE_ENDED,
        ResponseCode.LEADER_PENDING_FULL,
        ResponseCode.LEADER_NOT_READY,
        ResponseCode.LEADER_TRANSFERRING,
    }
)


class VoteResult(StrEnum):
    """DLedger's vote results, by name on the wire."""

    UNKNOWN = "UNKNOWN"
    ACCEPT = "ACCEPT"
    REJECT_UNKNOWN_LEADER = "REJECT_UNKNOWN_LEADER"
    REJECT_UNEXPECTED_LEADER = "REJECT_UNEXPECTED_LEADER"
    REJECT_EXPIRED_VOTE_TERM = "REJECT_EXPIRED_VOTE_TERM"
    REJECT_ALREADY_VOTED = "REJECT_ALREADY_VOTED"
    REJECT_ALREADY_HAS_LEADER = "REJECT_ALREADY_HAS_LEADER"
    REJECT_TERM_NOT_READY = "REJECT_TERM_NOT_READY"
    REJECT_TERM_SMALL_THAN_LEDGER = "REJECT_TERM_SMALL_THAN_LEDGER"
    REJECT_EXPIRED_LEDGER_TERM = "REJECT_EXPIRED_LEDGER_TERM"
    REJECT_SMALL_LEDGER_END_INDEX = "REJECT_SMALL_LEDGER_END_INDEX"
    REJECT_TAKING_LEADERSHIP = "REJECT_TAKING_LEADERSHIP"


class Role(StrEnum):
    """A member's role."""

    LEADER = "LEADER"
    FOLLOWER = "FOLLOWER"
    CANDIDATE = "CANDIDATE"


class VoterState(StrEnum):
    """Who may vote (SAFETY E8)."""

    FORMING = "FORMING"
    VOTER = "VOTER"
    REJOINING = "REJOINING"


class FlushMode(StrEnum):
    """When a write counts: `sync` = on a quorum's disks, `async` = in a quorum's page caches (SAFETY R2)."""

    SYNC = "sync"
    ASYNC = "async"


class DispatcherState(StrEnum):
    """What a leader's dispatcher does for one peer."""

    COMPARE = "COMPARE"
    TRUNCATE = "TRUNCATE"
    APPEND = "APPEND"
    INSTALL_SNAPSHOT = "INSTALL_SNAPSHOT"
    DIVERGED = "DIVERGED"
