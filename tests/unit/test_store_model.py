"""MemoryStore and FileStore driven with the same steps answer the same, through reopening and crashes too."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from node.protocol.entry import EntryError, Magic, Slab
from node.store.file_store import FileStore
from node.store.log_store import LogStore
from node.store.memory_store import MemoryStore
from tests.unit.store_fixtures import kill, open_store, record, sync
from tests.unit.store_layout import DATA_BYTES, INDEX_BYTES

BODIES = st.lists(st.integers(0, 900).map(lambda size: b"%03d" % size * (size // 3)), min_size=1, max_size=40)


def state(store: LogStore) -> tuple[object, ...]:
    return (
        store.begin_index, store.end_index, store.end_term, store.end_chain, store.base, store.sealed_from,
        [store.meta(index) for index in range(store.begin_index - 2, store.end_index + 2)],
    )  # fmt: skip


class TwoStores(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="store-model-"))
        self.memory = MemoryStore(data_file_size=DATA_BYTES, index_file_size=INDEX_BYTES)
        self.file: FileStore = open_store(self.directory)

    def teardown(self) -> None:
        if hasattr(self, "file"):
            kill(self.file)
            shutil.rmtree(self.directory)

    def empty(self) -> bool:
        return self.memory.end_index < self.memory.begin_index

    @rule(bodies=BODIES, terms=st.integers(0, 2), noop=st.booleans())
    def lead(self, bodies: list[bytes], terms: int, noop: bool) -> None:
        term = max(self.memory.end_term, 0) + terms
        magic = Magic.NOOP if noop else Magic.NORMAL
        slabs = [store.append_as_leader(bodies, term, magic) for store in (self.memory, self.file)]
        assert slabs[0] == slabs[1]

    @rule(bodies=BODIES, terms=st.integers(0, 2))
    def follow(self, bodies: list[bytes], terms: int) -> None:
        term = max(self.memory.end_term, 0) + terms
        slabs: list[Slab] = self.memory.append_as_leader(bodies, term)
        for slab in slabs:
            self.file.append_slab(slab)

    @rule()
    def refuse_a_hole(self) -> None:
        stranger = MemoryStore(data_file_size=DATA_BYTES, index_file_size=INDEX_BYTES)
        slab = stranger.append_as_leader([b"x"], 99)[0]
        if self.memory.end_index >= 0:
            for store in (self.memory, self.file):
                with pytest.raises(EntryError):
                    store.append_slab(slab)

    @rule()
    def commit(self) -> None:
        for store in (self.memory, self.file):
            store.note_progress(store.end_index, store.end_index)
            ticket = store.prepare_sync()
            if ticket is not None:
                ticket.run()
                assert store.finish_sync(ticket) == store.end_index
        assert self.memory.durable_index == self.file.durable_index

    @precondition(lambda self: not self.empty())
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        cut_index = data.draw(st.integers(self.memory.begin_index, self.memory.end_index))
        for store in (self.memory, self.file):
            store.note_progress(min(store.end_index, cut_index - 1), cut_index - 1)
            store.truncate(cut_index, record(self.file, cut_index))

    @precondition(lambda self: not self.empty())
    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        through_index = data.draw(st.integers(self.memory.begin_index, self.memory.end_index))
        for store in (self.memory, self.file):
            store.note_progress(store.end_index, through_index)
            sync(store)  # what is not durable stays
            store.remove_prefix(store.end_index)

    @precondition(lambda self: not self.empty())
    @rule(data=st.data(), max_bytes=st.integers(1, 3000))
    def read(self, data: st.DataObject, max_bytes: int) -> None:
        index = data.draw(st.integers(self.memory.begin_index, self.memory.end_index))
        expected = self.memory.read_slab(index, max_bytes)
        assert self.file.read_slab(index, max_bytes) == expected
        recent = self.file.recent_slab(index, max_bytes)
        assert recent is None or (recent.first_index, recent.data[:48]) == (index, expected.data[:48])
        assert self.file.get(index) == self.memory.get(index)
        assert self.file.term_start(index) == self.memory.term_start(index)
        for term in range(max(self.memory.end_term, 0) + 2):
            assert self.file.last_index_of_term(term) == self.memory.last_index_of_term(term)

    @rule(killed=st.booleans(), boot=st.sampled_from(["boot-1", "boot-2"]))
    def reopen(self, killed: bool, boot: str) -> None:
        if killed:
            kill(self.file)
        else:
            self.file.close()
        self.file = open_store(self.directory, boot_id=boot)
        assert self.file.alarms == ()
        assert self.file.durable_index == self.file.end_index
        ticket = self.memory.prepare_sync()
        if ticket is not None:
            self.memory.finish_sync(ticket)

    @invariant()
    def same(self) -> None:
        if hasattr(self, "file"):
            assert state(self.file) == state(self.memory)


TestTwoStores = TwoStores.TestCase
TestTwoStores.settings = settings(
    max_examples=30, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
