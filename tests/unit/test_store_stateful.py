"""A FileStore on a bad disk against a plain list: any calls in any order; crashes, power cuts, full disks and rot.

The list is the truth. On a disk that only crashes and fills up, the store must hold a prefix of it that reaches what it
called durable, byte for byte; on one that rots it may name faults or refuse, and never serves a wrong byte.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from node.protocol.codes import VoterState
from node.protocol.entry import HEAD_BYTES, INDEX_UNIT_BYTES
from node.protocol.slab_encode import encode_slab
from node.store.errors import StoreCorrupt, StoreError, StoreFull, StoreIOError, StoreRefused
from node.store.file_store import FileStore
from node.store.files.layout import plan_runs
from node.store.log_store import HardState, TruncationRecord
from node.store.pins import PinnedError
from node.store.reader import StoreReader
from tests.simulation.disk import SECTOR_BYTES, SimulatedCrash, SimulatedPlatform

ROOT = Path("/machine/dledger-n0")
DATA_BYTES, INDEX_BYTES = 4096, 32 * 16
SIZES = st.lists(st.integers(0, 1200), min_size=1, max_size=8)


class Kept(NamedTuple):
    """One entry as it was given to the store."""

    term: int
    body: bytes


class StoreOnABadDisk(RuleBasedStateMachine):
    """See the module's docstring. `log[i]` is entry i; `floor` is what the store called durable."""

    @initialize(seed=st.integers(0, 2**32))
    def start(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 1_000_000_000
        self.disk = SimulatedPlatform(self.rng, lambda: self.now, "m")
        self.log: list[Kept] = []
        self.before: list[Kept] = []  # the log before the call under way, which may have been undone by a crash
        self.floor = self.begin = 0
        self.term = 1
        self.states = [HardState(1, "n0", VoterState.VOTER)]  # the one that was saved, then those that may have been
        self.rotten = False
        self.pins = {}
        self.store: FileStore | None = self._open()
        self.store.save_hard_state(self.states[0])
        self.floor = -1

    def teardown(self) -> None:
        if getattr(self, "store", None) is not None:
            self.disk.crash_process()

    # --- how a call goes, and how it may end ---------------------------------------------------------------------

    def _open(self) -> FileStore:
        return FileStore.open(
            ROOT, group="g", node_id="n0", data_file_size=DATA_BYTES, index_file_size=INDEX_BYTES, init=True,
            platform=self.disk,
        )  # fmt: skip

    def _do(self, call: Callable[[FileStore], object]) -> bool:
        """Whether the call did what it says. An error that ends an engine, or a crash, opens the store anew."""
        assert self.store is not None
        self.now += 30_000_000
        try:
            call(self.store)
        except StoreFull:
            assert self.disk.faults.free_bytes is not None, "the disk has room"
            return False
        except (SimulatedCrash, StoreIOError):
            self._end(power=self.rng.random() < 0.4)
            return False
        except StoreCorrupt:
            assert self.rotten
            return False
        return True

    def _end(self, *, power: bool) -> None:
        """The process, or the machine, ends; the store is opened again, on a disk with room."""
        if power:
            self.disk.lose_power()
        else:
            self.disk.crash_process()
        self.disk.faults.clear()
        self.pins: dict[str, int] = {}  # they end with the process
        try:
            self.store = self._open()
        except (StoreCorrupt, StoreRefused):
            assert self.rotten, "the disk did nothing wrong"
            self.store = None
            return
        self._settle(self.store)

    def _settle(self, store: FileStore) -> None:
        """What was found is a log that may be there; from now on it is the truth."""
        kept = [Kept(state.term, state.voted_for) for state in (store.hard_state,)]
        allowed = [Kept(state.term, vote) for state in self.states for vote in (state.voted_for, None)]
        assert kept[0] in allowed or self.rotten
        self.states = [store.hard_state]
        if not self.rotten:
            assert store.faults == ()
            assert store.hard_state.voter_state is VoterState.VOTER, store.alarms
        rejoining = store.hard_state.voter_state is VoterState.REJOINING
        assert store.end_index >= self.floor or rejoining, "what was durable is gone, and it votes"
        longest = max(self.log, self.before, key=len)
        del longest[store.end_index + 1 :]
        self.log = self.before = longest
        self.floor, self.begin = store.end_index, store.begin_index

    # --- writing -------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.store is not None)
    @rule(sizes=SIZES, more=st.integers(0, 2), follows=st.booleans())
    def append(self, sizes: list[int], more: int, follows: bool) -> None:
        store = self.store
        assert store is not None
        self.term += more
        first = len(self.log)
        bodies = [(b"%d.%d." % (self.term, first + at) * (size // 4 + 1))[:size] for at, size in enumerate(sizes)]
        self.before = list(self.log)
        self.log = self.log + [Kept(self.term, body) for body in bodies]
        call = self._follow if follows else self._lead
        if not self._do(lambda store: call(store, bodies)) and self.store is store:
            self.log = self.before  # refused: nothing of it stays

    def _lead(self, store: FileStore, bodies: list[bytes]) -> None:
        store.append_as_leader(bodies, self.term)

    def _follow(self, store: FileStore, bodies: list[bytes]) -> None:
        index, chain = store.end_index + 1, store.end_chain
        assert chain is not None
        runs = list(plan_runs([HEAD_BYTES + len(body) for body in bodies], store.files.end.end_pos, DATA_BYTES))
        for done, run in enumerate(runs):
            slab = encode_slab(bodies[run.first : run.stop], index, self.term, run.pos, chain)
            try:
                store.append_slab(slab)
            except StoreFull:
                if done:  # slab by slab: what was taken before stays
                    self.before = self.log[:index]
                raise
            index, chain = index + slab.count, slab.last_chain or 0

    @precondition(lambda self: self.store is not None)
    @rule(slot=st.booleans(), committed=st.booleans())
    def sync(self, slot: bool, committed: bool) -> None:
        def call(store: FileStore) -> None:
            if committed:
                store.note_progress(store.end_index, store.end_index)
            ticket = store.prepare_checkpoint() if slot else store.prepare_sync()
            if ticket is not None:
                ticket.run()
                self.floor = store.finish_sync(ticket)
                assert self.floor == store.end_index

        self.before = self.log
        self._do(call)

    @precondition(lambda self: self.store is not None and len(self.log) > self.begin and not self.rotten)
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        store = self.store
        assert store is not None
        at = data.draw(st.integers(self.begin, len(self.log) - 1))
        order = TruncationRecord("n0", "n1", self.term, at, store.end_index, "conflict", at - 1)
        gone, floor = self.log[at:], self.floor
        self.floor = min(self.floor, at - 1)
        self.before = list(self.log)
        if self._do(lambda store: store.truncate(at, order)):
            self.log = self.log[:at]
            self.term += 1  # by whose order it was
        elif self.store is store:
            self.floor = floor
            return
        if self.store is None or len(self.log) > at:
            return
        archived = [
            Kept(entry.term, entry.body) for entry in self.store.files.archive.entries(self.store.files.archive.count)
        ]
        durable = max(0, floor + 1 - at)
        assert archived[:durable] == gone[:durable]
        assert self.store is not store or archived == gone

    @precondition(lambda self: self.store is not None and len(self.log) > self.begin and not self.rotten)
    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        through = data.draw(st.integers(self.begin, len(self.log) - 1))
        self.before = self.log
        if self.store is not None:
            self.store.note_progress(through, through)
        try:
            done = self._do(lambda store: store.remove_prefix(through))
        except PinnedError as error:
            assert error.index == min(self.pins.values()) <= through and self.pins[error.owner] == error.index
            return
        assert through < min(self.pins.values(), default=len(self.log)) or not done
        if done and self.store is not None:
            assert self.store.begin_index <= through + 1
            self.begin = self.store.begin_index

    @precondition(lambda self: self.store is not None)
    @rule(data=st.data(), owner=st.sampled_from(["snapshot", "audit"]))
    def pin(self, data: st.DataObject, owner: str) -> None:
        assert self.store is not None
        index = data.draw(st.integers(self.begin, len(self.log)))
        self.store.pin(index, owner)
        self.pins[owner] = index

    @precondition(lambda self: self.store is not None)
    @rule(owner=st.sampled_from(["snapshot", "audit"]))
    def release(self, owner: str) -> None:
        assert self.store is not None
        self.store.release(owner)
        self.pins.pop(owner, None)

    @precondition(lambda self: self.store is not None)
    @rule(vote=st.sampled_from([None, "n0", "n1"]))
    def save(self, vote: str | None) -> None:
        assert self.store is not None
        self.term += 1
        state = HardState(self.term, vote, self.store.hard_state.voter_state)
        self.states.append(state)
        self.before = self.log
        if self._do(lambda store: store.save_hard_state(state)):
            self.states = [state]

    # --- what goes wrong -----------------------------------------------------------------------------------------

    @precondition(lambda self: self.store is not None)
    @rule(power=st.booleans())
    def end(self, power: bool) -> None:
        self.before = self.log
        self._end(power=power)

    @precondition(lambda self: self.store is not None)
    @rule()
    def stop(self) -> None:
        self.before = self.log
        if self._do(lambda store: store.close()):
            self.floor = len(self.log) - 1
            self._end(power=self.rng.random() < 0.5)

    @precondition(lambda self: self.store is not None)
    @rule(ahead=st.integers(1, 12), how=st.sampled_from(["before", "middle", "after"]))
    def end_soon(self, ahead: int, how: str) -> None:
        self.disk.faults.crash_at_op, self.disk.faults.crash_how = self.disk.op_count + ahead, how

    @precondition(lambda self: self.store is not None)
    @rule(sectors=st.integers(0, 30))
    def fill_up(self, sectors: int) -> None:
        self.disk.faults.free_bytes = sectors * SECTOR_BYTES

    @rule()
    def make_room(self) -> None:
        self.disk.faults.free_bytes = None

    @precondition(lambda self: self.store is not None)
    @rule(sync_fails=st.booleans())
    def fail_soon(self, sync_fails: bool) -> None:
        if sync_fails:
            self.disk.faults.fsync_error_next = True
        else:
            self.disk.faults.short_write_next = True

    @precondition(lambda self: self.store is not None and len(self.log) > 10)
    @rule(
        where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), kind=st.sampled_from(["data", "data", "index"])
    )
    def rot(self, where: float, bit: int, kind: str) -> None:
        names = self.disk.names(ROOT / kind)
        spots = [
            (ROOT / kind / name, at) for name in names
            for at, byte in enumerate(self.disk.read_bytes(ROOT / kind / name)) if byte
        ]  # fmt: skip
        if spots:
            path, at = spots[int(where * len(spots))]
            self.disk.flip(path, at, 1 << bit)
            self.rotten = True

    # --- what must hold ------------------------------------------------------------------------------------------

    @precondition(lambda self: self.store is not None)
    @rule(data=st.data(), max_bytes=st.integers(1, 3000))
    def read_slab(self, data: st.DataObject, max_bytes: int) -> None:
        store = self.store
        assert store is not None
        if len(self.log) == self.begin:
            return
        index = data.draw(st.integers(self.begin, len(self.log) - 1))
        try:
            slab = store.read_slab(index, max_bytes)
        except StoreCorrupt as error:
            assert self.rotten
            store.note_faults(error.faults)
            return
        at = 0
        for kept in self.log[index : index + slab.count]:
            assert slab.data[at + HEAD_BYTES : at + HEAD_BYTES + len(kept.body)] == kept.body
            at += HEAD_BYTES + len(kept.body)
        assert at == len(slab.data)

    @precondition(lambda self: self.store is not None and self.rotten)
    @rule()
    def scrub(self) -> None:
        store = self.store
        assert store is not None
        if store.durable_index == store.end_index >= store.begin_index:
            index = store.begin_index
            while index <= store.end_index:
                step = store.scrub(index, 2000)
                store.note_faults(step.faults)
                index = step.next_index

    @invariant()
    def holds_the_log(self) -> None:
        store = getattr(self, "store", None)
        if store is None:
            return
        assert (store.begin_index, store.end_index) == (self.begin, len(self.log) - 1)
        assert store.durable_index == self.floor
        for index in range(store.begin_index, store.end_index + 1):
            try:
                entry = store.get(index)
            except StoreError:
                assert self.rotten
                continue
            assert entry is not None
            assert Kept(entry.term, entry.body) == self.log[index]
        if not self.rotten:
            assert store.faults == ()
            assert store.files.data.used_span(store.files.end.end_pos) is None
            assert store.files.index.used_span((store.end_index + 1) * INDEX_UNIT_BYTES) is None

    @precondition(lambda self: self.store is not None and not self.rotten)
    @rule()
    def verify(self) -> None:
        """What others see who read the files."""
        problems = StoreReader(ROOT, platform=self.disk).verify().problems
        assert problems == []


TestStoreOnABadDisk = StoreOnABadDisk.TestCase
TestStoreOnABadDisk.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, derandomize=True, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
