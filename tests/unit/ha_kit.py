"""A master and slaves of classic HA in memory: logs in a temporary directory, a clock to turn."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from node.ha.client import HAClient, Kept
from node.ha.connection import HAConnection
from node.ha.lineage import Lineage
from node.ha.service import HAService
from node.ha.settings import BrokerRole, HaSettings
from node.message_store.local_log import LocalCommitLog
from node.message_store.record import encode_record
from node.protocol.entry import BytesLike
from tests.unit.message_kit import record

FILE_BYTES = 4096


def one_record(number: int, body_bytes: int = 60) -> bytes:
    body = random.Random(number).randbytes(body_bytes)
    return encode_record(record(body, queue_offset=number, store_timestamp_ms=1_795_000_000_000 + number))


def put(log: LocalCommitLog, *numbers: int, body_bytes: int = 60) -> int:
    """The new end."""
    for number in numbers:
        data = one_record(number, body_bytes)
        log.make_room(len(data))
        log.append([data])
    return log.max_offset


def content(log: LocalCommitLog) -> bytes:
    return b"".join(log.read(start, log.file_bytes) for start in log.starts)


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


class SlaveStore:
    """`is_sync`: reports wait for a flush. `full`: why it takes nothing."""

    def __init__(self, log: LocalCommitLog, is_sync: bool = False) -> None:
        self.log, self.is_sync = log, is_sync
        self.full = ""

    @property
    def durable_offset(self) -> int:
        return self.log.flushed_offset if self.is_sync else self.log.max_offset

    def append_data(self, offset: int, data: BytesLike) -> int:
        return self.log.append_data(offset, data)

    def cut_back(self, end: int) -> int:
        return self.log.cut(end)

    def was_cut(self) -> None: ...


class Pair:
    """One master, and slaves that connect to it. `pieces`: how many bytes go at once."""

    def __init__(
        self, root: Path, settings: HaSettings | None = None, role: BrokerRole = BrokerRole.SYNC_MASTER,
        lineage: Lineage | None = None, name: str = "master", clock: Clock | None = None,
    ) -> None:  # fmt: skip
        self.root, self.settings = root, settings or HaSettings()
        self.clock = clock or Clock()
        self.notes: list[tuple[str, str, str]] = []
        self.log = LocalCommitLog(root / name, FILE_BYTES)
        self.fenced: list[int] = []
        begun = lineage if lineage is not None else Lineage().begun("pair-1", self.log.max_offset)
        self.service = HAService(self.log, self.settings, role, begun, self._note, self.fenced.append)
        self.pieces: Callable[[], int] = lambda: 1 << 20

    def _note(self, kind: str, severity: str, text: str) -> None:
        self.notes.append((kind, severity, text))

    def slave(self, name: str = "s1", run: str = "r1", **more: object) -> Slave:
        return Slave(self, name, run, **more)  # type: ignore[arg-type]


class Slave:
    """Its end, and the connection that its master has."""

    def __init__(
        self, pair: Pair, name: str, run: str, *, log: LocalCommitLog | None = None, lineage: Lineage | None = None,
        settings: HaSettings | None = None, is_sync: bool = False,
    ) -> None:  # fmt: skip
        self.pair, self.name = pair, name
        self.log = log or LocalCommitLog(pair.root / name, FILE_BYTES)
        self.store = SlaveStore(self.log, is_sync)
        self.kept: list[Lineage] = []
        own = settings or pair.settings
        self.client = HAClient(self.store, own, name, run, lineage or Lineage(), self._keep, pair._note)
        self.connection: HAConnection | None = None

    def _keep(self, lineage: Lineage, then: Kept) -> None:
        self.kept.append(lineage)
        then("")

    def connect(self, address: str = "10.0.0.2:5000") -> Slave:
        self.connection = self.pair.service.accept(address, self.pair.clock())
        assert self.connection is not None
        self.client.connected(self.pair.clock())
        return self

    def carry(self, rounds: int = 200) -> None:
        """Both ways until nothing moves."""
        assert self.connection is not None
        for _ in range(rounds):
            now = self.pair.clock()
            up, down = self.client.next_bytes(now), self.connection.next_bytes(now)
            for data, receive in ((up, self.connection.receive), (down, self.client.receive)):
                while data:
                    size = self.pair.pieces()
                    receive(data[:size], now)
                    data = data[size:]
            if not up and not down:
                return

    def disconnect(self) -> None:
        assert self.connection is not None
        self.pair.service.remove(self.connection)
        self.client.close("cut")

    def reconnect(self) -> None:
        self.disconnect()
        self.connect()
        self.carry()
