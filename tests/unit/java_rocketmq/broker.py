"""DefaultMessageStore of 4.9.8 and 5.3.3: load, recover, reput. Over CommitLog, or DLedgerCommitLog and old files."""

from __future__ import annotations

import struct
from pathlib import Path

from tests.unit.java_rocketmq.derived import Index, Queue
from tests.unit.java_rocketmq.dledger import DLedger
from tests.unit.java_rocketmq.records import Request, check_entry, check_record
from tests.unit.java_rocketmq.rows import Row

V4, V5 = "4.9.8", "5.3.3"
LEDGER_INDEX_BYTES = 167_772_160


class JavaBroker:
    """Starts on `root`. Raises WillNotStart. `stop` writes back what a stop leaves; a crash is not calling it."""

    def __init__(
        self, root: Path, version: str, *, file_bytes: int, queue_bytes: int, slots: int, index_entries: int,
        ledger: bool = True, ledger_index_bytes: int = LEDGER_INDEX_BYTES, self_id: str = "n0",
    ) -> None:  # fmt: skip
        self.root, self.version, self.queue_bytes = root, version, queue_bytes
        self.crashed = (root / "abort").exists()
        self.old = Row(root / "commitlog", file_bytes, drops_empty=True)
        self.queues = {
            (topic.name, int(one.name)): Queue(one, queue_bytes)
            for topic in sorted((root / "consumequeue").glob("*"))
            for one in sorted(topic.iterdir())
        }
        said = (root / "checkpoint").read_bytes() if (root / "checkpoint").exists() else bytes(24)
        physic, logics, self.index_ms = struct.unpack_from(">qqq", said)
        self.min_ms = max(0, min(physic, logics) - 3000)
        self.index = Index(root / "index", slots, index_entries, self.index_ms if self.crashed else None)
        for queue in self.queues.values():
            queue.recover()
        self.ledger: DLedger | None = None
        if ledger:
            self.ledger = DLedger(root / f"dledger-{self_id}", file_bytes, ledger_index_bytes)
        self._recover(self._max_physic())
        self.reput_from = self._first_reput()
        self.reput()

    def _max_physic(self) -> int:
        return max((queue.max_physic for queue in self.queues.values()), default=-1)

    # --- recovery -------------------------------------------------------------------------------------------------
    def _recover(self, dispatched: int) -> None:
        if self.ledger is None or not self.ledger.data.files:
            self._recover_old(dispatched)
        elif self.crashed and self.version == V5:
            self._recover_ledger_abnormally(dispatched)
        elif dispatched >= self.ledger.data.written:
            self._truncate_queues(self.ledger.data.written)

    def _truncate_queues(self, physical: int) -> None:
        for queue in self.queues.values():
            queue.truncate(physical)

    def _recover_ledger_abnormally(self, dispatched: int) -> None:
        """Sums the sizes of records and forgets the heads between them (oddity 6)."""
        assert self.ledger is not None
        row = self.ledger.data
        number = len(row.starts) - 1
        while number > 0 and not self._matches(row, row.starts[number] + 48):
            number -= 1
        begin, summed, place = row.starts[number], 0, 0
        while True:
            found = check_entry(bytes(row.files[begin]), place, knows_v2=True, checks_crc=True)
            if not found.is_fine:
                break
            if found.span == 0:
                number += 1
                if number >= len(row.starts):
                    break
                begin, summed, place = row.starts[number], 0, 0
                continue
            self._dispatch(found)
            summed += found.size
            place += found.span
        if dispatched >= begin + summed:
            self._truncate_queues(begin + summed)

    def _matches(self, row: Row, place: int) -> bool:
        magic = struct.unpack(">i", row.read(place + 4, 4))[0]
        sys_flag = struct.unpack(">i", row.read(place + 36, 4))[0]
        store_ms = struct.unpack(">q", row.read(place + 48 + (20 if sys_flag & 0x10 else 8), 8))[0]
        return magic == 0xDAA320A7 - (1 << 32) and 0 != store_ms <= self.min_ms

    def _recover_old(self, dispatched: int) -> None:
        row = self.old
        if not row.files:
            return
        number = len(row.starts) - 1
        while number > 0:
            if self.crashed:
                if self._matches(row, row.starts[number]):
                    break
            elif struct.unpack(">q", row.read(row.starts[number] + 28, 8))[0] <= dispatched:
                break
            number -= 1
        end = row.starts[number]
        while True:
            start = row.starts[number]
            found = check_record(bytes(row.files[start]), end - start, knows_v2=self.version == V5, checks_crc=True)
            if not found.is_fine:
                break
            if found.span == 0:
                number += 1
                if number >= len(row.starts):
                    end = start + row.file_bytes
                    break
                end = row.starts[number]
                continue
            if self.version == V5 and (self.crashed or found.offset > dispatched):
                self._dispatch(found)
            end += found.span
        row.truncate(end)
        if dispatched >= end:
            self._truncate_queues(end)

    # --- reput ----------------------------------------------------------------------------------------------------
    @property
    def min_offset(self) -> int:
        if self.old.files:
            return self.old.starts[0]
        return self.ledger.data.starts[0] if self.ledger is not None and self.ledger.data.files else 0

    @property
    def max_offset(self) -> int:
        if self.ledger is None:
            return self.old.written
        if self.ledger.committed_pos > 0:
            return self.ledger.committed_pos
        return self.ledger.data.starts[0] if self.ledger.data.files else 0

    def _first_reput(self) -> int:
        begin = self.max_offset if self.version == V5 else self._max_physic()
        return max(begin, self.min_offset)

    def _row_of(self, offset: int) -> tuple[Row, bool]:
        if self.ledger is not None and self.ledger.data.files and offset >= self.ledger.data.starts[0]:
            return self.ledger.data, True
        return self.old, False

    def reput(self) -> None:
        """As far as is committed. What cannot be parsed is skipped to the end of the file, as the real one does."""
        while self.reput_from < self.max_offset:
            row, is_ledger = self._row_of(self.reput_from)
            begin = row.starts[0]
            start = (self.reput_from - begin) // row.file_bytes * row.file_bytes + begin
            data = bytes(row.files[start][: max(self.max_offset - start, 0)])
            check = check_entry if is_ledger or self.ledger is not None else check_record
            found = check(data, self.reput_from - start, knows_v2=self.version == V5, checks_crc=False)
            if found.span == 0:
                self.reput_from = start + row.file_bytes
            elif found.span < 0:
                self.reput_from = start + len(data)
            else:
                if found.is_fine:
                    self._dispatch(found)
                self.reput_from += found.span

    def committed(self, index: int) -> None:
        """A leader says so."""
        assert self.ledger is not None
        self.ledger.commit(index)
        self.reput()

    def _dispatch(self, one: Request) -> None:
        if one.is_queued:
            name = (one.topic, one.queue_id)
            if name not in self.queues:
                self.queues[name] = Queue(self.root / "consumequeue" / one.topic / str(one.queue_id), self.queue_bytes)
            self.queues[name].put(one)
        self.index.put(one)

    # --- what consumers see ---------------------------------------------------------------------------------------
    def units(self) -> dict[tuple[str, int], dict[int, tuple[int, int, int]]]:
        return {name: found for name, queue in self.queues.items() if (found := queue.units())}

    def next_offset(self, topic: str, queue_id: int) -> int:
        """What the next message of this queue gets."""
        queue = self.queues.get((topic, queue_id))
        return queue.row.written // 20 if queue is not None else 0

    def stop(self) -> None:
        """Writes queues and log back; `abort` goes."""
        for queue in self.queues.values():
            queue.row.save()
        (self.old if self.ledger is None else self.ledger.data).save()
        if self.ledger is not None:
            self.ledger.index.save()
            text = f"committedIndex={self.ledger.committed_index}\nendIndex={self.ledger.end_index}\n"
            (self.ledger.directory / "checkpoint").write_text(text)
        (self.root / "abort").unlink(missing_ok=True)
