"""CPU priority: engines first; control plane, console and audits lower theirs where cores are short.

Linux shares a core among *sessions* first (sched_autogroup), and `nice` counts only within one. So a process that is to
stand behind an engine must be in the engine's session, or alone in its own and say so for the session as a whole. Hence
children get a process group of their own and not a session (`node.children`).
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

LOW_PRIORITY_NICENESS: Final = (
    5  # a third of an engine's share where both want the same core; nothing where there is room
)
_AUTOGROUP: Final = Path("/proc/self/autogroup")


def lower_priority(niceness: int = LOW_PRIORITY_NICENESS) -> None:
    """Lets others go first, for good; never raises: on a system that refuses it, looking only costs more."""
    with contextlib.suppress(OSError):
        os.nice(max(0, niceness - os.nice(0)))
    if os.getsid(0) == os.getpid():  # the session is ours, and so is what its scheduling group is worth
        with contextlib.suppress(OSError):
            _AUTOGROUP.write_text(str(niceness))
