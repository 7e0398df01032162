"""`store adopt DIR`: takes back a directory of ours that a Java node wrote to, or whose `quorumscope.json` was lost.

What is there counts as a heritage: the whole log is read, seals begin behind it, and no vote is given in its term. With
the file lost but a checkpoint there, nothing else was: the checkpoint knows where the seals began.

Invariants: term and voter state are durable before the files that say "ours" go; ended at any moment it leaves a
directory that can be adopted again, or that an engine takes over with the same result.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from node.protocol.codes import FlushMode, VoterState
from node.protocol.group_kind import BROKER_NAME, PLAIN_NAME
from node.store.errors import StoreRefused
from node.store.file_store import FileStore
from node.store.files.checkpoint import CHECKPOINT
from node.store.files.hard_state import HARDSTATE, load_hard_state, read_currterm, save_hard_state
from node.store.files.identity import IDENTITY, DirectoryLock, Identity, format_of, read_identity, write_identity
from node.store.files.java_files import COMMIT_LOG, OWNER, carry_over_checkpoint, checkpoint_slot
from node.store.files.os_files import make_directory, sync_directory
from node.store.files.platform import Platform
from node.store.files.segment_list import SegmentList
from node.store.files.truncation_archive import TruncationArchive
from node.store.log_store import HardState
from node.store.reader import StoreReader
from node.store.recovery.walk import find_begin
from node.store.repair.report import Report
from node.store.repair.tools import archives_reported, file_chunks, record_of

ADOPTING = "adopting"  # where the identity waits meanwhile


def adopt(
    directory: Path, platform: Platform, group: str | None = None, node_id: str | None = None, *,
    with_broker: bool = False,
) -> Report:  # fmt: skip
    """`with_broker`: a broker's queues are seen to as well. Raises StoreError where it may not or cannot."""
    known, lost = _known(directory, platform, group, node_id)
    if known.kind == BROKER_NAME and not lost and not with_broker:
        raise StoreRefused(
            f"this is a broker group's: give {directory.parent} --broker --group {known.group}, for its queues as well"
        )
    report = Report(directory, "adopt", group=known.group, node_id=known.node_id)
    hard = load_hard_state(directory, has_entries=False, platform=platform) or HardState()
    if hard.owner not in (None, known.node_id):
        raise StoreRefused(
            f"{directory / HARDSTATE} is that of {hard.owner}: give --id {hard.owner}, or put back its own"
        )
    with archives_reported(report, directory, platform):
        if lost and checkpoint_slot(directory, platform) is not None:
            _write_identity_again(directory, known, hard, platform, report)
        else:
            _take_over(directory, known, hard, platform, report)
    report.next.append("Start the member.")
    return report


def adopt_after_java(
    directory: Path, platform: Platform, group: str | None = None, node_id: str | None = None
) -> Report:
    """The same where somebody asks for it. Raises StoreRefused where our file is there and no Java node was: seals that
    begin anew behind a sound log are the end of its checksums, and nothing brings them back."""
    try:
        identity = read_identity(directory, platform)
    except StoreRefused:
        identity = None
    if identity is not None and identity.kind != BROKER_NAME and not platform.exists(directory / ADOPTING):
        reader = StoreReader(directory, platform=platform)
        if reader.unsealed_from is None and not reader.java_was_here():
            raise StoreRefused(
                f"no Java node wrote to {directory} since: there is nothing to adopt, and nothing was changed; start"
                f" the member, or see what else is wrong: quorumscope store repair {directory}"
            )
    return adopt(directory, platform, group, node_id)


def _known(directory: Path, platform: Platform, group: str | None, node_id: str | None) -> tuple[Identity, bool]:
    """Whose store it is, from its file or else from the options; and whether the file is lost."""
    try:
        identity = read_identity(directory, platform)
    except StoreRefused:
        identity = None
    interrupted = read_identity(directory / ADOPTING, platform)
    if identity is not None or interrupted is not None:
        identity = identity or interrupted
        assert identity is not None
        for name, said, has in (("group", group, identity.group), ("id", node_id, identity.node_id)):
            if said not in (None, has):
                raise StoreRefused(f"this store has {name} {has!r}, not {said!r}")
        return identity, False
    if not platform.exists(directory / IDENTITY) and not platform.exists(directory / HARDSTATE):
        raise StoreRefused(f"{directory} has no {IDENTITY}: it is opened as it is, there is nothing to repair")
    if group is None or node_id is None:
        raise StoreRefused(
            f"{directory / IDENTITY} is lost: say whose store this is with --group GROUP --id ID, as configured"
        )
    data_file_size, index_file_size = (_file_size(directory, kind, platform) for kind in ("data", "index"))
    is_broker = platform.exists(directory.parent / COMMIT_LOG / OWNER)
    kind = BROKER_NAME if is_broker else PLAIN_NAME
    new_id = platform.new_id()
    origin = _origin_of(directory, data_file_size, platform) if is_broker else 0
    return Identity(group, node_id, new_id, data_file_size, index_file_size, 0, format_of(kind), kind, origin), True


