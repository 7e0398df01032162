"""What a disk must hold at any moment, asked of the simulated disk itself: SAFETY S1 to S8, E2, R2.

Theory. A store's word is worth what would be read after a power loss right now, so everything that a store calls
durable is compared with `durable_bytes`: once when it says so, again from the start after each boot, and every hundred
steps. Members whose disk a fault has damaged (rot, a misdirected write) are looked at less closely until their disk is
replaced: for them the store's own checksums are the subject.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

from node.protocol.codes import Role
from node.protocol.entry import HEAD, HEAD_BYTES
from node.protocol.messages import PushResponse
from node.store.faults.ranges import fault_at
from node.store.files.checkpoint import CHECKPOINT, SLOT_SPACING_BYTES, unpack_slot
from node.store.files.hard_state import HARDSTATE, hard_state_to_json
from node.store.files.truncation_archive import TruncationArchive
from node.store.log_store import EntryMeta
from tests.simulation.damage import DAMAGE
from tests.simulation.mirror import Held, Mirrors
from tests.simulation.observer import Observer, Violation

if TYPE_CHECKING:
    from node.consensus.effects import Effects
    from node.protocol.messages import Message
    from node.store.log_store import HardState, TruncationRecord
    from tests.simulation.member import Member
    from tests.simulation.world import World

TURN_NS_MAX = 5_000_000  # longer no turn of a member's loop lets its answers wait
SUSPICIOUS = ("does not agree", "missing or broken", "did not match", "is broken", "lost history")


class Disks(Observer):
    """See the module's docstring. Comes after `Mirrors`."""

    def __init__(self, mirrors: Mirrors) -> None:
        self._mirrors = mirrors
        self._world: World | None = None
        self._proved: dict[str, int] = {}  # how far the durable bytes were compared in this incarnation
        self._claimed: dict[str, tuple[str, int]] = {}  # (store, durable index) as said last, over incarnations
        self.damaged: dict[str, str] = {}  # member -> the store that a fault damaged
        # member -> what is being cut, from where
        self._cutting: dict[str, tuple[int, list[Held | None], list[int]]] = {}  # which of them rotted, too
        self._beginning: dict[str, EntryMeta] = {}  # member -> the base behind which its log began, or is to begin
        # The first damaged entry and since when it is known: (member, incarnation) -> (index, ns).
        self._faulty_from: dict[tuple[str, int], tuple[int, int]] = {}
        self._faulty_leaders: set[tuple[str, int]] = set()
        self._faulty: set[str] = set()  # members that have faults in their logs: time goes on for them

    def started(self, world: World) -> None:
        self._world = world

    def fault(self, kind: str, detail: str) -> None:
        if kind in DAMAGE:
            assert self._world is not None
            member_id = detail.split()[0]
            self.damaged[member_id] = self._world.members[member_id].disk_id  # its mirror may not know this disk yet

    def is_damaged(self, member: Member) -> bool:
        """Whether a fault changed bytes on the disk that this member has now."""
        damaged = self.damaged.get(member.id)
        return damaged is not None and damaged == self._mirrors.of[member.id].disk_id

    # --- what is durable ------------------------------------------------------------------
    def stepped(self, world: World) -> None:
        for member in world.members.values() if self._faulty else world.touched:
            store, replica = member.store, member.replica
            self._faulty.discard(member.id)
            if store is None or replica is None:
                continue
            if store.faults:
                self._faulty.add(member.id)
            durable = store.durable_index
            proved = self._proved.get(member.id, -1)
            if durable > proved and not self.is_damaged(member):
                self._prove(member, proved + 1, durable)
            self._proved[member.id] = durable
            self._claimed[member.id] = member.disk_id, durable
            if replica.member.durable_index > durable:
                text = f"the core of {member.id} holds {replica.member.durable_index} for durable, the store {durable}"
                raise Violation("watermark_durable", text)
            self._leads_with_faults(member)
            self._note_faults(member)
        if world.steps % 100 == 0:
            self.full(world)

    def _note_faults(self, member: Member) -> None:
        assert member.store is not None
        key = member.id, member.incarnation
        index = member.store.faults[0].first_index if member.store.faults else None
        known, _ = self._faulty_from.get(key, (None, 0))
        if index is None:
            self._faulty_from.pop(key, None)
        elif index != known or member.paused:
            self._faulty_from[key] = index, member.world.now

    def _prove(self, member: Member, first: int, last: int) -> None:
        """The records of these entries, in the bytes that a power loss would leave."""
        mirror = self._mirrors.of[member.id]
        file_size = member.world.config.data_file_size
        path, data = Path(), b""
        begin = mirror.first_index if member.store is None else max(mirror.first_index, member.store.begin_index)
        for index in range(max(first, begin), last + 1):
            held = mirror.at(index)
            if held is None:
                continue
            start = held.pos // file_size * file_size
            if path.name != f"{start:020d}":
                path = member.directory / "data" / f"{start:020d}"
                data = durable_bytes(member, path)
            self._prove_one(member, index, held, data, held.pos - start)

    def _prove_one(self, member: Member, index: int, held: Held, data: bytes, offset: int) -> None:
        where = f"{member.id}: entry {index} (term {held.term}, at {held.pos})"
        if len(data) < offset + held.size:
            raise Violation("durable_is_durable", f"{where} is called durable, its bytes are not: the file is shorter")
        _, size, number, term, _, _, chain, body_crc, _ = HEAD.unpack_from(data, offset)
        if (size, number, term, chain) != (held.size, index, held.term, held.chain):
            raise Violation("durable_is_durable", f"{where} is called durable, its head would not survive a power loss")
        if crc32(data[offset + HEAD_BYTES : offset + size]) != body_crc:
            raise Violation("rot_stays_home", f"{where} has a body that is not its CRC's")

    def booted(self, member: Member) -> None:
        store = member.store
        assert store is not None
        self._proved.pop(member.id, None)
        self._cutting.pop(member.id, None)
        begun = self._beginning.pop(member.id, None) == store.base
        for index in member.damage.missing:
            if store.begin_index <= index <= store.end_index and fault_at(store.faults, index) is None:
                raise Violation(
                    "lost_file_named", f"{member.id} lost the file of entry {index} and starts without a word"
                )
        disk_id, durable = self._claimed.get(member.id, ("", -1))
        mirror = self._mirrors.of[member.id]
        if begun or disk_id != member.disk_id or self.damaged.get(member.id) == member.disk_id:
            return  # a log that began anew holds what its base stands for: `invariants_bases`
        held, meta = mirror.at(durable), store.meta(durable)
        if store.end_index < durable or (held is not None and (meta is None or (meta.term, meta.chain) != held.key)):
            text = f"{member.id} had {durable} durable, its log ends at {store.end_index} after a new start"
            raise Violation("no_silent_loss", text)
        odd = [text for text in store.alarms if any(word in text for word in SUSPICIOUS)]
        if not member.world.config.always_sync:
            odd = [text for text in odd if "flush is async" not in text]
        faults = store.faults
        if odd or faults:
            raise Violation("no_false_refusal", f"{member.id} opens an undamaged disk with {odd} {faults}")

    def refused(self, member: Member, error: BaseException) -> None:
        if not self.is_damaged(member):
            raise Violation("no_false_refusal", f"{member.id} does not open an undamaged disk: {error}")

    def persisted(self, member: Member, hard_state: HardState) -> None:
        if self.is_damaged(member):
            return
        data = durable_bytes(member, member.directory / HARDSTATE)
        seal, _, text = data.rstrip(b"\n").partition(b" ")
        sound = bool(seal) and int(seal, 16) == crc32(text)
        if not sound or json.loads(text) != hard_state_to_json(hard_state):
            raise Violation("hard_state_durable", f"{member.id} saved {hard_state}; a power loss would leave {data!r}")

    # --- what is said of it ------------------------------------------------------------------
    def sent(self, member: Member, to: str, message: Message) -> None:
        if not isinstance(message, PushResponse) or member.store is None:
            return
        durable = member.store.durable_index
        if message.durable_index > durable:
            text = f"{member.id} says to {to} that {message.durable_index} is durable, {durable} is"
            raise Violation("watermark_durable", text)

    def _faulty_watermark(self, member: Member, to: str, message: PushResponse) -> None:
        """S6, as the answer leaves the core: it may wait for a record after that, while damage is found.

        A turn takes in more than one message: an answer may be a little older than the damage that it does not know.
        """
        assert member.store is not None
        first, since = self._faulty_from.get((member.id, member.incarnation), (-1, 0))
        still = bool(member.store.faults) and member.store.faults[0].first_index == first
        mark = min(message.verified_index, message.durable_index)
        if message.faulty_from >= 0:
            mark = min(mark, message.faulty_from - 1)
        if still and mark >= first and member.world.now - since > TURN_NS_MAX:
            text = f"{member.id} says to {to} that it holds {mark}; entry {first} is damaged"
            raise Violation("faulty_watermark", text)

    def _leads_with_faults(self, member: Member) -> None:
        assert member.store is not None and member.replica is not None
        key = member.id, member.incarnation
        if member.store.faults and member.replica.role is Role.LEADER and not member.paused:
            if key in self._faulty_leaders:
                text = f"{member.id} leads term {member.replica.term} with {member.store.faults} in its log"
                raise Violation("faulty_does_not_lead", text)
            self._faulty_leaders.add(key)
        else:
            self._faulty_leaders.discard(key)

    # --- checkpoints ------------------------------------------------------------------
    def synced(self, member: Member, durable_index: int) -> None:
        self._mirrors.of[member.id].update()
        self._check_slots(member)

    def crashed(self, member: Member, how: str) -> None:
        cut, *_ = self._cutting.pop(member.id, (None, [], []))
        if cut is not None and member.id in self._claimed:  # it was done, or half done, and nobody heard of it
            disk_id, durable = self._claimed[member.id]
            self._claimed[member.id] = disk_id, min(durable, cut - 1)
        self._check_slots(member)

    def _check_slots(self, member: Member) -> None:
        """Every sound slot, durable or on its way, names an entry that is durable."""
        if self.is_damaged(member):
            return
        try:
            raw = member.platform.read_bytes(member.directory / CHECKPOINT)
        except FileNotFoundError:
            return
        mirror = self._mirrors.of[member.id]
        for at in (0, SLOT_SPACING_BYTES):
            slot = unpack_slot(raw[at:])
            if slot is None or slot.durable_index < 0:
                continue
            held = mirror.at(slot.durable_index)
            base = self._beginning.get(member.id)
            if base is not None and (slot.durable_index, slot.term, slot.chain) == (base.index, base.term, base.chain):
                continue  # the log begins anew behind that entry
            if held is None and (slot.durable_index <= mirror.end_index or member.store is None):
                continue  # it cannot be read, or a start that did not end found more than was seen of this log
            if held is None or held.chain != slot.chain:
                text = (
                    f"{member.id}: slot {slot.number} says that {slot.durable_index} is durable, of chain {slot.chain}"
                )
                raise Violation("checkpoint_honest", f"{text}; the log says {held}")
            if slot.durable_index > self._proved.get(member.id, -1):
                self._slot_durable(member, slot.durable_index)

    def _slot_durable(self, member: Member, index: int) -> None:
        try:
            self._prove(member, index, index)
        except Violation as violation:
            raise Violation("checkpoint_honest", f"a slot vouches for more than there is: {violation}") from None

    # --- cuts ------------------------------------------------------------------
    def effects(self, member: Member, effects: Effects) -> None:
        for send in effects.sends if member.store is not None else ():
            if isinstance(send.message, PushResponse):
                self._faulty_watermark(member, send.to, send.message)
        if effects.begin_behind is not None:
            self._beginning[member.id] = effects.begin_behind.base.meta
        if effects.truncate is not None:
            mirror = self._mirrors.of[member.id]
            mirror.update()
            cut = effects.truncate.cut_index
            known = list(mirror.entries.since(cut))
            self._cutting[member.id] = cut, known, rotten_of(member, cut, known)

    def cut(self, member: Member, record: TruncationRecord) -> None:
        begin, known, rotten = self._cutting.pop(member.id, (-1, [], []))
        archive = TruncationArchive(member.directory, platform=member.platform)
        found = {entry.index: (entry.term, entry.chain_crc) for entry in archive.entries(archive.count)}
        kept = archive.record(archive.count)
        expected = {index: held.key for index, held in enumerate(known, begin) if held is not None}
        if self.is_damaged(member):
            # The bytes go into the archive as they are. What can be read there is what was: without entries that are
            # all zeros in front, up to the first other bad one, and also where only the index file was damaged; and
            # what a fault hit reads as it is, also under an index that rotted. Looked for before the cut, too: a byte
            # that was 0 is so again behind it.
            hit = member.damage.entries + rotten + rotten_of(member, begin, known)
            elsewhere = found.keys() - range(begin, begin + len(known))
            if len(elsewhere) <= len(set(hit)):
                found = {index: key for index, key in found.items() if index not in elsewhere}
            expected = {
                index: key if index in hit else expected.get(index, key)
                for index, key in found.items()
                if index in range(begin, begin + len(known))
            }
        if kept is None or kept.from_index != record.from_index or found != expected:
            text = f"{member.id} cut {len(known)} entries from {record.from_index} on, archived is {kept}: {found}"
            raise Violation("cut_archived", text)
        self._mirrors.of[member.id].update()
        self._check_slots(member)
        if not self.is_damaged(member):  # what a misdirected write left there is the next start's to find
            self._behind_end(member)

    def _behind_end(self, member: Member) -> None:
        """Zeros only, in the file of the last record and in those after it, once they found space.

        Not where a write failed in the middle of an append: that process ends, and the next start has what is whole.
        """
        if member.store is not None and (member.store.failed or member.store.files.half_cut is not None):
            return
        mirror = self._mirrors.of[member.id]
        last = mirror.entries.last
        if last is None and mirror.entries:
            return
        end_pos = 0 if last is None else last.pos + last.size
        folder, file_size = member.directory / "data", member.world.config.data_file_size
        for name in filter(str.isdigit, member.platform.names(folder)):
            start = int(name)
            if start + file_size > end_pos:
                rest = member.platform.read_bytes(folder / name)[max(0, end_pos - start) :]
                if rest.count(0) != len(rest):
                    text = (
                        f"{member.id}: its log ends at {mirror.end_index} (position {end_pos}), bytes follow in {name}"
                    )
                    raise Violation("nothing_behind_end", text)

    # --- in full ------------------------------------------------------------------
    def full(self, world: World) -> None:
        """Everything that is called durable, once more; and the ends."""
        for member in world.members.values():
            if member.store is None or self.is_damaged(member):
                continue
            self._prove(member, 0, member.store.durable_index)
            if member.id not in self._cutting:
                self._behind_end(member)

    def healed(self, world: World) -> None:
        self.full(world)


def durable_bytes(member: Member, path: Path) -> bytes:
    """What a power loss would leave of a file; empty where it would leave none."""
    try:
        return member.platform.durable_bytes(path)
    except FileNotFoundError:
        return b""


def rotten_of(member: Member, begin: int, known: list[Held | None]) -> list[int]:
    """Which of these entries, the first of them `begin`, have a byte now that was not written."""
    rotten_at = member.damage.rotten_at
    return [index for index, held in enumerate(known, begin) if held and rotten_at(held.pos, held.size)]
