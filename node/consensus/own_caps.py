"""What this release can do that earlier ones cannot, as its HELLO says it: whoever has to know looks there.

Invariant: a name is never used again for another ability.
"""

from __future__ import annotations

from typing import Final

TAKES_BASE: Final = "base_install"  # begins its log where its leader's begins
TAKES_SNAPSHOT: Final = "snapshot_install"  # the same behind a snapshot that comes in pieces
SEES_CHANGES: Final = "members_of_kinds"  # sees changes of the members in a log that is not plain, too
OWN_CAPS: Final = (TAKES_BASE, TAKES_SNAPSHOT, SEES_CHANGES)
