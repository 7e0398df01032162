"""The few ways in which the store touches the operating system, each of them wrapped once.

Invariants: a small file is replaced whole or not at all (temp, fsync, rename, fsync of the directory); no error of the
operating system leaves unwrapped: no space is StoreFull, all else StoreIOError.
"""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

from node.protocol.entry import crc32
from node.store.errors import StoreFull, StoreIOError, StoreRefused, is_unreadable, wrap
from node.store.files.platform import OS, Platform

SECTOR_BYTES = 512
SMALL_BYTES_MAX = 16 * 1024 * 1024  # of what is replaced as a whole: many times what any of it can need
_ZEROS = bytes(1024 * 1024)


def write_all(
    fd: int, data: bytes | memoryview, offset: int, attempt: str, platform: Platform = OS, done: int = 0
) -> None:
    """pwrite of everything; `done` bytes are written already.

    What was written short before an error is zeroed again (SAFETY S8); see StoreFull where even that finds no space.
    """
    try:
        while done < len(data):
            done += platform.pwrite(fd, data[done:] if done else data, offset + done)
    except OSError as error:
        if done:
            try:
                zero(fd, offset, done, attempt, platform)
            except StoreFull as full:
                full.leaves_bytes = True
                raise
        raise wrap(error, attempt) from error


def zero(fd: int, offset: int, length: int, attempt: str, platform: Platform = OS) -> None:
    """Overwrites with zeros, from the back to the front: what is left of a crash is a prefix, never a hole.

    Raises StoreFull (not all is zeroed), StoreIOError.
    """
    end = offset + length
    try:
        while end > offset:
            step = min(len(_ZEROS), end - offset)
            done = 0
            while done < step:
                done += platform.pwrite(fd, _ZEROS[: step - done], end - step + done)
            end -= step
    except OSError as error:
        raise wrap(error, f"{attempt}: zeroing {length} bytes") from error


def is_zeros(data: bytes) -> bool:
    """Whether there is no other byte in it: compared in whole blocks, many times faster than counting."""
    step = len(_ZEROS)
    if len(data) <= step:
        return data == _ZEROS[: len(data)] if len(data) < step else data == _ZEROS
    return all(is_zeros(data[at : at + step]) for at in range(0, len(data), step))


def sync_fd(fd: int, attempt: str, platform: Platform = OS) -> None:
    """fdatasync. An error is final: it is never retried (SAFETY S1). Raises StoreIOError."""
    try:
        platform.fdatasync(fd)
    except OSError as error:
        raise StoreIOError(f"{attempt}: {error.strerror or error}") from error


def sync_directory(path: Path, platform: Platform = OS) -> None:
    """Makes names in a directory durable. Raises StoreIOError."""
    try:
        platform.sync_directory(path)
    except OSError as error:
        raise StoreIOError(f"syncing directory {path}: {error.strerror}") from error


def make_directory(path: Path, platform: Platform = OS) -> None:
    """A directory whose name is durable, and the names of all the parents that had to be made for it.

    One that is there already is synced too: a crash may have come between its making and its sync.
    """
    wanted = [path]
    while not platform.exists(wanted[-1].parent):
        wanted.append(wanted[-1].parent)
    for one in reversed(wanted):
        try:
            platform.make_directory(one)
        except OSError as error:
            raise wrap(error, f"creating {one}") from error
        sync_directory(one.parent, platform)


def sync_parents(directory: Path, platform: Platform = OS) -> None:
    """Makes durable the names of all the directories that a new one is in: an interrupted start may have made them.

    It ends at one that this process may not open: it did not make what is in there either. Raises StoreIOError.
    """
    for parent in directory.parents:
        try:
            platform.sync_directory(parent)
        except PermissionError:
            return
        except OSError as error:
            if error.errno != errno.EINVAL:  # a file system that knows no such thing
                raise StoreIOError(f"syncing directory {parent}: {error.strerror}") from error


def write_synced(path: Path, data: bytes, platform: Platform = OS) -> None:
    """A whole new file, synced; its name is not durable yet."""
    try:
        fd = platform.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    except OSError as error:
        raise wrap(error, f"creating {path}") from error
    try:
        write_all(fd, data, 0, f"writing {path}", platform)
        platform.fsync(fd)
    except OSError as error:
        raise wrap(error, f"syncing {path}") from error
    finally:
        platform.close(fd)


def replace_file(path: Path, data: bytes, *, sync_name: bool = True, platform: Platform = OS) -> None:
    """Replaces a small file: temp, fsync, rename, fsync of the directory."""
    temporary = path.with_name(path.name + ".tmp")
    write_synced(temporary, data, platform)
    try:
        platform.replace(temporary, path)
    except OSError as error:
        raise wrap(error, f"renaming {temporary}") from error
    if sync_name:
        sync_directory(path.parent, platform)


def pack_sealed_json(value: dict[str, Any]) -> bytes:
    """One line of JSON behind its CRC, so that a damaged file is never believed."""
    text = json.dumps(value, sort_keys=True).encode()
    return b"%08x %s\n" % (crc32(text), text)


def read_small(path: Path, platform: Platform = OS) -> bytes:
    """A file that is small as long as it is what was written. Raises StoreRefused where it is too long for that, before
    anything of it is in memory; OSError.
    """
    length = platform.path_size(path)
    if length > SMALL_BYTES_MAX:
        raise StoreRefused(f"{path} is damaged: it has {length} bytes, and none that is written has {SMALL_BYTES_MAX}")
    return platform.read_bytes(path)


def read_sealed_json(path: Path, platform: Platform = OS) -> dict[str, Any] | None:
    """The value, None where there is no such file. Raises StoreRefused where its CRC does not match, it is too long, or
    the disk cannot read it; StoreIOError.
    """
    try:
        data = read_small(path, platform)
    except FileNotFoundError:
        return None
    except OSError as error:
        if is_unreadable(error):
            raise StoreRefused(f"{path} is damaged: the disk cannot read it ({error.strerror})") from error
        raise StoreIOError(f"reading {path}: {error.strerror}") from error
    seal, _, text = data.rstrip(b"\n").partition(b" ")
    try:
        if int(seal, 16) == crc32(text):
            value = json.loads(text)
            if isinstance(value, dict):
                return value
    except (ValueError, RecursionError):
        pass
    raise StoreRefused(f"{path} is damaged: its CRC does not match its content")
