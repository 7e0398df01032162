"""The broker: puts while its engine leads, dispatch and reads always. What servers of any protocol call.

    broker = Broker(settings, note)
    await broker.run()                    # until it is cancelled, or cannot go on
    result = await broker.lane.put(NewMessage(...))
    got = broker.reads.get("TopicTest", 0, 17)

Invariants: all that it holds follows from the committed log; what it answers as stored can be read here; it is master
while a lane of its own is open, or being replaced, and its engine leads.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any, Final

from node.background import Background, reason_of
from node.broker.dispatched_log import DispatchedLog, Touched
from node.broker.own_engine import OwnEngine
from node.broker.put_lane import PutLane
from node.client.errors import LedgerError
from node.config import Settings
from node.message_store.dispatch_mark import DerivedSizes
from node.message_store.errors import MessageStoreError
from node.message_store.live_reads import LiveReads
from node.message_store.new_message import PutLimits

MEMORY_RATIO: Final = 0.4  # accessMessageInMemoryMaxRatio
SUBSCRIBE_AGAIN_S: Final = 0.05
LOOK_AT_FILES_S: Final = 5.0
STANDS_STILL_S: Final = 5.0  # then another member is to lead: nobody can put messages here
Note = Callable[[str, str, dict[str, Any]], None]


class Broker:
    """See the module's docstring. Raises ConfigError, OSError, ValueError where it cannot reach its engine."""

    def __init__(self, settings: Settings, note: Note, sizes: DerivedSizes | None = None) -> None:
        self.settings, self._note = settings, note
        self.engine = OwnEngine(settings)
        self.log = DispatchedLog(settings.node.data, self.engine, self._said, sizes)
        self.limits = PutLimits(file_bytes=settings.store.mapped_file_size_for_entry_data_bytes)
        self.lane = PutLane(self.log, self.engine.open_lane, self.limits, lambda: time.time_ns() // 1_000_000)
        self.reads = LiveReads(settings.node.data, self.log, self.log.recent, int(_memory_bytes() * MEMORY_RATIO))
        self.leader_id: str | None = None
        self.term = -1
        self._leading: asyncio.Task[None] | None = None
        self._background = Background(
            lambda name, error: self._said("task_failed", "error", f"{name}: {reason_of(error)}")
        )
        self.log.on_dispatched.append(self._dispatched)

    @property
    def is_master(self) -> bool:
        return self.lane.is_master

    def _said(self, kind: str, severity: str, reason: str) -> None:
        self._note(kind, severity, {"reason": reason})

    def _dispatched(self, _touched: Touched) -> None:
        self.lane.dispatched()

    async def run(self) -> None:
        """Until it is cancelled. Raises OSError where derived files cannot be written, MessageStoreError where they
        are of another log."""
        self._background.keep("positions", self._follow)
        self._background.keep("files", self._look_at_files)
        self._background.keep("dispatch that stands still", self._look_at_dispatch)
        try:
            await self.log.run()
        finally:
            await self._background.stop()
            await self._stop_leading()
            self.lane.close()
            await self.engine.close()
            await self.log.close()

    async def _follow(self) -> None:
        """The engine's committed positions, and whether it leads."""
        while True:
            try:
                async for position in self.engine.positions():
                    self.leader_id, self.term = position.leader_id, position.term
                    self.log.committed(position.committed_index)
                    if position.leads and self._leading is None:
                        self._leading = self._background.keep("leading", self.lane.lead)
                    elif not position.leads:
                        await self._stop_leading()
            except LedgerError as error:
                self._note("engine_away", "warning", {"reason": str(error)})
            await self._stop_leading()
            await asyncio.sleep(SUBSCRIBE_AGAIN_S)

    async def _stop_leading(self) -> None:
        task, self._leading = self._leading, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _look_at_files(self) -> None:
        """What expired meanwhile."""
        while True:
            await asyncio.sleep(LOOK_AT_FILES_S)
            try:
                await asyncio.to_thread(self.reads.refresh)
            except (MessageStoreError, OSError) as error:
                self._said("store_unreadable", "warning", str(error))

    async def _look_at_dispatch(self) -> None:
        """While it stands still, no put gets through, and no lane opens: another member may be better off."""
        while True:
            await asyncio.sleep(STANDS_STILL_S / 5)
            if self._leading is not None and self.log.still_s > STANDS_STILL_S:
                try:
                    said = await self.engine.hand_over()
                except LedgerError as error:
                    said = str(error)
                why = self.log.stopped_by or "the disk or the engine does not answer"
                reason = f"dispatch has stood still for {self.log.still_s:.0f} s ({why}): {said}"
                self._said("leadership_handed_over", "error", reason)
                await asyncio.sleep(STANDS_STILL_S)


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
