"""`store hand-over DIR --to java`: a stopped member's directory of a broker group becomes a Java broker's.

Java recovers, and cuts what it does not understand, before it takes a lock. So everything that it reads is made right
while the owner files still keep it out: what is committed is in queues and index, the checkpoints say no more than
that, behind the log's end there is nothing, `abort` is gone. All that is read back; the owner files go last.

Invariants: entries are never changed; DLedger's committedIndex is what is dispatched and on disk (5.x begins its
dispatch there); ended at any moment the directory is still ours and can be handed over again, or is Java's whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from node.hand_over.broker_conf import broker_conf
from node.hand_over.config_files import config_files
from node.hand_over.prove import prove
from node.hand_over.report import Refused, Report
from node.message_store.adopted import read_adopted
from node.message_store.commit_log import ledger_commit_log
from node.message_store.dispatch import Dispatcher
from node.message_store.dispatch_mark import OURS, DerivedSizes, LogPoint, Mark, mark_path, read_mark, read_mark_at
from node.message_store.errors import MessageStoreError
from node.message_store.kept_conf import delay_levels_of, read_conf
from node.message_store.log_pieces import begin_of, entries_in
from node.message_store.message_store import CONSUME_QUEUE, INDEX, MessageStore
from node.message_store.metadata_state import own_entry, state_at_begin
from node.message_store.old_part import old_begin
from node.message_store.read_files import OWNER_FILE
from node.message_store.rebuild import NoDisk, follow, keep_places, pieces_of_store
from node.message_store.state_file import state_path
from node.message_store.write_files import Disk, OsDisk
from node.protocol.codes import VoterState
from node.protocol.entry import INDEX_UNIT_BYTES
from node.protocol.group_kind import BROKER_NAME
from node.protocol.group_members import GroupMembers, members_in
from node.store.files.data_lock import DataLock
from node.store.files.java_files import COMMIT_LOG, JAVA_CHECKPOINT
from node.store.files.platform import OS
from node.store.repair.dry_run import DryRun
from node.store.repair.members import configurations_held
from node.store.repair.tools import open_for_repair, our_identity, scrub_all

JAVA_INDEX_BYTES: Final = 167_772_160
HANDED_OVER: Final = "handed-over"
Progress = Callable[[int], None]


@dataclass(slots=True, frozen=True)
class Known:
    """What the engine's store says of itself."""

    data_file_bytes: int
    index_file_bytes: int
    begin_index: int
    end_index: int
    end_position: int
    committed_index: int
    members: GroupMembers | None


@dataclass(slots=True, frozen=True)
class Dispatched:
    """How far queues and index are, and what else the log says."""

    point: LogPoint
    queues: dict[tuple[str, int], int]
    tables: dict[str, dict[str, Any]]
    sizes: DerivedSizes
    has_version_2: bool


def hand_over(
    root: Path, *, dry_run: bool, sizes: DerivedSizes | None = None, peers: str = "", progress: Progress | None = None,
    disk: Disk | None = None,
) -> Report:  # fmt: skip
    """Raises Refused, StoreError, MessageStoreError, MessageFormatError, OSError; then it is still ours."""
    try:
        store = MessageStore(root)
    except MessageStoreError:
        store = None  # one that never dispatched anything has a log alone
    ledger = store.ledger if store is not None else _ledger_in(root)
    if ledger is None:
        raise Refused(f"{root} has no replicated log: it is RocketMQ's already, or no broker group's")
    lock = DataLock(root.absolute(), alone=True)
    real = disk if disk is not None else OsDisk()
    try:
        identity = our_identity(ledger, OS)
        report = Report(root, "hand-over", dry_run, identity.group, identity.node_id)
        if identity.kind != BROKER_NAME:
            raise Refused(f"{ledger} is no broker group's: Java takes a plain log as it is after a clean stop")
        if not (identity.node_id[:1] == "n" and identity.node_id[1:].isdigit()):
            raise Refused(f"this member is {identity.node_id!r}: RocketMQ takes ids of the form n0, n1, … alone")
        if identity.index_file_size != JAVA_INDEX_BYTES:
            raise Refused(f"index files of {identity.index_file_size} bytes: RocketMQ cannot read any but 167772160")
        was_ours = (ledger / "data" / OWNER_FILE).exists()
        if not was_ours and (root / OURS / HANDED_OVER).exists():  # said before the open puts owner files there again
            raise Refused(f"{root} was handed over already: `quorumscope store adopt` takes it back from RocketMQ")
        known = _known(ledger, dry_run)
        report.begin_index, report.end_index = known.begin_index, known.end_index
        report.committed_index = known.committed_index
        mark = _mark_of(root, real, was_ours=was_ours, dry_run=dry_run)
        found = _dispatch(root, ledger, known, mark or sizes, report, progress, real, dry_run=dry_run)
        config_files(root, found.tables, found.queues, NoDisk() if dry_run else real, report)
        if not dry_run:
            clear_tail(ledger, known, real)
            _write_checkpoint(ledger, known, real)
            real.remove(root / "abort")
            real.sync_folder(root)
            prove(root, ledger, known.end_position, known.end_index, found.point, report)
            _let_go(root, ledger, real)
        _say(report, known, found.sizes, peers, found.has_version_2)
        return report
    finally:
        real.close()
        lock.release()


