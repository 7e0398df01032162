"""The check that a store's names are plain files that this process may open; else an operator has to look.

A directory, a FIFO or a link in place of a file is no damage that peers could heal, and a restart changes nothing
about it: opening refuses and names it. Invariants: nothing is opened before its kind is known (a FIFO
would never answer); nothing is written.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from node.store.errors import StoreRefused
from node.store.faults.known_faults import FAULTS
from node.store.files.checkpoint import CHECKPOINT
from node.store.files.hard_state import CURRTERM, HARDSTATE, RESERVE
from node.store.files.identity import BASE, IDENTITY, LOCK
from node.store.files.java_files import JAVA_CHECKPOINT
from node.store.files.platform import FILE, LINK, Platform
from node.store.files.segment import NAME_DIGITS
from node.store.files.straight import LAYOUT

READ_ONLY: Final = (IDENTITY, BASE, CURRTERM, HARDSTATE, FAULTS, LAYOUT)  # replaced as a whole, never written in place
WRITTEN: Final = (LOCK, CHECKPOINT, JAVA_CHECKPOINT, RESERVE)
ROWS: Final = ("data", "index")


def refuse_what_is_no_file(directory: Path, platform: Platform) -> None:
    """Raises StoreRefused, naming the first one."""
    for what, way in what_is_no_file(directory, platform):
        raise StoreRefused(f"{what}: {way}")


def refuse_what_never_answers(directory: Path, platform: Platform) -> None:
    """For who only reads: a link may lead to a file, all else than a file (a FIFO waits for its writer) is refused by
    name. Raises StoreRefused."""
    for name in (*READ_ONLY, *WRITTEN):
        kind = platform.file_kind(directory / name)
        if kind not in ("", FILE, LINK):
            raise StoreRefused(
                f"{directory / name} is a {kind}, not a file of this store: {_way_out(directory / name, kind)}"
            )


def what_is_no_file(directory: Path, platform: Platform) -> Iterator[tuple[str, str]]:
    """What is wrong with each of them, and what settles it."""
    for path, flags in _paths(directory, platform):
        kind = platform.file_kind(path)
        if kind == "":
            continue
        if kind != FILE:
            yield f"{path} is a {kind}, not a file of this store", _way_out(path, kind)
            continue
        try:
            platform.close(platform.open(path, flags))
        except OSError as error:
            way = f"let the user that runs this member read and write it (`ls -l {path}` shows whose it is)"
            if error.errno == errno.EROFS:
                way = "mount its file system read-write; one that met errors is mounted read-only: look at that disk"
            yield f"{path} cannot be opened ({error.strerror or error})", way


def _way_out(path: Path, kind: str) -> str:
    if kind == LINK:
        return "put the file that it leads to in its place (the directory itself may be a link, its files may not)"
    rest = "; what a data or index file held is then taken from the others" if path.parent.name in ROWS else ""
    return f"move it away, and put the file back if it still exists{rest}"


def _paths(directory: Path, platform: Platform) -> Iterator[tuple[Path, int]]:
    """The store's files by their names, and how they are opened."""
    for name in READ_ONLY:
        yield directory / name, os.O_RDONLY
    for name in WRITTEN:
        yield directory / name, os.O_RDWR
    for row in ROWS:
        for name in platform.names(directory / row):
            if len(name) == NAME_DIGITS and name.isdigit():
                yield directory / row / name, os.O_RDWR
