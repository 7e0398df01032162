"""The handshake of our own ends: how a slave's log stands to its master's, before a byte of the log is sent.

The slave says its id, its pair and epochs, begin, end, file size, and place, size and CRC of its last records. The
master compares those records with its own log.

Invariants: nothing is written by it; a log is only said to be in step or behind when the last records that both have
are the same; every refusal has a reason that says what to do.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, Protocol

from node.ha.frames import HaError
from node.ha.lineage import OFFSET_MAX, Lineage, parse_lineage
from node.message_store.framing import MESSAGE_BYTES_MAX
from node.message_store.local_mark import LastRecord
from node.protocol.value_class import value_class

VERSION: Final = 1
LAST_RECORDS: Final = 8
NAME_LETTERS_MAX: Final = 128


class Stand(StrEnum):
    """How a slave's log stands to its master's."""

    IN_STEP = "in_step"
    BEHIND = "behind"
    EMPTY = "empty"
    AHEAD = "ahead"
    FORKED = "forked"
    STRANGER = "stranger"
    REFUSED = "refused"

    @property
    def is_served(self) -> bool:
        return self in (Stand.IN_STEP, Stand.BEHIND, Stand.EMPTY)

    @property
    def can_be_cut(self) -> bool:
        """Whether a slave that is allowed to may cut its log back and come again."""
        return self in (Stand.AHEAD, Stand.FORKED)


class LogOf(Protocol):
    """What is needed of a log."""

    @property
    def file_bytes(self) -> int: ...
    @property
    def min_offset(self) -> int: ...
    @property
    def max_offset(self) -> int: ...
    def crc_of(self, begin: int, end: int) -> int | None: ...
    def last_records(self, count: int, end: int | None = None) -> list[LastRecord]: ...
    def border_flaw(self, offset: int) -> str: ...
    def read(self, offset: int, length: int) -> bytes: ...


@value_class(slots=True, frozen=True)
class Hello:
    """What either end says of itself; `slave` and `run` are empty in a master's. `run`: of this process."""

    lineage: Lineage
    begin: int
    end: int
    file_bytes: int
    slave: str = ""
    run: str = ""
    last: tuple[LastRecord, ...] = ()
    broker: str = ""  # where clients reach it
    role: str = ""
    unable: str = ""  # why this slave can take nothing now

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION, "lineage": self.lineage.to_json(), "begin": self.begin, "end": self.end,
            "file_bytes": self.file_bytes, "slave": self.slave, "run": self.run,
            "last": [[one.offset, one.size_bytes, one.crc] for one in self.last], "broker": self.broker,
            "role": self.role, **({"unable": self.unable} if self.unable else {}),
        }  # fmt: skip


def hello_of(
    log: LogOf, lineage: Lineage, slave: str = "", run: str = "", *, broker: str = "", role: str = "",
    unable: str = "",
) -> Hello:  # fmt: skip
    """A slave's names its last records; a master's says where clients reach it."""
    last = tuple(log.last_records(LAST_RECORDS)) if slave else ()
    unable = unable[:NAME_LETTERS_MAX]
    return Hello(lineage, log.min_offset, log.max_offset, log.file_bytes, slave, run, last, broker, role, unable)


def takes_nothing(why: str) -> str:
    """Why a slave is not served that says so of itself, and would be."""
    return f"it takes nothing now: {why[:NAME_LETTERS_MAX]}"


def parse_hello(said: dict[str, Any]) -> Hello:
    """Raises HaError."""
    if said.get("version") != VERSION:
        raise HaError(f"the other end speaks version {said.get('version')!r} of the handshake, this one {VERSION}")
    try:
        lineage = parse_lineage(said.get("lineage"))
    except ValueError as error:
        raise HaError(f"the other end's epochs cannot be read: {error}") from error
    begin, end, file_bytes = (_number(said, name) for name in ("begin", "end", "file_bytes"))
    names = [said.get(name, "") for name in ("slave", "run", "broker", "role", "unable")]
    if not all(isinstance(name, str) and len(name) <= NAME_LETTERS_MAX for name in names):
        raise HaError("the other end's name cannot be read")
    slave, run, broker, role, unable = map(str, names)
    last = said.get("last")
    if not isinstance(last, list) or len(last) > LAST_RECORDS or begin > end:
        raise HaError("the other end's log cannot be read from what it says")
    records: list[LastRecord] = []
    for one in last:
        if not (isinstance(one, list) and len(one) == 3 and all(type(part) is int for part in one)):
            raise HaError("the other end's last records cannot be read")
        if one[1] > MESSAGE_BYTES_MAX:
            raise HaError(f"the other end says that a record of its log has {one[1]} bytes")
        if not (begin <= one[0] < one[0] + one[1] <= end) or (records and one[0] <= records[-1].offset):
            raise HaError("the other end's last records do not lie in its log")
        records.append(LastRecord(*one))
    while sum(one.size_bytes for one in records) > MESSAGE_BYTES_MAX:  # of the log, as much is read for one hello
        del records[0]
    return Hello(lineage, begin, end, file_bytes, slave, run, tuple(records), broker, role, unable)


def _number(said: dict[str, Any], name: str) -> int:
    found = said.get(name)
    if type(found) is not int or not 0 <= found <= OFFSET_MAX:
        raise HaError(f"the other end says {found!r} for {name}")
    return found


