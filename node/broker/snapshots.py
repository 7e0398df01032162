"""Snapshots in the log: the master writes the whole state as parts (channel 4) as soon as a new data file begins.

Once the messages of a queue have expired, its next offset is in a snapshot and nowhere else, and retention removes
nothing that the newest complete one needs (`docs/broker-groups.md`). One is also written at once where the log has none
and this directory was RocketMQ's: what it knew is in no log yet.

Invariants: a snapshot is of one moment, everything up to its as-of index and nothing behind it; its parts go one by
one, each once the one before it can be read here, so that messages go on in between; a lane that ends makes it void,
and the next master, or this one again, writes another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from node.message_store.metadata_state import Applied, MetadataState
from node.protocol.broker_state import encode_state
from node.protocol.group_kind import Channel
from node.protocol.snapshot_parts import PART_BYTES_MAX, split_snapshot

AGAIN_S: Final = 0.02
Touched = Mapping[tuple[str, int], int]


class Lane(Protocol):
    """What is needed of the lane that puts go over."""

    on_open: list[Callable[[], None]]
    on_left: list[Callable[[], None]]
    lanes_opened: int

    @property
    def is_open(self) -> bool: ...
    def append_own(self, channel: Channel, content: bytes, restarted: Sequence[str] = ()) -> bool: ...


class Log(Protocol):
    """The committed log, as this broker has it."""

    state: MetadataState | None
    end_position: int
    on_applied: list[Callable[[Applied], None]]

    @property
    def next_offsets(self) -> Mapping[tuple[str, int], int]: ...


class SnapshotWriter:
    """One per broker; `run` for ever. `file_bytes`: of a data file of the log; `is_adopted`: the directory was
    RocketMQ's; `look`: to be called when more of the log is dispatched."""

    def __init__(
        self, lane: Lane, log: Log, file_bytes: int, now_ms: Callable[[], int], *, is_adopted: bool = False
    ) -> None:
        self._lane, self._log, self._file_bytes, self._now_ms = lane, log, file_bytes, now_ms
        self._is_adopted = is_adopted
        self._wake = asyncio.Event()
        self._moved = asyncio.Event()  # a part was applied, or a lane came or went
        self._last_content = b""
        self.is_writing = False
        self.written = 0
        lane.on_open.append(self.look)
        lane.on_open.append(self._moved.set)
        lane.on_left.append(self._moved.set)
        log.on_applied.append(self._applied)

    @property
    def is_due(self) -> bool:
        """Whether a data file has begun since the newest complete one."""
        state = self._log.state
        if state is None:
            return False
        if state.snapshot is None:
            return self._is_adopted or self._log.end_position >= self._file_bytes
        return self._log.end_position // self._file_bytes > state.snapshot_at // self._file_bytes

    def look(self) -> None:
        if self._lane.is_open and self.is_due:
            self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._lane.is_open and self.is_due:
                self.is_writing = True
                try:
                    await self._write()
                finally:
                    self.is_writing = False

    async def _write(self) -> None:
        """One attempt."""
        state, lane = self._log.state, self._lane.lanes_opened
        assert state is not None
        whole = state.as_state(self._log.next_offsets)
        content = await asyncio.to_thread(encode_state, whole)
        part_bytes = min(PART_BYTES_MAX, max(1024, self._file_bytes // 4))
        for part in split_snapshot(content, self._now_ms(), whole.as_of_index, part_bytes):
            if not await self._put(part, lane):
                return
        self.written += 1

    async def _put(self, part: bytes, lane: int) -> bool:
        """Whether it is committed and applied here, over that lane."""
        while self._lane.is_open and self._lane.lanes_opened == lane:
            self._moved.clear()
            if self._lane.append_own(Channel.SNAPSHOT_PART, part):
                break
            await asyncio.sleep(AGAIN_S)  # no room
        while self._last_content != part:
            if not self._lane.is_open or self._lane.lanes_opened != lane:
                return False
            try:
                async with asyncio.timeout(1.0):  # a lane that ends says so only when the next one opens
                    await self._moved.wait()
            except TimeoutError:
                continue
            self._moved.clear()
        return True

    def _applied(self, applied: Applied) -> None:
        if applied.entry.channel == Channel.SNAPSHOT_PART and applied.is_new:
            self._last_content = applied.entry.content
            self._moved.set()