def _ledger_in(root: Path) -> Path | None:
    found = sorted(one for one in root.glob("dledger-*") if (one / "data").is_dir())
    return found[0] if len(found) == 1 else None


def _known(ledger: Path, dry_run: bool) -> Known:
    """Opens the store as an engine would, and reads all of it from the disk."""
    store = open_for_repair(ledger, DryRun(OS) if dry_run else OS)
    try:
        if store.hard_state.voter_state is VoterState.REJOINING:
            raise Refused("this member is REJOINING: it may have lost what it acknowledged; let it catch up first")
        scrub_all(store)
        if store.faults:
            one = store.faults[0]
            raise Refused(
                f"entry {one.first_index} is damaged ({one.detail}): start the member, which heals it from the others,"
                " or `quorumscope store repair --from`"
            )
        if store.end_index < store.begin_index:
            raise Refused("the log is empty: there is nothing to hand over; Java begins with an empty directory")
        held = configurations_held(store)
        members = members_in(held[-1][1].encode()) if held else None
        committed = min(store.recovered_commit_index, store.end_index)
        files = store.files
        if committed < store.begin_index:
            raise Refused("this member knows of no committed entry: start it once beside the others, and stop it")
        return Known(
            files.data_file_size, files.index_file_size, store.begin_index, store.end_index, files.end.end_pos,
            committed, members,
        )  # fmt: skip
    finally:
        store.close()


def _mark_of(root: Path, disk: Disk, *, was_ours: bool, dry_run: bool) -> Mark | None:
    """The mark, also where a hand-over was ended before Java could have come in. Raises Refused without one."""
    kept = root / OURS / HANDED_OVER
    if kept.exists() and not mark_path(root).exists() and was_ours:
        if dry_run:
            return read_mark_at(kept)
        disk.rename(kept, mark_path(root))
    mark = read_mark(root)
    if mark is None and any((root / name).is_dir() and any((root / name).iterdir()) for name in (CONSUME_QUEUE, INDEX)):
        raise Refused(
            f"{root} has queues or an index, and nothing says how far they are sound: `quorumscope store"
            " rebuild-queues DIR --yes` writes them anew; then hand it over"
        )
    return mark


