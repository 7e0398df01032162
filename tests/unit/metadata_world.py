"""A small world of members that apply one log of metadata and snapshots, with masters and lanes that come and go.

Members run the product's own `MetadataState` and `Metadata`; the log, its commits and the lanes are here. One seed is
one story. What is judged: every member's tables are those that the log says, at every entry; of each change that was
asked for, its future and the log agree, once and in order; a queue's next offset outlives its messages and its topic
does not.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from node.broker.metadata import Metadata, NotNow
from node.message_store.broker_tables import CONSUMER_OFFSETS, TOPICS
from node.message_store.metadata_state import Applied, MetadataState, own_entry, state_at_begin
from node.message_store.state_file import read_state, saved
from node.message_store.write_files import OsDisk
from node.protocol.broker_state import apply_metadata, decode_metadata, encode_state
from node.protocol.group_kind import Channel
from node.protocol.inert_records import inert_record
from node.protocol.snapshot_parts import FoundSnapshot, SnapshotFinder, split_snapshot

TOPIC_NAMES = ("A", "B", "C")
Entry = tuple[Channel, bytes]  # its content; of a message its topic
NextOffsets = dict[tuple[str, int], int]


class Wrong(AssertionError):
    """An invariant does not hold."""


def holds(so: object, what: str) -> None:
    if not so:
        raise Wrong(what)


class Log:
    """What the group has committed, and the state that follows from it, computed in the plainest way."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.tables: list[dict[str, dict[str, Any]]] = []  # behind each entry
        self.next_offsets: list[NextOffsets] = []
        self.begin = 0  # of what retention has left
        self._finder = SnapshotFinder(keep=False)

    def append(self, entry: Entry) -> None:
        channel, content = entry
        tables = {name: dict(table) for name, table in self.tables[-1].items()} if self.tables else {}
        offsets = dict(self.next_offsets[-1]) if self.next_offsets else {}
        if channel == Channel.METADATA:
            change = decode_metadata(content)
            apply_metadata(tables, change)
            gone = {name for name, value in change.get(TOPICS, {}).items() if value is None}
            offsets = {queue: at for queue, at in offsets.items() if queue[0] not in gone}
        elif channel == Channel.MESSAGE:
            queue = content.decode(), 0
            offsets[queue] = offsets.get(queue, 0) + 1
        else:
            self._finder.add(len(self.entries), content)
        self.entries.append(entry)
        self.tables.append(tables)
        self.next_offsets.append(offsets)

    @property
    def newest(self) -> FoundSnapshot | None:
        return self._finder.newest

    @property
    def keep_from(self) -> int:
        return 0 if self.newest is None else max(0, self.newest.keep_from)


class Lane:
    """Of one member, while it is master."""

    def __init__(self) -> None:
        self.on_open: list[Callable[[], None]] = []
        self.on_left: list[Callable[[], None]] = []
        self.is_open = self.is_master = False
        self.room = 6
        self.under_way: list[Entry] = []

    def append_own(self, channel: Channel, content: bytes, restarted: Sequence[str] = ()) -> bool:
        if not self.is_open or len(self.under_way) >= self.room:
            return False
        self.under_way.append((channel, content))
        return True


