"""For how long a lane takes no puts after the engine said that its disk is full.

A refused put ends the lane, and with it a snapshot that is being written, which may be what makes space again. So a put
is tried now and then only, and rarely while a snapshot is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from node.client.errors import NotAppended
from node.protocol.codes import ResponseCode

FULL_AGAIN_S: Final = 1.0  # a put is tried so often ...
HELD_S_MAX: Final = 30.0  # ... and so late where a snapshot is being written


class FullDisk:
    """`is_held`: whether a snapshot is being written."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._until = self._since = 0.0
        self.is_held: Callable[[], bool] = lambda: False

    @property
    def is_full(self) -> bool:
        """Whether no put should be tried now."""
        if not self._until:
            return False
        now = self._loop.time()
        return now < self._until or (now < self._since + HELD_S_MAX and self.is_held())

    @property
    def was_met(self) -> bool:
        """Whether an append met a full disk, and no put has been taken since."""
        return self._until > 0

    def refused(self, error: BaseException) -> None:
        """An append failed with `error`; a full disk closes the lane to puts for a while."""
        if isinstance(error, NotAppended) and error.code is ResponseCode.DISK_FULL:
            self._since = self._loop.time()
            self._until = self._since + FULL_AGAIN_S

    def taken(self) -> None:
        """A put was taken: the disk has space again."""
        self._until = 0.0
