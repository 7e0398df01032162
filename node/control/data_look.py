"""Whether anything can be written to the data directory, found out beside the event loop: a disk that hangs (NFS) holds
up the thread that asked, and nobody else.

Invariants: one question at a time; while it is out, or takes long, the last answer that is known is given.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from node.unwritable import is_unwritable

PATIENCE_S: Final = 0.2  # a disk that is well answers within microseconds


class DataLook:
    """See the module's docstring."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._known = False
        self._asked: asyncio.Future[bool] | None = None

    async def is_unwritable(self) -> bool:
        """As it is, or as it was when the disk answered last."""
        if self._asked is None:
            loop = asyncio.get_running_loop()
            self._asked = loop.create_future()
            # Not an executor's: its threads are waited for at the process's end.
            threading.Thread(target=self._look, args=(loop, self._asked), name="data-look", daemon=True).start()
        await asyncio.wait([self._asked], timeout=PATIENCE_S)
        return self._known

    def _look(self, loop: asyncio.AbstractEventLoop, asked: asyncio.Future[bool]) -> None:
        found = self._known
        with suppress(OSError):  # it says nothing
            found = is_unwritable(self._data)
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(self._answered, asked, found)

    def _answered(self, asked: asyncio.Future[bool], found: bool) -> None:
        self._known, self._asked = found, None
        asked.set_result(found)
