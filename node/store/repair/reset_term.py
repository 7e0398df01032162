"""`store repair DIR --reset-term N --group-token TOKEN`: the way back from a term that no elections reach (SAFETY E10).

It is given to all members of a stopped group, with one N and one TOKEN. N is at least the highest end term of their
logs, so that no entry goes; entries above it, if the operator decides so, are archived and cut, and the member gives up
its vote before. A forgotten member with the old term must not meddle: the group gets a new id, made of the token.

Invariants: what is replaced or cut is in the archive first; no vote is given up to N, whoever voted there before;
whoever ends this at any moment leaves a store on which the same command can be given again.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from node.protocol.codes import VoterState
from node.protocol.entry import TERM_MAX
from node.protocol.group_id import check_group_token, group_id_of
from node.store.errors import StoreRefused
from node.store.files.hard_state import CURRTERM, HARDSTATE, read_hard_state, save_hard_state
from node.store.files.identity import BASE, DirectoryLock, Identity, read_base, write_base
from node.store.files.java_files import checkpoint_slot
from node.store.files.platform import Platform
from node.store.files.truncation_archive import TruncationArchive
from node.store.log_store import HardState
from node.store.reader import StoreReader
from node.store.repair.members import configurations_below
from node.store.repair.problems import faults_left
from node.store.repair.report import Report, range_in_words, sentence
from node.store.repair.tools import (
    archives_reported,
    cut_record,
    file_chunks,
    open_for_repair,
    our_identity,
    record_of,
    settle,
)


def reset_term(directory: Path, term: int, token: str, platform: Platform) -> Report:
    """Raises StoreError; then nothing has changed."""
    identity = our_identity(directory, platform)
    report = Report(directory, f"reset-term {term}", group=identity.group, node_id=identity.node_id)
    if not 0 <= term < TERM_MAX:
        raise StoreRefused(
            f"term {term} is not in 0 to {TERM_MAX - 1}: give the highest end term that any member's log has"
        )
    if not token:
        raise StoreRefused("a new group id is made of a token: give the same --group-token TOKEN to all members")
    try:
        check_group_token(token)
    except ValueError as error:
        raise StoreRefused(f"{error}: give the same --group-token TOKEN to all members") from error
    known = read_hard_state(directory, platform)
    if known is None or known.owner not in (None, identity.node_id):  # lost, or another member's
        known = HardState(voter_state=VoterState.REJOINING)
    reader = StoreReader(directory, platform=platform)
    cuts = reader.end_term > term
    slot = checkpoint_slot(directory, platform)
    with archives_reported(report, directory, platform):
        state = _save(directory, identity, known, term, token, cuts, platform)
        report.done.append(f"The term goes from {known.term} to {term}; it gives no vote in terms up to {term}.")
        report.done.append(f"The group's id becomes {state.group_id}.")
        if cuts or (slot is not None and any(mark.term > term for mark in slot.marks)):
            _forget_above(directory, term, report, platform)
    if cuts:
        report.done.append("This member gives up its vote: REJOINING.")
        report.next.append("If a majority had to cut, nobody can lead: then --accept-loss, as `store repair DIR` says.")
    else:
        report.see_hard_state(state, reader.end_index, reader.end_term)
    report.next += [
        f"The same on every other member: quorumscope store repair DIR --reset-term {term} --group-token TOKEN",
        "Then start them all. A member that was forgotten stays out, by its group id.",
    ]
    return report


def _save(
    directory: Path, identity: Identity, known: HardState, term: int, token: str, cuts: bool, platform: Platform
) -> HardState:
    voter_state = VoterState.REJOINING if cuts else known.voter_state
    # `naming` goes: the entry that gave the old id may still be in the log, and must not give it again.
    state = replace(
        known, term=term, voted_for=None, vote_floor=term, voter_state=voter_state, marks_from=term + 1,
        group_id=group_id_of(token, identity.group), naming=None, replaced_id=None,
    )  # fmt: skip
    lock = DirectoryLock(directory, platform)
    try:
        order = record_of(identity.node_id, -1, term, f"reset-term {term} by hand")
        base = read_base(directory, platform)
        names = (HARDSTATE, CURRTERM) if base is None else (HARDSTATE, CURRTERM, BASE)
        old = file_chunks(directory, names, platform)
        TruncationArchive(directory, platform=platform).add(order, old)
        if base is not None:  # what a hard state that is made anew takes its id from
            write_base(directory, replace(base, group_id=state.group_id), platform)
        save_hard_state(directory, state, platform)
    finally:
        lock.release()
    return state


def _forget_above(directory: Path, term: int, report: Report, platform: Platform) -> None:
    """Cuts the entries of higher terms, and drops what is on record of peers there: they give it up as well (E8).

    The lock is taken anew, which an engine that is started meanwhile would lose.
    """
    store = open_for_repair(directory, platform)
    try:
        store.note_marks(tuple(mark for mark in store.recovered_marks if mark.term <= term))
        first, end = store.last_index_of_term(term) + 1, store.end_index
        if first <= end:
            report.done.append(f"{sentence(range_in_words(first, end))}: copied to the archive, then cut.")
            report.may_be_lost.append(f"{sentence(range_in_words(first, end))}: may have been acknowledged.")
            named = configurations_below(store, first)
            store.save_hard_state(replace(store.hard_state, configurations=named))
            store.truncate(first, cut_record(store, f"reset-term {term} by hand", first))
            settle(store)
        report.problems += faults_left(directory, store)
        report.see(store)
    finally:
        store.close()
