"""HAConnection: one slave, as its master sees it, without a socket: bytes in, bytes out, the clock passed in.

ReadSocketService takes reports, WriteSocketService gives frames: at most 32 KiB of one file each, ended at a border
between records (a slave of RocketMQ's takes whole frames only, so it never stops within a record), heartbeats when
nothing was sent for 5 s.

Invariants: nothing of the log is sent before the slave was judged; a report that goes back, or is of what was never
sent, ends the connection; an acknowledgement is what the slave reported, never what was sent.
"""

from __future__ import annotations

import json
import struct
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, Protocol

from node.ha.common_end import RANGES_MAX
from node.ha.frames import ASK, HaError, ReportReader, encode_header, master_says
from node.ha.handshake import Hello, LogOf, Stand, Verdict, judge_request, parse_hello
from node.ha.lineage import Lineage
from node.ha.proof import MASTER, SLAVE, has_nonce
from node.ha.settings import HaSettings
from node.protocol.entry import BytesLike

SIZE: Final = struct.Struct(">i4x")  # of a record or a blank, and their magic
SIZE_BYTES: Final = SIZE.size
OWN_BATCH_BYTES: Final = 2 << 20  # of a frame to a slave of ours
WHOLE_BYTES_MAX: Final = 4 << 20  # of a record that goes in a frame of its own
APART_BYTES: Final = 256 << 10  # from here on a frame's head leaves alone, and its body as it was read: not copied
PROBE_BYTES_MAX: Final = 64 << 20  # of the log, compared for one question of a slave's


class Phase(Enum):
    """How far a connection is."""

    NEW = "new"
    ASKED = "asked"  # a slave of ours: it is to say what it has
    JUDGED = "judged"  # it is not served, and may ask where the logs agree
    TRANSFER = "transfer"
    CLOSED = "closed"


class Master(Protocol):
    """What a connection asks of its HAService."""

    @property
    def log(self) -> LogOf: ...
    @property
    def settings(self) -> HaSettings: ...
    @property
    def lineage(self) -> Lineage: ...
    @property
    def is_serving(self) -> bool:
        """Whether it is a master now."""

    def hello(self) -> Hello:
        """What it says of itself."""

    def judged(self, connection: HAConnection, hello: Hello) -> Verdict:
        """How its slave stands, and whether it may come in."""

    def heard(self, hello: Hello, then: Callable[[], None]) -> None:
        """Of a broker that only asks; `then` once the epoch that it heard of is kept."""

    def has_data(self) -> None:
        """There is something to send."""

    def served(self, connection: HAConnection) -> None: ...
    def acknowledged(self, connection: HAConnection) -> None: ...
    def refused(self, connection: HAConnection, reason: str) -> None: ...


class WriteSocketService:
    """What goes to the slave. `next_transfer_from` -1: nothing of the log yet."""

    def __init__(self, log: LogOf, settings: HaSettings, now_ms: int) -> None:
        self._log, self._settings = log, settings
        self.is_ours = False
        self.next_transfer_from = -1
        self.last_write_ms = now_ms
        self.sent_bytes = 0
        self._said: deque[bytes] = deque()
        self._body: BytesLike = b""  # of a frame whose head has left
        self._window = (now_ms, 0)  # flow control: since when, and how many bytes

    @property
    def is_answering(self) -> bool:
        """Whether there is an answer that was not taken yet."""
        return bool(self._said)

    def say(self, said: dict[str, Any]) -> None:
        self._said.append(master_says(said))

    def next_bytes(self, now_ms: int) -> BytesLike:
        """One frame, or of a long one the head or the body; empty: nothing to send now."""
        if self._body:
            found, self._body = self._body, b""
        else:
            found = self._said.popleft() if self._said else self._transfer(now_ms)
        if found:
            self.last_write_ms = now_ms
        return found

    def _transfer(self, now_ms: int) -> BytesLike:
        place = self.next_transfer_from
        if place < 0:
            return b""
        if place < self._log.max_offset and self._may_send(now_ms):
            body = self._batch(place)
            if body:
                self.next_transfer_from += len(body)
                self.sent_bytes += len(body)
                self._window = (self._window[0], self._window[1] + len(body))
                if len(body) >= APART_BYTES:
                    self._body = body
                    return encode_header(place, len(body))
                return encode_header(place, len(body)) + body
        if now_ms - self.last_write_ms > self._settings.heartbeat_ms:
            return encode_header(place, 0)
        return b""

    def _may_send(self, now_ms: int) -> bool:
        limit = self._settings.flow_control_bytes_s
        if now_ms - self._window[0] >= 1000:
            self._window = (now_ms, 0)
        return not limit or self._window[1] < limit

    def _batch(self, place: int) -> BytesLike:
        size = OWN_BATCH_BYTES if self.is_ours else self._settings.transfer_batch_bytes
        data = self._log.read(place, size)
        if len(data) < size:
            return data  # up to the end of the file, or of the log: a border
        upto, needs = whole_bytes(data)
        if upto:
            return memoryview(data)[:upto]
        return self._log.read(place, needs) if size < needs <= WHOLE_BYTES_MAX else data

    def data_wait_ms(self, now_ms: int) -> int:
        """When there may be something to send again, if the log stays as it is."""
        heartbeat_ms = self.last_write_ms + self._settings.heartbeat_ms + 1 - now_ms
        if self.next_transfer_from < self._log.max_offset:
            return max(1, min(heartbeat_ms, self._window[0] + 1000 - now_ms))
        return max(1, heartbeat_ms)


