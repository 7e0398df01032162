"""A node's own trail: what operators asked of it, through its control plane or with a command on its machine.

`DATA/operator-trail.jsonl`, one entry a line, in a hash chain like the console's (node.hash_chain): a row begins with
who, what, to what, from where and through which token, and ended with its status and with what was before and asked; an
operation that goes on has an entry `outcome` when it is over. Invariants: an attempt is on disk before it runs, and
what cannot be recorded does not happen; several processes may write, one at a time; a line that a crash cut short is
taken away, and the chain says so. Beyond FILE_BYTES_MAX the file becomes `….1`, in place of an older one.

Behind its end the file has room of its own, where the file system can give it: on a full disk an operator has to be
able to move leadership away, and so has a broker whose queues find no space.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import getpass
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from node.hash_chain import (
    BEGUN,
    CUT,
    ENDED,
    ORIGIN,
    WRITTEN,
    Verified,
    canonical,
    check_link,
    check_time,
    hash_of,
    line_of,
    parse,
)
from node.regular_file import open_regular

NAME: Final = "operator-trail.jsonl"
OUTCOME: Final = "outcome"
TORN: Final = "torn"
KINDS: Final = frozenset({BEGUN, ENDED, OUTCOME, CUT, TORN})
FILE_BYTES_MAX: Final = 8 << 20
LINE_BYTES_MAX: Final = 64 << 10
ROOM_BYTES: Final = 128 << 10
_KEEP_SIZE: Final = 1
_FALLOCATE: Final[Any] = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)  # Linux alone has it
if _FALLOCATE is not None:
    _FALLOCATE.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
TEXT_CHARS_MAX: Final = 512
Json = dict[str, Any]


class Entry(NamedTuple):
    """A line. `at`: when it was written."""

    seq: int
    content: str
    previous_hash: str
    hash: str
    at: str


def older_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")


def now_text() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def login_name() -> str:
    """Who runs a command on this machine."""
    try:
        return getpass.getuser()[:64]
    except (KeyError, OSError):
        return str(os.getuid())


class OperatorTrail:
    """Writes; blocking, some milliseconds each. Raises OSError where nothing can be recorded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, *, refused: bool = False, **who_what: str) -> int:
        """The row's number. What is refused anyway costs no sync: whoever has no right must not keep the disk busy."""
        said = {name: text[:TEXT_CHARS_MAX] for name, text in who_what.items()}
        return self._append(BEGUN, None, {"at": now_text(), **said}, sync=not refused)

    def end(self, row: int, status: int, detail: Mapping[str, Any] | None = None) -> None:
        self._append(ENDED, row, {"status": status, "detail": bounded(detail)})

    def outcome(self, row: int, detail: Mapping[str, Any]) -> None:
        """How an operation that this row began was over."""
        self._append(OUTCOME, row, {"detail": bounded(detail)})

    def keep_room(self) -> None:
        """As early as there is some."""
        with contextlib.suppress(OSError), self._locked() as file:
            _keep_room(file)

    def _append(self, kind: str, row: int | None, values: Json, *, sync: bool = False) -> int:
        with self._locked() as file:
            last, torn = tail_of(file, self.path)
            lines = []
            if torn:
                os.ftruncate(file, os.fstat(file).st_size - torn)
                last = link(last, TORN, 0, {"bytes": torn})
                lines.append(line_of(last, last.at))
            if last is not None and os.fstat(file).st_size == 0:  # what was before is in the older file
                last = link(last, CUT, 0, {"upto_seq": last.seq, "hash": last.hash})
                lines.append(line_of(last, last.at))
            made = link(last, kind, row, values)
            lines.append(line_of(made, made.at))
            _write_all(file, "".join(lines).encode())
            _keep_room(file)
            if sync:
                os.fdatasync(file)
            return made.seq

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """The newest file, held against other writers; made, or begun anew, where it is time."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        while True:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                if not same_file(file, self.path):
                    continue  # another writer began a new one meanwhile
                if os.fstat(file).st_size >= FILE_BYTES_MAX:
                    os.replace(self.path, older_file(self.path))
                    continue
                yield file
                return
            finally:
                os.close(file)


def _write_all(file: int, data: bytes) -> None:
    """Or nothing. Raises OSError: where a disk has room for a part, `write` takes that and says no more."""
    before = os.fstat(file).st_size
    written = os.write(file, data)
    if written < len(data):
        os.ftruncate(file, before)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _keep_room(file: int) -> None:
    """What is there already stays; where there is no more, nothing happens."""
    if _FALLOCATE is not None:
        _FALLOCATE(file, _KEEP_SIZE, os.fstat(file).st_size, ROOM_BYTES)


def same_file(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


def link(last: Entry | None, kind: str, row: int | None, values: Json) -> Entry:
    """The entry behind `last`; a row that begins has its entry's number."""
    seq, previous = (last.seq + 1, last.hash) if last is not None else (1, ORIGIN)
    at = now_text()
    content = canonical({"kind": kind, "row": seq if row is None else row, **values, WRITTEN: at})
    return Entry(seq, content, previous, hash_of(previous, content), at)


