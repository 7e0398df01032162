"""A data directory that cannot be written to, or is gone: no engine runs there, and none can leave a note why."""

from __future__ import annotations

import os
from pathlib import Path


def is_unwritable(data: Path) -> bool:
    """Whether it is there, and the system lets this process write nothing to it (another's, or read-only)."""
    return data.is_dir() and not os.access(data, os.W_OK)


def why_denied(data: Path) -> str:
    """What to do where nothing may be written to a data directory."""
    return (
        f"user {os.getuid()} cannot write to {data}: give it that directory with all that is in it (chown -R), or mount"
        " its file system read-write (one that met errors is mounted read-only by the system: look into its log first);"
        " then start the node again"
    )


def why_gone(directory: Path, *, in_a_pair: bool = False) -> str:
    """What to do where a directory was taken from under its engine: removed, renamed, replaced, or with its disk."""
    lost = (
        "promote the pair's other broker where this one was the master, then start the node: with an empty directory it"
        " is a slave, and is sent all of the log"
        if in_a_pair
        else "start the node without --init while the other members hold the log: it comes back without a vote, and its"
        " leader brings it all of the log"
    )
    return (
        f"{directory} (or a file in it: lock, or the newest of its log) was removed, renamed or replaced, or its disk"
        " taken away, so nothing more is confirmed here: put it back as it was (rename it back, mount the disk), then"
        f" start the node again, and nothing is lost; where it is lost, {lost}"
    )
