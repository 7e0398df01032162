"""Events on their way to the database: what happened, and is not stored yet.

Invariants: putting one does no I/O; one leaves only once it is stored, or can never be; at most WAITING_MAX batches
wait, and a batch that finds no room is counted in the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Final

from sqlalchemy.exc import OperationalError

from app.db.engine import until_taken
from app.db.repositories import Events
from node.views.events import EventView

log = logging.getLogger(__name__)
WAITING_MAX: Final = 10_000
Batch = tuple[str, str | None, Sequence[EventView]]


class EventsWaiting:
    """All groups' events, in order."""

    def __init__(self, kept: Events) -> None:
        self.kept = kept
        self.batches: deque[Batch] = deque()
        self.there_are = asyncio.Event()
        self.lost = 0

    def put(self, cluster_id: str, node_id: str | None, items: Sequence[EventView]) -> None:
        if len(self.batches) >= WAITING_MAX:
            self.lost += 1
            return
        self.batches.append((cluster_id, node_id, items))
        self.there_are.set()

    async def store_forever(self) -> None:
        while True:
            await self.there_are.wait()
            await until_taken(self.store_now, "what happened")
            self.there_are.clear()
            if self.lost:
                log.error("%d batches of events found no room, and are lost", self.lost)
                self.lost = 0

    async def store_now(self) -> None:
        """All that waits. Raises OperationalError where the database cannot be written now: the rest waits on."""
        while self.batches:
            cluster_id, node_id, items = self.batches[0]
            try:
                await self.kept.add(cluster_id, node_id, items)
            except OperationalError:
                raise
            except Exception:
                log.exception("events of %s could not be stored", cluster_id)
            self.batches.popleft()
