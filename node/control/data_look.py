"""What the data directory tells, found out beside the event loop: a disk that hangs (NFS) holds up the thread that
asked, and nobody else.

Invariants: one question at a time; while it is out, or takes long, the last answer that is known stays.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Generic, TypeVar

from node.down_reason import reason_left
from node.unwritable import is_unwritable, why_denied, why_gone

T = TypeVar("T")
PATIENCE_S: Final = 0.2  # a disk that is well answers within microseconds


class DataLook(Generic[T]):
    """Asks what `look` finds out about a data directory; `known` is what it said last, at first what is given."""

    def __init__(self, data: Path, look: Callable[[Path], T], known: T) -> None:
        self.data, self.known = data, known
        self._look = look
        self._asked: asyncio.Future[None] | None = None

    async def ask(self) -> bool:
        """Whether the disk answers in time; `known` is then as it is now."""
        if self._asked is None:
            loop = asyncio.get_running_loop()
            asked: asyncio.Future[None] = loop.create_future()
            # Not an executor's: its threads are waited for at the process's end.
            threading.Thread(target=self._in_thread, args=(loop, asked), name="data-look", daemon=True).start()
            self._asked = asked  # once it is on its way: where no thread can be had, the next one asks again
        done, _ = await asyncio.wait([self._asked], timeout=PATIENCE_S)
        return bool(done)

    def _in_thread(self, loop: asyncio.AbstractEventLoop, asked: asyncio.Future[None]) -> None:
        found = self.known
        with suppress(OSError):  # it says nothing
            found = self._look(self.data)
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(self._answered, asked, found)

    def _answered(self, asked: asyncio.Future[None], found: T) -> None:
        self.known, self._asked = found, None
        asked.set_result(None)


def why_down(data: Path, *, in_a_pair: bool = False) -> str | None:
    """What the engine (in a pair the broker) or its supervisor wrote down at its end, unless neither could; None:
    nothing tells."""
    if is_unwritable(data):  # what stands there is from before
        return why_denied(data)
    if not data.exists():  # nor the word that its engine left
        return why_gone(data, in_a_pair=in_a_pair)
    return reason_left(data)
