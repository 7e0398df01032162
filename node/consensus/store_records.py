"""Records of peers' stores, and how an older copy of a directory is recognised by them (SAFETY E8).

Theory. A directory that was put back from an older copy looks sound to itself: what it acknowledged since is gone, and
it would vote and count. But each open for serving draws a life durably, and peers keep the newest one that they met,
beside a mark: an entry that the member acknowledged as durable, and that is committed. A store that does not know its
life, or a voter that does not hold the entry, is not what its peers know: it joins anew, as another store.

A record may be older than the store that it speaks of: a replaced disk has no lives of the one before. So a life is on
record beside the store that it belonged to, and counts against that one only; a mark counts against any: a voter holds
whatever was committed, whoever wrote it there, but for what the whole group lost before it joined (`marks_from`).

Invariants: only a proven peer is recorded or believed; a mark never goes back; members that join already have nothing
to lose and are not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from node.consensus.member_state import MemberState
from node.protocol.codes import VoterState
from node.protocol.messages import Hello, MemberMark, PeerRecord

SPEAKS_OF_LIVES = 2  # the version of HELLO


def why_restored(
    record: PeerRecord, store_id: str, life_ids: tuple[str, ...], end_index: int, marks_from: int
) -> str | None:
    """What that record says against a store with these lives and this end; None: nothing."""
    if record.life_id is not None and record.store_id == store_id and record.life_id not in life_ids:
        return f"life {record.life_id[:12]} is on record for it, and it does not know that life"
    if record.mark_index > end_index and record.mark_term >= marks_from:
        return f"it acknowledged entry {record.mark_index}, and its log ends at {end_index}"
    return None


def _without(lives: Mapping[str, str], peer_id: str) -> dict[str, str]:
    return {peer: life for peer, life in lives.items() if peer != peer_id}


class StoreRecords:
    """One per replica."""

    def __init__(self, member: MemberState) -> None:
        self._member = member
        # What a peer acknowledged in the leadership of this member, if it leads.
        self.acknowledged: Callable[[str], MemberMark | None] = lambda _peer_id: None
        self._marks: dict[str, MemberMark] = {
            mark.member_id: mark for mark in member.store.recovered_marks if mark.member_id in member.others
        }

    # --- what we know of others ---------------------------------------------------------------------------------
    def of(self, peer_id: str, hello: Hello | None = None) -> PeerRecord | None:
        """What our HELLO says to that peer; `hello`: the one that it answers.

        Only an answer says what was acknowledged to us as leader: whoever knows a later term may have cut it since.
        """
        if peer_id == self._member.self_id or peer_id not in self._member.configuration.members:
            return None
        hard = self._member.hard
        mark, leadership = self._marks.get(peer_id), -1
        if hello is not None and hello.term <= self._member.term:
            lately = self.acknowledged(peer_id)
            if lately is not None and (mark is None or lately.index > mark.index):
                mark, leadership = lately, self._member.term
        life_id = hard.peer_lives.get(peer_id)
        if mark is None and life_id is None:
            return None
        store_id = hard.store_ids.get(peer_id, "")
        if mark is None:
            return PeerRecord(store_id, life_id)
        return PeerRecord(store_id, life_id, mark.index, mark.term, leadership)

    def against(self, peer_id: str, hello: Hello) -> str | None:
        """Why that peer's store is a restored copy, as far as we can see."""
        record = self.of(peer_id, hello)
        judged = hello.proven and hello.version_max >= SPEAKS_OF_LIVES and hello.voter_state is not VoterState.REJOINING
        if record is None or not judged:
            return None
        if hello.voter_state is VoterState.FORMING:  # a new store: it never held what others of this member did
            record = replace(record, mark_index=-1)
        return why_restored(record, hello.store_id, hello.life_ids, hello.end_index, hello.marks_from)

    def note_life(self, peer_id: str, hello: Hello) -> None:
        """Durable before anything that follows from this HELLO leaves.

        A life belongs to the store on record, and follows the one on record: a store that is none yet has none to
        lose, and a copy that joins already, but not durably yet, must not be forgotten. An older release keeps no
        lives: what was on record ends with it (docs/operations.md, downgrades).
        """
        if not hello.proven:
            return
        member = self._member
        lives = member.hard.peer_lives
        known = lives.get(peer_id)
        if hello.version_max < SPEAKS_OF_LIVES and not hello.life_ids:
            if known is not None:
                member.save(peer_lives=_without(lives, peer_id))
            return
        follows = hello.life_ids and (known is None or known in hello.life_ids) and known != hello.life_ids[-1]
        if follows and member.hard.store_ids.get(peer_id) == hello.store_id:
            member.save(peer_lives={**lives, peer_id: hello.life_ids[-1]})

    def note_store(self, peer_id: str, hello: Hello) -> None:
        """A voter's store goes on record, and with it the life that it has now; of the one before it nothing stays."""
        member = self._member
        lives = _without(member.hard.peer_lives, peer_id)
        if hello.proven and hello.life_ids:
            lives[peer_id] = hello.life_ids[-1]
        member.save(store_ids={**member.hard.store_ids, peer_id: hello.store_id}, peer_lives=lives)

    def forget(self, peer_id: str) -> None:
        """Nothing is on record of that peer any more, in memory and durably."""
        hard = self._member.hard
        if peer_id in hard.store_ids or peer_id in hard.peer_lives:
            store_ids = {one: store_id for one, store_id in hard.store_ids.items() if one != peer_id}
            lives = {one: life for one, life in hard.peer_lives.items() if one != peer_id}
            self._member.save(store_ids=store_ids, peer_lives=lives)
        if self._marks.pop(peer_id, None) is not None:
            self._member.store.note_marks(tuple(self._marks.values()))

    def note_marks(self, marks: Iterable[MemberMark]) -> None:
        """From our own leadership, or from a proven leader's heartbeat; they are stored with the checkpoint."""
        moved = False
        for mark in marks:
            known = self._marks.get(mark.member_id)
            if mark.member_id not in self._member.others or mark.index < 0:
                continue
            if known is None or (known.term, known.index) < (mark.term, mark.index):
                self._marks[mark.member_id] = mark
                moved = True
        if moved:
            self._member.store.note_marks(tuple(self._marks.values()))

    # --- what others know of us ---------------------------------------------------------------------------------
    def mark_of(self, member_id: str, index: int) -> MemberMark | None:
        """The mark at our own entry `index`."""
        term = self._term_at(index)
        return None if term is None else MemberMark(member_id, index, term)

    def against_us(self, hello: Hello) -> str | None:
        """Why our own store is a restored copy, as that peer's record shows."""
        member, record = self._member, hello.record
        if record is None or not hello.proven or member.voter_state is VoterState.REJOINING:
            return None
        cut_since = -1 < record.leadership < member.term  # perhaps, on the order of a later leader
        if cut_since or member.voter_state is VoterState.FORMING:
            record = replace(record, mark_index=-1)
        hard, store = member.hard, member.store
        why = why_restored(record, member.store_id, hard.life_ids, store.end_index, hard.marks_from)
        if why is None and record.mark_index > store.base.index and record.mark_term >= hard.marks_from:
            term = self._term_at(record.mark_index)
            if term is not None and term != record.mark_term:
                why = f"it acknowledged entry {record.mark_index} of term {record.mark_term}, not of term {term}"
        return why

    def _term_at(self, index: int) -> int | None:
        """From the table of terms, so that nothing cold is touched (S9); None outside the log, and where it is damaged:
        the table knows the terms of entries that were read."""
        store = self._member.store
        if not max(store.begin_index, 0) <= index <= store.end_index or self._member.damaged_at(index):
            return None
        return store.term_at(index)