def whole_bytes(data: bytes) -> tuple[int, int]:
    """How many of these bytes of the log, which begin at a border, are whole records; how long the next one is."""
    at, end, size_of = 0, len(data), SIZE.unpack_from
    while end - at >= SIZE_BYTES:
        size = size_of(data, at)[0]
        if size <= 0 or size > end - at:
            return at, max(size, 0)
        at += size
    return at, 0


class ReadSocketService:
    """What comes from the slave."""

    def __init__(self, now_ms: int) -> None:
        self._reader = ReportReader()
        self.last_read_ms = now_ms

    def feed(self, data: bytes, now_ms: int) -> list[int | dict[str, Any]]:
        self.last_read_ms = now_ms
        return self._reader.feed(data)


class HAConnection:
    """See the module's docstring. `slave`: who it is: an id of ours, or the address of a slave of RocketMQ's."""

    def __init__(self, master: Master, address: str, now_ms: int) -> None:
        self._master = master
        self.address = address
        self.slave = ""
        self.run = ""
        self.is_ours = False
        self.phase = Phase.NEW
        self.stand: Stand | None = None
        self.closed_by = ""
        self.only_asks = False  # another broker, that wants to hear what this one is
        self._own_hello: dict[str, Any] = {}
        self.reason = ""  # of its verdict
        self.connected_ms = now_ms
        self.slave_request_offset = -1
        self.slave_ack_offset = -1
        self.acked_ms = now_ms
        self.reading = ReadSocketService(now_ms)
        self.writing = WriteSocketService(master.log, master.settings, now_ms)

    @property
    def ip(self) -> str:
        return self.address.rpartition(":")[0]

    @property
    def is_known(self) -> bool:
        """Whether it has said who it is."""
        return self.phase not in (Phase.NEW, Phase.ASKED)

    @property
    def is_closed(self) -> bool:
        return self.phase is Phase.CLOSED

    def receive(self, data: bytes, now_ms: int) -> None:
        """The slave's bytes, in pieces of any length."""
        if self.phase is Phase.CLOSED:
            return
        try:
            for one in self.reading.feed(data, now_ms):
                self._take(one, now_ms)
                if self.is_closed:
                    return
        except HaError as error:
            self.close(str(error), is_refusal=True)

    def next_bytes(self, now_ms: int) -> BytesLike:
        """What to send now; a closed connection has only what was said before."""
        self.look(now_ms)
        return b"" if self.phase is Phase.CLOSED else self.writing.next_bytes(now_ms)

    def look(self, now_ms: int) -> None:
        """Its deadlines, also where nothing can be sent because it takes nothing."""
        if not self.is_known and now_ms - self.connected_ms > self._master.settings.handshake_ms:
            self.close("it did not say what it is")
        elif now_ms - self.reading.last_read_ms > self._master.settings.housekeeping_ms:
            self.close(f"nothing was heard of it for {now_ms - self.reading.last_read_ms} ms")
        elif 0 <= self.writing.next_transfer_from < (begin := self._master.log.min_offset):
            self.close(f"it was sent the log up to {self.writing.next_transfer_from}, which begins at {begin} now")

    def close(self, why: str, *, is_refusal: bool = False) -> None:
        if self.phase is not Phase.CLOSED:
            self.phase, self.closed_by = Phase.CLOSED, why
            if is_refusal:
                self._master.refused(self, why)

    def _take(self, one: int | dict[str, Any], now_ms: int) -> None:
        if isinstance(one, dict):
            self._heard(one, now_ms)
        elif self.phase is Phase.NEW and one == ASK:
            self.is_ours = self.writing.is_ours = True
            self.phase = Phase.ASKED
            self._own_hello = self._master.hello().to_json()
            proof = self._master.settings.proof
            if proof is not None:
                self._own_hello["nonce"] = proof.nonce()
            self.writing.say(self._own_hello)
        elif self.phase is Phase.NEW:
            self._request(one, now_ms)
        elif self.phase is Phase.TRANSFER and one != ASK:
            self._report(one, now_ms)
        else:
            raise HaError(f"a report of {one}, and it has not said what it has")

    def _request(self, offset: int, now_ms: int) -> None:
        """The first report of a slave of RocketMQ's."""
        if not self._master.settings.admits(self.ip):
            raise HaError(f"a slave of RocketMQ's at {self.ip}, which is not in [ha] allow")
        if not self._master.is_serving:
            raise HaError("this broker is no master")
        self.slave = f"java:{self.ip}"
        verdict = judge_request(self._master.log, offset)
        self.stand, self.reason = verdict.stand, verdict.reason
        if not verdict.stand.is_served:
            raise HaError(verdict.reason)
        self._serve(offset, verdict, now_ms)

    def _heard(self, said: dict[str, Any], now_ms: int) -> None:
        if self.phase is Phase.ASKED:
            self._check_proof(said)
            hello = parse_hello(said)
            self.slave, self.run = hello.slave, hello.run
            self.only_asks = not hello.slave
            verdict = self._master.judged(self, hello)
            self.stand, self.reason = verdict.stand, verdict.reason
            if self.only_asks:
                self.phase = Phase.JUDGED
                self._master.heard(hello, lambda: self._answered(verdict, said))
                return
            self.writing.say(self._proved(verdict.to_json(), said))
            if verdict.stand.is_served:
                self._serve(hello.end, verdict, now_ms)
            else:
                self.phase = Phase.JUDGED
                self._master.refused(self, verdict.reason)
        elif self.phase is Phase.JUDGED:
            self._probed(said)
        else:
            raise HaError(f"an object that was not asked for: {json.dumps(said)[:100]}")

    def _answered(self, verdict: Verdict, asked: dict[str, Any]) -> None:
        """To who only asks: where this log ends, from now on without what an older master might still send."""
        self.writing.say(self._proved(verdict.to_json() | {"end": self._master.log.max_offset}, asked))
        self._master.has_data()

    def _check_proof(self, said: dict[str, Any]) -> None:
        """Before anything that it says counts. Raises HaError."""
        proof = self._master.settings.proof
        if proof is not None:
            if not (has_nonce(said) and proof.is_proved(SLAVE, said.get("mac"), self._own_hello, said)):
                raise HaError("it does not prove the pair's secret: give both brokers the same [node] secret_file")
        elif not self._master.settings.admits(self.ip):
            raise HaError(f"{self.ip} is not in [ha] allow, and this broker has no [node] secret_file")

    def _proved(self, verdict: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
        proof = self._master.settings.proof
        return verdict if proof is None else verdict | {"mac": proof.mac(MASTER, self._own_hello, theirs, verdict)}

    def _serve(self, request: int, verdict: Verdict, now_ms: int) -> None:
        self.phase = Phase.TRANSFER
        self.slave_request_offset = request
        # One of ours acknowledges what is as durable as its mode promises, so not yet what it has.
        self.slave_ack_offset = -1 if self.is_ours else request
        self.acked_ms = now_ms
        self.writing.next_transfer_from = verdict.start
        self._master.served(self)

    def _report(self, offset: int, now_ms: int) -> None:
        if offset < self.slave_ack_offset:
            raise HaError(f"a report of {offset} behind one of {self.slave_ack_offset}: its log went back")
        if offset > self.writing.next_transfer_from:
            raise HaError(f"a report of {offset}, and {self.writing.next_transfer_from} is all that was sent")
        self.slave_ack_offset, self.acked_ms = offset, now_ms
        self._master.acknowledged(self)

    def _probed(self, said: dict[str, Any]) -> None:
        """Where do the logs agree? CRCs of ranges of this master's."""
        ranges = said.get("ranges")
        if not isinstance(ranges, list) or len(ranges) > RANGES_MAX:
            raise HaError("a question that cannot be read")
        if self.writing.is_answering:  # each may read PROBE_BYTES_MAX of the log
            raise HaError("a question before the answer to the one before")
        crcs: list[int | None] = []
        left = PROBE_BYTES_MAX
        for one in ranges:
            if not (isinstance(one, list) and len(one) == 2 and all(type(part) is int for part in one)):
                raise HaError("a range that cannot be read")
            left -= max(0, one[1] - one[0])
            if left < 0:
                raise HaError(f"ranges of more than {PROBE_BYTES_MAX} bytes")
            crcs.append(self._master.log.crc_of(one[0], one[1]))
        self.writing.say({"crcs": crcs})
