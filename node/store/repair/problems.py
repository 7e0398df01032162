"""`store repair DIR` without an option: what is wrong with a stopped store, and the command that settles each of it.

The store is opened on a dry run and read from end to end, so this says what the next start would find, and changes
nothing. Beside a running engine, which changes the files, it is only verified.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from node.protocol.codes import VoterState
from node.snapshots.directory import damaged_in, foreign_in
from node.store.errors import StoreCorrupt, StoreError, StoreRefused
from node.store.file_store import FileStore
from node.store.files.hard_state import (
    CURRTERM,
    HARDSTATE,
    adopt_currterm,
    load_hard_state,
    read_currterm,
    read_hard_state,
    save_hard_state,
    term_leap,
)
from node.store.files.identity import IDENTITY, LOCK, DirectoryLock, read_identity
from node.store.files.java_files import checkpoint_slot
from node.store.files.platform import Platform
from node.store.files.segment import NAME_DIGITS
from node.store.files.truncation_archive import TruncationArchive
from node.store.log_store import HardState
from node.store.reader import StoreReader
from node.store.recovery.plain_files import ROWS, what_is_no_file
from node.store.repair.adopt import ADOPTING
from node.store.repair.dry_run import DryRun
from node.store.repair.report import Problem, Report, range_in_words, sentence
from node.store.repair.tools import open_for_repair, scrub_all

_START = "Start the member: it heals this by itself from any member that holds these entries whole."


def faults_left(directory: Path, store: FileStore) -> list[Problem]:
    """The damaged entries of an open store."""
    found: list[Problem] = []
    for fault in store.faults:
        words = range_in_words(fault.first_index, fault.last_index)
        found.append(
            Problem(
                f"{sentence(words)}: damaged ({fault.kind})",
                fault.detail,
                (
                    _START,
                    f"Or by hand, from a copy of another member's store: {_command(directory)} --from OTHER_DIR",
                    f"Only if no member holds them: {_command(directory)} --discard-from {fault.first_index} "
                    f"(drops {range_in_words(fault.first_index, store.end_index)})",
                ),
            )
        )
    return found


def damaged_snapshots(directory: Path, platform: Platform) -> list[Problem]:
    """The snapshots of a state machine that are not what was written. Raises StoreError where one cannot be read."""
    ways = (
        "Start the member: it puts this snapshot aside, and loads an older one, or its leader's.",
        "Where no member has that state: quorumscope restore, from a back-up.",
    )
    return [
        Problem(f"The snapshot of entry {one.index}: damaged", one.detail, ways)
        for one in damaged_in(directory, platform)
    ]


def foreign_snapshots(directory: Path, store: FileStore, platform: Platform) -> list[Problem]:
    """The snapshots of another history than the log's; a state machine that loads one is not believed."""

    def held(index: int) -> tuple[int, int | None] | None:
        meta = store.meta(index) if index <= store.end_index else None
        return None if meta is None else (meta.term, meta.chain)

    return [
        Problem(
            f"The snapshot of entry {one.index}: of another history",
            one.detail,
            (
                f"Move {directory / one.file} away: the member loads an older one, applies its log again, or asks its"
                " leader for one.",
            ),
        )
        for one in foreign_in(directory, held, platform)
    ]


