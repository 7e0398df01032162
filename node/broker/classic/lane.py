"""Puts of a master in classic mode: what the lane is on the replicated log, on a log of its own."""

from __future__ import annotations

import asyncio

from node.ha.keeper import StoreKeeper
from node.message_store.new_message import NewMessage
from node.message_store.put_result import PutResult


class ClassicLane:
    """The futures have a result always, also where nothing was stored."""

    def __init__(self, keeper: StoreKeeper) -> None:
        self._keeper = keeper

    def put(self, message: NewMessage) -> asyncio.Future[PutResult]:
        return self._keeper.start(lambda answer: self._keeper.store.put(message, answer))

    def put_own(self, message: NewMessage, *, spare_bytes: int = 0) -> asyncio.Future[PutResult]:
        """What the broker itself puts: it goes where it says, also with a delay level."""
        return self._keeper.start(lambda answer: self._keeper.store.put_own(message, answer, spare_bytes))

    def put_batch(self, batch: NewMessage) -> asyncio.Future[PutResult]:
        return self._keeper.start(lambda answer: self._keeper.store.put_batch(batch, answer))
