"""Directories that a command is given."""

from __future__ import annotations

from pathlib import Path

from app.commands.endings import Exit, Failure


def existing_directory(path: Path, option: str = "") -> Path:
    """The same path. Raises Failure where there is none, or something else."""
    if not path.is_dir():
        what = "it is no directory" if path.exists() else "there is no such directory"
        raise Failure(Exit.USAGE, f"{option}{' ' if option else ''}{path}: {what}")
    return path
