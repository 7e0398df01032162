"""`store recover-members DIR --keep …`: the group goes on with its survivors, after a majority was lost for good.

It is given to each survivor, stopped, with one list of all of them (id, term, end term and end of the log, as each
one's dry run says) and one token. The one whose log is the newest appends the configuration that names the survivors
alone, in a term above all of theirs; the others follow it, as they win no election by the configuration that they
have. So there is one new configuration, and it is in a log (SAFETY M1).

Why the lost members cannot come back and make a second group of it: the group's id becomes another one (C9), which
members, clients and consoles compare; the old id stands in the configuration as ended, and who still has it is refused
with that, and gives up its vote before it has had a leader (`consensus/ended_groups.py`); their stores stand there as
removed (M5). Out of reach of every survivor two of them could still elect each other, under the old id: nothing that is
written here could reach them, so the report says that they must not be started.

What one of them is given by mistake makes no second history: the id is made of the token and of who is kept, so two
lists are two groups; and where two believe by one list that theirs is the log that goes on, each does so in a term of
its own, and the newer one wins.

Invariants: what is replaced is in the archive first; the hard state names the new entry before the log holds it; no
vote is given up to the new term; a shorter log goes on only where that was asked for, and never one that would cut what
is known here to be committed; whoever ends this at any moment leaves a store on which it can be given again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from node.protocol.codes import VoterState
from node.protocol.entry import POSITION_MAX, TERM_MAX
from node.protocol.group_entries import entry_about_group
from node.protocol.group_id import check_group_token, group_id_of
from node.protocol.group_members import GroupMembers, members_in
from node.protocol.peers import MEMBER_ID
from node.protocol.quorum import majority_of
from node.store.errors import StoreFull, StoreRefused
from node.store.file_store import FileStore
from node.store.files.hard_state import CURRTERM, HARDSTATE
from node.store.files.identity import BASE, Identity, read_base, write_base
from node.store.files.platform import Platform
from node.store.files.truncation_archive import TruncationArchive
from node.store.log_store import HardState
from node.store.repair.members import configurations_held
from node.store.repair.problems import faults_left
from node.store.repair.report import Report, range_in_words, sentence
from node.store.repair.tools import (
    archives_reported,
    file_chunks,
    open_for_repair,
    our_identity,
    record_of,
    scrub_all,
    settle,
)

COMMAND = "quorumscope store recover-members"
START = "start this member with the configuration that it had, once all survivors are done"
TRY = "recover-members "  # begins the change id of what it announces and appends
BORN = "Of those at the birth this store knows whom it met as a voter: --peers names them all"

Record = tuple[int, str]  # where an entry about the members is, and its body


class Survivor(NamedTuple):
    """A member that is left, and what its own dry run says: its term, and the last entry of its log."""

    member_id: str
    term: int
    end_term: int
    end_index: int

    def spelled(self) -> str:
        return f"{self.member_id}={self.term}:{self.end_term}:{self.end_index}"

    @property
    def log(self) -> tuple[int, int]:
        """The newer log has the greater one (SAFETY E3)."""
        return self.end_term, self.end_index


def new_group_id(token: str, group: str, kept: Iterable[str]) -> str:
    """The id of the group of these survivors."""
    return group_id_of(f"{token} kept {' '.join(sorted(kept))}", group)


class Wanted(NamedTuple):
    """What was asked for. `peers`: the group's members at its birth, as the members' configuration names them."""

    kept: Sequence[str]
    peers: Sequence[str] = ()
    token: str = ""
    log_of: str | None = None


def parse_survivor(text: str) -> tuple[str, Survivor | None]:
    """`n1`, or `n1=TERM:END_TERM:END`. Raises StoreRefused."""
    member_id, stated, numbers = text.partition("=")
    if not MEMBER_ID.fullmatch(member_id):
        raise StoreRefused(f'--keep {text}: "{member_id}" is no member id')
    if not stated:
        return member_id, None
    try:
        term, end_term, end_index = (int(one) for one in numbers.split(":"))
    except ValueError:
        raise StoreRefused(
            f"--keep {text}: give it as {member_id}=TERM:END_TERM:END, as its own dry run says"
        ) from None
    if not (0 <= term < TERM_MAX and -1 <= end_term < TERM_MAX and -1 <= end_index <= POSITION_MAX):
        raise StoreRefused(f"--keep {text}: no member has such a term or end")
    return member_id, Survivor(member_id, term, end_term, end_index)


def recover_members(directory: Path, wanted: Wanted, platform: Platform) -> Report:
    """Raises StoreError; then nothing has changed."""
    identity = our_identity(directory, platform)
    report = Report(directory, "recover-members", group=identity.group, node_id=identity.node_id)
    store = open_for_repair(directory, platform)
    try:
        scrub_all(store)
        _check_whole(directory, store)
        plan = Plan(directory, identity, store, wanted)
        with archives_reported(report, directory, platform):
            plan.describe(report)
            plan.carry_out(report, platform)
        report.see(store)
    finally:
        store.close()
    return report


def _check_whole(directory: Path, store: FileStore) -> None:
    """Only a voter that holds all of its log may go on for the others."""
    state = store.hard_state.voter_state
    if state is not VoterState.VOTER:
        text = f"this member is {state}: it may have lost what it acknowledged"
        raise StoreRefused(
            f"{text}. Take another survivor, or first `quorumscope store repair {directory} --accept-loss`"
        )
    damaged = faults_left(directory, store)
    if damaged:
        raise StoreRefused(f"{damaged[0].what}: `quorumscope store repair {directory}` says what settles that first")


class Plan:
    """What is to be done at this survivor."""

    def __init__(self, directory: Path, identity: Identity, store: FileStore, wanted: Wanted) -> None:
        """Raises StoreRefused where it may not be done."""
        self.directory, self.store, self.identity = directory, store, identity
        self.self_id, self.token, self.names_born = identity.node_id, wanted.token, bool(wanted.peers)
        self.hard: HardState = store.hard_state
        self.members = self._members(wanted)
        self.own = Survivor(self.self_id, max(self.hard.term, store.end_term, 0), store.end_term, store.end_index)
        self.kept = self._kept(wanted)
        self._check_minority()
        self.longest = max(self.kept, key=lambda one: (one.log, one.member_id == wanted.log_of))
        self.first = self._first(wanted.log_of)
        self.term = max(max(one.term, one.end_term) for one in self.kept) + 1 + self.kept.index(self.first)
        if self.term >= TERM_MAX:
            raise StoreRefused(f"term {self.term - 1} leaves none above it: `quorumscope store repair {directory}`")

    # --- what is asked for --------------------------------------------------------------------------------------
    def _members(self, wanted: Wanted) -> GroupMembers:
        """By the newest entry in this log; else those of the group's birth."""
        self.held = held = configurations_held(self.store)
        named = members_in(held[-1][1].encode()) if held else None
        self.old_id = self._id_before(held)
        self.said_at = f"entry {held[-1][0]}" if held else "the group's birth"
        if named is None:
            born = {self.self_id, *self.hard.store_ids, *wanted.peers}
            named = GroupMembers(dict.fromkeys(sorted(born), ""))
        if self.self_id not in named.ids:
            raise StoreRefused(f"{self.self_id} is no member of the group any more, by {self.said_at} of its log")
        return named

    def _id_before(self, held: Sequence[Record]) -> str | None:
        """The id that the lost members have: of a try whose entry did not come, the one that it replaced."""
        tries = [body for index, body in self.hard.configurations if (index, body) not in held and TRY in body]
        there = self._ended_by(body for _, body in held[-1:])
        # A start forgets what never came, and not which id was replaced.
        ids = [*self._ended_by(tries), *([] if self.hard.replaced_id is None else [self.hard.replaced_id])]
        left = next((one for one in ids if one not in there), None)
        self.tried = bool(tries) or left is not None
        return left if self.tried else self.hard.group_id

    def _ended_by(self, bodies: Iterable[str]) -> list[str]:
        named = [members_in(body.encode()) for body in bodies]
        return [one for members in named if members is not None for one in members.ended]

    def _kept(self, wanted: Wanted) -> list[Survivor]:
        stated = dict(parse_survivor(text) for text in wanted.kept)
        if len(stated) < len(wanted.kept):
            raise StoreRefused("--keep names a member twice")
        if self.members.ended and stated.keys() == self.members.ids:
            named = ", ".join(sorted(stated))
            raise StoreRefused(f"that is done here: by {self.said_at} the group is {named}; {START}")
        if self.self_id not in stated:
            raise StoreRefused(f"this is {self.self_id}'s store: --keep {self.self_id} belongs to it")
        strangers = sorted(stated.keys() - self.members.ids)
        if strangers:
            known = f"{', '.join(sorted(self.members.ids))} are, by {self.said_at}"
            raise StoreRefused(f"{', '.join(strangers)} is no member: {known} (--peers names those of the birth)")
        own = stated[self.self_id]
        if own is not None and own != self.own:
            raise StoreRefused(f"this member is {self.own.spelled()}, not {own.spelled()}: look at each survivor anew")
        unknown = sorted(one for one, said in stated.items() if said is None and one != self.self_id)
        if unknown:
            text = f"what does the log of {', '.join(unknown)} hold? Its own dry run says it"
            raise StoreRefused(
                f"{text}: --keep {unknown[0]}=TERM:END_TERM:END; this member is --keep {self.own.spelled()}"
            )
        if len(stated) > 1 and not self.token:
            raise StoreRefused("several survivors need one --group-token TOKEN, the same for all of them")
        if self.token:
            try:
                check_group_token(self.token)
            except ValueError as error:
                raise StoreRefused(str(error)) from error
        return [said or self.own for _, said in sorted(stated.items())]

    def _check_minority(self) -> None:
        voters = self.members.voters
        there = [one.member_id for one in self.kept if one.member_id in voters]
        if len(there) >= majority_of(len(voters)):
            left = f"{', '.join(there)}: that is a majority of the voters ({', '.join(sorted(voters))})"
            text = f"{left}: start them, and `quorumscope members remove` whoever is lost; so no entry is"
            raise StoreRefused(text + ("" if self.held else f". {BORN}"))

    def _first(self, log_of: str | None) -> Survivor:
        """Whose log goes on."""
        asked = self.longest.member_id if log_of is None else log_of
        named = next((one for one in self.kept if one.member_id == asked), None)
        if named is None:
            raise StoreRefused(f"--log-of {asked}: it is not among those that are kept")
        committed = min(self.store.recovered_commit_index, self.own.end_index)
        if named.end_index < committed:
            text = f"entries up to {committed} are known here to be committed, and the log of {asked} ends at"
            raise StoreRefused(f"{text} {named.end_index}: its log cannot go on")
        return named

    @property
    def leads_on(self) -> bool:
        """Whether this member's log is the one that goes on."""
        return self.first.member_id == self.self_id

    # --- what it means ------------------------------------------------------------------------------------------
    def describe(self, report: Report) -> None:
        committed, end = min(self.store.recovered_commit_index, self.own.end_index), self.own.end_index
        lost = sorted(self.members.ids - {one.member_id for one in self.kept})
        kept = ", ".join(one.member_id for one in self.kept)
        report.done.append(f"The group becomes {kept}, without {', '.join(lost)}; the term becomes {self.term}.")
        ends = "; ".join(f"{one.member_id} at entry {one.end_index} of term {one.end_term}" for one in self.kept)
        report.notes.append(f"The survivors' logs end: {ends}. The newest is that of {self.longest.member_id}.")
        report.notes.append(
            f"Its members were {', '.join(sorted(self.members.ids))}, as this log knows by {self.said_at}."
            + ("" if self.held else f" {BORN}.")
        )
        lose = report.may_be_lost
        if committed >= 0:
            lose.append(f"Nothing up to entry {committed}: that is committed, as this member knows.")
        if committed < end and self.leads_on:
            words = sentence(range_in_words(committed + 1, end))
            lose.append(f"{words}: uncertain here; what is there stays and becomes committed, acknowledged or not.")
        if not self.leads_on and self.own.log > self.first.log:
            lose.append(
                f"What this log has more than that of {self.first.member_id} (entry {self.first.end_index} of term"
                f" {self.first.end_term}), up to entry {end}: it is cut and archived here once it follows."
            )
        elif not self.leads_on:
            lose.append(f"What this log has and that of {self.first.member_id} has not: it is cut and archived here.")
        lose += [
            f"Every entry above {self.first.end_index} that only {', '.join(lost)} had: a majority of them may have"
            f" acknowledged it, and no survivor knows. The log of {self.first.member_id} is all that is left.",
            "What a survivor has that is not in this list. Name all of them: one with a newer log would be left out.",
        ]
        old = self.old_id
        fence = f"They still have the id {old}" if old else "They know no group id"
        report.notes.append(
            f"{', '.join(lost)} must not be started again with the directories that they had. {fence}: a survivor"
            " refuses them, and who hears that before it has a leader gives up its vote; but out of reach of them all"
            " a majority of the old members would still make the old group. Empty their directories; they can be added."
        )
        if len(self.kept) > 1:
            everybody = " ".join(f"--keep {one.spelled()}" for one in self.kept)
            log_of = "" if self.first == self.longest else f" --log-of {self.first.member_id}"
            born = " --peers PEERS" if self.names_born else ""
            line = f"{COMMAND} DIR {everybody}{born}{log_of} --group-token TOKEN --yes"
            same = "The same on every survivor" + (", PEERS as here" if born else "")
            report.next.append(f"{same}: {line}")
            report.next.append("Then start them all with the configurations that they had; one alone elects nobody.")
        else:
            report.next.append(f"Elsewhere this member is named as --keep {self.own.spelled()}")
            report.next.append("Start the member with the configuration that it had: it leads alone.")
        report.next.append(
            "Add members with empty directories: quorumscope members add ID HOST:PORT (node --join there)."
        )
        report.next.append("Consoles and clients that know the group's old id refuse it: attach it anew.")

    # --- and its doing ------------------------------------------------------------------------------------------
    def carry_out(self, report: Report, platform: Platform) -> None:
        store, known = self.store, self.hard
        kept = {one.member_id for one in self.kept}
        group_id = new_group_id(self.token, self.identity.group, kept) if self.token else platform.new_id()
        if group_id == known.group_id and not (self.leads_on and self.tried):
            raise StoreRefused(
                f"the group has the id that this token makes: if this is the same again, it is done; {START}"
            )
        if group_id in self.members.ended:
            raise StoreRefused("the group had the id that this token makes: give another --group-token")
        state = replace(
            known, term=self.term, voted_for=None, vote_floor=self.term, marks_from=self.term + 1, group_id=group_id,
            naming=None, replaced_id=self.old_id,
        )  # fmt: skip
        addresses = {**self.members.voters, **self.members.learners}
        named = self.members.only({one: addresses[one] for one in sorted(kept)}, known.store_ids, self.old_id)
        body = named.body(TRY + platform.new_id()[:16]).decode()
        # What is on record of the others' stores goes once the entry is committed; until then it may be needed. Whose
        # log does not go on has it on record, too: until another one comes it says which id was replaced.
        state = replace(state, configurations=(*self.held, (self.first.end_index + 1, body)))
        self._archive(platform)
        settle(store)
        store.note_marks(tuple(mark for mark in store.recovered_marks if mark.member_id in kept))
        base = read_base(self.directory, platform)
        if base is not None and base.group_id is not None:  # what a hard state that is made anew takes its id from
            write_base(self.directory, replace(base, group_id=group_id), platform)
        store.save_hard_state(state)
        try:
            if self.leads_on:
                own = entry_about_group(self.identity.kind, body.encode(), store.get(store.end_index))
                store.append_as_leader([own.body], self.term, own.magic, own.channel, own.patch_at)
        except StoreFull:
            store.save_hard_state(known)
            if base is not None and base.group_id is not None:
                write_base(self.directory, base, platform)
            raise
        report.done.append(f"The group's id becomes {group_id if self.token else 'a new one, drawn when it is done'}.")
        report.done.append(f"It gives no vote in terms up to {self.term}.")
        if self.leads_on:
            said = f"Entry {store.end_index} of term {self.term} is appended"
            report.done.append(f"{said}: it says who belongs to the group.")
        else:
            report.done.append(f"This member follows {self.first.member_id}, whose log says who belongs to the group.")

    def _archive(self, platform: Platform) -> None:
        order = record_of(self.self_id, self.own.end_index, self.own.end_term, "recover-members by hand")
        old = file_chunks(self.directory, (HARDSTATE, CURRTERM, BASE), platform)
        TruncationArchive(self.directory, platform=platform).add(order, old)
