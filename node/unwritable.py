"""A data directory to which nothing may be written: no engine runs there, and none can leave a note why."""

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