@value_class(slots=True, frozen=True)
class Verdict:
    """`start`: from where the master sends, where the slave is served."""

    stand: Stand
    reason: str
    start: int = -1

    def to_json(self) -> dict[str, Any]:
        return {"verdict": self.stand.value, "reason": self.reason, "start": self.start}


def parse_verdict(said: dict[str, Any]) -> Verdict:
    """Raises HaError."""
    reason, start = said.get("reason"), said.get("start")
    try:
        stand = Stand(str(said.get("verdict")))
    except ValueError as error:
        raise HaError(f"the master's verdict is {said.get('verdict')!r}") from error
    if not isinstance(reason, str) or type(start) is not int:
        raise HaError("the master's verdict has no reason")
    return Verdict(stand, reason[:1000], start)


def check_epochs(own: Lineage, master: Hello, *, has_messages: bool) -> None:
    """What a slave would keep of what its master says. Raises HaError."""
    theirs = master.lineage
    if own.pair and theirs.pair != own.pair and has_messages:
        raise HaError(f"the master is of pair {theirs.pair or '(none)'}, this log of {own.pair}: see who is there")
    if far := own.too_far(theirs):
        raise HaError(far)
    start = theirs.epochs[-1][1] if theirs.epochs else 0
    if start > master.end:
        raise HaError(f"the master's epoch {theirs.epoch} begins at {start}, and its log ends at {master.end}")


def judge(log: LogOf, lineage: Lineage, slave: Hello) -> Verdict:
    """How the slave's log stands to this master's `log`."""
    own, theirs = lineage, slave.lineage
    if theirs.pair and theirs.pair != own.pair and slave.end > slave.begin:
        text = (
            f"its log is of pair {theirs.pair}, this master's of {own.pair}: where that began anew on an empty disk,"
            " stop it and promote this slave; else it needs an empty directory"
        )
        return Verdict(Stand.STRANGER, text)
    if theirs.pair == own.pair and theirs.newest > own.epoch:
        text = f"it heard of epoch {theirs.newest}, this master is of {own.epoch}: another one was promoted"
        return Verdict(Stand.REFUSED, text)
    if theirs.pair == own.pair and theirs.epochs and theirs.epoch == own.epoch and theirs.epochs[-1] != own.epochs[-1]:
        text = f"epoch {own.epoch} began at {own.epochs[-1][1]} here and at {theirs.epochs[-1][1]} there: two masters"
        return Verdict(Stand.FORKED, text)
    if slave.file_bytes != log.file_bytes:
        text = f"its files have {slave.file_bytes} bytes, this master's {log.file_bytes} (mappedFileSizeCommitLog)"
        return Verdict(Stand.REFUSED, text)
    if slave.end == slave.begin:
        return Verdict(Stand.EMPTY, f"it gets everything from {log.min_offset} on", log.min_offset)
    if slave.end < log.min_offset:
        text = f"it ends at {slave.end}, this master begins at {log.min_offset}: it needs an empty directory"
        return Verdict(Stand.REFUSED, text)
    differs = _first_difference(log, slave)
    if differs is not None:
        return Verdict(Stand.FORKED, f"its record at {differs} is not this master's")
    if slave.end > log.max_offset:
        return Verdict(Stand.AHEAD, f"it ends at {slave.end}, this master at {log.max_offset}")
    goes_on = slave.end == log.min_offset and own.goes_on_from(theirs, slave.end)  # what it holds has expired here
    if not goes_on and not _shares_a_record(log, slave):
        return Verdict(Stand.FORKED, "it says nothing that could be compared with this master's log")
    flaw = log.border_flaw(slave.end)
    if flaw:
        return Verdict(Stand.FORKED, f"its end is no border of this master's log: {flaw}")
    if slave.end == log.max_offset:
        return Verdict(Stand.IN_STEP, f"both end at {slave.end}", slave.end)
    return Verdict(Stand.BEHIND, f"it ends at {slave.end}, this master at {log.max_offset}", slave.end)


def _first_difference(log: LogOf, slave: Hello) -> int | None:
    """The first of its last records that this log has another of."""
    for one in slave.last:
        has_it = log.min_offset <= one.offset and one.offset + one.size_bytes <= log.max_offset
        if has_it and log.crc_of(one.offset, one.offset + one.size_bytes) != one.crc:
            return one.offset
    return None


def _shares_a_record(log: LogOf, slave: Hello) -> bool:
    return any(
        log.min_offset <= one.offset and one.offset + one.size_bytes <= log.max_offset for one in slave.last
    )  # fmt: skip


def judge_request(log: LogOf, offset: int) -> Verdict:
    """Of a slave of RocketMQ's, which says its end and nothing else: as far as that can be judged."""
    if offset == 0:
        return Verdict(Stand.EMPTY, f"it gets everything from {log.min_offset} on", log.min_offset)
    if offset > log.max_offset:
        text = f"it ends at {offset}, this master at {log.max_offset}: it holds what this master never wrote or lost"
        return Verdict(Stand.AHEAD, text)
    if offset < log.min_offset:
        text = f"it ends at {offset}, this master begins at {log.min_offset}: it needs an empty directory"
        return Verdict(Stand.REFUSED, text)
    flaw = log.border_flaw(offset)
    if flaw:
        text = f"it asks for {offset}, where no record begins ({flaw}); a restart cuts its log back to a whole record"
        return Verdict(Stand.FORKED, text)
    stand = Stand.IN_STEP if offset == log.max_offset else Stand.BEHIND
    return Verdict(stand, f"it ends at {offset}; RocketMQ's protocol says nothing of what it holds", offset)
