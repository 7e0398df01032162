"""Opening a directory, step by step: lock, identity, files, recovery, hard state, voter state.

Invariants: nothing is changed before the lock is held and the identity is settled; whatever goes wrong, nothing stays
open; `quorumscope.json` is written last, so a directory is ours only once everything else about it is durable.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from node.protocol.codes import FlushMode, VoterState
from node.protocol.entry import TERM_LEAP_MAX
from node.protocol.group_kind import BROKER_NAME, PLAIN_NAME
from node.store.errors import StoreRefused
from node.store.faults.known_faults import first_known_fault
from node.store.files.checkpoint import CHECKPOINT, Checkpoint, Slot
from node.store.files.hard_state import (
    CURRTERM,
    HARDSTATE,
    adopt_currterm,
    load_hard_state,
    read_hard_state,
    save_hard_state,
    with_new_life,
)
from node.store.files.identity import (
    Base,
    DirectoryLock,
    Identity,
    check_base,
    check_identity,
    check_sizes,
    read_base,
    read_identity,
    with_members,
    write_base,
    write_identity,
)
from node.store.files.java_files import (
    carry_over_checkpoint,
    drop_java_checkpoint,
    java_committed_index,
    own_commit_log,
    own_directory,
    refuse_old_commit_log,
)
from node.store.files.os_files import make_directory, read_small, sync_parents
from node.store.files.platform import Platform
from node.store.files.segment_list import SegmentList
from node.store.files.straight import NOWHERE, read_straight_from, write_straight_from
from node.store.files.truncation_archive import TruncationArchive
from node.store.log_store import HardState
from node.store.recovery.base_switch import finish_switch
from node.store.recovery.circumstances import Circumstances, Recovered
from node.store.recovery.log_recovery import Recovery
from node.store.recovery.odd_files import set_lengths_right
from node.store.recovery.plain_files import refuse_what_is_no_file
from node.store.recovery.walk import SEALED_NEVER, find_begin

DATA_AHEAD_BYTES = 64 * 1024 * 1024
INDEX_AHEAD_BYTES = 8 * 1024 * 1024


@dataclass(slots=True)
class Opened:
    """Everything a FileStore is made of."""

    directory: Path
    identity: Identity
    sealed_from: int
    straight_from: int
    hard_state: HardState
    recovered: Recovered
    data: SegmentList
    index: SegmentList
    archive: TruncationArchive
    checkpoint: Checkpoint
    lock: DirectoryLock
    boot_id: str
    platform: Platform


def open_directory(
    directory: Path,
    group: str,
    node_id: str,
    data_file_size: int,
    index_file_size: int,
    init: bool,
    flush: FlushMode,
    boot_id: str | None,
    platform: Platform,
    serving: bool = False,
    group_id: str | None = None,
    born_at: Base | None = None,
    kind: str | None = None,
    adopting: bool = False,
    origin_pos: int = 0,
) -> Opened:
    """`serving`: a new life begins (SAFETY E8). `group_id`, `kind`: of the group that a new store is made for (C9);
    no kind: whatever is there, plain where nothing is.

    `adopting`: a log that Java wrote becomes one of this kind, whose every entry it is (checked by who asks).
    `born_at`: behind which entry, and at which position, a new store's log begins; an old one knows its own.
    `origin_pos`: where entry 0 of a new store will lie, behind RocketMQ's old commit log.

    Raises StoreRefused, StoreCorrupt, StoreFull or StoreIOError; then nothing is left open.
    """
    check_sizes(data_file_size, index_file_size)
    make_directory(directory, platform)
    refuse_what_is_no_file(directory, platform)
    lock = DirectoryLock(directory, platform)
    data = SegmentList(directory, "data", data_file_size, ahead_bytes=DATA_AHEAD_BYTES, platform=platform)
    index = SegmentList(directory, "index", index_file_size, ahead_bytes=INDEX_AHEAD_BYTES, platform=platform)
    checkpoint: Checkpoint | None = None
    try:
        finish_switch(directory, platform)
        found = read_identity(directory, platform)
        has_kind = PLAIN_NAME if found is None else found.kind
        fresh = Identity.fresh(group, node_id, data_file_size, index_file_size, platform, kind or has_kind)
        if found is not None:
            check_identity(directory, found, fresh)
        elif born_at is None and not adopting and _is_brokers(directory, fresh):
            refuse_old_commit_log(directory, platform)
        data.open(sizes_known=found is not None)
        index.open(sizes_known=found is not None)
        for segments in (data, index):  # a sector that is lost costs its entries, no more (S6)
            segments.read_around()
        if found is None and (adopting or origin_pos):
            fresh = replace(fresh, origin_pos=_origin_of(data, origin_pos))
        archive = TruncationArchive(directory, platform=platform)
        odd = [
            text for files in (data, index) for text in set_lengths_right(directory, files, archive, node_id, platform)
        ]
        java = found is None and _is_of_java(directory, data, platform)
        carry_over_checkpoint(directory, platform)
        checkpoint = Checkpoint(directory / CHECKPOINT, platform)
        slot = checkpoint.last if found is not None else None
        if born_at is not None and found is None:
            _begin_behind(directory, born_at, data, fresh, platform)
        base = read_base(directory, platform)
        before_first = -1 if base is None else base.meta.index
        has_entries = find_begin(data)[1] is not None
        if java and has_entries and fresh.kind != PLAIN_NAME and not adopting:
            raise StoreRefused(
                f"{directory} holds a plain log: a group of kind {fresh.kind!r} begins with an empty one"
                + ("; RocketMQ's is taken over by `quorumscope store adopt --broker`" * (fresh.kind == BROKER_NAME))
            )
        if found is not None:  # also where the first record is damaged
            has_entries = has_entries or data.has_bytes(0) or (slot is not None and slot.durable_index > before_first)
        if found is not None and found.origin_pos:
            group_id = None  # it was made of the old log, when that was taken over
        hard = _hard_state(directory, java, has_entries, init, platform, group_id, base, node_id)
        boot = platform.boot_id() if boot_id is None else boot_id

        def rejoin_first(why: str) -> None:
            """No vote any more, durably, before a tail that may have held history goes (SAFETY E8)."""
            if hard.voter_state is not VoterState.REJOINING:
                save_hard_state(directory, replace(hard, voter_state=VoterState.REJOINING), platform)

        hard = with_members(hard, base)
        known = fresh if found is None else found
        recovered = _recover(
            directory, data, index, checkpoint, found, java, node_id, boot, platform, rejoin_first, known.origin_pos
        )
        recovered.alarms[:0] = [*odd, *data.unreadable, *index.unreadable]
        recovered.members_at_base = None if base is None else base.members
        if found is not None and has_entries and slot is None:
            recovered.alarms.append("the checkpoint is missing or broken: everything was scanned and synced")
        sealed_from = _sealed_from(recovered, slot, found, java)
        straight_from = _straight_from(directory, recovered, sealed_from, java, platform)
        hard = _settle_voter_state(hard, recovered, slot, flush, boot, ours=not java)
        if serving:
            _refuse_a_leap(directory, hard, recovered)
            hard = with_new_life(hard, platform.new_id())
        hard = replace(hard, owner=node_id)
        save_hard_state(directory, hard, platform)
        if found is None:
            found = fresh
            sync_parents(directory, platform)
        store_id = hard.store_id or found.store_id  # drawn anew while it ran: now an older release knows it, too
        if found is fresh or (found.sealed_from, found.store_id) != (sealed_from, store_id):
            found = replace(found, sealed_from=sealed_from, store_id=store_id)
            write_identity(directory, found, platform)
        drop_java_checkpoint(directory, platform)
        own_directory(directory, platform)
        if _is_brokers(directory, found):
            own_commit_log(directory, platform)
        return Opened(
            directory, found, sealed_from, straight_from, hard, recovered, data, index, archive, checkpoint, lock, boot,
            platform,
        )  # fmt: skip
    except BaseException:
        data.close()
        index.close()
        if checkpoint is not None:
            checkpoint.close()
        lock.release()
        raise


def _is_of_java(directory: Path, data: SegmentList, platform: Platform) -> bool:
    """Whether a directory without our identity holds what a Java node left. A hard state that no data file lies beside
    is ours: of a first start that was interrupted, or of a store whose files are gone."""
    of_java = platform.exists(directory / CURRTERM) and not platform.exists(directory / HARDSTATE)
    return of_java or bool(data.starts)


def _is_brokers(directory: Path, identity: Identity) -> bool:
    """Whether RocketMQ's old commit log has its place beside that directory: not where a restore is under way."""
    return identity.kind == BROKER_NAME and directory.name == f"dledger-{identity.node_id}"


