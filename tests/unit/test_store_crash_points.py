"""A story of store calls, ended at every one of its I/O calls in turn, by the process or by the power; then reopened.

What must hold however it ends: what was durable is there, with its bytes and its chain; term and vote are the last ones
saved or the ones being saved; what is not in the log any more is in the archive; nothing stale lies behind the end; and
what was durable stays so through one more power loss (SAFETY S1 to S4, E2).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from node.protocol.codes import VoterState
from node.store.errors import StoreCorrupt, StoreIOError
from node.store.file_store import FileStore
from node.store.files.checkpoint import CHECKPOINT
from node.store.files.identity import Base
from node.store.files.java_files import JAVA_CHECKPOINT
from node.store.log_store import EntryMeta, HardState, TruncationRecord
from node.store.recovery.base_switch import ORDER
from node.store.repair.dry_run import DryRun
from node.store.repair.tools import open_for_repair, scrub_all
from tests.simulation.disk import SimulatedCrash, SimulatedPlatform
from tests.simulation.disk_faults import MIDDLE

ROOT = Path("/machine/dledger-n0")
DATA_BYTES, INDEX_BYTES = 4096, 32 * 16


class Story:
    """A store on its own machine, and what it promised so far."""

    def __init__(self, seed: int) -> None:
        self.now = 1_000_000_000
        self.disk = SimulatedPlatform(random.Random(seed), lambda: self.now, "m")
        self.store: FileStore
        self.opened = False
        self.born_at: Base | None = None
        self.durable_index = -1  # what a finished group commit promised
        self.written: dict[int, tuple[int, bytes]] = {}  # term and body of the newest append at each index
        self.states: list[HardState] = []  # saved, or being saved
        self.saved = -1  # the last of them that was saved
        self.cut_from: int | None = None  # a cut that was ordered: from there on the log may be either way
        self.cut_durable_index = -1  # what was durable when it was ordered
        self.behind: Base | None = None  # a log that was to begin there, while it is not sure whether it does
        self.replaced: set[tuple[int, int, bytes]] = (
            set()
        )  # what was durable in logs that another one took the place of

    def open(self) -> FileStore:
        self.store = FileStore.open(
            ROOT, group="g", node_id="n0", data_file_size=DATA_BYTES, index_file_size=INDEX_BYTES, init=True,
            platform=self.disk, born_at=self.born_at,
        )  # fmt: skip
        self.opened = True
        return self.store

    def append(self, count: int, term: int, size: int) -> None:
        first = self.store.end_index + 1
        bodies = [b"%d-%d-" % (term, first + number) + b"x" * size for number in range(count)]
        self.written.update((first + number, (term, body)) for number, body in enumerate(bodies))
        self.store.append_as_leader(bodies, term)

    def commit(self, *, slot: bool = False) -> None:
        self.now += 30_000_000
        ticket = self.store.prepare_checkpoint() if slot else self.store.prepare_sync()
        if ticket is not None:
            ticket.run()
            self.durable_index = self.store.finish_sync(ticket)

    def save(self, term: int, vote: str | None) -> None:
        self.states.append(HardState(term, vote, VoterState.VOTER))
        self.store.save_hard_state(self.states[-1])
        self.saved = len(self.states) - 1

    def cut(self, index: int) -> None:
        self.cut_from = index
        self.cut_durable_index, self.durable_index = self.durable_index, min(self.durable_index, index - 1)
        order = TruncationRecord("n0", "n1", 9, index, self.store.end_index, "conflict", index - 1)
        self.store.truncate(index, order)
        self.written = {at: entry for at, entry in self.written.items() if at < index}
        self.cut_from = None

    def begin_behind(self, base: Base) -> None:
        self.behind = base
        order = TruncationRecord("n0", "n1", 9, self.store.begin_index, self.store.end_index, "left behind", -1)
        self.store.begin_behind(base, order)
        self.has_begun()

    def has_begun(self) -> None:
        """The log is the new one: of the old one all that was durable is in the archive."""
        assert self.behind is not None
        self.replaced |= {(at, *one) for at, one in self.written.items() if at <= self.durable_index}
        self.written, self.durable_index, self.behind = {}, self.behind.meta.index, None

    def trim(self, through_index: int) -> None:
        self.store.note_progress(through_index, through_index)
        self.store.remove_prefix(through_index)


def appends(story: Story) -> None:
    story.open()
    story.save(1, "n0")
    for size in (10, 300, 900, 40):
        story.append(3, 1, size)
        story.commit()
    story.append(2, 1, 700)
    story.commit(slot=True)
    story.save(2, None)
    story.append(4, 2, 600)
    story.store.close()


def cuts(story: Story) -> None:
    story.open()
    story.save(1, "n0")
    story.append(12, 1, 500)
    story.commit(slot=True)
    story.append(3, 1, 200)
    story.cut(5)
    story.append(6, 3, 450)
    story.commit()
    story.cut(9)
    story.append(1, 4, 30)
    story.commit(slot=True)


def trims(story: Story) -> None:
    story.open()
    story.save(1, "n1")
    story.append(20, 1, 400)
    story.commit(slot=True)
    story.trim(13)
    story.append(5, 2, 400)
    story.commit()
    story.trim(18)
    story.store.close()


def reopens(story: Story) -> None:
    appends(story)
    story.open()
    story.append(3, 3, 100)
    story.commit()
    story.disk.crash_process()
    story.open()
    story.append(2, 3, 900)
    story.commit(slot=True)
    story.store.close()


def carries_over(story: Story) -> None:
    """An older release of ours gave the checkpoint another name, and was the last to run."""
    appends(story)
    story.disk.replace(ROOT / CHECKPOINT, ROOT / JAVA_CHECKPOINT)
    story.disk.sync_directory(ROOT)
    story.open()
    story.append(3, 3, 100)
    story.commit(slot=True)
    story.store.close()
    story.open()
    story.append(2, 3, 100)
    story.commit()


def born_later(story: Story) -> None:
    """Its log begins behind an entry of the past, inside a file whose number is not the first."""
    story.born_at = Base(EntryMeta(999, 1, 0x1234), 7 * DATA_BYTES + 600)
    story.open()
    story.save(1, "n0")
    story.append(9, 1, 500)
    story.commit(slot=True)
    story.cut(1005)
    story.append(20, 2, 400)
    story.commit(slot=True)
    story.trim(1012)
    story.append(2, 2, 40)
    story.store.close()


def begins_anew(story: Story) -> None:
    """Behind entries that its leader does not have any more, with a tail beyond them that never was committed."""
    story.open()
    story.save(1, "n0")
    story.append(12, 1, 500)
    story.commit(slot=True)
    story.append(2, 1, 100)
    story.begin_behind(Base(EntryMeta(9, 2, 0x1234), DATA_BYTES, "0" * 32, (7, '{"members": {}}')))
    story.append(8, 3, 450)
    story.commit()
    story.begin_behind(Base(EntryMeta(40, 3, 0x5678), 6 * DATA_BYTES))
    story.append(3, 3, 900)
    story.commit(slot=True)
    story.trim(41)
    story.store.close()


STORIES: list[Callable[[Story], None]] = [appends, cuts, trims, reopens, carries_over, born_later, begins_anew]


def read(store: FileStore, index: int) -> tuple[int, bytes]:
    entry = store.get(index)
    assert entry is not None
    return entry.term, entry.body


def check(story: Story) -> None:
    """Reopens, and holds the store to everything that was promised."""
    store = story.open()
    assert store.faults == ()
    assert store.durable_index == store.end_index
    if not story.states and store.end_index < 0:
        return
    if story.behind is not None and store.base.index == story.behind.meta.index:
        assert store.base_on_record.members == story.behind.members
        story.has_begun()
    if story.replaced:
        archive = store.files.archive
        assert story.replaced <= {
            (entry.index, entry.term, entry.body) for one in archive.records() for entry in archive.entries(one.seq)
        }
    if story.saved >= 0:
        kept = (store.hard_state.term, store.hard_state.voted_for)
        allowed = [(state.term, state.voted_for) for state in story.states[story.saved :]]
        # Between the two files of one save the higher term counts, and no vote is given in it (E2).
        allowed += [(state.term, None) for state in story.states[story.saved :]]
        assert kept in allowed
        assert store.hard_state.voter_state is VoterState.VOTER, store.alarms
    assert store.end_index >= story.durable_index
    held = range(store.begin_index, store.end_index + 1)
    for index in held:
        assert read(store, index) == story.written[index]
    if story.cut_from is not None:
        archived = {
            (entry.index, entry.term, entry.body) for one in store.files.archive.records()
            for entry in store.files.archive.entries(one.seq)
        }  # fmt: skip
        for index in range(max(story.cut_from, store.end_index + 1), story.cut_durable_index + 1):
            assert (index, *story.written[index]) in archived
    assert store.files.data.used_span(store.files.end.end_pos) is None
    assert store.files.index.used_span((store.end_index + 1) * 32) is None
    promised = [read(store, index) for index in held]
    story.disk.lose_power()  # what it calls durable now stays so
    again = story.open()
    assert not [text for text in again.alarms if "did not match" in text or "is broken" in text]
    assert [read(again, index) for index in range(again.begin_index, again.end_index + 1)] == promised
    again.append_as_leader([b"and on"], max(again.end_term, 0) + 1)
    again.close()


# What the call that ends it leaves: by chance nothing or all of it, or half of a write, cut where the seed draws it. Of
# two calls that follow each other one ends so and one so here; `make prove` has each of them both ways.
ENDS = [
    (0, None, 1), (1, MIDDLE, 2), pytest.param(0, None, 2, marks=pytest.mark.long),
    pytest.param(1, MIDDLE, 1, marks=pytest.mark.long), pytest.param(2, MIDDLE, 1, marks=pytest.mark.long),
    pytest.param(2, MIDDLE, 2, marks=pytest.mark.long),
]  # fmt: skip


@pytest.mark.parametrize(("seed", "how", "first"), ENDS)
@pytest.mark.parametrize("power", [False, True], ids=["process", "power"])
@pytest.mark.parametrize("story_of", STORIES, ids=lambda story: story.__name__)
def test_the_end_may_come_at_any_call(
    story_of: Callable[[Story], None], power: bool, seed: int, how: str | None, first: int
) -> None:
    whole = Story(0)
    story_of(whole)
    calls = whole.disk.op_count
    assert calls > 40
    for number in range(first, calls + 1, 2):
        story = Story(seed)
        story.disk.faults.crash_at_op, story.disk.faults.crash_how = number, how
        with pytest.raises(SimulatedCrash):
            story_of(story)
        if power:
            story.disk.lose_power()
        else:
            story.disk.crash_process()
        try:
            check(story)
        except BaseException as error:
            error.add_note(f"ended at call {number} of {calls}")
            raise


def without_power(seed: int) -> Story:
    """A machine that comes back with a torn tail."""
    story = Story(seed)
    story.open()
    story.save(1, "n0")
    story.append(14, 1, 300)
    story.commit(slot=True)
    story.append(9, 1, 300)
    story.disk.lose_power()
    return story


@pytest.mark.parametrize("sync_fails", [False, True], ids=["crash", "sync"])
def test_a_start_after_a_power_loss_may_end_at_any_call(sync_fails: bool) -> None:
    """What it rebuilt and cleared is in the page cache only, and no slot knows of this boot yet (S1)."""
    calls = 0
    for seed in range(5):
        whole = without_power(seed)
        before = whole.disk.op_count
        whole.open()
        for number in range(before + 1, whole.disk.op_count + 1):
            story = without_power(seed)
            if sync_fails:
                story.disk.on_op = lambda *_, story=story, at=number: setattr(
                    story.disk.faults, "fsync_error_next", story.disk.op_count == at
                )
            else:
                story.disk.faults.crash_at_op = number
            with suppress(SimulatedCrash, StoreIOError):
                story.open()
            story.disk.on_op = None
            story.disk.crash_process()
            calls += 1
            try:
                check(story)
            except BaseException as error:
                error.add_note(f"seed {seed}, ended at call {number - before}")
                raise
    assert calls > 100


def test_a_start_that_goes_on_with_an_order_may_lose_power_at_any_call() -> None:
    """It found the order to begin anew in the page cache: its process had ended before that name was durable. The old
    log must not go before it is (M6)."""
    ordered: list[int] = []
    whole = Story(0)
    whole.disk.on_op = lambda what, path, _size: (
        ordered.append(whole.disk.op_count) if (what, path) == ("rename", str(ROOT / ORDER)) else None
    )
    begins_anew(whole)

    def interrupted(seed: int) -> Story:
        story = Story(seed)
        story.disk.faults.crash_at_op = ordered[0] + 1  # the sync of its directory
        with suppress(SimulatedCrash):
            begins_anew(story)
        story.disk.crash_process()
        return story

    for seed in range(4):
        story = interrupted(seed)
        before = story.disk.op_count
        story.open()
        for number in range(before + 1, story.disk.op_count + 1):
            story = interrupted(seed)
            story.disk.faults.crash_at_op = number
            with suppress(SimulatedCrash):
                story.open()
            story.disk.lose_power()
            try:
                check(story)
            except BaseException as error:
                error.add_note(f"seed {seed}, power was lost at call {number - before}")
                raise


@pytest.mark.parametrize("story_of", STORIES, ids=lambda story: story.__name__)
def test_after_a_failed_sync_the_page_cache_is_not_believed(story_of: Callable[[Story], None]) -> None:
    """The process ends; under the same boot everything reads well; what the next one calls durable must be (S1)."""
    whole = Story(0)
    syncs: list[int] = []

    def reported(what: str, _path: str, _size: int) -> None:
        if what == "fdatasync":
            syncs.append(whole.disk.op_count)

    whole.disk.on_op = reported
    story_of(whole)
    for number in syncs:
        story = Story(1)

        def arm(_what: str, _path: str, _size: int, story: Story = story, number: int = number) -> None:
            story.disk.faults.fsync_error_next |= story.disk.op_count == number

        story.disk.on_op = arm
        with pytest.raises(StoreIOError):
            story_of(story)
        story.disk.on_op = None
        story.disk.crash_process()
        check(story)


@pytest.mark.parametrize("slot", [False, True])
def test_no_slot_vouches_for_what_a_failed_sync_left(slot: bool) -> None:
    """The engine takes a moment to end: an idle slot, or what was asked for meanwhile, must not come after it."""
    story = Story(0)
    story.open()
    story.save(1, "n0")
    story.append(3, 1, 100)
    story.commit(slot=True)
    story.append(3, 1, 100)
    story.disk.faults.fsync_error_next = True
    with pytest.raises(StoreIOError):
        story.commit()
    if not slot:
        story.append(1, 1, 100)
    with pytest.raises(StoreIOError, match="failed before"):
        story.commit(slot=slot)
    story.disk.crash_process()
    check(story)


@pytest.mark.parametrize("way", ["scrub", "read"])
def test_a_failed_sync_keeps_its_pages_until_the_engine_has_ended(way: str) -> None:
    """They are clean, and the only ones that hold what was written: nobody may drop them for a look at the disk (S1).

    The file behind is still to be synced, so what is lost would be damage to the next start, and no torn tail.
    """
    story = Story(0)
    story.open()
    story.save(1, "n0")
    story.append(20, 1, 100)
    story.commit(slot=True)
    story.append(15, 1, 100)  # into the next file
    assert story.store.files.data.starts == [0, DATA_BYTES]
    story.disk.faults.fsync_error_next = True
    with pytest.raises(StoreIOError):
        story.commit()
    if way == "scrub":
        assert story.store.scrub(0, DATA_BYTES).faults == ()
    else:
        path = ROOT / "data" / f"{0:020d}"
        at = story.disk.read_bytes(path).index(b"1-18-")
        story.disk.flip(path, at, 1)
        with pytest.raises(StoreCorrupt):
            story.store.read_slab(18, DATA_BYTES)
        story.disk.flip(path, at, 1)
    story.disk.crash_process()
    store = story.open()
    assert store.faults == () and store.end_index == 34
    story.disk.crash_process()
    check(story)


def test_a_dry_run_keeps_the_pages_of_a_failed_sync_too() -> None:
    """What `store repair` would do is tried on a stopped member, perhaps because of that sync; the start after it
    writes them anew."""
    story = Story(0)
    story.open()
    story.append(20, 1, 100)
    story.commit(slot=True)
    story.append(15, 1, 100)
    story.disk.faults.fsync_error_next = True
    with pytest.raises(StoreIOError):
        story.commit()
    story.disk.crash_process()
    tried = open_for_repair(ROOT, DryRun(story.disk))
    scrub_all(tried)
    assert tried.faults == () and tried.end_index == 34
    tried.close()
    store = story.open()
    assert store.faults == () and store.end_index == 34
    story.disk.crash_process()
    check(story)


def test_files_are_synced_in_the_order_in_which_they_were_written() -> None:
    """Which of them a failing sync is about must not depend on where they lie in this process's memory."""
    story = Story(0)
    story.open()
    story.append(1, 1, 100)
    story.commit()
    synced: list[str] = []

    def note(what: str, path: str, _size: int) -> None:
        if what == "fdatasync" and "/data/" in path:
            synced.append(path)

    for _ in range(200):
        story.append(1, 1, 200)
    story.disk.on_op = note
    story.commit()
    assert len(synced) > 10 and synced == sorted(synced)


def test_a_scrub_reads_the_last_page_from_the_disk_once_all_of_it_is_synced() -> None:
    story = Story(0)
    story.open()
    story.append(1, 1, 100)
    story.commit(slot=True)
    story.append(1, 1, 100)
    story.disk.faults.lose_writes_of = "data"
    story.commit()
    assert story.store.read_slab(1, 1).last_index == 1  # the page that was not written is in memory
    assert [one.first_index for one in story.store.scrub(0, DATA_BYTES).faults] == [1]