class DamagedTrail(OSError):
    """Nothing can be chained to its last line. The text names the file and the way out: no disk is full or broken."""


def tail_of(file: int, path: Path) -> tuple[Entry | None, int]:
    """The newest entry, and how many bytes of a line that was cut short follow it. Raises OSError."""
    size = os.fstat(file).st_size
    data = os.pread(file, LINE_BYTES_MAX * 2, max(0, size - LINE_BYTES_MAX * 2))
    whole, _, torn = data.rpartition(b"\n") if b"\n" in data else (b"", b"", data)
    last = entry_of(whole.rpartition(b"\n")[2]) if whole else None
    if whole and last is None:
        raise DamagedTrail(
            f"the last line of {path} is damaged: keep that file under another name, and a new trail begins;"
            " `quorumscope trail verify --file FILE` says what of it is whole"
        )
    if size == 0:
        last = newest_of_older(path)
    return last, len(torn)


def newest_of_older(path: Path) -> Entry | None:
    before = older_file(path)
    try:
        older = os.open(before, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return tail_of(older, before)[0] if os.fstat(older).st_size else None
    finally:
        os.close(older)


def entry_of(line: bytes) -> Entry | None:
    try:
        said = json.loads(line)
        seq, texts = said["seq"], [said[name] for name in ("content", "previous_hash", "hash", "at")]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if type(seq) is not int or not all(isinstance(one, str) and is_utf8(one) for one in texts):
        return None
    return Entry(seq, *texts)


def is_utf8(text: str) -> bool:
    """Not so of half a character, which JSON may say and no hash is made of."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def bounded(detail: Mapping[str, Any] | None) -> Json | None:
    if not detail:
        return None
    kept = {name: value for name, value in detail.items() if value is not None}
    return kept if len(canonical(kept)) <= LINE_BYTES_MAX // 4 else {"too_long": canonical(kept)[:TEXT_CHARS_MAX]}


# --- checking ---


def verify(path: Path, head: str | None = None) -> Verified:
    """Every entry of a trail's file, and of the older one beside it. Raises OSError."""
    done = Verified(head_found=None if head is None else False)
    files: Sequence[Path] = [one for one in (older_file(path), path) if one == path or one.exists()]
    without_end: set[int] = set()
    previous: Entry | None = None
    for one in files:
        with open_regular(one) as file:
            for number, line in enumerate(iter(lambda: file.readline(LINE_BYTES_MAX), b""), 1):
                entry = entry_of(line)
                if entry is None:
                    done.found(f"{one.name}, line {number}: no entry")
                    continue
                content = parse(entry.content)
                if line.rstrip(b"\n") != line_of(entry, entry.at).encode().rstrip(b"\n"):
                    # What is said twice, or beside what is hashed, is read by others and vouched for by nothing.
                    done.found(f"{one.name}, line {number}: entry {entry.seq} is not written as a trail writes it")
                check_time(done, entry, content, entry.at)
                check_link(done, entry, previous, cuts_of(content))
                check_content(done, entry, content, without_end)
                done.passed(entry, head)
                previous = entry
    done.rows_without_end = len(without_end)
    done.end(head)
    return done


def cuts_of(content: Json) -> dict[int, Json]:
    """A file that begins anew says in its first entry what went before it; an export may say it later."""
    upto = content.get("upto_seq")
    return {upto: content} if content.get("kind") == CUT and isinstance(upto, int) and "hash" in content else {}


def check_content(done: Verified, entry: Entry, content: Json, without_end: set[int]) -> None:
    kind, row = content.get("kind"), content.get("row")
    if kind not in KINDS or not isinstance(row, int):
        done.found(f"entry {entry.seq} says nothing that a trail says")
    elif kind == BEGUN:
        without_end.add(row)
        done.rows += 1
    elif kind == ENDED:
        without_end.discard(row)
