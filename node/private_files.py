"""What a process writes is its owner's alone to read: bodies of messages are somebody's data.

A process that crashes leaves no core file: its memory holds tokens, keys and bodies.

A file's maker may say so itself (mode 0600), and those that hold secrets do; the umask is for all others, also those
that libraries and children make. What is there already keeps its mode.
"""

from __future__ import annotations

import os
import resource
import stat
from pathlib import Path
from typing import Final

OTHERS: Final = 0o077  # what a group's members and everybody else may do
WRITTEN_BY_OTHERS: Final = 0o022


def keep_files_private() -> None:
    """From now on, in this process and its children, whatever the shell's umask and limits were."""
    os.umask(os.umask(OTHERS) | OTHERS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def private_folder(path: Path) -> None:
    """Made if need be, with all that is missing above it, for its owner alone: the mode that `mkdir` is given with
    `parents` is the last one's only."""
    if not path.is_dir():
        private_folder(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)


def own_directory(path: Path) -> Path:
    """A directory of a known name in a place where everybody may write (/tmp), made if need be: this user's alone,
    and no link that somebody else has put there. Raises PermissionError where it is not, OSError."""
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & WRITTEN_BY_OTHERS:
        raise PermissionError(f"{path} belongs to somebody else, is a link, or others may write it: remove it")
    if found.st_mode & OTHERS:
        path.chmod(0o700)
    return path