def look(directory: Path, platform: Platform) -> Report:
    """Raises StoreRefused where there is no store, StoreError where nothing can be determined."""
    report = Report(directory)
    if not platform.names(directory / "data") and not platform.exists(directory / IDENTITY):
        raise StoreRefused(f"{directory} is no store: there is nothing in data/ and no {IDENTITY}")
    dry = DryRun(platform)
    for what, way in what_is_no_file(directory, dry):
        report.problems.append(Problem(what, "A start is refused: nothing that a member could heal.", (sentence(way),)))
    if report.problems:
        return report
    if not _identity_is_fine(report, directory, dry):
        return report
    archives = TruncationArchive(directory, platform=platform).records()
    if archives:
        last = archives[-1]
        report.notes.append(
            f"truncated/ keeps {len(archives)} archive{'s' if len(archives) > 1 else ''} of what was cut or replaced; "
            f"the newest: {last.reason or 'no reason given'}"
        )
    if not _is_free(directory, dry):
        report.notes.append("An engine has this store open. Damage it heals by itself; see `quorumscope status`.")
        _beside_an_engine(report, directory, platform)
        return report
    is_term_lost = _look_at_hard_state(report, directory, dry)
    try:
        store = open_for_repair(directory, dry)
    except StoreError as error:
        report.problems.append(_refused(directory, error))
        return report
    scrub_all(store)
    report.see(store)
    report.problems += faults_left(directory, store)
    report.problems += damaged_snapshots(directory, platform)
    report.problems += foreign_snapshots(directory, store, platform)
    report.notes += [f"The next start will say: {alarm}" for alarm in store.alarms]
    if store.hard_state.voter_state is VoterState.REJOINING and not is_term_lost:
        report.problems.append(_rejoining(directory))
    store.close()
    return report


def _identity_is_fine(report: Report, directory: Path, dry: DryRun) -> bool:
    adopt = f"quorumscope store adopt {directory}"
    try:
        identity = read_identity(directory, dry)
    except StoreRefused as error:
        way = f"{adopt} --group GROUP --id ID (as they are in the configuration)"
        report.problems.append(Problem(f"{IDENTITY} is damaged", str(error).split(": `quorum")[0], (way,)))
        return False
    if identity is not None:
        report.group, report.node_id = identity.group, identity.node_id
        return True
    if dry.exists(directory / ADOPTING / IDENTITY):
        report.problems.append(Problem("`store adopt` was interrupted here", "It may be given again.", (adopt,)))
    elif dry.exists(directory / HARDSTATE):
        way = f"{adopt} --group GROUP --id ID (as they are in the configuration)"
        why = f"{HARDSTATE} says that the store is ours, so the file was lost"
        report.problems.append(Problem(f"{IDENTITY} is missing", why, (way,)))
    else:
        report.problems += _what_java_left(directory, dry)
        taken = "" if report.problems else " An engine takes the directory over as it is."
        report.notes.append(f"No {IDENTITY} and no {HARDSTATE}: as a Java node writes it.{taken}")
    return False


def _what_java_left(directory: Path, dry: DryRun) -> list[Problem]:
    """What keeps an engine from taking over a directory that has the Java node's files alone."""
    found: list[Problem] = []
    copy = "Put back what a copy of this directory holds, or empty it: then the member takes all from the leader."
    for row in ROWS:
        names = [name for name in dry.names(directory / row) if len(name) == NAME_DIGITS and name.isdigit()]
        sizes = [(dry.path_size(directory / row / name), name) for name in names]
        odd = [(size, name) for size, name in sizes if size != sizes[0][0]]
        if odd:
            what = f"The files in {row}/ are not of one length"
            first, other = sizes[0], odd[0]
            why = f"{first[1]} has {first[0]} bytes, {other[1]} has {other[0]}: no size fits, and a start is refused."
            found.append(Problem(what, why, (copy,)))
    try:
        adopt_currterm(directory, has_entries=bool(dry.names(directory / "data")), platform=dry)
    except StoreRefused as error:
        way = f"Put {CURRTERM} back, or write it: `voteLeader=` and `currTerm=N`, N the highest term of any member."
        found.append(Problem("The term file is lost", str(error).split(": `quorum")[0], (way, copy)))
    return found


def _is_free(directory: Path, dry: DryRun) -> bool:
    if not dry.exists(directory / LOCK):
        return True
    try:
        DirectoryLock(directory, dry).release()
    except StoreRefused:
        return False
    return True


