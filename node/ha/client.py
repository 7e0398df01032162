"""HAClient: a slave's end of the connection to its master, without a socket: bytes in, bytes out, the clock passed in.

It asks whether the master is one of ours; if so, both say what they have before anything is sent, else it is served as
RocketMQ's slaves are. It writes whole records only, so its log always ends at a border, and reports what is as durable
as its flush mode promises: the first report leaves at once.

Invariants: nothing is written that does not follow on its own end, or whose records do not say that they lie there; its
log is cut only where `cuts_back` says so, back to the last record that its master has too, and what is cut is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any

from node.ha.common_end import CommonEnd
from node.ha.frames import ASK, LENGTH, Frame, FrameReader, HaError, encode_report, slave_says
from node.ha.handshake import Hello, LogOf, Stand, check_epochs, hello_of, parse_hello, parse_verdict, takes_nothing
from node.ha.lineage import Lineage
from node.ha.proof import MASTER, SLAVE, Proof, Said, has_nonce
from node.ha.settings import BrokerRole, HaSettings
from node.ha.slave_store import SlaveStore
from node.message_store.errors import MessageStoreError
from node.message_store.framing import MESSAGE_BYTES_MAX
from node.message_store.record import SIZE_AND_MAGIC
from node.protocol.entry import BytesLike


def proved_hello(proof: Proof | None, theirs: Said, own: dict[str, Any]) -> tuple[Said, Said]:
    """Both hellos as they were said: `own` with this end's proof. Raises HaError."""
    if proof is not None:
        if not has_nonce(theirs):
            raise HaError("the master proves no secret: give it this broker's [node] secret_file")
        own["nonce"] = proof.nonce()
        own["mac"] = proof.mac(SLAVE, theirs, own)
    return theirs, own


def check_verdict(proof: Proof | None, hellos: tuple[Said, Said], said: Said) -> None:
    """Before anything that it says counts. Raises HaError."""
    if proof is not None and not proof.is_proved(MASTER, said.get("mac"), *hellos, said):
        raise HaError("the master does not prove the pair's secret: give both brokers the same [node] secret_file")


class State(Enum):
    """How far the connection is."""

    CLOSED = "closed"
    ASKED = "asked"  # is the master one of ours?
    SAID = "said"  # what this slave has; the verdict comes
    SEARCHING = "searching"  # where both logs agree
    KEEPING = "keeping"  # its epochs are on their way to the disk
    CUTTING = "cutting"  # its log is cut back: no connection is there meanwhile
    FLUSHING = "flushing"  # a master of RocketMQ's takes the first report for a request: all is to be on disk first
    TRANSFER = "transfer"


Note = Callable[[str, str, str], None]
Kept = Callable[[str], None]
Work = Callable[[], int]
Done = Callable[[int | Exception], None]


def at_once(work: Work, done: Done) -> None:
    """In the caller's own thread."""
    try:
        found: int | Exception = work()
    except (MessageStoreError, OSError) as error:
        found = error
    done(found)