class Member:
    """A broker, as far as metadata goes. It also is the `log` of its `Metadata`."""

    def __init__(self, world: World, state: MetadataState | None = None, offsets: NextOffsets | None = None) -> None:
        self.world, self.lane = world, Lane()
        self.on_applied: list[Callable[[Applied], None]] = []
        self.on_state: list[Callable[[], None]] = []
        self.state: MetadataState = state if state is not None else state_at_begin(world.log.begin, None)
        self.metadata = Metadata(self.lane, self, content_bytes=90)  # type: ignore[arg-type]
        self.offsets: NextOffsets = dict(offsets or {})  # of queues that it has dispatched messages of
        self.begin = world.log.begin

    def next_offset(self, queue: tuple[str, int]) -> int:
        return self.offsets.get(queue, self.state.places.get(queue, 0))

    def apply(self, upto: int) -> None:
        for index in range(self.state.index + 1, min(upto, len(self.world.log.entries) - 1) + 1):
            channel, content = self.world.log.entries[index]
            if channel == Channel.MESSAGE:
                queue = content.decode(), 0
                self.offsets[queue] = self.world.log.next_offsets[index][queue]  # the record says it
                self.state.passed(index)
            else:
                one = own_entry(index, channel, inert_record(channel, content, 1))
                for name in one.dropped:
                    self.offsets.pop((name, 0), None)
                applied = self.state.take(one)
                for hear in self.on_applied:
                    hear(applied)
            self.check(index)

    def replay(self, upto: int) -> None:
        """What its queues have already."""
        for index in range(self.state.index + 1, upto + 1):
            channel, content = self.world.log.entries[index]
            if channel != Channel.MESSAGE:
                self.state.take(own_entry(index, channel, inert_record(channel, content, 1)))
        self.state.passed(upto)

    def check(self, index: int) -> None:
        if not self.state.is_whole and self.world.log.begin > 0:
            return  # it does not know all yet, and is no master
        holds(self.state.tables == self.world.log.tables[index], f"other tables at entry {index}")
        for queue, at in self.world.log.next_offsets[index].items():
            holds(self.next_offset(queue) == at, f"queue {queue} goes on with {self.next_offset(queue)}, not {at}")
        topics = {name for name, _queue in self.world.log.next_offsets[index]}
        for name in set(TOPIC_NAMES) - topics:
            holds(self.next_offset((name, 0)) == 0, f"topic {name} was deleted, and does not begin at 0")


