"""Files for Java nodes in our directory: DLedger's text file `checkpoint`, and files of the right length.

RocketMQ's older DLedger (0.3.1.2) keeps its commit index in a text file `checkpoint`, a name that older releases of
ours gave to their own binary file. So ours is `quorumscope.checkpoint` (`files/checkpoint.py`) and whatever is under
the other name is recognised by its content: text is Java's, a hint where a directory is adopted; anything else was
written by an older release of ours, after ours was last written, and takes our file's place at the open.

Java recovers, and cuts what it does not understand, before it takes any lock. So from the open to a clean stop, also
after a crash, a file of one byte is among the data files: Java then finds a file of the wrong length and ends.

A log that Java could read as it is (a broker group's) is ours until a hand-over, also when we stopped. Java recovers
what is in `DATA/commitlog` first, a commit log of older days or nothing: there is such a file, too.

Invariants: `committedIndex` in Java's file never exceeds what this store knows to be committed and durable; a rename
brings an older file over, so at any moment one of the two names has it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from node.protocol.entry import POSITION_MAX
from node.store.errors import StoreIOError, StoreRefused, wrap
from node.store.files.checkpoint import CHECKPOINT, Slot, read_checkpoint
from node.store.files.os_files import make_directory, read_small, replace_file, sync_directory, write_synced
from node.store.files.platform import OS, Platform

JAVA_CHECKPOINT: Final = "checkpoint"
OWNER: Final = "quorumscope-owns"
COMMIT_LOG: Final = "commitlog"
_JAVA_COPIES: Final = ("checkpoint.bak", "checkpoint.tmp")  # what Java leaves when it replaces its file
_TEXT_BYTES_MAX = 4096
_COMMITTED, _END = "committedIndex", "endIndex"


def checkpoint_slot(directory: Path, platform: Platform = OS) -> Slot | None:
    """The newest sound slot, also where the file still has the name that an older release gave it.

    That name first: a rename goes from it to ours, so one of the two is met.
    """
    if _old_release_wrote(directory, platform):
        return read_checkpoint(directory / JAVA_CHECKPOINT, platform)
    return read_checkpoint(directory / CHECKPOINT, platform)


def carry_over_checkpoint(directory: Path, platform: Platform = OS) -> None:
    """Gives an older release's file our name; it is newer than ours, which that release did not know."""
    if not _old_release_wrote(directory, platform):
        return
    path = directory / JAVA_CHECKPOINT
    try:
        platform.replace(path, directory / CHECKPOINT)
    except OSError as error:
        raise wrap(error, f"renaming {path}") from error
    sync_directory(directory, platform)


def java_committed_index(directory: Path, platform: Platform = OS) -> int:
    """What Java's checkpoint says is committed; -1 where there is none, or none that can be read."""
    data = _read(directory / JAVA_CHECKPOINT, platform)
    if not _is_text(data):
        return -1
    for line in data.decode("ascii").splitlines():
        key, _, value = line.partition("=")
        if key.strip() == _COMMITTED and value.strip().isdecimal() and len(value.strip()) < len(str(POSITION_MAX)):
            return int(value)
    return -1


def drop_java_checkpoint(directory: Path, platform: Platform = OS) -> None:
    """What it said is known by now, and nobody keeps it true while this store is open."""
    if _old_release_wrote(directory, platform):
        raise AssertionError("an older release's checkpoint is carried over before Java's is dropped")
    for name in (JAVA_CHECKPOINT, *_JAVA_COPIES):
        if platform.exists(directory / name):
            _unlink(directory / name, platform)


def own_directory(directory: Path, platform: Platform = OS) -> None:
    """From now on no Java node gets to recover here; durable on return."""
    _own(directory / "data", platform)


def own_commit_log(directory: Path, platform: Platform = OS) -> None:
    """The same for a RocketMQ broker, which looks at its old commit log first, beside the `directory` of this log."""
    make_directory(directory.parent / COMMIT_LOG, platform)
    _own(directory.parent / COMMIT_LOG, platform)


def refuse_old_commit_log(directory: Path, platform: Platform = OS) -> None:
    """Before a broker group's log is born beside messages: both would give their messages the same places.

    Raises StoreRefused.
    """
    folder = directory.parent / COMMIT_LOG
    if platform.exists(folder) and any(name.isdigit() for name in platform.names(folder)):
        raise StoreRefused(
            f"{folder} holds a RocketMQ broker's messages: a new group begins with an empty --data, and RocketMQ's"
            " replicated log, with such messages beside it, is taken over with `quorumscope store adopt`"
        )


def _own(folder: Path, platform: Platform) -> None:
    path = folder / OWNER
    if platform.exists(path) and platform.path_size(path) == 1:
        return
    write_synced(path, b"\n", platform)
    sync_directory(path.parent, platform)


def leave_to_java(directory: Path, committed_index: int, end_index: int, platform: Platform = OS) -> None:
    """A plain log stops cleanly: any node may take it on, with the checkpoint that Java's keeps."""
    text = f"{_COMMITTED}={committed_index}\n{_END}={end_index}\n".encode()
    replace_file(directory / JAVA_CHECKPOINT, text, platform=platform)
    _unlink(directory / "data" / OWNER, platform)
    sync_directory(directory / "data", platform)


def _old_release_wrote(directory: Path, platform: Platform) -> bool:
    """Whether `checkpoint` is binary: an empty one is what a crash of either left, and says nothing."""
    data = _read(directory / JAVA_CHECKPOINT, platform)
    return bool(data) and not _is_text(data)


def _is_text(data: bytes) -> bool:
    return 0 < len(data) <= _TEXT_BYTES_MAX and data.isascii() and b"\0" not in data


def _read(path: Path, platform: Platform) -> bytes:
    try:
        return read_small(path, platform)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise StoreIOError(f"reading {path}: {error.strerror}") from error


def _unlink(path: Path, platform: Platform) -> None:
    try:
        platform.unlink(path)
    except OSError as error:
        raise wrap(error, f"removing {path}") from error
