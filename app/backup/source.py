"""Where a back-up reads from: a member's control plane, or the directory of a member.

Both give what the log is (`Described`) and raw bytes of its files. The log is read up to `end_index`, which is
committed and durable at that member: no later leader changes what lies up to there. While a member's control plane is
read, a pin keeps its retention from what is still to be read; one that is killed leaves a pin that ends by itself.

Invariant: nothing here judges a record; whatever is asked for and cannot be had is a SourceError.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

from app.audit.fence import ReplicaFence
from app.audit.fencing import log_etag, pages, segment_of, store_directory
from app.audit.replicas import (
    FENCE_TIMEOUT_S,
    ControlError,
    ControlPlane,
    DirectorySegments,
    HttpSegments,
    ReplicaSpec,
)
from app.audit.segments import LogChanged, ReadFailed, Segment, SegmentGone, SegmentIO, SegmentMap
from node.protocol.entry import INDEX_UNIT, INDEX_UNIT_BYTES
from node.protocol.group_kind import has_state_machine
from node.snapshots.directory import DATA, META, SEALED, snapshots_in
from node.store.files.identity import Base
from node.store.log_store import EntryMeta
from node.views.files import SegmentsStoreView, SegmentsView, SnapshotListView
from node.views.reading import Unreadable, read
from node.views.state import StateView

PIN_S: Final = 900
RENEW_S: Final = 300.0


class SourceError(Exception):
    """The log cannot be read there. `is_denied`: the token lacks a right; `is_away`: nothing answers."""

    def __init__(self, text: str, *, is_denied: bool = False, is_away: bool = False) -> None:
        super().__init__(text)
        self.is_denied, self.is_away = is_denied, is_away


@dataclass(frozen=True, slots=True)
class Described:
    """A member's log as it stood when it was asked. `end_index` is committed and durable there."""

    member_id: str
    place: str
    group: str
    group_id: str | None
    kind: str
    data_file_size: int
    index_file_size: int
    sealed_from: int
    base: Base | None
    begin_index: int
    end_index: int
    flush: str
    peers: Mapping[str, str] = field(default_factory=dict)
    store_directory: Path | None = None  # where its files can be read on this machine


@dataclass(frozen=True, slots=True)
class SavedState:
    """A snapshot of a state machine that can be read there: where it ends, and its files with their lengths."""

    index: int
    files: tuple[tuple[str, int], ...]