def _origin_of(directory: Path, data_file_size: int, platform: Platform) -> int:
    """Where entry 0 lies: behind RocketMQ's old commit log not at 0."""
    data = SegmentList(directory, "data", data_file_size, platform=platform)
    try:
        data.open(sizes_known=True)
        pos, index = find_begin(data)
        return pos if index == 0 else 0
    finally:
        data.close()


def _file_size(directory: Path, kind: str, platform: Platform) -> int:
    for name in platform.names(directory / kind):
        size = platform.path_size(directory / kind / name) if name.isascii() and name.isdigit() else 0
        if size:
            return size
    raise StoreRefused(f"{directory / kind} holds no file: there is nothing to adopt; empty the directory instead")


def _write_identity_again(
    directory: Path, known: Identity, hard: HardState, platform: Platform, report: Report
) -> None:
    lock = DirectoryLock(directory, platform)
    try:
        slot = checkpoint_slot(directory, platform)
        assert slot is not None
        identity = replace(known, sealed_from=slot.sealed_from)
        old = file_chunks(directory, (IDENTITY,), platform)
        order = record_of(known.node_id, slot.durable_index, slot.term, "adopt by hand, quorumscope.json was lost")
        TruncationArchive(directory, platform=platform).add(order, old)
        write_identity(directory, identity, platform)
        report.done.append(f"{IDENTITY} is written anew: {known.node_id} of group {known.group}, a new store id.")
        report.may_be_lost.append("Nothing. The other members will say that this store was replaced: it was not.")
        reader = StoreReader(directory, platform=platform)
        report.see_hard_state(hard, reader.end_index, reader.end_term)
    finally:
        lock.release()


def _take_over(directory: Path, known: Identity, hard: HardState, platform: Platform, report: Report) -> None:
    if hard.voter_state is VoterState.REJOINING:
        raise StoreRefused(
            "this member was REJOINING when a Java node took it over, so nothing here may count: empty the directory "
            "and start without --init"
        )
    java = read_currterm(directory, platform)
    term = max(hard.term, java[0] if java is not None else 0)
    lock = DirectoryLock(directory, platform)
    try:
        state = replace(hard, term=term, voted_for=None, vote_floor=max(hard.vote_floor, term))
        reader = StoreReader(directory, platform=platform)
        old = file_chunks(directory, (IDENTITY, HARDSTATE), platform)
        order = record_of(known.node_id, reader.end_index, reader.end_term, "adopt by hand, a Java node wrote here")
        TruncationArchive(directory, platform=platform).add(order, old)
        save_hard_state(directory, state, platform)
        make_directory(directory / ADOPTING, platform)
        write_identity(directory / ADOPTING, known, platform)
        carry_over_checkpoint(directory, platform)  # what Java's says is a hint for the engine that takes over
        for name in (CHECKPOINT, IDENTITY):
            platform.unlink(directory / name)
        sync_directory(directory, platform)
    finally:
        lock.release()
    store = FileStore.open(
        directory, group=known.group, node_id=known.node_id, data_file_size=known.data_file_size,
        index_file_size=known.index_file_size, flush=FlushMode.SYNC, platform=platform, kind=known.kind, adopting=True,
    )  # fmt: skip
    try:
        term = max(store.hard_state.term, term, store.end_term)
        state = replace(state, term=term, vote_floor=max(state.vote_floor, term))
        store.save_hard_state(state)
        identity = replace(known, sealed_from=store.sealed_from)
        write_identity(directory, identity, platform)
        platform.remove_tree(directory / ADOPTING)
        report.done.append(f"The directory is taken back as it is: seals begin at entry {store.sealed_from}.")
        report.done.append(f"The whole log was read. It gives no vote in terms up to {term}.")
        report.may_be_lost.append("Nothing of the log. What the Java node wrote has no checksums: audit the group.")
        report.see(store)
    finally:
        store.close()