def _origin_of(data: SegmentList, origin_pos: int) -> int:
    """Where entry 0 lies: behind an old commit log RocketMQ begins with another file than 0."""
    if not data.starts:
        return origin_pos
    pos, index = find_begin(data)
    return 0 if index else pos


def _begin_behind(directory: Path, born_at: Base, data: SegmentList, fresh: Identity, platform: Platform) -> None:
    """A new log's base, durable before anything else of it. Raises StoreRefused where it cannot be one."""
    if data.starts:
        raise StoreRefused(f"{directory} holds a log: it begins where it begins, not at {born_at.meta.index + 1}")
    check_base(directory, born_at, fresh.data_file_size, fresh.kind)
    write_base(directory, born_at, platform)


def _hard_state(
    directory: Path,
    java: bool,
    has_entries: bool,
    init: bool,
    platform: Platform,
    group_id: str | None,
    base: Base | None,
    node_id: str,
) -> HardState:
    """The stored one, or what a new store starts with (SAFETY E2, E8)."""
    if java:
        return _not_above(
            read_hard_state(directory, platform),
            adopt_currterm(directory, has_entries=has_entries, platform=platform),
        )
    stored = load_hard_state(directory, has_entries=has_entries, platform=platform, node_id=node_id)
    new = HardState(voter_state=VoterState.FORMING if init else VoterState.REJOINING, group_id=group_id)
    if base is not None:  # nobody of this group stands in that term any more, nor below it
        new = replace(new, term=base.meta.term, vote_floor=base.meta.term)
    if stored is None:
        return new
    pristine = replace(new, voter_state=VoterState.REJOINING, group_id=None)
    installed = base is not None and base.is_installed
    if (
        init
        and not has_entries
        and not installed
        and replace(stored, life_ids=(), group_id=None, owner=None) == pristine
    ):
        return replace(stored, voter_state=VoterState.FORMING, group_id=group_id or stored.group_id)
    return stored