class Source(Protocol):
    """One member's log, and the snapshots of its state machine, newest first, as they were before the log was asked
    for: so what the log holds goes on behind them."""

    described: Described

    def snapshots(self) -> Sequence[SavedState]: ...

    def read_snapshot(self, index: int, name: str, offset: int, length: int) -> bytes:
        """Raises SourceError."""
        ...

    def keep(self, from_index: int) -> str | None:
        """Asks that entries from there on stay while they are read; why that was not granted."""
        ...

    def still_reading(self, from_index: int) -> None:
        """Now and then, while it lasts."""
        ...

    def position_of(self, index: int) -> tuple[int, int]:
        """Where the record of an entry lies, and how long it is. Raises SourceError."""
        ...

    def read(self, position: int, length: int) -> bytes:
        """Bytes within the data file that holds `position`; fewer at its end. Raises SourceError."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True)
class Files:
    """The files of a log by position, whichever way they are read."""

    io: SegmentIO
    data: SegmentMap
    index: SegmentMap

    @classmethod
    def of(cls, io: SegmentIO, segments: Sequence[Segment]) -> Files:
        return cls(io, SegmentMap("data", segments), SegmentMap("index", segments))

    def position_of(self, index: int) -> tuple[int, int]:
        try:
            raw = self.index.read(self.io, index * INDEX_UNIT_BYTES, INDEX_UNIT_BYTES)
        except ReadFailed as error:
            raise _source_error(error) from error
        _magic, position, size, found, _term = INDEX_UNIT.unpack(raw)
        if found != index or position < 0 or size <= 0:
            raise SourceError(f"its index does not say where entry {index} is")
        return position, size

    def read(self, position: int, length: int) -> bytes:
        segment = self.data.at(position)
        if segment is None:
            raise SourceError(f"no data file holds position {position}")
        offset = position - segment.start
        try:
            return self.io.read("data", segment.name, offset, min(length, segment.size_bytes - offset))
        except ReadFailed as error:
            raise _source_error(error) from error


class MemberSource:
    """A running member, over its control plane."""

    def __init__(self, spec: ReplicaSpec, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises SourceError."""
        self._spec, self._clock = spec, clock
        self._owner = f"backup-{uuid.uuid4().hex[:8]}"
        self._kept_at_s: float | None = None
        plane = ControlPlane(spec, FENCE_TIMEOUT_S)
        try:
            saved = plane.get_json("/snapshots") if _has_machine(plane) else {"items": []}
            self._saved = read(SnapshotListView, saved)
            state = read(StateView, plane.get_json("/state"))
            found = list(pages(plane, "/segments", SegmentsView))
            self._segments = tuple(segment_of(row) for page in found for row in page.items)
            etag = log_etag(plane, self._segments)
            self.described = self._described(state, found[0].store)
        except Unreadable as error:
            text = f"{spec.public} answers as no member does: {error}; is it the address of a control plane?"
            raise SourceError(text, is_away=True) from error
        except ReadFailed as error:
            raise _source_error(error) from error
        finally:
            plane.close()
        fence = ReplicaFence(self.described.member_id, spec.public, "http", etag=etag, segments=self._segments)
        self._files = Files.of(HttpSegments(spec, fence), self._segments)

    def _described(self, state: StateView, store: SegmentsStoreView | None) -> Described:
        marks, where = state.marks, self._spec.public
        if state.engine != "ok":
            raise SourceError(f"the engine of {state.self_id} ({where}) is {state.engine}", is_away=True)
        if state.is_java or store is None or state.group is None:
            older = "a member of another release, or of the Java original"
            raise SourceError(f"{state.self_id} ({where}) is {older}: it does not say what a back-up needs")
        if None in (marks.begin_index, marks.committed_index, marks.durable_index):
            raise SourceError(f"{state.self_id} ({where}) does not know yet what is committed: wait for a leader")
        begin, committed, durable = marks.begin_index or 0, marks.committed_index, marks.durable_index
        assert committed is not None and durable is not None
        base = None
        if store.base is not None:
            known = store.base
            members = None if known.members is None else (known.members.index, known.members.body)
            base = Base(
                EntryMeta(known.index, known.term, known.chain_crc), known.position, state.group_id or None, members
            )
            begin = known.index + 1
        voters = {one.id: one.address or "" for one in state.peers or () if one.is_voter is not False}
        return Described(
            state.self_id, where, state.group, state.group_id or None, store.kind, store.data_file_size_bytes,
            store.index_file_size_bytes, store.sealed_from or 0, base, begin, min(committed, durable),
            state.flush or "sync", voters,
        )  # fmt: skip

    def snapshots(self) -> Sequence[SavedState]:
        return [
            SavedState(one.index, tuple((file.name, file.size_bytes) for file in one.files))
            for one in self._saved.items
            if one.is_sealed
        ]

    def read_snapshot(self, index: int, name: str, offset: int, length: int) -> bytes:
        wanted = {"Range": f"bytes={offset}-{offset + length - 1}"}
        plane = ControlPlane(self._spec)
        try:
            return plane.get(f"/snapshots/{index}/{name}", headers=wanted)[2]
        except ReadFailed as error:
            raise _source_error(error) from error
        finally:
            plane.close()

    def keep(self, from_index: int) -> str | None:
        plane = ControlPlane(self._spec, FENCE_TIMEOUT_S)
        try:
            plane.change("PUT", f"/pins/{self._owner}", {"from_index": from_index, "for_s": PIN_S})
        except (ControlError, ReadFailed) as error:
            return str(error)
        finally:
            plane.close()
        self._kept_at_s = self._clock()
        return None

    def still_reading(self, from_index: int) -> None:
        if self._kept_at_s is not None and self._clock() - self._kept_at_s >= RENEW_S:
            self._kept_at_s = self._clock()
            self.keep(from_index)

    def position_of(self, index: int) -> tuple[int, int]:
        return self._files.position_of(index)

    def read(self, position: int, length: int) -> bytes:
        return self._files.read(position, length)

    def close(self) -> None:
        """The pin ends, where one was taken."""
        if self._kept_at_s is None:
            return
        plane = ControlPlane(self._spec, FENCE_TIMEOUT_S)
        try:
            plane.change("DELETE", f"/pins/{self._owner}")
        except ReadFailed:
            pass  # then it ends by itself
        finally:
            plane.close()