class HAClient:
    """See the module's docstring. `run`: of this process.

    `keep` writes a lineage, and calls back once it is on disk, with why not where it is not; until then nothing is
    taken that rests on it (`is_keeping`: its owner reads nothing more from the socket). `alone` cuts the log, in a
    thread if its owner wants that, while nothing else uses it, and says how that ended; until then no connection begins
    (`is_cutting`).
    """

    def __init__(
        self, store: SlaveStore, settings: HaSettings, slave: str, run: str, lineage: Lineage,
        keep: Callable[[Lineage, Kept], None], note: Note,
        alone: Callable[[Work, Done], None] = at_once,
    ) -> None:  # fmt: skip
        self._store, self._settings, self._slave, self._run = store, settings, slave, run
        self.lineage, self._keep, self._note = lineage, keep, note
        self.state = State.CLOSED
        self.closed_by = ""
        self.stand: Stand | None = None
        self.is_ours = False  # the master
        self._heard_of: Hello | None = None
        self.master: Hello | None = None  # what the one of ours said that served it last
        self.trouble = ""  # why nothing is transferred; empty once it is
        self.refused_at = ""  # the address at which that was so
        self.current_reported_offset = -1
        self.last_read_ms = self.last_write_ms = 0
        self.lost_ms = 0  # when it heard last of the master that served it last; 0: none did, or one does
        self.taken_bytes = 0  # of the master's log, written here since this process began
        self.master_offset = -1  # the newest place that the master's frames showed
        self._reader = FrameReader()
        self._part = bytearray()  # of a record that is not whole yet
        self._part_needs = 0  # so much of it, before there is more to see
        self._held: list[Frame] = []  # what came while the epochs were kept
        self.on_kept: Callable[[], None] = lambda: None
        self._connection = 0
        self._alone = alone
        self._out: list[bytes] = []
        self._said: Lineage | None = None
        self.peer = ""  # the master's IP address
        self.tried = self.served_by = ""  # where it was reached, now and when it served last
        self._hellos: tuple[Said, Said] = ({}, {})  # the master's, and this one's
        self._search: CommonEnd | None = None
        self._asked_ms = 0

    @property
    def is_closed(self) -> bool:
        return self.state in (State.CLOSED, State.CUTTING)

    @property
    def is_cutting(self) -> bool:
        return self.state is State.CUTTING

    @property
    def is_keeping(self) -> bool:
        return self.state is State.KEEPING

    def hear(self, epoch: int) -> None:
        """A promotion was heard of: no older master is followed from now on."""
        self.lineage = self.lineage.hearing(epoch)
        if self._said is not None and self._said.epoch < epoch:
            self.close(f"epoch {epoch} was heard of, its master is of {self._said.epoch}")

    # --- the connection -------------------------------------------------------------------------------------------
    def connected(self, now_ms: int) -> None:
        self._reader, self._part, self._out = FrameReader(), bytearray(), [encode_report(ASK)]
        self._search, self._said, self._held = None, None, []
        self._connection += 1
        self.current_reported_offset = -1
        self.state, self.closed_by, self.is_ours = State.ASKED, "", False
        self._asked_ms = self.last_read_ms = self.last_write_ms = now_ms

    def close(self, why: str) -> None:
        """The shell closes the socket then."""
        if not self.is_closed:
            if self.state is State.TRANSFER:
                self.lost_ms = self.last_read_ms
            self.state, self.closed_by = State.CLOSED, why
            self.on_kept()

    def next_bytes(self, now_ms: int) -> bytes:
        """What to send now."""
        if self.is_closed:
            return b""
        if self.state is State.ASKED and now_ms - self._asked_ms >= self._settings.java_after_ms:
            if not self._settings.admits(self.peer):
                self._refuse(f"{self.peer} answers no handshake: it hangs, or is RocketMQ's and not in [ha] allow")
                return b""
            if self.lineage.pair:
                self._refuse(f"the master answers no handshake: it hangs, or is not of pair {self.lineage.pair}")
                return b""
            self.state = State.FLUSHING
            self._note("ha_master_of_rocketmq", "warning", "the master speaks no handshake: what it holds is not known")
        if now_ms - self.last_read_ms > self._settings.housekeeping_ms:
            self.close(f"nothing was heard of the master for {now_ms - self.last_read_ms} ms")
            return b""
        if self.state is State.FLUSHING and self._store.durable_offset >= self._store.log.max_offset:
            self._transfer(None)
            self._report(self._store.log.max_offset if not _is_empty(self._store.log) else 0, now_ms)
        if self.state is State.TRANSFER:
            durable = self._store.durable_offset
            is_due = now_ms - self.last_write_ms > self._settings.heartbeat_ms
            if durable > self.current_reported_offset or is_due:
                self._report(max(durable, self.current_reported_offset), now_ms)
        found, self._out = b"".join(self._out), []
        return found

    @property
    def wants_flush(self) -> bool:
        """A report waits for the disk."""
        return self.state is State.FLUSHING or (
            self.state is State.TRANSFER and self._store.durable_offset < self._store.log.max_offset
        )

    def _report(self, offset: int, now_ms: int) -> None:
        self._out.append(encode_report(offset))
        self.current_reported_offset, self.last_write_ms = offset, now_ms

    @property
    def room(self) -> memoryview:
        """Where a socket writes the master's next bytes; `received` says how many."""
        return self._reader.room

    def received(self, size_bytes: int, now_ms: int) -> None:
        self._take(partial(self._reader.fill, size_bytes), now_ms)

    def receive(self, data: BytesLike, now_ms: int) -> None:
        """The master's bytes, in pieces of any length."""
        self._take(partial(self._reader.feed, data), now_ms)

    def _take(self, frames: Callable[[], list[Frame]], now_ms: int) -> None:
        if self.is_closed:
            return
        self.last_read_ms = now_ms
        try:
            for frame in frames():
                if self.is_keeping:
                    self._held.append(frame)
                elif frame.said is not None:
                    self._heard(frame.said, now_ms)
                else:
                    self._frame(frame)
                if self.is_closed:
                    return
        except (HaError, MessageStoreError, OSError) as error:
            self._refuse(str(error))

    def unreachable(self, why: str) -> None:
        """There was no connection."""
        if self.state is State.CLOSED:
            self.closed_by = why

    def _refuse(self, why: str) -> None:
        self.refused_at = self.tried
        if why != self.trouble:
            self.trouble = why
            self._note("ha_not_served", "error", why)
        self.close(why)

    # --- the handshake --------------------------------------------------------------------------------------------
    def _heard(self, said: dict[str, object], now_ms: int) -> None:
        if self.state is State.ASKED:
            self._hello(said, now_ms)
        elif self.state is State.SAID:
            self._verdict(said)
        elif self.state is State.SEARCHING:
            self._searched(said)
        else:
            raise HaError("the master says something that was not asked for")

    def _hello(self, said: dict[str, object], now_ms: int) -> None:
        master, log = parse_hello(said), self._store.log
        if master.role == BrokerRole.SLAVE.value:
            self.close("a slave is there, no master")
            return
        self.is_ours, self._heard_of = True, master
        self._said, self._master_span = master.lineage, (master.begin, master.end)
        own = hello_of(log, self.lineage, self._slave, self._run, unable=self._store.full).to_json()
        self._hellos = proved_hello(self._settings.proof, said, own)
        self._out.append(slave_says(dict(self._hellos[1])))
        self.state, self.last_write_ms = State.SAID, now_ms

    def _verdict(self, said: dict[str, object]) -> None:
        check_verdict(self._settings.proof, self._hellos, said)
        verdict = parse_verdict(said)
        self.stand = verdict.stand
        log = self._store.log
        assert self._heard_of is not None
        if verdict.stand is not Stand.STRANGER:  # which says more
            check_epochs(self.lineage, self._heard_of, has_messages=not _is_empty(log))
        if verdict.stand.is_served:
            self._check_age()
        full = self._store.full or str(self._hellos[1].get("unable", ""))  # or it was, when it said so
        if full and (verdict.stand.is_served or verdict.reason == takes_nothing(full)):
            self.stand = None
            raise HaError(full)
        if verdict.stand.is_served:
            if verdict.start != log.max_offset and not _is_empty(log):
                raise HaError(f"the master sends from {verdict.start} on, this log ends at {log.max_offset}")
            assert self._said is not None
            self.master = self._heard_of
            self._transfer(self._said)
        elif verdict.stand.can_be_cut and self._settings.cuts_back:
            begin, end = self._master_span
            self._search = CommonEnd(log, max(begin, log.min_offset), min(end, log.max_offset))
            self.state = State.SEARCHING
            self._ask()
        else:
            more = (
                "" if not verdict.stand.can_be_cut else "; with cuts_back this slave would cut its log back, and keep"
            )
            raise HaError(f"{verdict.stand.value}: {verdict.reason}{more and more + ' a copy'}")

    def _check_age(self) -> None:
        """An old master hears of the later epoch with this slave's hello, and refuses it itself: else this does."""
        own, said = self.lineage, self._said
        if said is not None and own.pair == said.pair and said.epoch < own.newest:
            raise HaError(
                f"the master is of epoch {said.epoch}, this slave heard of {own.newest}: an old master returned"
            )

    def _transfer(self, lineage: Lineage | None) -> None:
        if lineage is not None and lineage != self.lineage:
            self._kept_then(lineage, self._go)
        else:
            self._go()

    def _kept_then(self, lineage: Lineage, act: Callable[[], None]) -> None:
        """`act` once that is on disk, if this connection is there still."""
        self.state, connection = State.KEEPING, self._connection

        def kept(why: str) -> None:
            if not why:
                self.lineage = lineage.hearing(self.lineage.heard)
            if self.state is not State.KEEPING or connection != self._connection:
                return
            try:
                if why:
                    raise HaError(f"the epochs of its master cannot be kept: {why}")
                act()
            except (HaError, MessageStoreError, OSError) as error:
                self._refuse(str(error))
            self.on_kept()

        self._keep(lineage, kept)

    def _go(self) -> None:
        self.state, self.lost_ms = State.TRANSFER, 0
        if self.trouble:
            self.trouble = ""
            self._note("ha_served", "info", f"{self.stand.value if self.stand else 'as RocketMQ serves slaves'}")
        self.served_by = self.tried
        held, self._held = self._held, []
        for frame in held:
            if frame.said is not None:
                raise HaError("the master says something that was not asked for")
            self._frame(frame)

    def _ask(self) -> None:
        assert self._search is not None
        if not self._search.is_done:
            self._out.append(slave_says({"ranges": [list(one) for one in self._search.ranges]}))
            return
        end = self._search.end
        if end is None:
            raise HaError("nothing in this log agrees with the master's: empty the directory, or find out whose it is")
        self._kept_then(self.lineage.cut(end), partial(self._cut, end))

    def _cut(self, end: int) -> None:
        """It may take minutes: queues and index are written anew. The connection ends, and another begins then."""
        before = self._store.log.max_offset
        self.close(f"its log is cut back from {before} to {end}, where the master's agrees: it connects again then")
        self.state = State.CUTTING
        self._alone(partial(self._store.cut_back, end), partial(self._was_cut, before, end))

    def _was_cut(self, before: int, end: int, found: int | Exception) -> None:
        self.state = State.CLOSED
        self._store.was_cut()
        if isinstance(found, Exception):
            self._refuse(f"its log was to be cut back from {before} to {end}: {found}")
            return
        text = f"from {before} to {end}, where the master's log agrees: {found} bytes aside"
        self._note("ha_cut_back", "warning", text)
        self.closed_by = "its log was cut back: it connects again"

    def _searched(self, said: dict[str, object]) -> None:
        assert self._search is not None
        crcs = said.get("crcs")
        if not isinstance(crcs, list) or len(crcs) != len(self._search.ranges):
            raise HaError("the master's CRCs cannot be read")
        self._search.answer(crcs)
        self._ask()

    # --- the log --------------------------------------------------------------------------------------------------
    def _frame(self, frame: Frame) -> None:
        if self.state is not State.TRANSFER:
            raise HaError("the master sends its log, and was not asked for it")
        log = self._store.log
        place = log.max_offset + len(self._part)
        if frame.offset != place and not (_is_empty(log) and not self._part):
            raise HaError(f"the master sends from {frame.offset} on, this log goes on at {place}")
        self.master_offset = max(self.master_offset, frame.offset + len(frame.body))
        if not frame.body:
            return
        if _is_empty(log) and frame.offset % log.file_bytes and frame.offset != log.max_offset:
            raise HaError(
                f"the master's log begins at {frame.offset}, which is no multiple of {log.file_bytes}"
                " (mappedFileSizeCommitLog)"
            )
        data = frame.body
        if self._part:
            self._part += data
            data = bytes(self._part) if len(self._part) >= self._part_needs else b""
        if data:
            taken = self._store.append_data(frame.offset + len(frame.body) - len(data), data)
            self._part = bytearray(data[taken:])
            self._part_needs = (
                LENGTH.unpack_from(self._part)[0] if len(self._part) >= SIZE_AND_MAGIC.size else SIZE_AND_MAGIC.size
            )
            self.taken_bytes += taken
        if len(self._part) > MESSAGE_BYTES_MAX:
            raise HaError(f"{len(self._part)} bytes of the master's log without the end of a record")


def _is_empty(log: LogOf) -> bool:
    return log.max_offset == log.min_offset
