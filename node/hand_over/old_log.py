"""A commit log of RocketMQ's own that stays beside the replicated log: looked through, named, and closed.

Raft never carries these files, so every member has to have the same ones. What tells: each file's SHA-256 in
`quorumscope/old-log.json`, for people and for `--old-log`; and the last file's, with its end and the files' length, in
the group's id: members whose old logs end otherwise belong to other groups, and say so when they meet. (The first
files may have expired on one member and not yet on another.)

Invariants: nothing is taken over of which a byte is doubtful: every record is whole, lies where it says and has the
right CRC, up to the blank at the end of the last file; a look changes nothing; no position is ever shifted.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from node.hand_over.report import Refused
from node.message_store.blank import encode_blank
from node.message_store.commit_log import local_commit_log
from node.message_store.dispatch_mark import OURS
from node.message_store.local_records import Stop, walk
from node.message_store.local_recovery import sound_behind
from node.message_store.read_files import MappedFile, MappedFileQueue
from node.message_store.write_files import Disk
from node.regular_file import read_regular

OLD_LOG: Final = "old-log.json"
OLD_LOG_BYTES_MAX: Final = 16 << 20
PIECE_BYTES: Final = 8 << 20
_HASHED_BYTES: Final = 1 << 20
Progress = Callable[[int], None]


@dataclass(slots=True, frozen=True)
class OldCommitLog:
    """`end`: behind the last message; `divided`: where the replicated log begins."""

    folder: Path
    begin: int
    end: int
    divided: int
    file_bytes: int
    messages: int
    is_closed: bool
    hashes: dict[str, str]

    @property
    def name(self) -> str:
        """The same on every member that has the same last file."""
        last = self.hashes[max(self.hashes)]
        return sha256(f"{self.divided} {self.file_bytes} {last}".encode()).hexdigest()

    def as_json(self) -> dict[str, object]:
        return {
            "begin_offset": self.begin, "divided_offset": self.divided, "file_bytes": self.file_bytes,
            "messages": self.messages, "sha256": self.hashes, "name": self.name,
        }  # fmt: skip


def look_through(root: Path, divided: int | None, progress: Progress | None = None) -> OldCommitLog | None:
    """All of it; None where there is none. `divided`: where the replicated log begins; None: it has none yet, and
    begins behind the last file. Raises Refused, OSError."""
    queue = local_commit_log(root).queue
    if queue.odd_files:
        name, why = queue.odd_files[0]
        raise Refused(f"{queue.folder / name} {why}: move it away, or bring the right one from another member")
    if not queue.files:
        return None
    at, size = queue.files[0].start, queue.file_size_bytes
    for file in queue.files:
        if file.start != at or file.start % size:
            raise Refused(f"{queue.folder}: the file {at:020d} is missing; bring it from another member")
        at = file.end
    if divided is not None and at > divided:
        raise Refused(
            f"{queue.folder} ends at {at}, and the replicated log begins at {divided} already: both give messages"
            " the same places, so these are not the files from before it; move them away"
        )
    if divided is not None and at != divided:
        raise Refused(
            f"{queue.folder} ends at {at}, the replicated log begins at {divided}: the files between are missing; bring"
            " them from another member, or move all old files away on every member"
        )
    hashes: dict[str, str] = {}
    messages, is_closed, end = 0, True, 0
    for file in queue.files:
        may_be_open = divided is None and file is queue.files[-1]
        end, more, is_closed = _look_at(root, queue, file, may_be_open=may_be_open)
        hashes[file.name] = _hash_of(queue, file, end)
        messages += more
        if progress is not None:
            progress(messages)
    return OldCommitLog(queue.folder, queue.files[0].start, end, at, size, messages, is_closed, hashes)


def _look_at(root: Path, queue: MappedFileQueue, file: MappedFile, *, may_be_open: bool) -> tuple[int, int, bool]:
    """Where its last message ends, how many they are, and whether a blank says that it is full."""
    place = end = file.start
    messages, needs = 0, PIECE_BYTES
    while place < file.end:
        data = queue.read(place, needs)
        found = walk(data, place, file.size_bytes)
        if found.starts:
            messages += len(found.starts)
            end = place + found.starts[-1] + found.sizes[-1]
        place += found.at
        needs = PIECE_BYTES
        if found.stop is Stop.PARTIAL and place + found.needs <= file.end:
            needs = max(found.needs, PIECE_BYTES)
            if found.at or len(data) < found.needs:
                continue
        if found.stop is Stop.END and found.at:
            continue
        if may_be_open and not sound_behind(queue.folder, file.size_bytes, [file.start], place):
            return place, messages, False
        what = found.why or "nothing is written there, and the log goes on behind it"
        raise Refused(
            f"{queue.folder / file.name} is damaged at offset {place}: {what}; bring this file from another member"
            f" (`quorumscope store verify {root}` lists everything)"
        )
    return end, messages, True


def _hash_of(queue: MappedFileQueue, file: MappedFile, end: int) -> str:
    """Of its messages and the blank behind them; what lies in the blank's room is never read."""
    found = sha256()
    for at in range(file.start, end, _HASHED_BYTES):
        found.update(queue.read(at, min(_HASHED_BYTES, end - at)))
    found.update(encode_blank(file.end - end))
    return found.hexdigest()


def close(found: OldCommitLog, disk: Disk) -> None:
    """The last file is full from now on, and on disk. Raises OSError."""
    if not found.is_closed:
        path, start = found.folder / max(found.hashes), found.divided - found.file_bytes
        disk.write(path, found.end - start, encode_blank(found.divided - found.end))
        disk.sync(path)


def write_names(root: Path, found: OldCommitLog, disk: Disk) -> None:
    disk.replace(root / OURS / OLD_LOG, json.dumps(found.as_json(), indent=1).encode() + b"\n")


def compare(found: OldCommitLog, path: Path) -> int:
    """With another member's `quorumscope/old-log.json`: how many files both have. Raises Refused, OSError."""
    try:
        other = json.loads(read_regular(path, OLD_LOG_BYTES_MAX))
        theirs = {str(name): str(one) for name, one in other["sha256"].items()}
        divided, size = int(other["divided_offset"]), int(other["file_bytes"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Refused(f"{path} is no {OLD_LOG} of another member: {error}") from error
    if (divided, size) != (found.divided, found.file_bytes):
        raise Refused(
            f"the old log ends at {found.divided} in files of {found.file_bytes} bytes here, at {divided} in files of"
            f" {size} bytes in {path}: every member has to have the same one; copy `commitlog/` from one of them"
        )
    both = sorted(found.hashes.keys() & theirs.keys())
    for name in both:
        if found.hashes[name] != theirs[name]:
            raise Refused(
                f"{found.folder / name} is not the file that {path} names: find out which of the two is right, and copy"
                " it; nothing was changed"
            )
    return len(both)
