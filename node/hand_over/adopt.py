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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from node.hand_over.config_files import CONFIG
from node.hand_over.hand_over import HANDED_OVER, JAVA_INDEX_BYTES
from node.hand_over.old_log import OldCommitLog, close, compare, look_through, write_names
from node.hand_over.prove import check_units
from node.hand_over.report import Refused, Report
from node.message_store.adopted import Adopted, read_adopted, write_adopted
from node.message_store.broker_tables import TABLES, table_in
from node.message_store.commit_log import LEDGER_PREFIX
from node.message_store.delay_levels import DEFAULT_DELAY_LEVELS, parse_delay_levels
from node.message_store.dispatch_mark import OURS
from node.message_store.kept_conf import DELAY_LEVEL, read_conf, write_conf
from node.message_store.local_mark import LOG_MARK
from node.message_store.message_store import MessageStore
from node.message_store.not_read import check_config
from node.message_store.rebuild import NOWHERE, Rebuilt, known_next_offsets, rebuild
from node.message_store.write_files import Disk, OsDisk
from node.protocol.broker_state import BrokerState, TopicOffsets
from node.protocol.codes import VoterState
from node.protocol.group_id import group_id_of
from node.protocol.group_kind import BROKER_NAME
from node.store.file_store import FileStore
from node.store.files.data_lock import DataLock
from node.store.files.identity import read_identity
from node.store.files.java_files import java_committed_index, own_commit_log, own_directory
from node.store.files.platform import OS
from node.store.reader import StoreReader
from node.store.repair.adopt import ADOPTING
from node.store.repair.adopt import adopt as take_back

COMMITTED: Final = "adopting-committed"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
_TIMERS: Final = ("timerwheel", "timerlog", "timercheck", "timermetrics")
_BATCHES: Final = (
    "queue.type", "BatchCQ",
    "a message there may count for several queue offsets, which a consume queue here cannot say; let consumers take all"
    " of them, delete these topics, and let RocketMQ run until their messages have expired",
)  # fmt: skip
_COMPACTED: Final = (
    "cleanup.policy", "COMPACTION",
    "what RocketMQ keeps of them beyond the commit log (compaction/) is not taken over; copy the messages to topics of"
    " another policy, and delete these",
)  # fmt: skip
Progress = Callable[[int], None]


def adopt_broker(
    root: Path, group: str, *, token: str = "", dry_run: bool, drop_timers: bool = False, node_id: str | None = None,
    other_old_log: Path | None = None, progress: Progress | None = None, disk: Disk | None = None,
    delay_levels: str = "",
) -> Report:  # fmt: skip
    """`node_id`: whose directory it becomes, where RocketMQ had no replicated log in it. `other_old_log`: another
    member's `quorumscope/old-log.json`. `delay_levels`: the Java broker's messageDelayLevel; empty: as before a
    hand-over, else RocketMQ's default.

    Raises Refused, StoreError, MessageStoreError, MessageFormatError, OSError."""
    store = MessageStore(root)
    kept = read_conf(root)
    delay_levels = delay_levels or kept.get(DELAY_LEVEL, DEFAULT_DELAY_LEVELS)
    try:
        parse_delay_levels(delay_levels)
    except ValueError as error:
        raise Refused(f"messageDelayLevel: {error}") from None
    ledger = _ledger_of(store, node_id)
    report = Report(root, "adopt", dry_run, group, ledger.name.removeprefix(LEDGER_PREFIX))
    lock = DataLock(root.absolute(), alone=True)
    real = disk if disk is not None else OsDisk()
    try:
        _check_identity(ledger, group)
        _check_topics(store)
        _check_timers(store, drop_timers=drop_timers)
        old = look_through(root, store.divided_offset, progress)
        same_files = 0 if other_old_log is None else _compared(old, other_old_log)
        log = _log_in(root, ledger, old)
        report.begin_index, report.end_index, report.committed_index = log.begin_index, log.end_index, log.committed
        trial = rebuild(store, log.committed, dry_run=True, progress=progress, dense_from=NOWHERE)
        state = _state_of(store, trial, log.end_index)
        if not dry_run:
            if log.end_index >= 0:
                real.replace(root / OURS / COMMITTED, f"{log.committed}\n".encode())
            own_commit_log(ledger, OS)
            if (ledger / "data").is_dir():
                own_directory(ledger, OS)
            if old is not None:
                close(old, real)
            border = _take_store(ledger, group, report.node_id, log, _group_id(group, token, old), old)
            write_conf(root, kept | {DELAY_LEVEL: delay_levels}, real)
            rebuild(MessageStore(root), log.committed, dry_run=False, disk=real, dense_from=border)
            write_adopted(root, Adopted(border, state), real)
            if old is not None:
                write_names(root, old, real)
            gone = ("abort", f"{OURS}/{HANDED_OVER}", f"{OURS}/{COMMITTED}", f"{OURS}/{LOG_MARK}")
            for name in (*gone, *(_TIMERS if drop_timers else ())):
                real.remove(root / name)
        if old is not None:
            _say_old(report, old, same_files, other_old_log)
        _say(report, trial, state, token, old)
        if delay_levels != DEFAULT_DELAY_LEVELS:
            report.next.append(f'Give every member [broker] delay_levels = "{delay_levels}": so waits what waits now.')
        return report
    finally:
        real.close()
        lock.release()


