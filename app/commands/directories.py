"""Directories that a command is given."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from app.commands.endings import Exit, Failure

if TYPE_CHECKING:
    from node.store.files.identity import Identity

STATE_BYTES_MAX: Final = 64 << 20  # a store's files beside data and index: some KiB each, read whole


def existing_directory(path: Path, option: str = "") -> Path:
    """The same path. Raises Failure where there is none, or something else."""
    if not path.is_dir():
        what = "it is no directory" if path.exists() else "there is no such directory"
        raise Failure(Exit.USAGE, f"{option}{' ' if option else ''}{path}: {what}")
    return path


def check_state_files(store: Path) -> None:
    """Raises Failure where a file that lies directly in a store is longer than any that a member writes there."""
    for path in sorted(store.iterdir()):
        found = path.stat(follow_symlinks=False)
        if stat.S_ISREG(found.st_mode) and found.st_size > STATE_BYTES_MAX:
            text = f"{path} is {found.st_size} bytes long, and no file of a member's state is over {STATE_BYTES_MAX}"
            raise Failure(Exit.UNDETERMINED, f"{text}: move it away and look again")


def check_file_sizes(store: Path, asked_bytes: tuple[int | None, int | None], identity: Identity | None) -> None:
    """What options say of the files in `data` and `index`. Raises Failure where these say something else.

    With a wrong length every sound file would pass for a damaged one.
    """
    for kind, asked in zip(("data", "index"), asked_bytes, strict=True):
        if asked is None:
            continue
        option = f"--{kind}-file-size {asked}"
        if identity is not None:
            known = identity.data_file_size if kind == "data" else identity.index_file_size
            if asked != known:
                raise Failure(Exit.USAGE, f"{option}: this store's have {known} bytes, as it says itself; leave it out")
            continue
        files = [path for path in (store / kind).glob("*") if path.name.isascii() and path.name.isdigit()]
        found = sorted({path.stat().st_size for path in files} - {0})
        if found and asked not in found:
            raise Failure(
                Exit.USAGE, f"{option}: no file of {store / kind} has it; they have {', '.join(map(str, found))}"
            )
