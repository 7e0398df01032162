"""A server for RocketMQ's remoting protocol: one or more listeners (a broker's main and VIP port) before one table.

Invariants: every connection has a place from its accept on (`engine/places`: bounded in number, memory and time before
and after its first valid request); one that is idle for IDLE_S is closed, as RocketMQ does; closing ends all of them.
Where the requests that are not answered hold as much memory as they may, the next one is answered SYSTEM_BUSY.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, cast

from node.engine.listener import Listening, listen
from node.engine.memory_share import MOST, MemoryShare
from node.engine.places import LOOK_EVERY_S, Place, Places
from node.rocketmq.codes import Answer
from node.rocketmq.command import Command, response
from node.rocketmq.connection import ClientConnection, Load
from node.rocketmq.dispatch import Dispatcher, Peer
from node.rocketmq.send_frames import SendFrame, SendReader

Listen = Callable[..., Awaitable[Listening]]
LISTEN: Final[Listen] = listen  # on a real port
IDLE_S: Final = 120.0
BUSY: Final = "[OVERLOAD]system busy, start flow control for a while"


def _nothing(_connection: ClientConnection) -> None:
    """Nobody needs to hear of it."""


def _none_taken(_peer: Peer, _frame: SendFrame) -> bool:
    """All go to the dispatcher."""
    return False


class RemotingServer:
    """`on_closed` is called with each connection that has ended. `take_send` is asked first for each send of the usual
    form: whether it took it, and answers it by itself; all others are the dispatcher's."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        on_closed: Callable[[ClientConnection], None] = _nothing,
        share: MemoryShare = MOST,
        idle_s: float = IDLE_S,
        take_send: Callable[[Peer, SendFrame], bool] = _none_taken,
        listening: Listen = LISTEN,
    ) -> None:
        self._listen = listening
        self._take_send, self._reader = take_send, SendReader()
        self._dispatcher, self._closed_hook, self._idle_s = dispatcher, on_closed, idle_s
        self._share = share
        self.load = Load()
        self.places = Places(share)
        self.connections: dict[ClientConnection, Place] = {}
        self._listening: list[Listening] = []
        self._look_timer: asyncio.TimerHandle | None = None
        self._looked_at_s = 0.0

    async def listen(self, host: str, port: int) -> int:
        """One more listener; returns its port. Raises OSError."""
        self._listening.append(await self._listen(host, port, None, self.places, self._connection))
        return self._listening[-1].port

    def close(self) -> None:
        for one in self._listening:
            one.close()
        self._listening.clear()
        if self._look_timer is not None:
            self._look_timer.cancel()
            self._look_timer = None
        for connection in list(self.connections):
            connection.close()

    def _connection(self, place: Place) -> ClientConnection:
        return ClientConnection(
            self._on_command, partial(self._on_open, place), partial(self._on_part, place),
            partial(self._on_untaken, place), partial(self._on_closed, place), self.load, self._reader,
        )  # fmt: skip

    def _on_open(self, place: Place, connection: ClientConnection) -> None:
        place.connection = connection
        self.connections[connection] = place
        if self._look_timer is None:
            self._look_later()

    def _on_part(self, place: Place, connection: ClientConnection) -> None:
        self.places.part_came(place)

    def _on_untaken(self, place: Place, connection: ClientConnection) -> None:
        self.places.answers_wait(place)

    def _on_closed(self, place: Place, connection: ClientConnection) -> None:
        self.places.leave(place)
        if self.connections.pop(connection, None) is not None:
            self._closed_hook(connection)

    def _on_command(self, connection: ClientConnection, command: Command | SendFrame) -> None:
        if command.is_response:  # to a request of our own: none that we make wants an answer
            return
        is_busy = self.load.open_bytes + len(command.body) > self._share.requests
        if type(command) is not SendFrame:
            self._on_other(connection, cast(Command, command), is_busy=is_busy)
        elif not is_busy and self._take_send(connection, command):
            self._note_sound(connection)
        else:
            self._on_other(connection, command.command(), is_busy=is_busy)

    def _on_other(self, connection: ClientConnection, command: Command, *, is_busy: bool) -> None:
        if is_busy:
            if not command.is_one_way:
                connection.send(response(command, Answer.SYSTEM_BUSY, None, BUSY))
        elif self._dispatcher.handle(connection, command):
            self._note_sound(connection)

    def _note_sound(self, connection: ClientConnection) -> None:
        place = self.connections.get(connection)
        if place is not None and not place.earned:
            self.places.earned(place, member=False)

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._looked_at_s = loop.time()
        self._look_timer = loop.call_later(LOOK_EVERY_S, self._look)

    def _look(self) -> None:
        """Now and then, while there is anybody who may have to go."""
        self._look_timer = None
        now = asyncio.get_running_loop().time()
        self.places.look(now - self._looked_at_s)
        for connection in list(self.connections):
            if now - connection.active_at_s > self._idle_s:
                connection.close()
        if self.places.need_looks:
            self._look_later()
