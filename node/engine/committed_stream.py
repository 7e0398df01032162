"""Pushes committed positions to whoever subscribed: where this member's log stands, who leads, until when that holds.

A client gets its next position when there is one and it has taken the last: so a slow one is behind by one frame, never
by a buffer, and whatever moved meanwhile is in the next. Where nothing moves, the keep-alive says so.

Invariants: one pushed frame of a stream at most is not taken; two are at least its interval apart; what depends on a
hard state that is being saved is not sent (SAFETY E2); streams are bounded, per connection and in all, and where all
are taken whoever has most of them gives one up for a connection that has fewer: nobody keeps others out by having many.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from node.consensus.api import MS, SECOND
from node.consensus.replica import Replica
from node.protocol.codes import RemotingCode, ResponseCode
from node.transport.committed_frames import (
    PushedPosition,
    StreamKind,
    StreamRequest,
    decode_stream_request,
    encode_position,
)
from node.transport.connection import Connection
from node.transport.remoting import FLAG_RESPONSE, Frame
from node.transport.slab_frames import BodyError

STREAMS_MAX: Final = 1024
STREAMS_PER_CONNECTION_MAX: Final = 16
UNTAKEN_NS: Final = 60 * SECOND  # a stream whose client takes nothing for so long is over
LOOK_AGAIN_NS: Final = 100 * MS  # for ended ones: a flood of subscriptions must not look at all streams for each
NEVER: Final = 1 << 62


class Standing(NamedTuple):
    """What a push tells of; another one is a reason to push."""

    committed_index: int
    end_index: int
    term: int
    leader_id: str | None
    leads: bool


@dataclass(slots=True)
class Stream:
    """One client's."""

    connection: Connection
    opaque: int
    interval_ns: int
    keep_alive_ns: int
    asked_at: int  # when it subscribed, or took what was pushed last
    taken: bool = True
    pushed_at: int = -NEVER
    number: int = 0
    sent: Standing | None = None

    def due_at(self, standing: Standing) -> int:
        """When the next push may leave, or the end of its client's silence."""
        if not self.taken:
            return self.pushed_at + UNTAKEN_NS
        return self.pushed_at + (self.keep_alive_ns if self.sent == standing else self.interval_ns)