class World:
    """See the module's docstring; within a loop."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng, self.folder = random.Random(seed), folder
        self.log = Log()
        self.members = [Member(self) for _ in range(3)]
        self.master: Member | None = None
        self.asked: list[tuple[Member, list[str], asyncio.Future[None]]] = []
        self.count = self.snapshots = 0

    def run(self, steps: int = 80) -> None:
        kinds = [self.change] * 8 + [self.commit] * 6 + [self.apply] * 6 + [self.message] * 4 + [self.lane_ends] * 2
        kinds += [self.snapshot] * 2 + [self.another_leads, self.trim, self.wiped, self.restarts]
        self.another_leads()
        for _ in range(steps):
            self.rng.choice(kinds)()
            self.judge()
        self.settle()

    # --- what happens -------------------------------------------------------------------------------------------
    def change(self) -> None:
        """Each asks for a value of its own, so that it can be told apart in the log."""
        if self.master is None:
            return
        self.count += 1
        table = self.rng.choice((TOPICS, CONSUMER_OFFSETS))
        names = self.rng.sample(TOPIC_NAMES, self.rng.randint(1, 3))
        change: dict[str, dict[str, Any]] = {
            table: {one: None if self.rng.random() < 0.3 else self.count for one in names}
        }
        change["marks"] = {f"m{self.count}": "x" * self.rng.choice((1, 80))}
        try:
            done = self.master.metadata.change(change)
        except NotNow:
            return
        self.asked.append((self.master, [f"m{self.count}"], done))

    def message(self) -> None:
        lane = self.master.lane if self.master is not None else None
        if lane is not None and lane.is_open:
            lane.under_way.append((Channel.MESSAGE, self.rng.choice(TOPIC_NAMES).encode()))

    def commit(self, count: int | None = None) -> None:
        if self.master is not None:
            lane = self.master.lane
            count = self.rng.randint(0, len(lane.under_way)) if count is None else count
            for entry in lane.under_way[:count]:
                self.log.append(entry)
            del lane.under_way[:count]

    def apply(self) -> None:
        self.rng.choice(self.members).apply(self.rng.randrange(len(self.log.entries) + 1))

    def lane_ends(self) -> None:
        """A prefix of what was under way is in the log; everything that is gets applied before the next one opens."""
        if self.master is not None and self.master.lane.is_open:
            self.commit()
            self.master.lane.is_open, self.master.lane.under_way = False, []
            if self.rng.random() < 0.3:
                self.change()
            self.opens(self.master)

    def opens(self, member: Member) -> None:
        member.apply(len(self.log.entries))
        member.lane.is_open = member.lane.is_master = True
        for hear in member.lane.on_open:
            hear()

    def left(self) -> None:
        if self.master is not None:
            self.commit()
            lane, self.master = self.master.lane, None
            lane.is_open, lane.is_master, lane.under_way = False, False, []
            for hear in lane.on_left:
                hear()

    def another_leads(self) -> None:
        self.left()
        member = self.rng.choice(self.members)
        member.apply(len(self.log.entries))
        if member.state.is_whole or self.log.begin == 0:
            self.master = member
            self.opens(member)

    def snapshot(self) -> None:
        """Its parts come among the others, or some of them do not come at all."""
        if self.master is not None and self.master.lane.is_open:
            self.snapshots += 1
            state = self.master.state.as_state(self.master.offsets)
            parts = split_snapshot(encode_state(state), self.snapshots, state.as_of_index, 120)
            lane, broken = self.master.lane, self.rng.random() < 0.2
            for part in parts[:-1] if broken else parts:
                if self.rng.random() < 0.2:
                    self.change()
                lane.under_way.append((Channel.SNAPSHOT_PART, part))

    def trim(self) -> None:
        """Retention: no member needs more than the newest snapshot stands for, but each keeps its own dispatch."""
        self.log.begin = max(self.log.begin, self.rng.randint(0, self.log.keep_from))

    def wiped(self) -> None:
        """A member that lost its disk is given the log from where it begins."""
        at = self.rng.randrange(3)
        if self.members[at] is not self.master:
            self.members[at] = Member(self)

    def restarts(self) -> None:
        """With the state on its disk, which may be a little older than its queues."""
        at = self.rng.randrange(3)
        before = self.members[at]
        if before is self.master or before.state.index < self.log.begin:
            return
        state = None
        if before.state.is_whole:
            saved(before.state).write(self.folder, OsDisk())
            state = read_state(self.folder)
            holds(state is not None, "the state cannot be read again")
        self.members[at] = member = Member(self, state, dict(before.offsets))
        member.replay(before.state.index)
        member.begin = member.begin if state is None else before.begin

    # --- what must hold -----------------------------------------------------------------------------------------
    def marks(self) -> list[str]:
        found: list[str] = []
        for channel, content in self.log.entries:
            if channel == Channel.METADATA:
                found += decode_metadata(content).get("marks", {})
        return found

    def judge(self) -> None:
        found = self.marks()
        holds(len(found) == len(set(found)), "a change is in the log twice")
        for _member, marks, done in self.asked:
            if done.done() and done.exception() is None:
                holds(set(marks) <= set(found), f"{marks} ended as kept, and is not in the log")
        order = [mark for _member, marks, _done in self.asked for mark in marks if mark in found]
        holds(order == [mark for mark in found if mark in set(order)], "changes are in another order")

    def settle(self) -> None:
        """At last all that was asked for of a master that stays is in the log, and all members agree."""
        for _ in range(200):
            self.commit(len(self.master.lane.under_way) if self.master is not None else 0)
            for member in self.members:
                member.apply(len(self.log.entries))
            if self.master is not None:
                self.master.metadata._send_all()
        self.judge()
        newest = self.log.newest
        for member in self.members:
            knows = newest is None or newest.as_of_index < member.begin - 1 or member.state.is_whole
            holds(knows, "the log has a snapshot that is of use, and a member does not have its state from it")
        for _member, marks, done in self.asked:
            holds(done.done(), f"{marks} never ended")