@dataclass(slots=True, frozen=True)
class _Log:
    """The replicated log that is there; one that has no entry yet begins behind an old commit log."""

    begin_index: int
    end_index: int
    committed: int
    data_file_bytes: int


def _ledger_of(store: MessageStore, node_id: str | None) -> Path:
    if store.ledger is None and node_id is None:
        raise Refused(
            f"{store.root} has a commit log of RocketMQ's own, and no dledger-<id>/: give --id n0 (n1, …), and the"
            " replicated log begins behind it"
        )
    ledger = store.ledger or store.root / f"{LEDGER_PREFIX}{node_id}"
    found = ledger.name.removeprefix(LEDGER_PREFIX)
    if not (found[:1] == "n" and found[1:].isdigit()):
        raise Refused(f"{ledger.name}: a member of a broker group is called n0, n1, …")
    if node_id not in (None, found):
        raise Refused(f"this is the directory of {found}, not of {node_id}")
    return ledger


def _log_in(root: Path, ledger: Path, old: OldCommitLog | None) -> _Log:
    """Raises Refused."""
    if not any(one.name.isdigit() for one in (ledger / "data").glob("*")):
        if old is None:
            raise Refused("the log is empty: start a new group with empty directories instead")
        return _Log(0, -1, -1, old.file_bytes)
    reader = StoreReader(ledger)
    size, end_index = reader.data_file_size, reader.end_index
    if old is not None and size != old.file_bytes:
        raise Refused(f"{old.folder} has files of {old.file_bytes} bytes, the replicated log of {size}")
    if end_index < reader.begin_index:
        if old is None or reader.begin_index:
            raise Refused("the log is empty: start a new group with empty directories instead")
        return _Log(0, -1, -1, size)
    if reader.index_file_size != JAVA_INDEX_BYTES:
        raise Refused(f"index files of {reader.index_file_size} bytes: RocketMQ's have 167772160")
    wrong = check_units(ledger, end_index)
    if wrong is not None:
        raise Refused(f"{wrong}: a broker group's log holds nothing but records in entries of magic 1")
    return _Log(reader.begin_index, end_index, _committed(root, ledger, reader), size)


def _compared(old: OldCommitLog | None, other: Path) -> int:
    if old is None:
        raise Refused(f"there is no old commit log here, and {other} names one: every member has to have the same")
    return compare(old, other)


def _group_id(group: str, token: str, old: OldCommitLog | None) -> str | None:
    """None: the first leader draws it. Of an old log in any case: who has another one is of another group."""
    if old is not None:
        return group_id_of(f"{token} old log {old.name}", group)
    return group_id_of(token, group) if token else None


def _check_identity(ledger: Path, group: str) -> None:
    """A plain log of ours is none of a broker's. Raises Refused."""
    known = read_identity(ledger, OS) or read_identity(ledger / ADOPTING, OS)
    if known is not None and known.kind != BROKER_NAME:
        raise Refused(
            f"{ledger} is a member's of a group of kind {known.kind}: what a group's log is for never changes"
        )
    if known is not None and known.group != group:
        raise Refused(f"this member belongs to group {known.group!r}, not {group!r}")


