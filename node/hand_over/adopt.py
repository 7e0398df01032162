"""`store adopt DIR --broker`: a RocketMQ broker's directory (DLedger mode) becomes that of a member of a broker group.

The border is the log's end at that moment. Below it entries have no checksums and inert records say nothing any more;
queue offsets may come twice there, as RocketMQ gives them. Who belongs to the group every member's configuration says,
alike, and the group's id the token, alike. Topics, groups and offsets come from `config/*.json` and the queues: they
wait in `quorumscope/adopted` for the first snapshot that a master writes into the log.

Invariants: owner files are there before anything changes, so no Java broker comes in between; entries are never
changed; ended at any moment it can be given again with the same result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from node.hand_over.config_files import CONFIG
from node.hand_over.hand_over import HANDED_OVER, JAVA_INDEX_BYTES
from node.hand_over.prove import check_units
from node.hand_over.report import Refused, Report
from node.message_store.adopted import Adopted, read_adopted, write_adopted
from node.message_store.broker_tables import TABLES, table_in
from node.message_store.delay_levels import DEFAULT_DELAY_LEVELS, parse_delay_levels
from node.message_store.dispatch_mark import OURS
from node.message_store.kept_conf import DELAY_LEVEL, read_conf, write_conf
from node.message_store.message_store import MessageStore, StoreKind
from node.message_store.rebuild import NOWHERE, Rebuilt, known_next_offsets, rebuild
from node.message_store.write_files import Disk, OsDisk
from node.protocol.broker_state import BrokerState, TopicOffsets
from node.protocol.codes import VoterState
from node.protocol.group_id import group_id_of
from node.protocol.group_kind import BROKER_NAME
from node.store.file_store import FileStore
from node.store.files.data_lock import DataLock
from node.store.files.identity import read_identity
from node.store.files.java_files import COMMIT_LOG, java_committed_index, own_commit_log, own_directory
from node.store.files.platform import OS
from node.store.reader import StoreReader
from node.store.repair.adopt import ADOPTING
from node.store.repair.adopt import adopt as take_back

COMMITTED: Final = "adopting-committed"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
_TIMERS: Final = ("timerwheel", "timerlog", "timercheck", "timermetrics")
Progress = Callable[[int], None]


def adopt_broker(
    root: Path, group: str, *, token: str = "", dry_run: bool, drop_timers: bool = False,
    progress: Progress | None = None, disk: Disk | None = None, delay_levels: str = "",
) -> Report:  # fmt: skip
    """`delay_levels`: the Java broker's messageDelayLevel; empty: as before a hand-over, else RocketMQ's default.

    Raises Refused, StoreError, MessageStoreError, MessageFormatError, OSError."""
    store = MessageStore(root)
    kept = read_conf(root)
    delay_levels = delay_levels or kept.get(DELAY_LEVEL, DEFAULT_DELAY_LEVELS)
    try:
        parse_delay_levels(delay_levels)
    except ValueError as error:
        raise Refused(f"messageDelayLevel: {error}") from None
    ledger = _ledger_of(store)
    node_id = ledger.name.removeprefix("dledger-")
    report = Report(root, "adopt", dry_run, group, node_id)
    lock = DataLock(root.absolute(), alone=True)
    real = disk if disk is not None else OsDisk()
    try:
        _check_identity(ledger, group)
        _check_timers(store, drop_timers=drop_timers)
        reader = StoreReader(ledger)
        if reader.index_file_size != JAVA_INDEX_BYTES:
            raise Refused(f"index files of {reader.index_file_size} bytes: RocketMQ's have 167772160")
        end_index = reader.end_index
        if end_index < reader.begin_index:
            raise Refused("the log is empty: start a new group with empty directories instead")
        wrong = check_units(ledger, end_index)
        if wrong is not None:
            raise Refused(f"{wrong}: a broker group's log holds nothing but records in entries of magic 1")
        committed = _committed(root, ledger, reader)
        report.begin_index, report.end_index, report.committed_index = reader.begin_index, end_index, committed
        trial = rebuild(store, committed, dry_run=True, progress=progress, dense_from=NOWHERE)
        state = _state_of(store, trial, end_index)
        if not dry_run:
            real.replace(root / OURS / COMMITTED, f"{committed}\n".encode())
            own_commit_log(ledger, OS)
            own_directory(ledger, OS)
            border = _take_store(ledger, group, node_id, reader, token, committed)
            write_conf(root, kept | {DELAY_LEVEL: delay_levels}, real)
            rebuild(MessageStore(root), committed, dry_run=False, disk=real, dense_from=border)
            write_adopted(root, Adopted(border, state), real)
            for name in ("abort", f"{OURS}/{HANDED_OVER}", f"{OURS}/{COMMITTED}", *(_TIMERS if drop_timers else ())):
                real.remove(root / name)
        _say(report, trial, state, token)
        if delay_levels != DEFAULT_DELAY_LEVELS:
            report.next.append(f'Give every member [broker] delay_levels = "{delay_levels}": so waits what waits now.')
        return report
    finally:
        real.close()
        lock.release()


def _ledger_of(store: MessageStore) -> Path:
    if store.ledger is None:
        raise Refused(f"{store.root} has a commit log of RocketMQ's own: only DLedger mode can be taken over")
    if store.kind is StoreKind.JOINED:
        raise Refused(
            f"{store.root / COMMIT_LOG} holds files from before DLedger mode, which are not taken over: let RocketMQ's"
            " retention remove them first"
        )
    node_id = store.ledger.name.removeprefix("dledger-")
    if not (node_id[:1] == "n" and node_id[1:].isdigit()):
        raise Refused(f"{store.ledger.name}: a member of a broker group is called n0, n1, …")
    return store.ledger


def _check_identity(ledger: Path, group: str) -> None:
    """A plain log of ours is none of a broker's. Raises Refused."""
    known = read_identity(ledger, OS) or read_identity(ledger / ADOPTING, OS)
    if known is not None and known.kind != BROKER_NAME:
        raise Refused(
            f"{ledger} is a member's of a group of kind {known.kind}: what a group's log is for never changes"
        )
    if known is not None and known.group != group:
        raise Refused(f"this member belongs to group {known.group!r}, not {group!r}")