def _look_at_hard_state(report: Report, directory: Path, dry: DryRun) -> bool:
    """Tells of a term file that is lost (True); on the dry run it is then made up, so that the rest is seen, too."""
    slot = checkpoint_slot(directory, dry)
    has_entries = StoreReader(directory, platform=dry).end_index >= 0 or (slot is not None and slot.durable_index >= 0)
    if _look_at_leap(report, directory, dry):
        return False
    try:
        load_hard_state(directory, has_entries=has_entries, platform=dry, node_id=report.node_id)
    except StoreRefused as error:
        java = read_currterm(directory, dry)
        seen = max(java[0] if java is not None else 0, StoreReader(directory, platform=dry).end_term)
        report.problems.append(
            Problem(
                "The term file is lost",
                f"{str(error).split('; ')[0]}. A start is refused, because a wrong term could give a vote twice.",
                (
                    f"{_command(directory)} --set-term N, N = the highest term that `quorumscope status` shows for any "
                    f"member, at least {seen}",
                ),
            )
        )
        save_hard_state(directory, HardState(seen, None, VoterState.REJOINING, seen), dry)
        return True
    return False


def _look_at_leap(report: Report, directory: Path, dry: DryRun) -> bool:
    """Tells of a term that no elections reach (E10); on the dry run it is then the log's, so that the rest is seen."""
    end_term = StoreReader(directory, platform=dry).end_term
    leap = term_leap(directory, end_term, dry)
    known = read_hard_state(directory, dry)
    if leap is None or known is None:
        return False
    report.problems.append(
        Problem(
            "The stored term is far above what elections reach",
            f"{leap}. One message with an absurd term did that, or a damaged file; the group cannot go on from there.",
            (
                f"Stop all members. On each of them: {_command(directory)} --reset-term N --group-token TOKEN, with "
                f"the same N, at least the highest end term of all their logs (here {end_term}), and one new TOKEN",
            ),
        )
    )
    save_hard_state(directory, replace(known, term=max(end_term, 0), voted_for=None), dry)
    return True


def _refused(directory: Path, error: StoreError) -> Problem:
    text = str(error)
    if "a Java node wrote here" in text:
        return Problem(
            "A Java node wrote to this store since",
            text.split(". Restore")[0],
            (f"quorumscope store adopt {directory}",),
        )
    way = "Empty the directory and start the member without --init: it rejoins and takes everything from the leader."
    if isinstance(error, StoreCorrupt):
        return Problem("The log cannot be opened", text, (way,))
    return Problem("A start is refused", text, (way,))


def _rejoining(directory: Path) -> Problem:
    return Problem(
        "This member is REJOINING",
        "Its store lost history once, so it does not vote and does not count until it has caught up with a leader.",
        (
            "Start it. It becomes a VOTER by itself as soon as a majority of voters has a leader.",
            f"Only if no majority of voters is left in the group: {_command(directory)} --accept-loss",
        ),
    )


def _beside_an_engine(report: Report, directory: Path, platform: Platform) -> None:
    found = StoreReader(directory, platform=platform).verify()
    if not found.problems:
        report.notes.append(f"{found.entries:,} entries were read from the files; nothing is wrong with them.")
    runs: list[list[int]] = []
    for one in found.problems:
        if one.index is None:
            report.problems.append(Problem(f"{one.file}: {one.kind}", one.detail, (_START,)))
        elif runs and one.index == runs[-1][1] + 1:
            runs[-1][1] = one.end or one.index
        else:
            runs.append([one.index, one.end or one.index])
            report.problems.append(Problem("", one.detail, (_START,)))
    spans = iter(runs)
    report.problems = [
        one if one.what else Problem(f"{sentence(range_in_words(*next(spans)))}: damaged", one.why, one.ways)
        for one in report.problems
    ]
    report.problems += damaged_snapshots(directory, platform)


def _command(directory: Path) -> str:
    return f"quorumscope store repair {directory}"
