"""Directories that a command is given."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Final

from app.commands.endings import Exit, Failure

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
