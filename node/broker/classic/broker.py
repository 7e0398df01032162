"""The broker in classic mode: puts while it is master, dispatch and reads always. What `ClientPort` serves.

    files = open_files(settings)                 # blocking: recovers the log
    broker = ClassicBroker(settings, files, note)
    running = asyncio.create_task(broker.run())  # until it is cancelled, or cannot go on
    await broker.open()                          # its place in the pair

Invariants: no other broker writes in this directory (`lock`); what it answers as stored can be read here; a write or a
sync that failed ends it, and its next start finds where the log ends.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from node.background import Background, reason_of
from node.broker.classic.control_key import make_key
from node.broker.classic.deleted_topics import DeletedTopics
from node.broker.classic.kept_behind import BehindFlush, DelayOffsetsBehindFlush
from node.broker.classic.lane import ClassicLane
from node.broker.classic.metadata_sync import MetadataSync
from node.broker.classic.pair import Pair
from node.broker.classic.pins import PinRequests, Pins
from node.broker.classic.promote_request import PromoteRequests
from node.broker.classic.promotion import Promotion
from node.broker.classic.queue_ends import queue_ends
from node.broker.classic.retention import Retention
from node.broker.classic.scrub import LogScrub
from node.broker.classic.tables import TablesInFiles
from node.broker.classic.view import PairView
from node.broker.client_port import Learn, Service, Touched
from node.broker.host import MACHINE, wall_ms
from node.broker.introspection import DELETED_TOPICS, PIN, PROMOTE, QUEUE_ENDS, Asked
from node.broker.open_puts import OpenPut
from node.broker.registration import MasterWanted
from node.broker.requests.config_files import ConfigFiles
from node.broker.requests.context import Context
from node.broker.schedule import ScheduleService
from node.config import Settings
from node.ha.client import State
from node.ha.keeper import StoreKeeper
from node.ha.lineage import PROMOTION
from node.ha.sockets import now_ms
from node.member_secret import read_secrets
from node.message_store.commit_log import COMMIT_LOG
from node.message_store.dispatch_mark import DerivedSizes
from node.message_store.errors import MessageStoreError
from node.message_store.live_reads import LiveReads
from node.message_store.local_flush import FlushMode
from node.message_store.local_lock import StoreLock
from node.message_store.local_store import LocalMessageStore, LocalSettings
from node.message_store.message_store import CONSUME_QUEUE, INDEX
from node.message_store.new_message import PutLimits
from node.message_store.recent_entries import RecentEntries
from node.protocol.codes import FlushMode as NodeFlush
from node.rereading import Rereading
from node.rocketmq.bodies import GroupConfig
from node.rocketmq.codes import Request
from node.rocketmq.dispatch import Call, Handler, Reply

MEMORY_RATIO: Final = 0.4  # accessMessageInMemoryMaxRatio
LOOK_AT_FILES_S: Final = 5.0
FREE_LOOK_MS: Final = 100  # a slave that catches up writes some 50 MB meanwhile, of the 256 that are left free
NAMED_MAX: Final = 5
SECRET: Final = "the pair's secret"
Note = Callable[[str, str, str], None]


class FreeSpace:
    """Of the disk of a store, in bytes, as it was FREE_LOOK_MS ago at most: puts ask, and a slave.

    A folder of it may be another disk: the one with the least counts."""

    def __init__(self, root: Path) -> None:
        self._folders = [root, *(root / name for name in (COMMIT_LOG, CONSUME_QUEUE, INDEX))]
        self._bytes, self._looked_ms = 0, -FREE_LOOK_MS

    def __call__(self) -> int:
        now = now_ms()
        if now - self._looked_ms >= FREE_LOOK_MS:
            found = [os.statvfs(one) for one in self._folders if one.is_dir()]
            self._bytes, self._looked_ms = min(one.f_bavail * one.f_frsize for one in found), now
        return self._bytes


class ClassicFiles(NamedTuple):
    """An open store, and the lock that nobody else writes in its directory."""

    lock: StoreLock
    store: LocalMessageStore


def open_files(settings: Settings, sizes: DerivedSizes | None = None) -> ClassicFiles:
    """Blocking: the log is recovered. Raises MessageStoreError, OSError."""
    root = settings.node.data
    lock = StoreLock(root)
    try:
        flush = FlushMode.SYNC_FLUSH if settings.node.flush is NodeFlush.SYNC else FlushMode.ASYNC_FLUSH
        own = LocalSettings(
                settings.store.mapped_file_size_for_entry_data_bytes, flush, settings.ha.sync_flush_timeout_ms,
                sizes=sizes, delay_levels_ms=settings.broker.delay_levels_ms,
            )  # fmt: skip
        store = LocalMessageStore(root, own, wall_ms, elapsed_ms=now_ms, free_bytes=FreeSpace(root))
    except BaseException:
        lock.release()
        raise
    return ClassicFiles(lock, store)


class ClassicBroker:
    """See the module's docstring. Raises MessageStoreError, OSError."""

    def __init__(
        self, settings: Settings, files: ClassicFiles, note: Note, rereading: Rereading | None = None
    ) -> None:  # fmt: skip
        self._rereading = rereading if rereading is not None else Rereading()
        self.settings, self.said, self.host = settings, note, MACHINE
        self._lock, self.store = files
        root = settings.node.data
        self.limits: PutLimits = self.store.limits
        self.keeper = StoreKeeper(self.store, lambda: None, lambda: self.pair.follower.report(), self._lock.check_place)
        self.on_dispatched: list[Callable[[Touched], None]] = self.keeper.on_dispatched
        self.pair = Pair(settings, self.store, self.keeper, note)
        if settings.node.secret_file is not None:
            self._rereading.add(SECRET, partial(read_secrets, settings.node.secret_file), self.pair.renew_secrets)
        self.lane = ClassicLane(self.keeper)
        memory_bytes = int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * MEMORY_RATIO)
        self.reads = LiveReads(root, self.store, RecentEntries(), memory_bytes)
        self.pair_view = PairView(self.pair, self.store)
        self.transactions: Service | None = None
        self._transactions_behind = BehindFlush[tuple[int, int]](self.store.log)
        self.on_role: list[Callable[[], None]] = []
        self.roles = self  # of what its registration says
        self._tables: TablesInFiles | None = None
        self._context: Context | None = None
        self._config: ConfigFiles | None = None
        self.sync: MetadataSync | None = None
        self._syncing: asyncio.Task[None] | None = None
        key = make_key(root)
        self._promote = PromoteRequests(Promotion(self.pair, settings.node.id), key)
        self._pins = Pins()
        self._pin = PinRequests(self._pins, key, lambda: self.store.log.min_offset)
        self.schedule: ScheduleService | None = None
        self._was_master = False
        self._retention = Retention(
            settings.retention, self.store, self.reads, note, self._needed_from, self.keeper.removing
        )  # fmt: skip
        store = settings.store
        self._scrub = LogScrub(
            self.store.log, store.scrub_bytes_per_s, store.scrub_pause_s, note, lambda: self.store.is_cutting
        )  # fmt: skip
        self.reads.on_rot = self._scrub.met
        self._background = Background(lambda name, error: note("task_failed", "error", f"{name}: {reason_of(error)}"))
        self.pair.on_role.append(self._role_is_new)
        self.store.on_rebuilt += [self.reads.forget_all, self._was_cut]
        self.on_dispatched.append(self._dispatched)

    # --- what it is -------------------------------------------------------------------------------------------------
    @property
    def is_master(self) -> bool:
        return self.pair.is_master

    @property
    def broker_id(self) -> int:
        """As it is registered."""
        return self.pair.broker_id

    @property
    def term(self) -> int:
        """Its epoch: a name server keeps the newest master."""
        return self.pair.lineage.epoch

    @property
    def ha_address(self) -> str:
        return self.pair.own_address

    @property
    def master_wanted(self) -> MasterWanted:
        return self.pair

    def may_answer(self) -> bool:
        return self.pair.is_master

    def confirm(self) -> asyncio.Future[bool]:
        """A slave answers as what it is; who was fenced answers nothing as a master."""
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        done.set_result(not self.pair.service.fenced_by)
        return done

    # --- consumers at a slave (`SlaveRules`) --------------------------------------------------------------------------
    @property
    def _is_served(self) -> bool:
        """Whether a master sends this slave its log."""
        return self.pair.client.state is State.TRANSFER

    def refuses_pulls(self) -> bool:
        is_served = self._is_served and not self.settings.ha.slave_read_enable
        return not self.is_master and (is_served or self.store.is_cutting)

    def takes_offsets(self) -> bool:
        """A slave keeps them until its master has them."""
        return self.is_master or not self.pair.service.fenced_by

    def suggests(self, group: GroupConfig, *, is_slow: bool) -> int:
        """RocketMQ's rule; a slave whose master is dead names itself."""
        if not self.is_master and not self._is_served:
            return self.broker_id
        if not self.settings.ha.slave_read_enable:
            return 0
        return group.which_broker_when_slow if is_slow else group.broker_id

    def _offset_changed(self, name: tuple[str, str]) -> None:
        if self.sync is not None and not self.is_master:
            self.sync.committed(name)

    def _master_address(self) -> str | None:
        """Where the master that serves this slave is reached; None: none does, or it is none of ours."""
        client = self.pair.client
        return client.master.broker or None if self._is_served and client.master is not None else None

    def _not_in_files(self, context: Context, written_ms: int) -> list[tuple[str, int]]:
        """Queues of topics that no file has, and that got a message since it was written: a crash came in between.
        Others were deleted."""
        reads = self.reads
        return [
            (topic, queue_id)
            for (topic, queue_id), end in self.next_offsets.items()
            if context.topics.get(topic) is None and reads.stored_at_ms(topic, queue_id, end - 1) >= written_ms
        ]

    # --- what its port asks -----------------------------------------------------------------------------------------
    @property
    def next_offsets(self) -> Mapping[tuple[str, int], int]:
        return self.store.next_offsets

    def put_record(
        self, topic: str, queue_id: int, size_bytes: int, record_of: Callable[[int, int, float], OpenPut]
    ) -> bool:
        return self.lane.put_record(topic, queue_id, size_bytes, record_of)

    def tables(self, context: Context, files: ConfigFiles, learn: Learn) -> TablesInFiles:
        root = self.settings.node.data
        self._context, self._config = context, files
        deleted = DeletedTopics(root, lambda: self.next_offsets, self.reads.forget)
        self.reads.begins = deleted.begins
        self._tables = TablesInFiles(root, context, files, deleted)
        self.sync = MetadataSync(root, context, self._tables, self._master_address, self.said, learn, self.store)
        learn(self._not_in_files(context, self._tables.topics_of_ms))
        context.offsets.on_change = self._offset_changed
        context.slave_rules = self
        context.durable_places = self._transactions_behind.reached
        delays = DelayOffsetsBehindFlush(self._tables, self.store.log)
        self.schedule = ScheduleService(self, delays, self.settings.broker.delay_levels_ms, wall_ms, now_ms, self.said)
        return self._tables

    def requests(self) -> Mapping[int, Handler]:
        return {
            PROMOTE: self._promote.handle, PIN: self._pin.handle, DELETED_TOPICS: self._deleted_topics,
            Request.GET_ALL_DELAY_OFFSET: self._delay_offsets, QUEUE_ENDS: queue_ends(self.store),
        }  # fmt: skip

    def _delay_offsets(self, _call: Call) -> Reply:
        assert self._tables is not None
        return self._tables.delay_offsets(self.store.log.max_offset)

    def _deleted_topics(self, call: Call) -> Reply:
        assert self._tables is not None
        return self._tables.deleted.handle(call)

    def questions(self) -> Mapping[str, Callable[[Asked], Any]]:
        return {"ha": self._ha}

    async def _ha(self, asked: Asked) -> dict[str, Any]:
        said = await self.pair_view.answer(asked) | {"pins": self._pins.as_said(), "scrub": self._scrub.as_said()}
        said["problems"] += self._scrub.problems() + [
            {"code": "not_reread", "about": one.what, "text": one.text} for one in self._rereading.troubles.values()
        ]
        if self._config is not None and (why := self._config.unsaved_by):
            said["problems"].append({"code": "config_not_saved", "about": "", "text": why})
        sync = self.sync
        if sync is not None:
            said["metadata"] = {
                "rounds": sync.rounds, "taken": sync.taken, "trouble": sync.trouble or None,
                "committed_here": len(sync.here.offsets),
            }  # fmt: skip
            said["problems"] += [
                {"code": "metadata_older", "about": name, "text": text} for name, text in sync.older.items()
            ]
        return said

    def state(self) -> dict[str, Any]:
        store = self.store
        return {
            "role": "MASTER" if self.pair.is_master else "SLAVE",
            "broker_id": self.broker_id,
            "term": self.term,
            "leader_id": self.settings.node.id if self.pair.is_master else None,
            "dispatch": {
                "committed_index": store.confirm_offset, "dispatched_index": store.end_position,
                "behind_entries": store.confirm_offset - store.end_position, "behind_ms": 0, "still_ms": 0,
                "stopped_by": store.stuck_by or store.log.broken_by or None, "end_offset": store.end_position,
            },
            "role_changes": [], "damaged_messages": [],
            "schedule": self.schedule.as_said() if self.schedule is not None and self.is_master else None,
        }  # fmt: skip

    # --- its life ---------------------------------------------------------------------------------------------------
    async def open(self) -> None:
        """Its place in the pair. Raises MessageStoreError, OSError."""
        await self.pair.open()

    async def run(self) -> None:
        """Until it is cancelled. Raises OSError where the log or the queues cannot be written."""
        self._background.keep("files", self._look_at_files)
        self._background.keep("retention", self._retention.run)
        self._background.keep("lag", self.pair_view.run)
        self._background.keep("reading the log", self._scrub.run)
        try:
            await self.keeper.run()
        finally:
            await self._background.stop()
            self._stop_master()
            await self.pair.close()

    def close(self) -> None:
        """Blocking: all is on disk, and the next start finds a clean end. Raises OSError, MessageStoreError."""
        try:
            self.store.close()
        finally:
            self._lock.release()

    def _needed_from(self) -> int | None:
        """The lowest place that a slave or an audit still needs."""
        needed = [one for one in (self.pair.needed_from(), self._pins.lowest()) if one is not None]
        return min(needed, default=None)

    async def _look_at_files(self) -> None:
        while True:
            await asyncio.sleep(LOOK_AT_FILES_S)
            try:
                await asyncio.to_thread(self.reads.refresh)
            except (MessageStoreError, OSError) as error:
                self.said("store_unreadable", "warning", str(error))

    def _dispatched(self, touched: Touched) -> None:
        if self.sync is not None and not self.is_master:
            self.sync.arrived(touched)
        if self.schedule is not None:
            self.schedule.arrived(touched)

    def _was_cut(self) -> None:
        if self.sync is not None:
            self.sync.was_cut()

    def _role_is_new(self) -> None:
        """Delayed messages and transactions are a master's."""
        if self._syncing is not None:
            self._syncing.cancel()
            self._syncing = None
        if self.pair.is_master and not self._was_master:
            self._was_master = True
            self._transactions_behind.forget()
            self._tables_are_mine()
            lowered = self._tables.lower_offsets(self.next_offsets) if self._tables is not None else set()
            if lowered:
                names = ", ".join(sorted(lowered)[:NAMED_MAX]) + (", ..." if len(lowered) > NAMED_MAX else "")
                text = f"consumers of {names} were ahead of this log, which lacks what they had: they go on at its end"
                self.said("offsets_lowered", "warning", text)
            if self.sync is not None:
                self._background.run("forgetting what was committed at a slave", self.sync.is_master())
            for one in (self.schedule, self.transactions):
                if one is not None:
                    one.start()
        elif not self.pair.is_master:
            self._stop_master()
            if self.sync is not None:
                self._syncing = self._background.keep("metadata of the master", self.sync.run)
        for hear in self.on_role:
            hear()

    def _tables_are_mine(self) -> None:
        """Those of a promoted slave are newer than all of an earlier master's."""
        context, epoch = self._context, self.pair.lineage.epoch
        if context is not None and epoch >= PROMOTION:
            for table in (context.topics, context.groups):
                if table.version.state_version < epoch // PROMOTION * PROMOTION:
                    table.version = replace(table.version, state_version=epoch, timestamp_ms=wall_ms())

    def _stop_master(self) -> None:
        if self._was_master:
            self._was_master = False
            for one in (self.schedule, self.transactions):
                if one is not None:
                    one.stop()
