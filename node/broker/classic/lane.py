"""Puts of a master in classic mode: what the lane is on the replicated log, on a log of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from node.broker.open_puts import OpenPut
from node.ha.keeper import StoreKeeper
from node.message_store.new_message import NewMessage
from node.message_store.put_result import PutResult, PutStatus


class ClassicLane:
    """The futures have a result always, also where nothing was stored. What became of a put is known here when it is
    answered: `patient` waits for nothing more."""

    def __init__(self, keeper: StoreKeeper) -> None:
        self._keeper = keeper

    def put(self, message: NewMessage, *, patient: bool = False) -> asyncio.Future[PutResult]:
        return self._keeper.start(lambda answer: self._keeper.store.put(message, answer))

    def put_own(self, message: NewMessage, *, spare_bytes: int = 0, patient: bool = False) -> asyncio.Future[PutResult]:
        """What the broker itself puts: it goes where it says, also with a delay level."""
        return self._keeper.start(lambda answer: self._keeper.store.put_own(message, answer, spare_bytes))

    def put_record(
        self, topic: str, queue_id: int, size_bytes: int, record_of: Callable[[int, int, float], OpenPut]
    ) -> bool:
        """Starts a put of one record that was judged already; False: nothing was done, and `put` says why."""
        made: list[OpenPut] = []

        def record(offset: int, ms: int) -> bytes:
            made.append(record_of(offset, ms, 0.0))
            return made[0].records[0]

        def answer(status: PutStatus, place: int) -> None:
            made[0].stored(status, (place,) if place >= 0 else ())

        if not self._keeper.store.put_record(topic, queue_id, size_bytes, record, answer):
            return False
        self._keeper.has_put()
        return True

    def put_batch(self, batch: NewMessage) -> asyncio.Future[PutResult]:
        return self._keeper.start(lambda answer: self._keeper.store.put_batch(batch, answer))