class CommittedStreams:
    """One per engine. `streams` is empty as long as nobody subscribed: then nothing here costs anything."""

    def __init__(self, replica: Replica, now_ns: Callable[[], int], held_back: Callable[[], bool]) -> None:
        """`held_back`: whether what speaks of the present term must wait for a save."""
        self._replica, self._now_ns, self._held_back = replica, now_ns, held_back
        self._loop = asyncio.get_running_loop()
        self.streams: dict[tuple[Connection, int], Stream] = {}
        self._mine: dict[Connection, dict[int, None]] = {}  # the opaques of each one's streams
        # Connections by how many they have; of equals the one that came to as many last goes first.
        self._having: list[dict[Connection, None]] = [{} for _ in range(STREAMS_PER_CONNECTION_MAX + 1)]
        self._looked_at = -LOOK_AGAIN_NS
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER
        self._standing = self._now_standing()
        self._allowed_at = NEVER  # the earliest push that something new could bring about

    # --- what clients say -----------------------------------------------------------------------------------------
    def handle(self, connection: Connection, frame: Frame) -> None:
        """A frame of a client's: a new stream, the wish for its next position, or its end."""
        try:
            request = decode_stream_request(frame.body)
        except BodyError:
            self._over(connection, frame.opaque, ResponseCode.UNEXPECTED_ARGUMENT)
            return
        key, now = (connection, frame.opaque), self._now_ns()
        if request.kind is StreamKind.SUBSCRIBE:
            self._subscribe(connection, frame, request, now)
        elif request.kind is StreamKind.CANCEL:
            self._end(key)
        elif key in self.streams:
            stream = self.streams[key]
            stream.taken, stream.asked_at = True, now
            self._standing = self._now_standing()
            self._serve(stream, now)
        else:  # it took its time, or never subscribed: it may do so now
            self._over(connection, frame.opaque, ResponseCode.INCONSISTENT_STATE)

    def _subscribe(self, connection: Connection, frame: Frame, request: StreamRequest, now: int) -> None:
        if len(self.streams) >= STREAMS_MAX and now - self._looked_at >= LOOK_AGAIN_NS:
            self._drop_ended(now)
        key, mine = (connection, frame.opaque), len(self._mine.get(connection, ()))
        if key not in self.streams:
            if mine >= STREAMS_PER_CONNECTION_MAX or not self._has_room(mine):
                text = f"{len(self.streams)} streams are open here, {mine} of them on this connection"
                connection.refuse(frame, RemotingCode.SYSTEM_BUSY, text)
                return
            opaques = self._mine.setdefault(connection, {})
            opaques[frame.opaque] = None
            self._moved_to(connection, mine, mine + 1)
        intervals = request.interval_ms * MS, request.keep_alive_ms * MS
        stream = self.streams[key] = Stream(connection, frame.opaque, *intervals, asked_at=now)
        self._standing = self._now_standing()
        self._serve(stream, now)

    def _has_room(self, mine: int) -> bool:
        """For one more of a connection that has so many; where all are taken another one may have to end."""
        if len(self.streams) < STREAMS_MAX:
            return True
        most = max(count for count, having in enumerate(self._having) if having)
        if most <= mine + 1 and mine:
            return False
        last = next(reversed(self._having[most]))
        opaque = next(reversed(self._mine[last]))
        self._end((last, opaque))
        self._over(last, opaque, ResponseCode.INCONSISTENT_STATE)
        return True

    def _moved_to(self, connection: Connection, before: int, now: int) -> None:
        self._having[before].pop(connection, None)
        if now:
            self._having[now][connection] = None

    def closed(self, connection: Connection) -> None:
        """It has ended, and its streams with it."""
        for opaque in list(self._mine.get(connection, ())):
            self._end((connection, opaque))

    def _end(self, key: tuple[Connection, int]) -> None:
        if self.streams.pop(key, None) is not None:
            connection, opaque = key
            opaques = self._mine[connection]
            self._moved_to(connection, len(opaques), len(opaques) - 1)
            del opaques[opaque]
            if not opaques:
                del self._mine[connection]

    def _over(self, connection: Connection, opaque: int, code: ResponseCode) -> None:
        connection.send_body(RemotingCode.SUCCESS, FLAG_RESPONSE, opaque, [encode_position(PushedPosition(code))])

    # --- pushing --------------------------------------------------------------------------------------------------
    def moved(self) -> None:
        """The end of a turn: something may have changed. Only called while there are streams."""
        standing = self._now_standing()
        if standing == self._standing:
            return
        self._standing = standing
        now = self._now_ns()
        if self._allowed_at <= now:
            self._serve_all(now)
        else:
            self._arm(self._allowed_at, now)

    def _now_standing(self) -> Standing:
        replica = self._replica
        leads = replica.leadership is not None
        return Standing(replica.committed_index, replica.store.end_index, replica.term, replica.leader_id, leads)

    def _serve_all(self, now: int) -> None:
        self._drop_ended(now)
        self._allowed_at = NEVER
        for stream in self.streams.values():
            self._serve(stream, now)

    def _serve(self, stream: Stream, now: int) -> None:
        """Pushes if that is due, and sees to it that somebody looks when it is."""
        if stream.taken and stream.due_at(self._standing) <= now and not self._held_back():
            self._push(stream, self._standing, now)
        if stream.taken:
            self._allowed_at = min(self._allowed_at, stream.pushed_at + stream.interval_ns)
        self._arm(stream.due_at(self._standing), now)

    def _push(self, stream: Stream, standing: Standing, now: int) -> None:
        stream.number += 1
        lease_ns = self._replica.promise_lease(now)
        position = PushedPosition(
            ResponseCode.SUCCESS, stream.number, standing.committed_index, standing.end_index, standing.term,
            standing.leads, standing.leader_id, lease_ns, max(0, now - stream.asked_at),
        )  # fmt: skip
        stream.taken, stream.pushed_at, stream.sent = False, now, standing
        body = encode_position(position)
        stream.connection.send_body(RemotingCode.SUCCESS, FLAG_RESPONSE, stream.opaque, [body])

    def _drop_ended(self, now: int) -> None:
        self._looked_at = now
        ended = [
            key for key, one in self.streams.items()
            if one.connection.closed or (not one.taken and now >= one.pushed_at + UNTAKEN_NS)
        ]  # fmt: skip
        for key in ended:
            self._end(key)

    def _arm(self, at: int, now: int) -> None:
        """One timer, for the earliest; in a millisecond at least: what is held back is due all the time."""
        at = max(at, now + MS)
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_later((at - now) / 1e9, self._fired)

    def _fired(self) -> None:
        self._timer, self._timer_at = None, NEVER
        self._standing = self._now_standing()
        self._serve_all(self._now_ns())

    def close(self) -> None:
        """The engine ends; connections close by themselves."""
        self.streams.clear()
        self._mine.clear()
        for having in self._having:
            having.clear()
        if self._timer is not None:
            self._timer.cancel()
