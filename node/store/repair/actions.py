"""The repairs that only an operator may order: `--set-term`, `--discard-from`, `--accept-loss` (SAFETY E2, E8, R6, S6).

Each is a function of a stopped member's directory and a platform (a dry run brings its own) that gives a `Report`, and
raises StoreError where it may not or cannot.

Invariants: what is dropped is in the archive before it goes. A member that loses entries gives up its vote *before*
they go: it may have acknowledged them, so it must not help to elect somebody who lacks them. Whoever ends a repair at
any moment leaves a store on which the same command can be given again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from node.protocol.codes import VoterState
from node.protocol.entry import TERM_MAX
from node.store.errors import StoreFull, StoreRefused
from node.store.faults.ranges import fault_at, in_words
from node.store.file_store import FileStore
from node.store.files.hard_state import CURRTERM, HARDSTATE, load_hard_state, read_currterm, save_hard_state
from node.store.files.identity import DirectoryLock
from node.store.files.platform import Platform
from node.store.files.truncation_archive import TruncationArchive
from node.store.log_store import HardState
from node.store.reader import StoreReader
from node.store.repair.members import configurations_below, configurations_in_log
from node.store.repair.problems import faults_left
from node.store.repair.report import Report, range_in_words, sentence
from node.store.repair.tools import (
    archives_reported,
    cut_record,
    file_chunks,
    open_for_repair,
    our_identity,
    record_of,
    scrub_all,
    settle,
)

COMMAND = "quorumscope store repair"


def set_term(directory: Path, term: int, platform: Platform) -> Report:
    """Gives a store whose term file was lost a term, and no vote up to it (SAFETY E2). Raises StoreRefused."""
    identity = our_identity(directory, platform)
    report = Report(directory, f"set-term {term}", group=identity.group, node_id=identity.node_id)
    lock = DirectoryLock(directory, platform)
    try:
        reader = StoreReader(directory, platform=platform)
        try:
            known = load_hard_state(directory, has_entries=True, platform=platform, node_id=identity.node_id)
        except StoreRefused:
            known = None
        java = read_currterm(directory, platform)
        lowest = max(reader.end_term, java[0] if java is not None else 0, known.term if known is not None else 0)
        if not lowest <= term <= TERM_MAX:
            side = f"below {lowest}, which this store has seen" if term < lowest else f"above {TERM_MAX}"
            raise StoreRefused(f"term {term} is {side}: give the highest term that any member of the group shows")
        if known is None:
            named = configurations_in_log(reader)
            state = HardState(term, None, VoterState.REJOINING, vote_floor=term, configurations=named)
            report.done.append(f"The term becomes {term}. The vote and whether this member may vote were lost with it.")
            report.done.append("So it is REJOINING: no vote until it has everything that a confirmed leader has.")
            report.next.append("Start the member. With a majority of the others up it becomes a VOTER by itself.")
            report.next.append(f"Only if no majority of voters is left: {COMMAND} {directory} --accept-loss")
        else:
            state = replace(known, term=term, voted_for=None, vote_floor=max(known.vote_floor, term))
            report.done.append(f"The term goes from {known.term} to {term}; it gives no vote in terms up to {term}.")
            report.next.append("Start the member.")
        report.may_be_lost.append("No entry. But below a term in which this member voted, it could vote twice.")
        with archives_reported(report, directory, platform):
            order = record_of(identity.node_id, reader.end_index, reader.end_term, f"set-term {term} by hand")
            old = file_chunks(directory, (HARDSTATE, CURRTERM), platform)
            TruncationArchive(directory, platform=platform).add(order, old)
        save_hard_state(directory, state, platform)
        report.see_hard_state(state, reader.end_index, reader.end_term)
        return report
    finally:
        lock.release()


def discard_from(directory: Path, index: int, platform: Platform) -> Report:
    """Drops entry `index` and all behind it; the member rejoins (SAFETY R6, S6, E8). Raises StoreRefused."""
    with _opened(directory, f"discard-from {index}", platform) as (store, report):
        begin, end = store.begin_index, store.end_index
        if not begin <= index <= end + 1:
            raise StoreRefused(f"entry {index} is not in this log, which holds {begin}..{end}")
        if index == end + 1:
            raise StoreRefused(f"the log ends at entry {end} already: there is nothing from entry {index} on")
        before = fault_at(store.faults, index - 1)
        if before is not None:
            raise StoreRefused(
                f"entry {index - 1} right before it is damaged too ({in_words([before])}): heal that first, "
                f"or discard from entry {before.first_index} on"
            )
        known = store.hard_state
        floor = max(known.vote_floor, known.term, store.end_term)
        term = max(known.term, store.end_term)
        state = replace(
            known, term=term, voted_for=None, vote_floor=floor, voter_state=VoterState.REJOINING,
            configurations=configurations_below(store, index),
        )  # fmt: skip
        store.save_hard_state(state)
        report.done.append(f"This member gives up its vote: REJOINING, and no vote in terms up to {floor}.")
        report.done.append(
            f"{sentence(range_in_words(index, end))} of {begin}..{end}: copied to the archive, then cut."
        )
        committed = store.recovered_commit_index
        try:
            store.truncate(index, cut_record(store, f"discard-from {index} by hand", index))
        except StoreFull:  # no room for the archive: nothing was cut, and nothing was reported meanwhile
            store.save_hard_state(known)  # and how it stopped is still to be judged
            raise
        settle(store)
        if committed >= index:
            words = sentence(range_in_words(index, min(committed, end)))
            report.may_be_lost.append(f"{words}: COMMITTED as far as this member knows, so acknowledged.")
        if committed < end:
            words = sentence(range_in_words(max(index, committed + 1), end))
            report.may_be_lost.append(f"{words}: may have been acknowledged.")
        report.may_be_lost.append(
            "What of that no other member holds is gone for the group; only the archive here still has it."
        )
        report.problems += faults_left(directory, store)
        report.next += [
            "Start the member. It takes everything that the leader has and then votes again.",
            f"If a majority had to discard, nobody can lead: stop all, then {COMMAND} {directory} --accept-loss",
        ]
        return report


def accept_loss(directory: Path, term: int | None, platform: Platform) -> Report:
    """Makes a member a VOTER with what it has, where no quorum of voters is left (SAFETY E8). Raises StoreRefused."""
    with _opened(directory, "accept-loss", platform) as (store, report):
        known = store.hard_state
        if known.voter_state is VoterState.VOTER:
            raise StoreRefused("this member is a VOTER already: there is no loss to accept")
        if term is None and store.end_index <= store.base.index:
            raise StoreRefused(
                "this store is empty, so it does not know in which terms this member voted: say the highest term that "
                "any member of the group shows with --term N (0 if no member has any entry)"
            )
        own = max(known.term, store.end_term)
        if term is not None and not own <= term <= TERM_MAX:
            side = f"below {own}, which this store has seen" if term < own else f"above {TERM_MAX}"
            raise StoreRefused(f"term {term} is {side}")
        new_term = own if term is None else term
        state = replace(
            known, term=new_term, voted_for=None, vote_floor=max(known.vote_floor, new_term),
            voter_state=VoterState.VOTER, marks_from=new_term + 1,
        )  # fmt: skip
        end = (
            f"entry {store.end_index} of term {store.end_term}" if store.end_index >= 0 else "nothing: its log is empty"
        )
        report.done.append(f"This member ends at {end}.")
        report.done.append(f"It goes from {known.voter_state} to VOTER with that; no vote in terms up to {new_term}.")
        report.may_be_lost += [
            "Every acknowledged entry that only lost stores had. The group goes on from the newest log of its voters.",
            "If another member holds more and stays REJOINING, what it has more is cut there when it comes back.",
            "So this is only for a group in which no majority of voters is left. Otherwise just start the member.",
        ]
        old = file_chunks(directory, (HARDSTATE, CURRTERM), platform)
        order = record_of(report.node_id or "", store.end_index, store.end_term, "accept-loss by hand")
        TruncationArchive(directory, platform=platform).add(order, old)
        settle(store)
        store.save_hard_state(state)
        report.problems += faults_left(directory, store)
        report.next += [
            f"Before any start, look at every other member: {COMMAND} DIR shows its end and its term.",
            "The newest log has the highest end term, with equal terms the highest entry. It has to accept it, too.",
            f"If any member shows a term above {new_term}: {COMMAND} {directory} --set-term N",
            "Accept it on as many members as make a majority, then start them all. The others rejoin by themselves.",
        ]
        return report


@contextmanager
def _opened(directory: Path, action: str, platform: Platform) -> Iterator[tuple[FileStore, Report]]:
    """The store, opened and looked through; its state after the action is in the report."""
    store = open_for_repair(directory, platform)
    try:
        identity = our_identity(directory, platform)
        report = Report(directory, action, group=identity.group, node_id=identity.node_id)
        scrub_all(store)
        with archives_reported(report, directory, platform):
            yield store, report
        report.see(store)
    finally:
        store.close()
