"""What happened to the keys of the key-value store, of the newest entries, for those who watch.

Kept in chunks, and forgotten a chunk at a time: a run of puts is a chunk as it is, so that neither keeping nor
forgetting an event is work for each of them. Invariants: events are in the order of the log, none left out between the
oldest that is kept and the newest; at least EVENTS_MAX are kept, unless they are over EVENT_BYTES_MAX together.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import Final

EVENTS_MAX: Final = 100_000
EVENT_BYTES_MAX: Final = 64 * 1024 * 1024  # of keys and values
CHUNK_EVENTS: Final = 1024  # a chunk of single events ends here, and a shorter run goes with what is there
CHUNK_BYTES: Final = 1024 * 1024
# What happened to a key: the item of a put, or (key, None, the entry, why it went).
Happened = tuple[bytes, bytes | None, int, int]
_INDEX: Final = itemgetter(2)  # the entry that did it


class Events:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._chunks: deque[tuple[Sequence[Happened], int]] = deque()  # with the bytes of each; none is empty
        self._open: list[Happened] = []  # the newest ones, which no chunk has yet
        self._open_bytes = 0
        self._count = 0  # in chunks
        self.size_bytes = 0  # of all
        self.from_index = 0  # the first entry whose events are kept

    def __iter__(self) -> Iterator[Happened]:
        for events, _ in self._chunks:
            yield from events
        yield from self._open

    def clear(self, from_index: int) -> None:
        """None is kept; those of that entry, and of what is behind it, will be."""
        self._chunks.clear()
        self._open = []
        self._open_bytes = self._count = self.size_bytes = 0
        self.from_index = from_index

    def add(self, event: Happened, size_bytes: int) -> None:
        self._open.append(event)
        self._open_bytes += size_bytes
        self.size_bytes += size_bytes
        if len(self._open) >= CHUNK_EVENTS or self._open_bytes >= CHUNK_BYTES:
            self._end_chunk()

    def add_run(self, events: Sequence[Happened], size_bytes: int) -> None:
        """All of them at once; nobody changes them any more."""
        self.size_bytes += size_bytes
        if len(self._open) + len(events) < CHUNK_EVENTS and self._open_bytes + size_bytes < CHUNK_BYTES:
            self._open += events
            self._open_bytes += size_bytes
            return
        if self._open:
            self._end_chunk()
        self._keep(events, size_bytes)

    def _end_chunk(self) -> None:
        events, size_bytes, self._open, self._open_bytes = self._open, self._open_bytes, [], 0
        self._keep(events, size_bytes)

    def _keep(self, events: Sequence[Happened], size_bytes: int) -> None:
        """A chunk more, and those less that are not kept any more."""
        self._chunks.append((events, size_bytes))
        self._count += len(events)
        chunks = self._chunks
        while self._count - len(chunks[0][0]) >= EVENTS_MAX or (len(chunks) > 1 and self.size_bytes > EVENT_BYTES_MAX):
            events, size_bytes = chunks.popleft()
            self._count -= len(events)
            self.size_bytes -= size_bytes
            self.from_index = events[-1][2] + 1

    def newer(self, from_index: int) -> Iterator[Happened]:
        """Those of that entry and of what is behind it, in order; nothing may be added meanwhile. Looked for from the
        newest one back, where those who watch are."""
        found: list[Sequence[Happened]] = []
        for events in chain([self._open], (events for events, _ in reversed(self._chunks))):
            if events and events[0][2] < from_index:
                found.append(events[bisect_left(events, from_index, key=_INDEX) :])
                break
            found.append(events)
        return chain.from_iterable(reversed(found))
