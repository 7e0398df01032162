"""The errors that a client of the log may get. Invariant: `NotAppended`, `Unreachable`, `Denied`, `Unsupported` and
`Refused` promise that nothing of the request was appended; `OutcomeUnknown` says plainly that nobody can tell (SAFETY
C2)."""

from __future__ import annotations

from typing import Final

from node.protocol.codes import ResponseCode

DENIED: Final = frozenset({ResponseCode.UNKNOWN_GROUP, ResponseCode.UNEXPECTED_MEMBER})
# As members say it of other requests: their answers to reads have no room for words.
NO_RIGHT_TO_READ: Final = (
    "this needs the right to read here: show this member's token, the content of its [node] token_file, or a token or"
    " certificate that has it in [access]"
)


class LedgerError(Exception):
    """Base of all."""


class OutcomeUnknown(LedgerError):
    """The entries may or may not be, or become, part of the log. Where known: at which index and in which term.
    Of a change of members, or of who leads: it may or may not have been made.

    What to do: read `first_index` linearizably and compare, or look who belongs or leads; never just repeat it.
    """

    def __init__(
        self, message: str, *, code: ResponseCode = ResponseCode.UNKNOWN, first_index: int = -1, last_index: int = -1,
        term: int = -1,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.code, self.first_index, self.last_index, self.term = code, first_index, last_index, term


class NotAppended(LedgerError):
    """Definitely not appended, and not worth another try as it is. `retry_after_s`: when the leader said it may be."""

    def __init__(
        self, message: str, *, code: ResponseCode = ResponseCode.UNKNOWN, leader_id: str | None = None,
        leader_address: str | None = None, retry_after_s: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.code, self.leader_id, self.leader_address = code, leader_id, leader_address
        self.retry_after_s = retry_after_s


class LaneEnded(NotAppended):
    """Nothing of this append is in the log, and the lane takes no more: open another one."""


class Trimmed(LedgerError):
    """What was asked for was removed from that member's log, which begins at `begin_index` now."""

    def __init__(self, index: int, begin_index: int, member_id: str) -> None:
        where = f"the log of {member_id} begins at {begin_index}" if begin_index >= 0 else f"{member_id} begins later"
        super().__init__(f"index {index} is not kept any more: {where}")
        self.index, self.begin_index = index, begin_index


class Unreachable(LedgerError):
    """No member took the request in time; nothing was appended."""


class Closed(LedgerError):
    """The client is closed, or was while the call waited: then nothing is said of what became of it."""


class WrongLoop(LedgerError):
    """The client was made for another event loop, or in the process that this one was forked from. Nothing was sent."""


class Denied(LedgerError):
    """Not allowed: a wrong group, a missing token."""


class Unsupported(LedgerError):
    """The member answers remoting code 3: it does not know the request, and did nothing with it. A plain DLedger."""


class Refused(LedgerError):
    """This client does not send it as it is. `missing`: the argument with which it would."""

    def __init__(self, message: str, *, missing: str) -> None:
        super().__init__(message)
        self.missing = missing


def read_denied(member_id: str, code: ResponseCode) -> Denied:
    """What that refusal of a read (one of `DENIED`) means, and what to do."""
    text = f"{member_id} answers {code.value} {code.name}"
    return Denied(f"{text}: {NO_RIGHT_TO_READ}" if code is ResponseCode.UNEXPECTED_MEMBER else text)


class AnotherGroup(Denied):
    """A group of the same name, but not the one that this client speaks to (SAFETY C9)."""


class UnknownGroup(Denied):
    """The member knows no group of this name: it belongs to another one, or the name is wrong."""
