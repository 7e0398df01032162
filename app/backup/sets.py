"""Several full back-ups side by side: one directory each, named by its time, and how many of them are kept.

A run makes a set of its own, from the first entry on, under another name; it is tried where that was asked for, then
named, and only then older ones go. Invariants: a set that is damaged counts for nothing; as many sound ones as are to
be kept stay, so the last sound one never goes; a run that fails removes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from app.backup.taking import BackupRefused
from node.store.backup.manifest import LOCK, MANIFEST, check_files, hold, read_manifest
from node.store.errors import StoreError
from node.store.files.os_files import make_directory, sync_directory
from node.store.files.platform import OS, Platform

NAME: Final = re.compile(r"\d{8}T\d{6}Z")
STAMP: Final = "%Y%m%dT%H%M%SZ"
PART: Final = ".part"
GOING: Final = "removed-"
Json = dict[str, Any]


def sets_in(root: Path, platform: Platform = OS) -> list[Path]:
    """Oldest first, sound or not."""
    return [root / name for name in platform.names(root) if NAME.fullmatch(name)]


def is_sound(one: Path, platform: Platform = OS) -> bool:
    """Whether its manifest can be read, every file is there in full, and a group could go on from them; what is in
    them, `verify` reads."""
    try:
        manifest = read_manifest(one, platform)
        if manifest is not None:
            check_files(one, manifest, platform)
    except StoreError:
        return False
    return manifest is not None and (manifest.log is None or manifest.log.lacks_state is None)


def newest_in(root: Path, platform: Platform = OS) -> Path:
    """The back-up itself, or the newest sound one of several. Raises BackupRefused."""
    if platform.exists(root / MANIFEST):
        return root
    found = next((one for one in reversed(sets_in(root, platform)) if is_sound(one, platform)), None)
    if found is None:
        raise BackupRefused(f"{root} is no back-up: there is no manifest in it, and no sound back-up below it")
    return found


def add_set(root: Path, keep: int, make: Callable[[Path], Json], platform: Platform = OS) -> Json:
    """One more set, made by `make`; then those beyond `keep` go. Raises BackupRefused, and what `make` raises."""
    make_directory(root, platform)
    for name in platform.names(root):
        if not (NAME.fullmatch(name.removesuffix(PART).removeprefix(GOING)) or name == LOCK):
            raise BackupRefused(
                f"{root} holds {name}: sets of back-ups go into a directory of their own, name an empty one"
            )
    lock = hold(root, platform)
    try:
        for name in platform.names(root):
            if name.endswith(PART) or name.startswith(GOING):
                platform.remove_tree(root / name)
        named = root / _name_behind(sets_in(root, platform))
        part = root / f"{named.name}{PART}"
        result = make(part)
        platform.replace(part, named)
        sync_directory(root, platform)
        return result | {"directory": str(named), "removed": [one.name for one in drop_old(root, keep, platform)]}
    finally:
        lock.release()


def _name_behind(known: list[Path]) -> str:
    """The time now; a second behind the newest set's where the clock is not past that."""
    now = datetime.now(UTC)
    if not known:
        return now.strftime(STAMP)
    try:
        newest = datetime.strptime(known[-1].name, STAMP).replace(tzinfo=UTC)
        return max(now, newest + timedelta(seconds=1)).strftime(STAMP)
    except (ValueError, OverflowError) as error:
        raise BackupRefused(f"{known[-1]} is named by no time that can be: move it away first") from error


def drop_old(root: Path, keep: int, platform: Platform = OS) -> list[Path]:
    """Removes what is older than the `keep` newest sound sets; which ones went. Raises ValueError."""
    if keep < 1:
        raise ValueError(f"{keep} back-ups are to be kept: one at the least")
    sound = [one for one in sets_in(root, platform) if is_sound(one, platform)]
    if len(sound) < keep:
        return []
    oldest_kept = sound[-keep]
    gone = [one for one in sets_in(root, platform) if one.name < oldest_kept.name]
    for one in gone:  # under another name first: a set is whole under its name, or not there
        rest = root / f"{GOING}{one.name}"
        platform.replace(one, rest)
        platform.remove_tree(rest)
    if gone:
        sync_directory(root, platform)
    return gone
