"""Anonymous failures (wrong passwords, dead links), summed up: one row of the trail per address and kind of failure.

A flood of wrong logins would otherwise be a flood of rows, each a write. Invariants: memory is bounded (beyond KEYS_MAX
the rest is summed under no address); what was counted is written at least every FLUSH_S while the console runs, before
the trail is read, and when it stops.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from app.db.engine import Sessions
from app.security import trail
from app.times import rfc3339, utc_now
from node.printable import escaped

log = logging.getLogger(__name__)
FLUSH_S: Final = 30.0
KEYS_MAX: Final = 200
NAMES_MAX: Final = 5
OTHERS: Final = "other addresses"


@dataclass(slots=True)
class Sum:
    status: int
    count: int = 0
    limited: int = 0
    first: datetime = field(default_factory=utc_now)
    last: datetime = field(default_factory=utc_now)
    names: list[str] = field(default_factory=list)
    more_names: bool = False


class Failures:
    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions
        self.sums: dict[tuple[str, str], Sum] = {}

    def note(self, action: str, address: str, status: int, *, name: str = "", limited: bool = False) -> None:
        key = (action, address) if (action, address) in self.sums or len(self.sums) < KEYS_MAX else (action, OTHERS)
        found = self.sums.setdefault(key, Sum(status))
        found.count, found.last = found.count + 1, utc_now()
        found.limited += limited
        shown = escaped(name[:64])[:64]
        if shown and shown not in found.names:
            if len(found.names) < NAMES_MAX:
                found.names.append(shown)
            else:
                found.more_names = True

    async def flush(self) -> None:
        """Writes what was counted; what cannot be written is counted on."""
        while self.sums:
            key, found = next(iter(self.sums.items()))
            del self.sums[key]
            detail = {
                "count": found.count,
                "limited": found.limited,
                "first": rfc3339(found.first),
                "last": rfc3339(found.last),
                "names": [*found.names, *(["…"] if found.more_names else [])],
            }
            try:
                await trail.note(self.sessions, trail.row_of(None, action=key[0], address=key[1]), found.status, detail)
            except SQLAlchemyError:
                log.exception("failures from %s could not be noted", key[1])
                self.sums.setdefault(key, found)
                return

    async def flush_forever(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            await self.flush()
