"""The broker: puts while its engine leads, dispatch and reads always. What servers of any protocol call.

    broker = Broker(settings, note)
    await broker.run()                    # until it is cancelled, or cannot go on
    result = await broker.lane.put(NewMessage(...))
    got = broker.reads.get("TopicTest", 0, 17)

Invariants: all that it holds follows from the committed log; what it answers as stored can be read here; it is master
from the end of its change to MASTER (`roles.py`) until its engine no longer leads that term.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from node.background import Background, reason_of
from node.broker.authority import Authority
from node.broker.client_port import Learn, Service
from node.broker.dispatched_log import DispatchedLog, Touched
from node.broker.host import MACHINE, BrokerHost
from node.broker.introspection import Asked
from node.broker.metadata import CONTENT_BYTES, Metadata
from node.broker.metadata_tables import TablesInLog
from node.broker.open_puts import OpenPut
from node.broker.own_engine import OwnEngine
from node.broker.put_lane import PutLane
from node.broker.requests.config_files import ConfigFiles
from node.broker.requests.context import Context
from node.broker.role_changes import RoleChangeHandler
from node.broker.roles import BrokerRole, Step
from node.broker.rotten_messages import RottenMessages
from node.broker.schedule import DelayOffsetsInLog, ScheduleService
from node.broker.snapshots import SnapshotWriter
from node.client import Lane
from node.client.errors import LedgerError
from node.config import Settings
from node.message_store.adopted import adopted_path
from node.message_store.dispatch_mark import DerivedSizes
from node.message_store.errors import MessageStoreError
from node.message_store.expired_files import removed_expired
from node.message_store.live_reads import LiveReads
from node.message_store.metadata_state import Applied
from node.message_store.new_message import PutLimits
from node.rocketmq.dispatch import Handler

MEMORY_RATIO: Final = 0.4  # accessMessageInMemoryMaxRatio
SUBSCRIBE_AGAIN_S: Final = 0.05
LOOK_AT_FILES_S: Final = 5.0
HAND_OVER_AGAIN_S_MAX: Final = 300.0
STANDS_STILL_S: Final = 5.0  # then another member is to lead: nobody can put messages here
SAY_AGAIN_S: Final = 1.0  # of a damaged entry
DAMAGED: Final = "a damaged entry"
STALLED_S: Final = 0.5  # of the process: worth a line in its log
Note = Callable[[str, str, dict[str, Any]], None]


class Broker:
    """See the module's docstring. Raises ConfigError, OSError, ValueError where it cannot reach its engine."""

    def __init__(
        self, settings: Settings, note: Note, sizes: DerivedSizes | None = None, host: BrokerHost = MACHINE
    ) -> None:
        self.settings, self._note, self.host = settings, note, host
        data, wall_ms = settings.node.data, host.now_ms
        self.engine = OwnEngine(settings)
        levels_ms = settings.broker.delay_levels_ms
        self.log = DispatchedLog(data, self.engine, self.said, sizes, delay_levels_ms=levels_ms, host=host)
        file_bytes = settings.store.mapped_file_size_for_entry_data_bytes
        self.limits = PutLimits(file_bytes=file_bytes, delay_levels=len(levels_ms))
        self.lane = PutLane(self.log, self.engine.open_lane, self.limits, wall_ms)
        self.metadata = Metadata(self.lane, self.log, min(CONTENT_BYTES, self.limits.file_bytes // 4))
        self.reads = LiveReads(data, self.log, self.log.recent, int(_memory_bytes() * MEMORY_RATIO), host.files)
        loop = asyncio.get_running_loop()
        self.schedule = ScheduleService(
            self, DelayOffsetsInLog(self.metadata), levels_ms, wall_ms, lambda: int(loop.time() * 1000), self.said
        )
        self.snapshots = SnapshotWriter(
            self.lane, self.log, self.limits.file_bytes, wall_ms,
            is_adopted=host.files.size(adopted_path(data)) is not None,
        )  # fmt: skip
        self.lane.full_disk.is_held = lambda: self.snapshots.is_writing
        self.authority = Authority(
            self.engine.linearizable_index, self.log.reached, lambda: self.log.last_term,
            loop.time,
        )  # fmt: skip
        self.leader_id: str | None = None
        self.transactions: Service | None = None  # whoever speaks with producers sets it
        self.on_role: list[Callable[[], None]] = []
        self._opened: Lane | None = None
        self._cleaned_upto = 0  # where the log began when queues and index were cleaned last
        self._keeping: asyncio.Task[None] | None = None
        self.roles = RoleChangeHandler(
            settings.node.id,
            {
                Step.OPEN_LANE: self._open_lane, Step.REACH_END: self._reach_end,
                Step.RECOVER_TOPIC_QUEUE_TABLE: self._recover_table, Step.MASTER_ROLE: self._became_master,
                Step.SLAVE_ROLE: self._became_slave, Step.REGISTER: self._role_is_new,
                Step.SCHEDULE_ON: self.schedule.start, Step.SCHEDULE_OFF: self.schedule.stop,
                Step.TRANSACTION_CHECK_ON: self._check_transactions, Step.TRANSACTION_CHECK_OFF: self._check_none,
            },
            note,
        )  # fmt: skip
        self._background = Background(
            lambda name, error: self.said("task_failed", "error", f"{name}: {reason_of(error)}")
        )
        self.on_dispatched = self.log.on_dispatched
        self.on_dispatched.append(self._dispatched)
        self.log.on_applied.append(self._applied)
        self.log.on_state.append(self.reads.forget_all)
        self.reads.on_damage = self._found_damaged
        self.reads.begins_anew = lambda topic: self.log.state is not None and topic in self.log.state.incarnations
        self._rotten = RottenMessages(self.reads, self.said)

    @property
    def is_master(self) -> bool:
        return self.roles.role is BrokerRole.MASTER

    def may_answer(self) -> bool:
        """Whether an answer as master needs no `confirm`."""
        return self.authority.holds()

    def confirm(self) -> asyncio.Future[bool]:
        """Whether it may answer as what it is; not where another one became the master."""
        return self.authority.confirm()

    # --- what its port asks (`Served` in `client_port.py`) ----------------------------------------------------------
    @property
    def next_offsets(self) -> Mapping[tuple[str, int], int]:
        return self.log.next_offsets

    @property
    def master_wanted(self) -> None:
        """The group elects its master."""

    @property
    def ha_address(self) -> None:
        """Nobody connects there: the log is replicated by the engines."""
        return None

    def put_record(
        self, topic: str, queue_id: int, size_bytes: int, record_of: Callable[[int, int, float], OpenPut]
    ) -> bool:
        return self.lane.put_record(topic, queue_id, size_bytes, record_of)

    def tables(self, context: Context, _files: ConfigFiles, learn: Learn) -> TablesInLog:
        return TablesInLog(context, self.metadata, lambda: learn(self.next_offsets))

    def requests(self) -> Mapping[int, Handler]:
        return {}

    def questions(self) -> Mapping[str, Callable[[Asked], Any]]:
        return {}

    def state(self) -> dict[str, Any]:
        log, roles = self.log, self.roles
        has_role = roles.role is not None
        return {
            "role": None if roles.role is None else roles.role.name,
            "broker_id": roles.broker_id if has_role else None,
            "term": roles.term if has_role else None,
            "leader_id": self.leader_id,
            "dispatch": {
                "committed_index": log.committed_index, "dispatched_index": log.dispatched_index,
                "behind_entries": max(0, log.committed_index - log.dispatched_index),
                "behind_ms": round(log.behind_s * 1000), "still_ms": round(log.still_s * 1000),
                "stopped_by": log.stopped_by or None, "end_offset": log.end_position,
            },
            "role_changes": [one.as_said() for one in roles.timeline],
            "schedule": self.schedule.as_said() if self.is_master else None,
            "damaged_messages": self._rotten.as_said(),
        }  # fmt: skip

    def said(self, kind: str, severity: str, reason: str) -> None:
        """Writes a line into the broker's log."""
        self._note(kind, severity, {"reason": reason})

    def _dispatched(self, touched: Touched) -> None:
        self.lane.dispatched()
        self.schedule.arrived(touched)
        self.snapshots.look()

    def _applied(self, applied: Applied) -> None:
        for topic in applied.entry.dropped:
            self.reads.forget(topic)

    def _found_damaged(self, index: int) -> None:
        """A read met it. The engine learns of it by reading it as well, and has it mended from another member."""
        if self._background.get(DAMAGED) is None:
            self._background.run(DAMAGED, self._look_at_damaged(index))

    async def _look_at_damaged(self, index: int) -> None:
        self.said("entry_damaged", "error", f"entry {index:,} is not what was written: it is given to nobody")
        with suppress(LedgerError):
            await self.engine.entries_from(index)
        await asyncio.sleep(SAY_AGAIN_S)

    async def run(self) -> None:
        """Until it is cancelled. Raises OSError where derived files cannot be written, MessageStoreError where they
        are of another log."""
        self._background.keep("positions", self._follow)
        self._background.keep("roles", self.roles.run)
        self._background.keep("snapshots", self.snapshots.run)
        self._background.keep("files", self._look_at_files)
        self._background.keep("dispatch that stands still", self._look_at_dispatch)
        try:
            await self.log.run()
        finally:
            await self._background.stop()
            self.schedule.stop()
            self._became_slave()
            await self.authority.close()
            self.lane.close()
            await self.engine.close()
            await self.log.close()

    async def _follow(self) -> None:
        """The engine's committed positions, and what it is."""
        while True:
            try:
                async for position in self.engine.positions():
                    self.leader_id = position.leader_id
                    if position.leads:
                        self.authority.pushed(position.term, position.lease_until_s)
                    self.roles.heard(position.term, position.leader_id, leads=position.leads)
                    self.log.committed(position.committed_index)
            except LedgerError as error:
                self._note("engine_away", "warning", {"reason": str(error)})
            self.roles.engine_away()
            await asyncio.sleep(SUBSCRIBE_AGAIN_S)

    # --- steps of a change of role ----------------------------------------------------------------------------------
    async def _open_lane(self) -> None:
        self._opened = await self.lane.open()
        self.log.led_with_end(self._opened.end_index)

    async def _reach_end(self) -> None:
        assert self._opened is not None
        await self.log.reached(self._opened.end_index)

    async def _recover_table(self) -> None:
        assert self._opened is not None
        await self.lane.take(self._opened)
        self._keeping = self._background.keep("lane", self.lane.keep)

    def _became_master(self) -> None:
        self.authority.is_master(self.roles.term)

    def _became_slave(self) -> None:
        self.authority.is_master(None)
        if self._keeping is not None:
            self._keeping.cancel()
            self._keeping = None
        self.lane.stop_leading()

    def _check_transactions(self) -> None:
        if self.transactions is not None:
            self.transactions.start()

    def _check_none(self) -> None:
        if self.transactions is not None:
            self.transactions.stop()

    def _role_is_new(self) -> None:
        for hear in self.on_role:
            hear()

    async def _look_at_files(self) -> None:
        """What expired meanwhile, and in queues and index with it."""
        while True:
            await asyncio.sleep(LOOK_AT_FILES_S)
            try:
                await asyncio.to_thread(self.reads.refresh)
                await self._remove_expired()
                self._rotten.look_again()
            except (MessageStoreError, OSError) as error:
                self.said("store_unreadable", "warning", str(error))

    async def _remove_expired(self) -> None:
        begin = self.reads.store.log.min_offset
        if begin == self._cleaned_upto or self.log.dispatcher is None:
            return
        gone = await asyncio.to_thread(removed_expired, self.reads.store, self.host.disk())
        for path in gone if self.log.dispatcher is not None else ():
            self.log.dispatcher.removed(path)
        if gone:
            self.reads.forget_all()
        self._cleaned_upto = begin

    async def _look_at_dispatch(self) -> None:
        """While it stands still, no put gets through, and no lane opens: another member may be better off."""
        pause_s = STANDS_STILL_S
        while True:
            await self._next_look()
            if self.log.still_s <= STANDS_STILL_S:
                pause_s = STANDS_STILL_S
            elif self.leader_id == self.engine.member_id:
                try:
                    said = await self.engine.hand_over()
                except LedgerError as error:
                    said = str(error)
                why = self.log.stopped_by or "the disk or the engine does not answer"
                reason = f"dispatch has stood still for {self.log.still_s:.0f} s ({why}): {said}"
                self.said("leadership_handed_over", "error", reason)
                await asyncio.sleep(pause_s)  # it may come back, from one whose dispatch stands still as well
                pause_s = min(2 * pause_s, HAND_OVER_AGAIN_S_MAX)

    async def _next_look(self) -> None:
        """Says where this whole process stood still meanwhile: its clients were answered nothing then."""
        loop = asyncio.get_running_loop()
        due_s = loop.time() + STANDS_STILL_S / 5
        await asyncio.sleep(STANDS_STILL_S / 5)
        late_s = loop.time() - due_s
        if late_s > STALLED_S:
            self.said("stalled", "warning", f"this process did nothing for {late_s * 1000:.0f} ms or longer")


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