def _check_timers(store: MessageStore, *, drop_timers: bool) -> None:
    """Messages with arbitrary times wait in a wheel of RocketMQ 5's. Raises Refused."""
    waiting = sum(
        queue.max_offset() - queue.min_offset(store.log.min_offset) for queue in store.queues(TIMER_TOPIC)
    )  # fmt: skip
    if waiting and not drop_timers:
        raise Refused(
            f"{waiting} messages of {TIMER_TOPIC} are in the log, and may wait for their time in RocketMQ 5's timer"
            " wheel, which is not taken over: let them be delivered first, or give --drop-timers"
        )


def _committed(root: Path, ledger: Path, reader: StoreReader) -> int:
    """RocketMQ's own word, as it was before we opened the log; all of the log where it has none."""
    kept = root / OURS / COMMITTED
    if kept.exists():
        return int(kept.read_text())
    known = java_committed_index(ledger)
    if known < 0 and reader.committed_index is not None:
        known = reader.committed_index
    if known < 0:
        raise Refused(
            f"{ledger / 'checkpoint'} does not say what is committed: start the Java broker once beside the others, and"
            " stop it cleanly"
        )
    return min(known, reader.end_index)


def _state_of(store: MessageStore, trial: Rebuilt, end_index: int) -> BrokerState:
    """Tables from `config/`, next offsets from the queues: those that are there, or that the log makes. Where this is
    given again, what was read the first time counts: the queues are new by then."""
    before = read_adopted(store.root)
    tables: dict[str, dict[str, Any]] = {}
    for name, (file, _member) in TABLES.items():
        path = store.root / CONFIG / file
        if path.is_file() and (table := table_in(name, path.read_bytes())):
            tables[name] = table
    offsets = known_next_offsets(store.root)
    for queue, offset in trial.next_offsets.items():
        offsets[queue] = max(offset, offsets.get(queue, 0))
    topics: dict[str, dict[int, int]] = {}
    for (topic, queue_id), offset in sorted(offsets.items()):
        topics.setdefault(topic, {})[queue_id] = offset
    if before is not None and before.state.as_of_index == end_index:
        for topic, one in before.state.topics.items():
            topics.setdefault(topic, {}).update(one.next_offsets)
    return BrokerState(end_index, {name: TopicOffsets(-1, queues) for name, queues in topics.items()}, tables)


def _take_store(
    ledger: Path, group: str, node_id: str, reader: StoreReader, token: str, committed: int
) -> int:  # fmt: skip
    """The log is ours, of its kind, with no vote in its term; returns the position behind its end."""
    if read_identity(ledger, OS) is not None or read_identity(ledger / ADOPTING, OS) is not None:
        take_back(ledger, OS, with_broker=True)
    store = FileStore.open(
        ledger, group=group, node_id=node_id, data_file_size=reader.data_file_size,
        index_file_size=reader.index_file_size, kind=BROKER_NAME, adopting=True,
    )  # fmt: skip
    try:
        hard = store.hard_state
        if hard.voter_state is VoterState.REJOINING:
            raise Refused("this member was REJOINING: nothing here may count; empty the directory and let it join")
        term = max(hard.term, store.end_term)
        group_id = group_id_of(token, group) if token else None
        store.save_hard_state(
            replace(
                hard, term=term, voted_for=None, vote_floor=max(hard.vote_floor, term), group_id=group_id, naming=None,
                configurations=(), store_ids={}, peer_lives={}, voter_state=VoterState.VOTER,
            )
        )  # fmt: skip
        store.note_progress(committed, committed)
        return store.files.end.end_pos
    finally:
        store.close()


def _say(report: Report, trial: Rebuilt, state: BrokerState, token: str) -> None:
    report.messages, report.queues = trial.messages, trial.queues
    report.done += [
        f"The log is a broker group's: seals begin behind entry {report.end_index}, and nothing before it is changed.",
        f"Queues and index are written anew from the log, up to entry {report.committed_index}: {trial.messages:,}"
        f" messages in {trial.queues} queues.",
        f"Next offsets of {sum(len(one.next_offsets) for one in state.topics.values())} queues and"
        f" {', '.join(state.tables) or 'no tables'} of config/ wait in quorumscope/adopted for the first snapshot.",
        "Owner files keep Java out; no vote is given in terms up to the log's.",
    ]
    if trial.repeats:
        report.notes.append(
            f"{trial.repeats} messages have a queue offset that was given before (RocketMQ loses units after a crash):"
            " they are in no queue, as there; from here on offsets are dense."
        )
    if report.committed_index < report.end_index:
        report.notes.append(
            f"Entries {report.committed_index + 1} to {report.end_index} are not known to be committed: the group"
            " commits them, or its first leader does not have them."
        )
    same = "with the same --group-token" if token else "with the same --group-token, or none on all"
    report.next += [
        f"The same on every member, {same}; a member that has less than the others may be left empty, and joins.",
        "Start them all with the same [peers] and [broker]: who belongs to the group is what they say.",
    ]