def _not_above(ours: HardState | None, adopted: HardState) -> HardState:
    """A Java node's state, unless a hard state of ours says less: of a take-over that was interrupted, or of a store
    that lost its identity. No vote comes out of that, and no term goes back (SAFETY E2, E8)."""
    if ours is None:
        return adopted
    term = max(adopted.term, ours.term)
    voter_state = adopted.voter_state if ours.voter_state is VoterState.VOTER else ours.voter_state
    return replace(adopted, term=term, vote_floor=max(term, ours.vote_floor), voter_state=voter_state)


def _recover(
    directory: Path,
    data: SegmentList,
    index: SegmentList,
    checkpoint: Checkpoint,
    found: Identity | None,
    java: bool,
    node_id: str,
    boot_id: str,
    platform: Platform,
    rejoin_first: Callable[[str], None],
    origin_pos: int,
) -> Recovered:
    slot = checkpoint.last if found is not None else None
    sealed_from = SEALED_NEVER if java else max(found.sealed_from if found else 0, slot.sealed_from if slot else 0)
    base = read_base(directory, platform)
    _, begin_index = find_begin(data)
    java_term = _java_snapshot_term(directory, begin_index - 1, platform) if base is None and begin_index else None
    hint = java_committed_index(directory, platform) if java else -1
    case = Circumstances(
        node_id, boot_id, java, sealed_from, base, java_term, hint, checkpoint.is_doubtful,
        first_known_fault(directory, platform), _known_border(directory, sealed_from, java, platform), rejoin_first,
        origin_pos,
    )  # fmt: skip
    return Recovery(data, index, TruncationArchive(directory, platform=platform), slot, case).recover()


