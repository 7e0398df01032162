"""Planted bugs of the broker on the log (`node/broker`, `node/message_store`); hunted in the broker's own world."""

from __future__ import annotations

from typing import Any, Final

from node.broker.dispatched_log import DispatchedLog
from node.message_store.message_store import MessageStore, log_begin
from tests.simulation.mutants.planting import Edit, Mutant, ignored, left_out, swapped

BROKER: Final = "node.broker.broker:Broker."
LANE: Final = "node.broker.put_lane:PutLane."
PLACED: Final = "node.broker.open_puts:PlacedPuts."
LOG: Final = "node.broker.dispatched_log:DispatchedLog."
AUTHORITY: Final = "node.broker.authority:Authority."
SCHEDULE: Final = "node.broker.schedule:ScheduleService."
TRANSACTIONS: Final = "node.broker.transactions:Transactions."
HALVES: Final = "node.broker.transaction_table:HalfTable."
OFFSETS: Final = "node.message_store.record_building:QueueOffsets."
QUEUES: Final = "node.message_store.dispatch_queues:QueueWriter."
INDEX: Final = "node.message_store.dispatch_index:IndexWriter."
STATE: Final = "node.message_store.metadata_state:MetadataState."
METADATA: Final = "node.broker.metadata:Metadata."
# The engine refuses what was stored before its log's end: a second wall.
ANY_TIME: Final = Edit(
    "node.message_store.broker_kind:BrokerKind.refusal", "if found.store_timestamp_ms < last_time_ms:", "if False:"
)
# Where to read from is kept every 5 s; no master lives as long here.
KEPT_OFTEN: Final = Edit(TRANSACTIONS + "_keep_offsets", "KEEP_OFFSETS_S", "0.2")
# Nothing goes wrong but what a mutant asks for.
STILL: Final[dict[str, Any]] = {
    "broker_crash": 0.0, "broker_crash_at_io": 0.0, "broker_stop": 0.0, "broker_pause": 0.0, "broker_cut": 0.0,
    "broker_narrow": 0.0, "broker_reset": 0.0, "broker_wiped": 0.0, "kept_files": 0, "client_cut": 0.0,
    "wall_back": 0.0, "wall_apart_ms": 0, "crash": 0.0, "power_loss": 0.0, "pause": 0.0, "isolate_leader": 0.0,
    "partition": 0.0, "unaware": 0.0, "reset": 0.0, "transfers": 0.0, "slow_disk": 0.0, "delayed": 0.0, "halves": 0.0,
    "sync_ms": 2.0, "delay_ms": 0.5, "sends": 30.0, "batches": 0.1, "data_file_size": 65536, "save_s": 0.3,
    "silences": False,
}  # fmt: skip
CRASHES: Final[dict[str, Any]] = {"broker_crash": 1.5}
NEW_MASTERS: Final[dict[str, Any]] = {"transfers": 2.0, "broker_crash": 1.0, "sends": 60.0}
OLD_MASTERS: Final[dict[str, Any]] = {
    "unaware": 1.5, "isolate_leader": 1.0, "partition_ms": 1500.0, "broker_pause": 0.5, "pause_ms": 900.0,
    "questions": 60.0, "sends": 60.0,
}  # fmt: skip
# A broker loses its engine while puts are under way, and goes on as the master over another lane.
NEW_LANES: Final[dict[str, Any]] = {"broker_reset": 12.0, "sends": 60.0, "sync_ms": 10.0, "delay_ms": 2.0}
# The messages of a queue expire while nobody sends to it, brokers begin anew from the log, and it is used again.
EXPIRES: Final[dict[str, Any]] = {
    "silences": True, "kept_files": 3, "data_file_size": 8192, "body_bytes": 400, "sends": 60.0, "broker_wiped": 1.5,
    "transfers": 1.0, "broker_stop": 0.5, "lasts": 4,
}  # fmt: skip
# Dispatch is behind for more than a second: what is put then is refused, by a master that stays one.
BEHIND: Final[dict[str, Any]] = {
    "broker_narrow": 3.0, "narrow_bytes_per_s": 4_000, "partition_ms": 1500.0, "sends": 60.0, "body_bytes": 400,
}  # fmt: skip


def _broker(name: str, about: str, edit: Edit, *causes: Edit, lasts: int = 1, **profile: Any) -> Mutant:
    return Mutant(f"broker_{name}", "broker", about, (edit,), {**STILL, **profile}, HELPERS, "broker", causes, lasts)


def held_by(log: DispatchedLog) -> dict[tuple[str, int], int]:
    """The next offsets of those queues whose last message its log still holds."""
    begin = log_begin(log.root, log._host.files)
    store = MessageStore(log.root, log._host.files)
    found = {}
    for (topic, queue_id), offset in log.next_offsets.items():
        queue = store.queue(topic, queue_id)
        units = () if queue is None else queue.units(offset - 1, 1)
        if len(units) and int(units[0]["offset"]) >= begin:
            found[topic, queue_id] = offset
    return found


