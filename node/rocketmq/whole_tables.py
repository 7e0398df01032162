"""Answers that are a whole table (of topics, groups, offsets): a long one is made beside the loop.

400,000 offsets take most of a second; nobody else would be answered meanwhile.

Invariants: a table is made once at a time; who asks while it is made shares the next one, since this one may lack what
was answered before they asked; each time a connection gets one answer at most, which is sent before the next copy of
it is made, so that what is not taken is counted; a short table is answered at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from node.background import Background, reason_of
from node.rocketmq.codes import Answer
from node.rocketmq.dispatch import Call, Peer, Reply

AT_ONCE_ROWS_MAX: Final = 2048  # some 2 ms of the loop


class WholeTable:
    """`rows`: how long it is. `take`, called on the loop, gives what makes the body of the table as it is then; that is
    called in a thread where the table is long."""

    def __init__(
        self, rows: Callable[[], int], take: Callable[[], Callable[[], bytes]], fields: Mapping[str, str] | None = None
    ) -> None:  # fmt: skip
        self._rows, self._take, self._fields = rows, take, fields
        self._waiting: dict[Peer, deque[Call]] = {}
        self._background = Background()

    def handle(self, call: Call) -> Reply | None:
        if not len(self._background) and self._rows() <= AT_ONCE_ROWS_MAX:
            return self._reply(self._take()())
        self._waiting.setdefault(call.peer, deque()).append(call)
        if not len(self._background):
            self._background.run("a whole table", self._make())
        return None

    async def _make(self) -> None:
        while self._waiting:
            calls = [of_one.popleft() for of_one in self._waiting.values()]
            self._waiting = {peer: left for peer, left in self._waiting.items() if left and not peer.closed}
            try:
                reply = self._reply(await asyncio.to_thread(self._take()))
            except Exception as error:
                reply = Reply(Answer.SYSTEM_ERROR, self._fields, reason_of(error)[:1024])
            for call in calls:
                call.answer(reply)
                await asyncio.sleep(0)  # it is sent, and counted against what may wait, before the next copy is made

    def _reply(self, body: bytes) -> Reply:
        return Reply(fields=self._fields, body=body)
