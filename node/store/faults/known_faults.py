"""`faults`: the damage that is known, kept over a restart so that a start looks there again (SAFETY S6).

It is a hint and nothing more: a start verifies from the first of them on, and what is sound again is forgotten. Without
it a start reads the last 16 MiB only, and a member with older damage would campaign until somebody reads it again.

Invariants: replaced whole; a file that cannot be read means that everything is to be looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from node.store.errors import StoreRefused
from node.store.faults.results import Fault
from node.store.files.os_files import pack_sealed_json, read_sealed_json, replace_file
from node.store.files.platform import OS, Platform

FAULTS = "faults"
FROM_THE_START = -1


def first_known_fault(directory: Path, platform: Platform = OS) -> int | None:
    """The first entry known to be damaged; FROM_THE_START where the file is damaged itself, None without one."""
    try:
        value = read_sealed_json(directory / FAULTS, platform)
    except StoreRefused:
        return FROM_THE_START
    ranges = value.get("ranges") if value is not None else None
    if not ranges:
        return None
    try:
        return min(int(first) for first, _ in ranges)
    except (TypeError, ValueError):
        return FROM_THE_START


def save_known_faults(directory: Path, faults: Sequence[Fault], platform: Platform = OS) -> None:
    """Durable on return. Raises StoreFull, StoreIOError; then what was kept before stays."""
    if not faults and not platform.exists(directory / FAULTS):
        return
    ranges = [[fault.first_index, fault.last_index] for fault in faults]
    replace_file(directory / FAULTS, pack_sealed_json({"ranges": ranges}), platform=platform)