class DirectorySource:
    """A member's directory on this machine; nothing is written there."""

    def __init__(self, directory: Path) -> None:
        """Raises SourceError."""
        from node.store.errors import StoreError
        from node.store.files.hard_state import read_hard_state
        from node.store.files.identity import read_base
        from node.store.reader import StoreReader

        try:
            root = store_directory(directory)
            reader = StoreReader(root)
            base = read_base(root)
            hard = read_hard_state(root)
        except (ReadFailed, StoreError, OSError) as error:
            raise SourceError(f"{directory}: {error}") from error
        identity = reader.identity
        if identity is None or reader.committed_index is None or hard is None:
            text = "it does not say what is committed: a Java node's, or one whose checkpoint or hardstate is lost"
            raise SourceError(f"{root}: {text}")
        if base is not None:
            base = replace(base, group_id=hard.group_id)
        durable = reader.end_index if reader.durable_index is None else reader.durable_index
        self._saved = [one for one in snapshots_in(root) if one.is_sealed]
        self.described = Described(
            identity.node_id, str(root), identity.group, hard.group_id, identity.kind, reader.data_file_size,
            reader.index_file_size, reader.sealed_from or 0, base, reader.begin_index,
            min(reader.committed_index, durable), "", {}, root,
        )  # fmt: skip
        segments = tuple(
            Segment("data" if one.kind == "data" else "index", one.name, one.start, one.size_bytes)
            for one in reader.segments()
        )
        self._io = DirectorySegments(ReplicaFence(identity.node_id, str(root), "directory", segments=segments))
        self._files = Files.of(self._io, segments)

    def snapshots(self) -> Sequence[SavedState]:
        found = []
        for one in self._saved:
            files = [path for path in sorted(one.path.iterdir()) if path.name in (DATA, META, SEALED)]
            found.append(SavedState(one.meta.index, tuple((path.name, path.stat().st_size) for path in files)))
        return found

    def read_snapshot(self, index: int, name: str, offset: int, length: int) -> bytes:
        chosen = next(one for one in self._saved if one.meta.index == index)
        try:
            with (chosen.path / name).open("rb") as file:
                file.seek(offset)
                return file.read(length)
        except OSError as error:
            raise SourceError(str(error)) from error

    def keep(self, from_index: int) -> str | None:
        return None

    def still_reading(self, from_index: int) -> None:
        pass

    def position_of(self, index: int) -> tuple[int, int]:
        return self._files.position_of(index)

    def read(self, position: int, length: int) -> bytes:
        return self._files.read(position, length)

    def close(self) -> None:
        self._io.close()


def _source_error(error: Exception) -> SourceError:
    if isinstance(error, ControlError):
        return SourceError(str(error), is_denied=error.status in (401, 403), is_away=error.status >= 500)
    return SourceError(str(error), is_away=not isinstance(error, SegmentGone | LogChanged))


def _has_machine(plane: ControlPlane) -> bool:
    """Whether the group there has a state machine; a member of another release does not say."""
    store = read(SegmentsView, plane.get_json("/segments", limit=1)).store
    return store is not None and has_state_machine(store.kind)
