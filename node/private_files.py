"""What a process writes is its owner's alone to read: bodies of messages are somebody's data.

A file's maker may say so itself (mode 0600), and those that hold secrets do; the umask is for all others, also those
that libraries and children make. What is there already keeps its mode.
"""

from __future__ import annotations

import os
from typing import Final

OTHERS: Final = 0o077  # what a group's members and everybody else may do


def keep_files_private() -> None:
    """From now on, in this process and its children, whatever the shell's umask was."""
    os.umask(os.umask(OTHERS) | OTHERS)