HELPERS: Final = {"held_by": held_by}


PUTS = (
    _broker(
        "answers_at_commit",
        "a put is answered once it is committed, before it can be read",
        swapped(PLACED + "add", "put.indexes[-1] <= self._places.dispatched_index", "True"),
        **CRASHES,
    ),
    _broker(
        "mixes_up_places",
        "of puts that are answered together each gets the first one's place",
        Edit(PLACED + "dispatched", "at += len(put.indexes)", "at += MUTANT.instead(len(put.indexes), 0)"),
        **NEW_LANES,
    ),
    _broker(
        "opens_behind_dispatch",
        "a new master takes puts before all that its lane stands behind is dispatched",
        swapped(BROKER + "_reach_end", "self._opened.end_index", "-1"),
        broker_crash=2.0,
        broker_narrow=3.0,
        narrow_bytes_per_s=30_000,
        sends=60.0,
    ),
    _broker(
        "forgets_what_left",
        "what left over a lane that ended is answered as not stored, wherever it is",
        swapped("node.broker.open_puts:look_for", "min(one.behind_index for one in sent) + 1", "upto_index + 1"),
        isolate_leader=4.0,
        ack_within_ms=100,
        partition_ms=150.0,
        sends=60.0,
    ),
    _broker(
        "keeps_its_offsets",
        "the table of queue offsets does not begin anew with a new lane",
        Edit(
            LANE + "take",
            "self._offsets = QueueOffsets(self._log.next_offset, lane.last_time_ms)",
            "fresh = QueueOffsets(self._log.next_offset, lane.last_time_ms);"
            " self._kept = getattr(self, '_kept', fresh); self._offsets = MUTANT.instead(fresh, self._kept)",
        ),
        **NEW_LANES,
    ),
    _broker(
        "numbers_batches_alike",
        "all messages of a batch get the offset of its first",
        Edit(
            "node.message_store.record_building:_records",
            "offset + at, time_ms, born",
            "MUTANT.instead(offset + at, offset), time_ms, born",
        ),
        **CRASHES,
    ),
    _broker(
        "stores_in_the_past",
        "a record has the time of the broker's clock, which may have been set back",
        swapped(OFFSETS + "build_one", "max(now_ms, self.last_time_ms)", "now_ms"),
        ANY_TIME,
        wall_back=2.0,
    ),
)

DISPATCH = (
    _broker(
        "marks_before_it_syncs",
        "the mark says that queues are sound that are not on disk",
        Edit("node.message_store.write_files:Unsynced.sync", "disk.sync(path)", "MUTANT.left_out(disk, path)"),
        power_loss=1.5,
        down_ms=50.0,
    ),
    _broker(
        "counts_cut_units",
        "a start counts units behind what the mark vouches for",
        swapped(QUEUES + "_open_queue", "offset + size <= position", "True"),
        **CRASHES,
    ),
    _broker(
        "keeps_empty_files",
        "a file whose making was cut off stays, and its queue cannot go on",
        ignored(QUEUES + "_open_queue", "self._files.size(folder / name) == 0"),
        broker_crash_at_io=4.0,
    ),
    _broker(
        "replays_no_metadata",
        "a start knows nothing of the metadata before where its queues are sound",
        swapped("node.broker.state_replay:replayed", "one.index <= upto_index", "False"),
        broker_stop=1.5,
    ),
    _broker(
        "ignores_metadata",
        "of the metadata in one piece of the log only the first entry counts",
        Edit(LOG + "_take", "for one in own:", "for one in MUTANT.instead(own, own[:1]):"),
        delayed=0.5,
    ),
    _broker(
        "index_forgets_its_slots",
        "a start makes the index's slots anew without what it holds",
        Edit(INDEX + "_cut", "np.arange(1, count)", "MUTANT.instead(1, 0) * np.arange(1, count)"),
        **CRASHES,
    ),
)

EXPIRED = (
    _broker(
        "forgets_expired_queues",
        "who begins anew from the log takes no next offset from its snapshot: such a queue begins at 0 again",
        Edit(STATE + "_replace", "_places(state)", "MUTANT.instead(_places(state), {})"),
        **EXPIRES,
    ),
    _broker(
        "snapshots_what_it_has",
        "a snapshot has the next offsets of those queues only whose messages the log still holds",
        Edit(
            "node.broker.snapshots:SnapshotWriter._write",
            "state.as_state(self._log.next_offsets)",
            "MUTANT.instead(state.as_state(self._log.next_offsets), state.as_state(held_by(self._log)))",
        ),
        **EXPIRES,
    ),
    _broker(
        "removes_last_files",
        "the last file of a queue goes as well, once all its messages have expired",
        Edit(
            "node.message_store.expired_files:_of_queue",
            "row.files[:-1]",
            "MUTANT.instead(row.files[:-1], row.files)",
        ),
        **EXPIRES,
    ),
)