def _dispatch(
    root: Path, ledger: Path, known: Known, mark: Mark | DerivedSizes | None, report: Report,
    progress: Progress | None, disk: Disk, *, dry_run: bool,
) -> Dispatched:  # fmt: skip
    """What is committed is in queues and index. `mark`: how far they are; without one the sizes to write with."""
    sizes = mark.sizes if isinstance(mark, Mark) else mark
    if isinstance(mark, Mark) and mark.point.index > known.committed_index:
        raise Refused(
            f"queues and index are written up to entry {mark.point.index}, this member knows entries up to"
            f" {known.committed_index} to be committed: start it once beside the others, and stop it"
        )
    begin = begin_of(ledger_commit_log(ledger).queue)
    adopted, version_2 = read_adopted(root), False
    state = state_at_begin(begin.index + 1, None if adopted is None else adopted.state)
    old = old_begin(root)
    start = mark.point if isinstance(mark, Mark) else old or begin
    for piece in entries_in(ledger, begin, start.index) if start.index > begin.index else ():
        version_2 |= piece.has_version_2
        report.messages += len(piece.batch)
        for one in piece.own:
            state.take(own_entry(one.index, one.channel, one.record))
    target: Disk = NoDisk() if dry_run else disk
    dense_from = mark.dense_from if isinstance(mark, Mark) else 0
    where = root / OURS / "never" if dry_run else root  # a dry run begins with no queues: any offset is its first
    levels_ms = delay_levels_of(root)
    dispatcher = Dispatcher(where, sizes, begin=start, disk=target, dense_from=dense_from, delay_levels_ms=levels_ms)
    behind = entries_in(ledger, start, known.committed_index)
    if old is not None:
        behind = pieces_of_store(MessageStore(root), known.committed_index, start)
    messages, more = follow(dispatcher, behind, state, progress)
    kept = 0 if dry_run else keep_places(dispatcher, state.places, (old or begin).position)
    dispatcher.save()
    report.messages += messages
    report.queues = len(dispatcher.next_offsets)
    report.done.append(f"{messages:,} messages are dispatched, up to entry {known.committed_index}.")
    if kept:
        report.done.append(f"{kept} queues hold no message any more; they go on with the offset that they had.")
    return Dispatched(
        dispatcher.point, dispatcher.next_offsets, state.tables, dispatcher.sizes, version_2 or more
    )  # fmt: skip


def clear_tail(ledger: Path, known: Known, disk: Disk) -> None:
    """Nothing is behind the end: DLedger reads on as long as it understands what comes."""
    unit_end = (known.end_index + 1) * INDEX_UNIT_BYTES
    for kind, end, size in (("data", known.end_position, known.data_file_bytes),
                            ("index", unit_end, known.index_file_bytes)):  # fmt: skip
        for path in sorted((ledger / kind).iterdir()):
            if not path.name.isdigit():
                continue
            start = int(path.name)
            if start >= end:
                disk.remove(path)
            elif start + size > end:
                disk.zero_from(path, end - start)
                disk.sync(path)
        disk.sync_folder(ledger / kind)


def _write_checkpoint(ledger: Path, known: Known, disk: Disk) -> None:
    text = f"committedIndex={known.committed_index}\nendIndex={known.end_index}\n"
    disk.replace(ledger / JAVA_CHECKPOINT, text.encode())


def _let_go(root: Path, ledger: Path, disk: Disk) -> None:
    """Our mark first: nobody keeps it true from now on. Then what keeps Java out; the last one lets it in."""
    disk.remove(state_path(root))
    disk.rename(mark_path(root), root / OURS / HANDED_OVER)
    disk.sync_folder(root / OURS)
    for folder in (root / COMMIT_LOG, ledger / "data"):
        disk.remove(folder / OWNER_FILE)
        disk.sync_folder(folder)


def _say(report: Report, known: Known, sizes: DerivedSizes, peers: str, has_version_2: bool) -> None:
    report.done += [
        f"Behind the end of the log (entry {known.end_index}) everything is zero; `abort` is gone.",
        f"DLedger's checkpoint says committedIndex={known.committed_index}; RocketMQ's is that of the queues.",
        "The owner files are gone: from now on a Java broker takes the directory.",
    ]
    if known.committed_index < known.end_index:
        report.notes.append(
            f"Entries {known.committed_index + 1} to {known.end_index} are not known here to be committed. They stay:"
            " the Java group commits them, or its leader does not have them."
        )
    if has_version_2:
        report.notes.append(
            "Messages with topics of more than 127 letters are there: RocketMQ 5.0 or later reads them, 4.9 does not."
        )
    kept = read_conf(report.directory)
    report.broker_conf = broker_conf(report, sizes, known.data_file_bytes, known.members, peers, kept)
    if not kept:
        report.notes.append(
            "Nothing says with which messageDelayLevel messages wait here (the broker never ran, or an older release of"
            " it): RocketMQ's default is assumed. If [broker] delay_levels differs, give Java the same."
        )
    report.next += [
        "Hand over every member of the group before the first Java broker starts.",
        "Take a copy, or keep one member's: Java writes no checksums, and what it cuts is gone.",
        "Back again: stop all brokers, then `quorumscope store adopt DIR --broker` on each.",
    ]
