"""The file `layout`: from which entry on every head's position is the record's place, after a Java past (S6).

No checksum covers the position in a head. Where all was laid out here it follows from the layout alone (S5): it is held
against the record's place. A directory that a Java node wrote is read in full when it is adopted: the border lies
behind the last head that says another place. Where a leader later says that its own record lies elsewhere, the layouts
of the group differ, heads keep their leader's positions, and nothing is compared in this store any more (NOWHERE).

Invariants: a store without a heritage has no such file, and its border is 0; a border only ever rises; it is durable
before what was written under it is reported as durable. The file is one of its own because older releases refuse a
`quorumscope.json` with a field that they do not know.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from node.protocol.entry import POSITION_MAX
from node.store.errors import StoreRefused
from node.store.files.os_files import pack_sealed_json, read_sealed_json, replace_file
from node.store.files.platform import OS, Platform

LAYOUT: Final = "layout"
NOWHERE: Final = POSITION_MAX
_VERSION: Final = 1


def read_straight_from(directory: Path, sealed_from: int, platform: Platform = OS) -> int | None:
    """None: a heritage from before borders were recorded, or a file that is not to be believed."""
    try:
        value = read_sealed_json(directory / LAYOUT, platform)
    except StoreRefused:
        return None
    if value is None:
        return 0 if sealed_from == 0 else None
    border = value.get("straight_from")
    if value.get("version") != _VERSION or type(border) is not int or not 0 <= border <= NOWHERE:
        return None
    return border


def write_straight_from(directory: Path, straight_from: int, platform: Platform = OS) -> None:
    """Durable on return."""
    value = {"version": _VERSION, "straight_from": straight_from}
    replace_file(directory / LAYOUT, pack_sealed_json(value), platform=platform)
