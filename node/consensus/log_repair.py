"""A damaged log heals from its peers, with or without a leader; and heals theirs (SAFETY S6, R7).

Theory (FAST '18, "Protocol-Aware Recovery for Consensus-Based Storage"). A member whose bytes rotted still knows where
its log ends, so it may vote: whoever it elects holds at least as much as it once acknowledged. What it may not do is
lead, or count, or serve what it cannot read. An entry of *any* peer is as good as our own, if its chain links the
intact entries on both sides; the store proves that, this part only finds somebody who has it. So every member can be
damaged, each somewhere else, and the group heals before it elects.

Nothing is ever dropped here. An entry that nobody can give is reported; it goes only where a leader, elected by voters
that never held it, cuts it as any other conflict (R5), where that leader cannot link it and orders a cut right there
(`EntryHandler` gives the vote up first, E8), or where an operator says so. Of damage that begins below what is verified
or committed, that part heals first, on the leader's word for its last entry (`DamagedEntries`).

Invariants: one fetch or one mend is under way at a time; of what a peer sends only the next entries of the fault asked
for are taken.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from node.consensus.api import MS, SECOND
from node.consensus.damaged_entries import DamagedEntries
from node.consensus.effects import MendLog
from node.consensus.member_state import MemberState
from node.consensus.progress import Peers
from node.consensus.status import RepairStatus
from node.protocol.codes import ResponseCode
from node.protocol.entry import SLAB_BYTES_MAX, Slab
from node.protocol.messages import FetchRequest, FetchResponse
from node.store.faults.ranges import in_words
from node.store.faults.results import Fault, Mended
from node.store.log_store import EntryMeta

BACKOFF_MIN_NS = 200 * MS
BACKOFF_MAX_NS = 30 * SECOND
# Answers after which asking that peer again at once makes no sense.
CANNOT_HELP = frozenset(
    {ResponseCode.INDEX_OUT_OF_RANGE, ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN, ResponseCode.DISK_ERROR}
)
DAMAGED_TOO = "damaged there as well"
VAIN_ROUNDS = 2
IN_WORDS = {
    ResponseCode.INDEX_OUT_OF_RANGE: "its log ends before",
    ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN: "its log begins behind",
    ResponseCode.DISK_ERROR: DAMAGED_TOO,
}


@dataclass(slots=True)
class Attempt:
    """The repair of one fault: from whom, how far, and who could not help."""

    fault: Fault
    began_at: int
    next_index: int
    retry_at: int
    backoff_ns: int = BACKOFF_MIN_NS
    peer_id: str | None = None
    cannot: dict[str, str] = field(default_factory=dict)  # peer -> why it cannot help
    failed: set[str] = field(default_factory=set)  # did not answer, or was busy: later again
    givers: list[str] = field(default_factory=list)  # whose entries make up what is mended so far
    wanted_through: int = -1  # entries behind the fault that the store needs to decide which record is corrupt
    vain_rounds: int = 0  # how often in a row every member of the group was asked, and none could
    alone: bool = False  # whether this disk's own bytes were tried, or are right now: they are nearest
    leader: tuple[int, str | None] = (-1, None)  # the (term, leader) that the next field speaks of
    leader_rounds: int = 0  # how often in a row that leader's entries were asked for, and did not link
    vouched: EntryMeta | None = None  # heals up to this entry, on our leader's word; None: all of it, by the chain

    @property
    def hopeless(self) -> bool:
        """Twice in a row: after the first time a leader may be just about to cut what nobody has."""
        return self.vain_rounds >= VAIN_ROUNDS

    @property
    def last_index(self) -> int:
        """The last entry to ask for."""
        if self.vouched is not None:
            return self.vouched.index
        return max(self.fault.last_index, self.wanted_through)

    def restart(self) -> None:
        """From the fault's first entry on."""
        self.next_index, self.givers, self.wanted_through = self.fault.first_index, [], -1


