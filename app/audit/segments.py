"""Raw bytes of one replica's segment files, and where in them a log position is.

This is all that a comparison needs of a replica: files named by their start offset, read by range (over HTTP or from a
directory). Invariant: nothing here interprets a record; what a file does not hold is said by an exception that tells a
hole (`SegmentGone`) from a place that could not be read (`ReadFailed`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

Kind = Literal["data", "index"]
WINDOW_BYTES = 1024 * 1024


class ReadFailed(Exception):
    """The bytes could not be had; the message is the reason that the audit reports as `unaudited`."""


class SegmentGone(ReadFailed):
    """The file is not there (any more): inside a replica's range that is a hole."""


class LogChanged(ReadFailed):
    """The log was truncated, or its node restarted, since the fence was fixed."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One data or index file: `start` is the absolute offset that its name says."""

    kind: Kind
    name: str
    start: int
    size_bytes: int

    @property
    def end(self) -> int:
        return self.start + self.size_bytes


class SegmentIO(Protocol):
    """Reads ranges of segment files. Short at the end of what the replica vouches for."""

    def read(self, kind: Kind, name: str, offset: int, length: int) -> bytes: ...


class SegmentMap:
    """The segments of one kind in order, addressed by absolute offset."""

    def __init__(self, kind: Kind, segments: Iterable[Segment]) -> None:
        self.kind: Kind = kind
        self.segments = sorted((s for s in segments if s.kind == kind), key=lambda s: s.start)
        self.starts = [s.start for s in self.segments]

    def at(self, position: int) -> Segment | None:
        """The segment that holds absolute offset `position`."""
        number = bisect_right(self.starts, position) - 1
        if number < 0 or position >= self.segments[number].end:
            return None
        return self.segments[number]

    def after(self, segment: Segment) -> Segment | None:
        """The next segment, if it follows without a gap."""
        number = bisect_right(self.starts, segment.start)
        if number < len(self.segments) and self.starts[number] == segment.end:
            return self.segments[number]
        return None

    def read(self, io: SegmentIO, position: int, length: int) -> bytes:
        """Exactly `length` bytes from `position`, across files; zeros where one is short, SegmentGone without one."""
        parts: list[bytes] = []
        while length > 0:
            segment = self.at(position)
            if segment is None:
                raise SegmentGone(f"no {self.kind} file holds offset {position}")
            take = min(length, segment.end - position)
            data = io.read(self.kind, segment.name, position - segment.start, take)
            parts.append(data if len(data) == take else data[:take].ljust(take, b"\0"))
            position += take
            length -= take
        return parts[0] if len(parts) == 1 else b"".join(parts)


class Window:
    """Small reads of the data files through cached windows, for the record-by-record walk."""

    def __init__(self, io: SegmentIO, data: SegmentMap) -> None:
        self._io = io
        self.data = data
        self._cached: dict[int, bytes] = {}

    def read(self, position: int, length: int) -> bytes:
        """Up to `length` bytes within the file that holds `position`; empty where there is none."""
        segment = self.data.at(position)
        if segment is None:
            return b""
        length = min(length, segment.end - position)
        parts: list[bytes] = []
        offset = position - segment.start
        while length > 0:
            number, inside = divmod(offset, WINDOW_BYTES)
            piece = self._window(segment, number)[inside : inside + length]
            if not piece:
                break
            parts.append(piece)
            offset += len(piece)
            length -= len(piece)
        return b"".join(parts)

    def _window(self, segment: Segment, number: int) -> bytes:
        key = segment.start + number * WINDOW_BYTES
        if key not in self._cached:
            if len(self._cached) >= 8:
                self._cached.pop(next(iter(self._cached)))
            take = min(WINDOW_BYTES, segment.size_bytes - number * WINDOW_BYTES)
            try:
                self._cached[key] = self._io.read("data", segment.name, number * WINDOW_BYTES, take)
            except SegmentGone:
                self._cached[key] = b""
        return self._cached[key]