def _java_snapshot_term(directory: Path, index: int, platform: Platform) -> int | None:
    """The term of the entry before the first one, where the Java node's snapshot names it (FORMATS 3)."""
    path = directory / "snapshot" / f"snapshot_{index}" / "snapshot_meta"
    try:
        meta = json.loads(read_small(path, platform))
        return int(meta["lastIncludedTerm"]) if int(meta["lastIncludedIndex"]) == index else None
    except (OSError, ValueError, KeyError, TypeError, StoreRefused):
        return None


def _refuse_a_leap(directory: Path, hard: HardState, recovered: Recovered) -> None:
    """A log whose terms no group reaches by elections from the stored one is not this member's (SAFETY E10)."""
    if recovered.end.term > hard.term + TERM_LEAP_MAX:
        raise StoreRefused(
            f"{directory}: the log ends in term {recovered.end.term}, {HARDSTATE} says {hard.term}: that cannot be"
            f" (E10); `quorumscope store repair {directory}` says what settles it"
        )


def _sealed_from(recovered: Recovered, slot: Slot | None, found: Identity | None, java: bool) -> int:
    if recovered.end.chain is None:
        return SEALED_NEVER
    if java:
        return recovered.end.index
    return max(found.sealed_from if found else 0, slot.sealed_from if slot else 0)


def _known_border(directory: Path, sealed_from: int, java: bool, platform: Platform) -> int:
    """From where on recovery may hold positions against places; a Java directory's border is what it finds."""
    border = 0 if java else read_straight_from(directory, sealed_from, platform)
    return NOWHERE if border is None else border


def _straight_from(directory: Path, recovered: Recovered, sealed_from: int, java: bool, platform: Platform) -> int:
    """The layout's border, kept on disk where it is new: with an older release's heritage it is at the log's end."""
    if java:
        border = recovered.straight_from
    else:
        known = read_straight_from(directory, sealed_from, platform)
        if known is not None:
            return known
        border = recovered.end.index
    write_straight_from(directory, border, platform)
    return border


def _settle_voter_state(
    hard: HardState, recovered: Recovered, slot: Slot | None, flush: FlushMode, boot_id: str, *, ours: bool
) -> HardState:
    """A store that lost history may not vote (SAFETY E8)."""
    if hard.voter_state is VoterState.REJOINING:
        return hard
    lost = recovered.lost_history
    if hard.kept is not None and hard.kept.promises.unsynced:  # as it ran until now, whatever is configured since
        flush = FlushMode.ASYNC
    is_empty = recovered.end.index == recovered.base.index + 1
    if slot is not None and flush is FlushMode.ASYNC and not slot.clean and slot.boot_id != boot_id:
        nothing_to_lose = (
            hard.voter_state is VoterState.FORMING and slot.durable_index <= recovered.base.index and is_empty
        )
        if not nothing_to_lose:
            lost = lost or "flush is async, the last stop was not clean, and the machine was restarted since"
    if slot is None and ours and hard.voter_state is VoterState.VOTER:
        if is_empty:  # a slot is written before any vote: log and checkpoint were removed together
            lost = lost or "it was a voter, and its log and its checkpoint are gone"
        elif flush is FlushMode.ASYNC:
            lost = lost or "flush is async, and no checkpoint says how the last stop was"
    if not lost:
        return hard
    recovered.alarms.append(f"this store lost history and rejoins: {lost}")
    return replace(hard, voter_state=VoterState.REJOINING)
