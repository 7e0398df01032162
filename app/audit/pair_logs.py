"""The commit logs of a classic pair as an audit reads them: where each begins and ends, and its bytes by range.

A log is a directory of RocketMQ's files, each named by its first offset, or a running broker's, over its control plane.

Invariants: nothing is written; a `PairLog` travels to the workers as plain JSON; a file that cannot be read is said by
`ReadFailed`, a file that is not there by `SegmentGone`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from app.audit.replicas import REQUEST_BYTES_MAX, ControlError, ControlPlane, ReplicaSpec
from app.audit.segments import LogChanged, ReadFailed, SegmentGone
from node.message_store.commit_log import COMMIT_LOG
from node.message_store.local_recovery import file_name

TRIES: Final = 3
AGAIN_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class PairLog:
    """One log as it was when the audit began. Offsets in bytes; `epochs`: (number, start); `problem`: why it is not
    read."""

    id: str
    source: str
    begin: int = 0
    end: int = 0
    file_bytes: int = 0
    starts: tuple[int, ...] = ()
    pair: str = ""
    epochs: tuple[tuple[int, int], ...] = ()
    problem: str | None = None
    version: str | None = None  # of a broker's: another one after each cut and each start

    @property
    def is_empty(self) -> bool:
        return self.end <= self.begin

    def upto(self, start: int) -> int:
        """Where its part of the file that begins at `start` ends."""
        return min(self.end, start + self.file_bytes)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PairLog:
        epochs = tuple((number, start) for number, start in data["epochs"])
        return cls(**{**data, "starts": tuple(data["starts"]), "epochs": epochs})


class Bytes(Protocol):
    """Reads a log. Short, also empty, where the file is shorter than asked."""

    def read(self, offset: int, length: int) -> bytes:
        """Bytes of one file, from an offset of the log. Raises ReadFailed, SegmentGone."""


class DirectoryBytes:
    """The files of a directory."""

    def __init__(self, log: PairLog) -> None:
        self._log = log
        self._open: tuple[int, int] | None = None  # start of the file, its descriptor

    def read(self, offset: int, length: int) -> bytes:
        start = offset - offset % self._log.file_bytes
        path = Path(self._log.source) / COMMIT_LOG / file_name(start)
        try:
            if self._open is None or self._open[0] != start:
                self.close()
                self._open = start, os.open(path, os.O_RDONLY)
            return os.pread(self._open[1], length, offset - start)
        except FileNotFoundError:
            raise SegmentGone(f"{path} is not there") from None
        except OSError as error:
            raise ReadFailed(f"{path}: {error.strerror or error}") from None

    def close(self) -> None:
        if self._open is not None:
            os.close(self._open[1])
            self._open = None

    def __del__(self) -> None:
        self.close()


class HttpBytes:
    """A broker's files over its control plane, as they were when the audit began."""

    def __init__(self, log: PairLog, spec: ReplicaSpec) -> None:
        self._log, self._plane = log, ControlPlane(spec)

    def read(self, offset: int, length: int) -> bytes:
        found: list[bytes] = []
        while length > 0:
            asked = min(length, REQUEST_BYTES_MAX)
            piece = self._piece(offset, asked)
            found.append(piece)
            if len(piece) < asked:
                break
            offset, length = offset + asked, length - asked
        return found[0] if len(found) == 1 else b"".join(found)

    def _piece(self, offset: int, length: int) -> bytes:
        start = offset - offset % self._log.file_bytes
        first = offset - start
        headers = {"Range": f"bytes={first}-{first + length - 1}", "If-Match": f'"{self._log.version}"'}
        for left in reversed(range(TRIES)):
            try:
                status, _, body = self._plane.get(f"/ha/log/{file_name(start)}", headers=headers)
            except ControlError as error:
                if error.status == 412 and left:  # a broker that did not answer for a moment has no version
                    time.sleep(AGAIN_S)
                    continue
                if error.status == 412:
                    text = f"{self._log.id}'s log was cut, or its broker restarted, while the audit read it"
                    raise LogChanged(text) from None
                if error.status == 416:
                    return b""
                if error.status in (404, 410):
                    raise SegmentGone(str(error)) from None
                raise
            return body if status == 206 else body[first : first + length]
        raise AssertionError("unreachable")


def reader_of(log: PairLog, spec: ReplicaSpec) -> Bytes:
    return HttpBytes(log, spec) if spec.kind == "http" else DirectoryBytes(log)