class LogRepair:
    """One per replica: the asking side; the giving one is `log_giving.py`'s."""

    def __init__(self, member: MemberState, peers: Peers, damaged: DamagedEntries) -> None:
        self._member, self._damaged = member, damaged
        self._peers = peers
        self.known_faults: tuple[Fault, ...] = ()
        self._attempts: dict[int, Attempt] = {}  # by the fault's first index, ascending
        self._current: Attempt | None = None
        self._asked_seq: int | None = None
        self._leader_seen: tuple[int, str | None] = (-1, None)
        self._deadline = 0
        self._mending = False
        self.repaired_faults = 0
        self.repaired_entries = 0

    # --- what is damaged ----------------------------------------------------------------------------------------
    def watch(self, now: int) -> bool:
        """Takes up what the store says about its faults now; True if that changed."""
        faults = self._member.store.faults
        if faults is self.known_faults or faults == self.known_faults:
            return False
        self.known_faults = faults
        before, self._attempts = self._attempts, {}
        for fault in faults:
            kept = before.get(fault.first_index)
            same = kept is not None and kept.fault.last_index == fault.last_index
            self._attempts[fault.first_index] = kept if kept and same else Attempt(fault, now, fault.first_index, now)
        if not self._mending:  # what the disk mended is seen here before it is reported, and still to be judged
            self._forget_what_is_no_fault()
        self._say_what_is_damaged(now)
        self._say_what_is_lost(now)
        self._mark_unlinkable()
        return True

    def _forget_what_is_no_fault(self) -> None:
        if self._current is not None and self._current not in self._attempts.values():
            self._current, self._asked_seq = None, None

    def _say_what_is_damaged(self, now: int) -> None:
        member, faults = self._member, self.known_faults
        if not faults:
            member.clear_alarm("log_damaged", now)
            return
        text = (
            f"{in_words(faults)} of this log cannot be read as written: until repaired, {member.self_id} votes, but"
            f" does not lead, does not count from entry {faults[0].first_index} on, and does not serve what is damaged;"
            " it fetches it from its peers"
        )
        member.alarm("log_damaged", text, now)

    def _say_what_is_lost(self, now: int) -> None:
        """The alarm for what no member of the whole group can give."""
        hopeless = [attempt for attempt in self._attempts.values() if attempt.hopeless]
        if not hopeless:
            self._member.clear_alarm("log_unrecoverable", now)
            return
        asked = "; ".join(f"{peer}: {why}" for peer, why in sorted(hopeless[0].cannot.items())) or "there are no peers"
        directory = self._member.config.store_directory
        text = (
            f"{in_words([attempt.fault for attempt in hopeless])} cannot be repaired: no member of the group can give"
            f" what was written ({asked}). Asked again by itself; `quorumscope store verify {directory}` shows what is"
            " damaged, `quorumscope store repair` gives up what cannot be had"
        )
        self._member.alarm("log_unrecoverable", text, now)

    # --- asking -------------------------------------------------------------------------------------------------
    def _under_way(self) -> bool:
        return self._asked_seq is not None or self._mending

    def advance(self, now: int) -> None:
        """The next step, where none is under way: the lowest fault that somebody may be asked about."""
        member = self._member
        if not self._attempts or self._under_way() or member.truncating_from is not None:
            return
        for attempt in self._attempts.values():
            if now < attempt.retry_at:
                continue
            if member.store.mends_alone and not attempt.alone:
                self._mend_alone(attempt)
                return
            peer_id = self._whom_to_ask(attempt)
            if peer_id is not None:
                self._ask(attempt, peer_id, now)
                return
            self._nobody_left(attempt, now)

    def _whom_to_ask(self, attempt: Attempt) -> str | None:
        """Whoever gave the entries before; else the leader; else any connected peer that was not asked yet."""
        connected = self._peers.connected()
        left = [peer for peer in self._member.others if peer in connected and peer not in attempt.failed]
        left = [peer for peer in left if peer not in attempt.cannot]
        first = (attempt.peer_id, self._member.leader_id)
        return min(left, key=lambda peer: (peer != first[0], peer != first[1], peer), default=None)

    def _mend_alone(self, attempt: Attempt) -> None:
        """A sound record whose index record or position is wrong needs no peer (S5, S7)."""
        member = self._member
        self._current, attempt.alone, attempt.peer_id = attempt, True, member.self_id
        self._mending = True
        member.effects.mend = MendLog(member.log_epoch, None, attempt.fault.first_index)

    def _ask(self, attempt: Attempt, peer_id: str, now: int) -> None:
        member = self._member
        self._current, attempt.peer_id = attempt, peer_id
        self._asked_seq = member.next_seq()
        self._deadline = now + member.config.timing.push_timeout_ns
        request = FetchRequest(self._asked_seq, attempt.next_index, attempt.last_index, SLAB_BYTES_MAX)
        member.send(peer_id, request)

    def _nobody_left(self, attempt: Attempt, now: int) -> None:
        """Everybody within reach was asked: all again after a pause, and an alarm where nobody at all has it."""
        was_hopeless = attempt.hopeless
        everybody = attempt.cannot.keys() >= set(self._member.others)
        attempt.vain_rounds = attempt.vain_rounds + 1 if everybody else 0
        if attempt.hopeless != was_hopeless:
            self._say_what_is_lost(now)
        self._count_for_leader(attempt)
        attempt.retry_at = now + attempt.backoff_ns
        if attempt.cannot or attempt.failed:  # with nobody connected there was no try
            attempt.backoff_ns = min(attempt.backoff_ns * 2, BACKOFF_MAX_NS)
        attempt.cannot, attempt.failed, attempt.peer_id = {}, set(), None
        attempt.restart()

    def _count_for_leader(self, attempt: Attempt) -> None:
        """A leader holds all that is committed: where its entries do not link, none that must stay is there (S6)."""
        leader = (self._member.term, self._member.leader_id)
        if attempt.leader != leader:
            attempt.leader, attempt.leader_rounds = leader, 0
        why = attempt.cannot.get(leader[1] or "")
        is_no = why is not None and why not in (IN_WORDS[ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN], DAMAGED_TOO)
        attempt.leader_rounds = attempt.leader_rounds + 1 if is_no else 0
        self._mark_unlinkable()

    def _mark_unlinkable(self) -> None:
        """Twice, for the same reason as in `hopeless`."""
        attempts = self._attempts.items()
        vain = {first: one.leader for first, one in attempts if one.leader_rounds >= VAIN_ROUNDS}
        self._damaged.note_unlinkable(vain)

    def _refused(self, attempt: Attempt, peer_id: str, why: str, *, for_good: bool) -> None:
        """This peer gives nothing now; another one may go on where it stopped."""
        if for_good:
            attempt.cannot[peer_id] = why
        else:
            attempt.failed.add(peer_id)
        attempt.peer_id = None

    def handle_answer(self, sender: str, answer: FetchResponse, now: int) -> None:
        """A peer's entries, or why there are none; whatever was not asked for is dropped."""
        attempt = self._current
        if attempt is None or answer.seq != self._asked_seq or sender != attempt.peer_id:
            return
        self._asked_seq = None
        slab = answer.slab
        if answer.code is not ResponseCode.SUCCESS:
            why = IN_WORDS.get(answer.code, answer.code.name)
            self._refused(attempt, sender, why, for_good=answer.code in CANNOT_HELP)
        elif slab is None or not self._is_what_was_asked(attempt, slab):
            self._refused(attempt, sender, "it sent something else", for_good=True)
        elif self._member.truncating_from is None:
            self._mending = True
            self._member.effects.mend = MendLog(self._member.log_epoch, slab, slab.first_index, attempt.vouched)
        self.advance(now)

    @staticmethod
    def _is_what_was_asked(attempt: Attempt, slab: Slab) -> bool:
        return slab.first_index == attempt.next_index and slab.last_index <= attempt.last_index

    def mended(self, log_epoch: int, result: Mended | None, error: str, now: int) -> None:
        """What became of `effects.mend`; None: it could not be written, and `error` says why."""
        self._mending = False
        attempt = self._current
        if attempt is not None and log_epoch == self._member.log_epoch:
            self._judge_mended(attempt, result, error, now)
        self._forget_what_is_no_fault()

    def _judge_mended(self, attempt: Attempt, result: Mended | None, error: str, now: int) -> None:
        member, peer_id = self._member, attempt.peer_id
        assert peer_id is not None
        if peer_id == member.self_id and (result is None or not result.healed):
            attempt.peer_id = None  # so a peer is asked
        elif result is None:
            member.event("repair_failed", now, "warning", peer=peer_id, text=error)
            self._refused(attempt, peer_id, error, for_good=False)
            attempt.restart()
            attempt.retry_at = now + attempt.backoff_ns
            attempt.backoff_ns = min(attempt.backoff_ns * 2, BACKOFF_MAX_NS)
        else:
            self._mended_by(peer_id, attempt, result, now)

    def _mended_by(self, peer_id: str, attempt: Attempt, result: Mended, now: int) -> None:
        for healed in result.healed:
            self._healed(healed, peer_id, attempt, now)
        if not result.healed and result.mended_through >= attempt.next_index:
            attempt.next_index, attempt.wanted_through = result.mended_through + 1, result.wanted_through
            attempt.givers.append(peer_id)
        elif not result.healed:
            self._do_not_link(attempt, peer_id, result.detail or "its entries do not link")

    def _do_not_link(self, attempt: Attempt, peer_id: str, why: str) -> None:
        """Entries of several peers may not fit each other: then this one is tried alone, from the start."""
        others = [giver for giver in attempt.givers if giver != peer_id]
        for giver in others:
            attempt.cannot[giver] = f"its entries do not fit those of {peer_id}"
        if not others:
            self._refused(attempt, peer_id, why, for_good=True)
        attempt.restart()

    def _healed(self, fault: Fault, peer_id: str, attempt: Attempt, now: int) -> None:
        self.repaired_faults += 1
        self.repaired_entries += fault.last_index - fault.first_index + 1
        self._member.event(
            "repair", now, first_index=fault.first_index, last_index=fault.last_index, fault=fault.kind, peer=peer_id,
            took_ms=(now - attempt.began_at) // MS,
        )  # fmt: skip

    # --- connections, time --------------------------------------------------------------------------------------
    def peer_connected(self, peer_id: str, now: int) -> None:
        """Somebody else to ask: at once, whatever it said before."""
        for attempt in self._attempts.values():
            attempt.cannot.pop(peer_id, None)
            attempt.failed.discard(peer_id)
            attempt.retry_at = now
        self.advance(now)

    def peer_lost(self, peer_id: str, now: int) -> None:
        attempt = self._current
        if attempt is not None and self._asked_seq is not None and attempt.peer_id == peer_id:
            self._asked_seq = None
            self._refused(attempt, peer_id, "the connection was lost", for_good=False)
            self.advance(now)

    def retry_now(self, now: int) -> None:
        """An operator asks for another try: earlier refusals of peers and the pause are dropped."""
        for attempt in self._attempts.values():
            attempt.cannot, attempt.failed, attempt.retry_at, attempt.alone = {}, set(), now, False
            attempt.backoff_ns = BACKOFF_MIN_NS
        self.advance(now)

    def scrubbed(self, now: int) -> None:
        """The whole log was read: where it is sound, a fork's reason is elsewhere, or in both histories (R7)."""
        member = self._member
        if member.store.faults:
            return
        for (code, peer_id), alarm in list(member.alarms.items()):
            sound = "; this log was scrubbed and is sound"
            if code == "fork" and not alarm.text.endswith(sound):
                member.alarm(code, alarm.text + sound, now, peer_id=peer_id)

    def tick(self, now: int) -> None:
        attempt = self._current
        if self._asked_seq is not None and attempt is not None and now >= self._deadline:
            self._asked_seq = None
            assert attempt.peer_id is not None
            self._refused(attempt, attempt.peer_id, "no answer in time", for_good=False)
        self._ask_a_new_leader(now)
        self._take_the_leaders_word(now)
        self.advance(now)

    def _ask_a_new_leader(self, now: int) -> None:
        """What a leader has counts (S6): it is asked at once, however long the pauses have become without one."""
        leader = (self._member.term, self._member.leader_id)
        if leader == self._leader_seen:
            return
        self._leader_seen = leader
        if leader[1] is not None:
            for attempt in self._attempts.values():
                attempt.retry_at, attempt.backoff_ns = now, BACKOFF_MIN_NS

    def _take_the_leaders_word(self, now: int) -> None:
        """For what was ours and its own before the damage (`DamagedEntries`): anew from the first entry on, at once."""
        if self._under_way():
            return
        for attempt in self._attempts.values():
            vouched = self._damaged.vouched_in(attempt.fault)
            if vouched != attempt.vouched:
                attempt.vouched, attempt.retry_at, attempt.backoff_ns = vouched, now, BACKOFF_MIN_NS
                attempt.cannot, attempt.failed = {}, set()
                attempt.restart()

    def next_deadline(self) -> int | None:
        if self._asked_seq is not None:
            return self._deadline
        if self._mending or self._member.truncating_from is not None:  # what ends either one goes on by itself
            return None
        return min((attempt.retry_at for attempt in self._attempts.values()), default=None)

    def status(self) -> RepairStatus:
        """A copy for observers."""
        attempt = self._current if self._under_way() else None
        return RepairStatus(
            running=attempt is not None,
            first_index=None if attempt is None else attempt.fault.first_index,
            last_index=None if attempt is None else attempt.last_index,
            next_index=None if attempt is None else attempt.next_index,
            peer_id=None if attempt is None else attempt.peer_id,
            repaired_faults=self.repaired_faults,
            repaired_entries=self.repaired_entries,
            hopeless=sum(attempt.hopeless for attempt in self._attempts.values()),
        )