UNCOMMITTED = (
    _broker(
        "pulls_show_uncommitted",
        "an engine gives its broker what is in its log, committed or not",
        Edit(
            "node.engine.log_reads:LogReads.committed",
            "*cut_at(slab, from_index, committed_index)",
            "*cut_at(slab, from_index, MUTANT.instead(committed_index, from_index + 4096))",
        ),
        sync_ms=10.0,
        sends=60.0,
        isolate_leader=1.0,
    ),
    _broker(
        "views_show_uncommitted",
        "a message is shown by its place, however far the log is committed",
        swapped("node.message_store.live_reads:LiveReads.message_at", "offset < self.end_offset()", "True"),
        **NEW_LANES,
    ),
)

MASTERS = (
    _broker(
        "trusts_a_lease_for_ever",
        "a master answers by a lease that is over",
        swapped(AUTHORITY + "holds", "self._clock() < self._lease_until_s", "True"),
        **OLD_MASTERS,
        lease_reads=True,
    ),
    _broker(
        "confirms_nothing",
        "a master without a lease answers without asking a quorum",
        swapped("node.broker.requests.context:Context.linearizable", "self.store.may_answer()", "True"),
        **OLD_MASTERS,
        lease_reads=False,
    ),
    _broker(
        "sends_metadata_again",
        "a change that is in the log is sent again over the next lane",
        left_out(METADATA + "_applied", "self._asked.popleft()"),
        **NEW_LANES,
    ),
)

DELAYS = (
    _broker(
        "delivers_the_last_one_again",
        "a level goes on with the message that it delivered last",
        swapped(SCHEDULE + "_deliver", "records[due - 1].queue_offset + 1", "records[due - 1].queue_offset"),
        delayed=0.5,
    ),
    _broker(
        "delivers_early",
        "a message that waits for its time is due at once",
        swapped(
            SCHEDULE + "_waits_ms", "min(by_clock_ms, self._arrivals[level].waits_ms(offset, self._steady_ms()))", "0"
        ),
        delayed=0.5,
    ),
    _broker(
        "commits_delays_ahead",
        "a level's offset is committed before its messages are delivered",
        Edit(
            SCHEDULE + "_deliver",
            "await self._put_all(records[:due], level)",
            "self.next_offsets[level] = MUTANT.instead(offset, records[due - 1].queue_offset + 1);"
            " await self._put_all(records[:due], level)",
        ),
        delayed=0.5,
        **BEHIND,
    ),
    _broker(
        "gives_up_deliveries",
        "what could not be delivered is not tried again",
        Edit(SCHEDULE + "_put_all", "records = failed", "records = MUTANT.instead(failed, [])"),
        delayed=0.5,
        **BEHIND,
    ),
)

ENDS = (
    _broker(
        "shows_half_messages",
        "a message of a transaction is put where consumers see it",
        Edit(
            "node.broker.requests.sends:Sends.send",
            "put = self._prepared(message) if half else None",
            "put = self._prepared(message) if MUTANT.ignored(half) else None",
        ),
        halves=0.4,
    ),
    _broker(
        "commits_what_is_over",
        "a transaction that was ended is found again when somebody ends it otherwise",
        Edit(
            HALVES + "find",
            "found = self.open.get(record.queue_offset)",
            "found = self.open.get(record.queue_offset); found = MUTANT.instead(found, found or half_of(record))",
        ),
        halves=0.4,
    ),
    _broker(
        "reads_halves_from_their_end",
        "a new master begins to read behind transactions that are open",
        swapped(HALVES + "begins", "next(iter(self.open), self.next_half)", "self.next_half"),
        KEPT_OFTEN,
        halves=0.4,
        **NEW_MASTERS,
    ),
    _broker(
        "drops_what_it_could_not_store",
        "a transaction is not open any more when its half message could not be stored again",
        ignored(TRANSACTIONS + "_ask", "not result.status.is_stored"),
        halves=0.4,
        **NEW_LANES,
    ),
    _broker(
        "ends_before_it_commits",
        "a commit that could not be stored ends its transaction",
        ignored(TRANSACTIONS + "_ended", "not result.status.is_stored"),
        halves=0.5,
        **NEW_LANES,
    ),
)

BROKERS = (*PUTS, *DISPATCH, *EXPIRED, *UNCOMMITTED, *MASTERS, *DELAYS, *ENDS)
