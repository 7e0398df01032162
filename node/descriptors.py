"""How many file descriptors this process may have, and how many of them connections may take.

Invariant: some are left for files and for what the process itself connects to, however many connect to it.
"""

from __future__ import annotations

import contextlib
import os
import resource
from typing import Final

# For the next files (a store's, a database's), for our own dials and the members that dial us.
DESCRIPTORS_KEPT: Final = 96
DESCRIPTORS_WANTED: Final = 16_384
COUNT_EVERY: Final = 256  # accepts
DESCRIPTORS: Final = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"


class Descriptors:
    """How many more connections this process may have. Looks anew now and then: its files become more."""

    def __init__(self, count_every: int = COUNT_EVERY) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_WANTED)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                soft = wanted
        self.limit = wanted if soft == resource.RLIM_INFINITY else soft
        self._count_every = count_every
        self._others = 0
        self._asked = 0

    def left(self, connections: int) -> int:
        """How many beside the `connections` that there are."""
        if self._asked % self._count_every == 0:
            try:
                self._others = max(0, len(os.listdir(DESCRIPTORS)) - connections)
            except OSError:  # not even one for this
                return 0
        self._asked += 1
        return self.limit - DESCRIPTORS_KEPT - self._others - connections
