"""A log in a list, for the core's own tests: what is not synced is lost by `after_crash`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from node.protocol.codes import VoterState
from node.protocol.entry import (
    CHAIN_START,
    Entry,
    Magic,
    Slab,
    chain_of,
    decode_slab,
    encode_slab,
    pack_record,
    slab_of,
    verify_slab,
)
from node.store.log_store import ORIGIN, EntryMeta, HardState, LogStore, StoreFull, TruncationRecord


@dataclass(slots=True)
class FakeTicket:
    """One group commit of a FakeStore."""

    end_index: int

    def run(self) -> None:
        """Nothing to wait for: `finish_sync` moves the durable index."""


class FakeStore(LogStore):
    """See the module's docstring."""

    def __init__(self, store_id: str, *, forming: bool = True, ring_entries: int = 1 << 30) -> None:
        self.store_id = store_id
        self.base = ORIGIN
        self.sealed_from = 0
        self.recovered_commit_index = -1
        self.hard_state = HardState(voter_state=VoterState.FORMING if forming else VoterState.REJOINING)
        self.data_file_size = 1 << 30
        self.index_file_size = 1 << 24
        self.durable_index = -1
        self.entries: list[Entry] = []
        self.chains: list[int] = []
        self.truncations: list[TruncationRecord] = []
        self.full = False
        self.ring_entries = ring_entries
        self._progress = -1
        self._pos = 0

    # --- reads --------------------------------------------------------------------------------------------------
    @property
    def begin_index(self) -> int:  # type: ignore[override]
        return self.base.index + 1

    @property
    def end_index(self) -> int:  # type: ignore[override]
        return self.base.index + len(self.entries)

    @property
    def end_term(self) -> int:  # type: ignore[override]
        return self.entries[-1].term if self.entries else self.base.term

    @property
    def end_chain(self) -> int | None:  # type: ignore[override]
        return self.chains[-1] if self.chains else self.base.chain

    def _at(self, index: int) -> int:
        return index - self.base.index - 1

    def meta(self, index: int) -> EntryMeta | None:
        if index == self.base.index:
            return self.base
        if not self.begin_index <= index <= self.end_index:
            return None
        at = self._at(index)
        return EntryMeta(index, self.entries[at].term, self.chains[at])

    def get(self, index: int) -> Entry | None:
        return self.entries[self._at(index)] if self.begin_index <= index <= self.end_index else None

    def recent_slab(self, first_index: int, max_bytes: int) -> Slab | None:
        if first_index <= self.end_index - self.ring_entries or self.meta(first_index) is None:
            return None
        return self.read_slab(first_index, max_bytes)

    def read_slab(self, first_index: int, max_bytes: int) -> Slab:
        if not self.begin_index <= first_index <= self.end_index:
            raise KeyError(first_index)
        first = self._at(first_index)
        prev = self.chains[first - 1] if first else self.base.chain
        data = b""
        last = first
        for last in range(first, len(self.entries)):
            record = pack_record(self.entries[last])
            if data and len(data) + len(record) > max_bytes:
                last -= 1
                break
            data += record
        return slab_of(data, self.entries[first].pos, prev, self.chains[last])

    def term_start(self, index: int) -> int:
        at = self._at(index)
        term = self.entries[at].term
        while at > 0 and self.entries[at - 1].term == term:
            at -= 1
        return self.begin_index + at

    def last_index_of_term(self, term: int) -> int:
        return self.begin_index - 1 + sum(1 for entry in self.entries if entry.term <= term)

    # --- writes -------------------------------------------------------------------------------------------------
    def append_as_leader(self, bodies: Sequence[bytes], term: int, magic: int = Magic.NORMAL) -> list[Slab]:
        if self.full:
            raise StoreFull("append: no space left")
        slab = encode_slab(bodies, self.end_index + 1, term, self._pos, self.end_chain or CHAIN_START, magic)
        self._take(slab)
        return [slab]

    def append_slab(self, slab: Slab) -> None:
        if self.full:
            raise StoreFull("append: no space left")
        assert slab.first_index == self.end_index + 1, "the core appends only what continues the log"
        assert slab.first_term >= self.end_term, "terms never decrease along the log"
        verify_slab(slab, self.end_chain)
        self._take(slab)

    def _take(self, slab: Slab) -> None:
        chain = self.end_chain or CHAIN_START
        for entry in decode_slab(slab):
            chain = chain_of(entry, chain)
            self.entries.append(entry)
            self.chains.append(chain)
            self._pos += entry.size

    def save_hard_state(self, state: HardState) -> None:
        self.hard_state = state

    def note_progress(self, committed_index: int, applied_index: int) -> None:
        self._progress = committed_index

    def prepare_sync(self) -> FakeTicket | None:
        return FakeTicket(self.end_index) if self.durable_index < self.end_index else None

    def finish_sync(self, ticket: FakeTicket) -> int:  # type: ignore[override]
        self.durable_index = max(self.durable_index, min(ticket.end_index, self.end_index))
        return self.durable_index

    def truncate(self, cut_index: int, record: TruncationRecord) -> None:
        if self.full:
            raise StoreFull("truncate: the archive has no space")
        self.truncations.append(replace(record, seq=len(self.truncations)))
        at = self._at(cut_index)
        self._pos = self.entries[at].pos
        del self.entries[at:], self.chains[at:]
        self.durable_index = min(self.durable_index, self.end_index)

    def remove_prefix(self, through_index: int) -> None:
        base = self.meta(through_index)
        assert base is not None
        count = self._at(through_index) + 1
        del self.entries[:count], self.chains[:count]
        self.base = base

    def close(self) -> None:
        """Nothing is held open."""

    # --- for tests ----------------------------------------------------------------------------------------------
    def after_crash(self) -> FakeStore:
        """The same store opened again, without what was not durable."""
        kept = FakeStore(self.store_id, ring_entries=self.ring_entries)
        kept.base, kept.hard_state, kept.truncations = self.base, self.hard_state, self.truncations
        count = max(0, self.durable_index - self.base.index)
        kept.entries, kept.chains = self.entries[:count], self.chains[:count]
        kept.durable_index = kept.end_index
        kept.recovered_commit_index = min(self._progress, kept.end_index)
        kept._progress = kept.recovered_commit_index
        kept._pos = kept.entries[-1].pos + kept.entries[-1].size if kept.entries else 0
        return kept
