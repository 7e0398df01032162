"""One broker of a simulated HA group: the real log, lineage and state machines on a simulated disk."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from node.ha.client import HAClient, Kept
from node.ha.lineage import Lineage, read_lineage, write_lineage
from node.ha.service import HAService
from node.ha.settings import BrokerRole, HaSettings
from node.message_store.commit_log import COMMIT_LOG
from node.message_store.local_log import LocalCommitLog
from node.message_store.local_recovery import cut_path, file_name
from node.message_store.put_result import PutStatus
from node.message_store.record import encode_record
from node.protocol.entry import crc32
from tests.simulation.disk import SimulatedPlatform
from tests.simulation.message_disk import MessageDisk
from tests.simulation.observer import Violation
from tests.unit.ha_kit import SlaveStore
from tests.unit.message_kit import record

ROOT = Path("/store")
FILE_BYTES = 4096


class CheckedStore(SlaveStore):
    """What it cuts, it has kept aside, and its files do not hold any more."""

    def __init__(self, log: LocalCommitLog, is_sync: bool, disk: MessageDisk) -> None:
        super().__init__(log, is_sync)
        self._disk = disk

    def cut_back(self, end: int) -> int:
        before = content(self.log, end, self.log.max_offset).rstrip(b"\0")
        found = super().cut_back(end)
        at = end
        while at < end + len(before):
            piece = before[at - end : at - end + FILE_BYTES - at % FILE_BYTES]
            if self._disk.read(cut_path(ROOT, at, crc32(piece)), 0, len(piece) + 1) != piece:
                raise Violation("cut_is_kept", f"{len(piece)} bytes at {at} were cut, and are nowhere")
            at += len(piece)
        start = end - end % FILE_BYTES
        if self._disk.read(ROOT / COMMIT_LOG / file_name(start), end - start, FILE_BYTES).strip(b"\0"):
            raise Violation("cut_is_gone", f"the log was cut back to {end}, and its file goes on")
        return found


class Put:
    """One message, from its put at `by` to its answer."""

    def __init__(self, by: Node, begin: int, end: int, body: bytes, crc: int) -> None:
        self.by, self.begin, self.end, self.body, self.crc = by, begin, end, body, crc
        self.slaves: PutStatus | None = None


class Node:
    """See the module's docstring. A process runs while `log` is there."""

    def __init__(
        self, name: str, rng: random.Random, clock: Callable[[], int], role: BrokerRole, *, is_sync: bool, in_sync: int
    ) -> None:  # fmt: skip
        """`role`: of a master."""
        self.name, self.role, self.is_sync, self.in_sync = name, role, is_sync, in_sync
        self._clock = clock
        self.platform = SimulatedPlatform(random.Random(rng.random()), lambda: clock() * 1_000_000, name)
        self.log: LocalCommitLog | None = None
        self.service: HAService | None = None
        self.client: HAClient | None = None
        self.lineage = Lineage()
        self.wants_master = False
        self.starts = 0
        self.puts: list[Put] = []
        self.notes: list[tuple[int, str, str]] = []
        self.heard_epoch = 0  # of what masters began
        self.known_epoch = 0  # and of promotions that were to be
        self.keeping: list[tuple[Lineage, Kept]] = []
        self.disk: MessageDisk | None = None
        self.is_paused = False
        self.is_fenced = False

    @property
    def is_up(self) -> bool:
        return self.log is not None

    @property
    def runs(self) -> bool:
        return self.is_up and not self.is_paused

    def settings(self) -> HaSettings:
        return HaSettings(cuts_back=True, in_sync_replicas=self.in_sync, reconnect_ms=100)

    def note(self, kind: str, _severity: str, text: str) -> None:
        self.notes.append((self._clock(), kind, text))

    def start(self, *, is_master: bool, is_promoted: bool = False, above: int = 0) -> None:
        """Opens the log, which recovers. Raises SimulatedCrash."""
        self.starts += 1
        self.wants_master, self.is_fenced = is_master, False
        disk = self.disk = MessageDisk(self.platform)
        log = LocalCommitLog(ROOT, FILE_BYTES, disk=disk, files=disk)
        self.lineage = read_lineage(ROOT, disk)
        self.is_paused = False
        self.service = self.client = None
        if is_master:
            pair, end = f"pair-{self.name}", log.max_offset
            self.keep(self.lineage.begun(pair, end, is_promoted=is_promoted, above=above))
            self.service = HAService(log, self.settings(), self.role, self.lineage, self.note, self._fenced)
        else:
            run = f"{self.name}-{self.starts}"
            store = CheckedStore(log, self.is_sync, disk)
            self.client = HAClient(
                store, self.settings(), self.name, run, self.lineage, self._keep, self.note
            )  # fmt: skip
        self.log = log

    def keep(self, lineage: Lineage) -> None:
        self.known_epoch = max(self.known_epoch, lineage.newest)
        assert self.disk is not None
        write_lineage(ROOT, lineage, self.disk)
        self.lineage = lineage
        self.heard_epoch = max(self.heard_epoch, lineage.epoch)

    def _keep(self, lineage: Lineage, then: Kept) -> None:
        """A thread does it: `keep_now`."""
        self.keeping.append((lineage, then))

    def keep_now(self) -> None:
        while self.keeping:
            lineage, then = self.keeping.pop(0)
            self.keep(lineage.hearing(self.lineage.heard))
            then("")

    def promise(self, epoch: int) -> None:
        """Asked by who is to be promoted: no older master is followed from now on."""
        assert self.client is not None
        self.client.hear(epoch)
        self.keep(self.lineage.hearing(epoch))

    def _fenced(self, _epoch: int) -> None:
        self.is_fenced = True
        for put in self.puts:  # as the store does it: who was replaced answers nothing as stored, flushed or not
            put.slaves = PutStatus.FLUSH_SLAVE_TIMEOUT

    def end(self) -> None:
        """The process is gone; what it had not answered, nobody will."""
        self.log = self.service = self.client = None
        self.is_paused = False
        self.puts.clear()
        self.keeping.clear()
        self.platform.crash_process()

    def put(self, number: int) -> None:
        """One message of a client's, at a master."""
        assert self.log is not None and self.service is not None
        if self.is_fenced:
            return
        body = random.Random(f"{self.name} {number}").randbytes(20 + number % 300)
        data = encode_record(record(body, queue_offset=number, store_timestamp_ms=1_795_000_000_000 + self._clock()))
        self.log.make_room(len(data))
        begin = self.log.append([data])[0]
        put = Put(self, begin, self.log.max_offset, body, self.log.last_record.crc)
        self.puts.append(put)

        def said(status: PutStatus) -> None:
            put.slaves = status

        self.service.handle_ha(put.end, self._clock(), said)

    def holds(self, put: Put) -> bool:
        """On its disk where it flushes before it reports, else as processes see it."""
        start = put.begin - put.begin % FILE_BYTES
        data = self._read(ROOT / COMMIT_LOG / file_name(start))
        return crc32(data[put.begin - start : put.end - start]) == put.crc

    def keeps(self, put: Put) -> bool:
        """In its log, or among what was cut from that."""
        folder = cut_path(ROOT, 0, 0).parent
        return self.holds(put) or any(put.body in self._read(folder / name) for name in self.platform.names(folder))

    def _read(self, path: Path) -> bytes:
        try:
            return self.platform.durable_bytes(path) if self.is_sync else self.platform.read_bytes(path)
        except OSError:
            return b""

    def answered(self) -> list[Put]:
        """Puts that are over now with PUT_OK; others that are over are forgotten."""
        assert self.log is not None
        found, left = [], []
        for one in self.puts:
            is_flushed = not self.is_sync or self.log.flushed_offset >= one.end
            if one.slaves is None or (one.slaves is PutStatus.PUT_OK and not is_flushed):
                left.append(one)
            elif one.slaves is PutStatus.PUT_OK:
                found.append(one)
        self.puts = left
        return found


def content(log: LocalCommitLog, begin: int, end: int) -> bytes:
    pieces: list[bytes] = []
    while begin < end:
        data = log.read(begin, end - begin)
        if not data:
            break
        pieces.append(data)
        begin += len(data)
    return b"".join(pieces)