def _check_topics(store: MessageStore) -> None:
    """Of a topic of batch queues no directory need be left for its messages to count as several. Raises Refused, and
    NotRead where `config/` does not say all."""
    check_config(store.root, store.files)
    said = (store.config("topics.json") or {}).get("topicConfigTable")
    topics = said if isinstance(said, dict) else {}
    for attribute, value, why in (_BATCHES, _COMPACTED):
        named = [name for name, one in topics.items() if _attribute(one, attribute) == value]
        if named:
            more = f" and {len(named) - 3} more" if len(named) > 3 else ""
            raise Refused(f"{attribute} is {value} of topics {', '.join(sorted(named)[:3])}{more}: {why}")


def _attribute(topic: Any, name: str) -> Any:
    attributes = topic.get("attributes") if isinstance(topic, dict) else None
    return attributes.get(name) if isinstance(attributes, dict) else None


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
    ledger: Path, group: str, node_id: str, log: _Log, group_id: str | None, old: OldCommitLog | None
) -> int:  # fmt: skip
    """The log is ours, of its kind, with no vote in its term; returns the position behind its end."""
    is_born = log.end_index < 0  # then no Java node wrote here; this may be given again
    if not is_born and (read_identity(ledger, OS) is not None or read_identity(ledger / ADOPTING, OS) is not None):
        take_back(ledger, OS, with_broker=True)
    store = FileStore.open(
        ledger, group=group, node_id=node_id, data_file_size=log.data_file_bytes, index_file_size=JAVA_INDEX_BYTES,
        kind=BROKER_NAME, adopting=True, origin_pos=0 if old is None else old.divided, group_id=group_id,
    )  # fmt: skip
    try:
        hard = store.hard_state
        if is_born:  # its first start says whether a group is born with it, or it joins one
            if hard.group_id not in (None, group_id):
                raise Refused(
                    f"this member belongs to a group with another id, {hard.group_id}: of another old log, or made with"
                    " another --group-token"
                )
            store.save_hard_state(replace(hard, group_id=group_id))
            return store.files.end.end_pos
        if hard.voter_state is VoterState.REJOINING:
            raise Refused("this member was REJOINING: nothing here may count; empty the directory and let it join")
        term = max(hard.term, store.end_term)
        store.save_hard_state(
            replace(
                hard, term=term, voted_for=None, vote_floor=max(hard.vote_floor, term), group_id=group_id, naming=None,
                configurations=(), store_ids={}, peer_lives={}, voter_state=VoterState.VOTER,
            )
        )  # fmt: skip
        store.note_progress(log.committed, log.committed)
        return store.files.end.end_pos
    finally:
        store.close()


def _say_old(report: Report, old: OldCommitLog, same_files: int, other: Path | None) -> None:
    report.old_log = old.as_json()
    report.done.append(
        f"{len(old.hashes)} files of the old commit log, {old.messages:,} messages from {old.begin} on, stay in"
        f" {old.folder.name}/ and are read below {old.divided}, where the replicated log begins"
        " (dividedCommitlogOffset); every record is sound."
    )
    if other is not None:
        report.done.append(f"{same_files} of these files are on record in {other}, too, and are the same to the byte.")
    report.notes.append(
        f"Every member needs the same old log: its name here is {old.name}, in quorumscope/old-log.json with the"
        " SHA-256 of each file, and a part of the group's id. Who has another one is of another group."
    )


def _say(report: Report, trial: Rebuilt, state: BrokerState, token: str, old: OldCommitLog | None) -> None:
    report.messages, report.queues = trial.messages, trial.queues
    upto = f", up to entry {report.committed_index}" if report.committed_index >= 0 else ""
    begins = f"seals begin behind entry {report.end_index}, and nothing before it is changed"
    if report.end_index < 0 and old is not None:
        begins = f"its first entry will lie at {old.divided}"
    report.done += [
        f"The log is a broker group's: {begins}.",
        f"Queues and index are written anew from the log{upto}: {trial.messages:,} messages in {trial.queues} queues.",
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
    less = "a member that has less than the others may be left empty, and joins"
    if old is not None:
        less = "a member without it, or a new one, gets a copy of commitlog/, and this command with its --id"
    start = "Start them all with the same [peers] and [broker]: who belongs to the group is what they say."
    if report.end_index < 0:
        start = "Start them all with the same [peers] and [broker], and --init: a group is born behind the old log."
    report.next += [f"The same on every member, {same}; {less}.", start]
