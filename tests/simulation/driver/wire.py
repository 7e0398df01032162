"""What leaves a process, read off the bytes that it writes: members' messages, and clients' appends for C2.

A message is told when its last byte is handed to the socket: then it cannot be called back, whatever the driver does
with it before (queues, duties). Invariant: nothing here changes or delays a byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from node.protocol.codes import RemotingCode, RequestCode, ResponseCode
from node.protocol.messages import Message
from node.transport.bodies import BodyError, decode_request, decode_response
from node.transport.committed_frames import StreamKind, decode_position, decode_stream_request
from node.transport.fetch_frames import decode_fetch, decode_fetch_answer
from node.transport.install_frames import decode_install
from node.transport.remoting import FLAG_RESPONSE, Frame, FrameDecoder
from node.transport.slab_frames import (
    AppendedByte,
    ReadMode,
    decode_append,
    decode_append_answer,
    decode_push,
    decode_push_answer,
    decode_read,
)
from node.transport.snapshot_frames import decode_part
from tests.simulation.driver.sockets import Socket
from tests.simulation.observer import Violation

if TYPE_CHECKING:
    from tests.simulation.driver.world import DriverWorld

SLAB_PUSH, SUCCESS = RequestCode.SLAB_PUSH, RemotingCode.SUCCESS
LIKE_A_PUSH = frozenset({SLAB_PUSH, RequestCode.INSTALL_BASE, RequestCode.SNAPSHOT_PART})
JSON_CODES = frozenset(
    {
        RequestCode.HELLO, RequestCode.VOTE, RequestCode.PRE_VOTE, RequestCode.HEART_BEAT,
        RequestCode.LEADERSHIP_TRANSFER, RequestCode.READ_INDEX,
    }
)  # fmt: skip
# Answers outside the protocol's bodies that promise: not even looked at.
NOT_TAKEN = frozenset({RemotingCode.SYSTEM_BUSY, RemotingCode.REQUEST_CODE_NOT_SUPPORTED})


class _End:
    """What is known of one end's bytes."""

    __slots__ = ("asked", "decoder")

    def __init__(self) -> None:
        self.decoder = FrameDecoder()
        self.asked: dict[int, Any] = {}  # at the dialling end: opaque -> code, or the bodies of an append


AWAITS: Final = ()  # a question that may wait for as long as nothing comes


class _Stream:
    """What was pushed on one."""

    __slots__ = ("last", "number", "untaken")

    def __init__(self) -> None:
        self.untaken, self.number, self.last = 0, 0, (-1, -1)


class Wire:
    """One per world; a watcher of its network."""

    def __init__(self, world: DriverWorld) -> None:
        self._world = world
        self._doubtful: dict[bytes, str] = {}  # bodies that were sent and not refused since -> what became of them
        self.frames = 0
        self.own_readers: frozenset[str] = frozenset()  # who reads what its own engine has, and wants no more

    def written(self, socket: Socket, pieces: Sequence[memoryview]) -> None:
        """The network's watcher."""
        end = _end_of(socket)
        decoder = end.decoder
        for piece in pieces:
            at = 0
            while at < len(piece):
                room = decoder.writable()
                size = min(len(room), len(piece) - at)
                room[:size] = piece[at : at + size]
                at += size
                for frame in decoder.filled(size):
                    self.frames += 1
                    self._frame(socket, frame)
                if decoder.broken is not None:
                    text = f"{socket.loop.machine} writes what is no frame: {decoder.broken}"
                    self._world.violate(Violation("frames", text))
                    return

    def _frame(self, socket: Socket, frame: Frame) -> None:
        sender, to = socket.loop.machine, socket.other.loop.machine
        members = self._world.members
        asked = _end_of(socket if socket.dialled else socket.other).asked
        if sender in members and to in members and sender != to:
            message = self._message(frame, sender, asked, dialled=socket.dialled)
            if message is not None and members[sender].store is not None:
                self._world.tell.sent(members[sender], to, message)
        elif socket.dialled and frame.code == RequestCode.COMMITTED_STREAM:
            self._follows(frame, asked)
        elif isinstance(asked.get(frame.opaque), _Stream):
            self._pushes(frame, asked, sender, to)
        elif socket.dialled:
            awaited = frame.code == RequestCode.AWAITED_READ
            unsafe = frame.code == RequestCode.FAST_READ and decode_read(frame.body).mode is ReadMode.UNSAFE
            if (unsafe or awaited) and sender not in self.own_readers:
                text = f"{sender} asks {to} to read without a quorum, which nobody wanted"
                self._world.violate(Violation("read_as_asked", text))
            if awaited:
                asked[frame.opaque] = AWAITS
            else:
                asked[frame.opaque] = self._asks(frame, sender) if frame.code == RequestCode.FAST_APPEND else []
        elif frame.opaque in asked:
            self._answers(frame, asked.pop(frame.opaque))
        elif frame.opaque != -1:
            text = f"{sender} answers request {frame.opaque} of {to}, which is answered or was never asked"
            self._world.violate(Violation("answered_once", text))

    # --- streams of committed positions -----------------------------------------------------------------------------
    def _follows(self, frame: Frame, asked: dict[int, Any]) -> None:
        kind = decode_stream_request(frame.body).kind
        if kind is StreamKind.SUBSCRIBE:
            asked[frame.opaque] = _Stream()
        else:
            asked[frame.opaque].untaken = 0

    def _pushes(self, frame: Frame, asked: dict[int, Any], sender: str, to: str) -> None:
        stream: _Stream = asked[frame.opaque]
        position = decode_position(frame.body) if frame.code == SUCCESS else None
        if position is None or position.code is not ResponseCode.SUCCESS:
            del asked[frame.opaque]
            return
        stream.untaken += 1
        back = (position.committed_index, position.term) < stream.last or position.number <= stream.number
        if stream.untaken > 1 or back:
            text = f"{sender} pushes {position} to {to}, {stream.untaken} untaken, after {stream.number}, {stream.last}"
            self._world.violate(Violation("stream_one_pending", text))
        stream.number, stream.last = position.number, (position.committed_index, position.term)

    # --- members --------------------------------------------------------------------------------------------------
    def _message(self, frame: Frame, sender: str, asked: dict[int, Any], *, dialled: bool) -> Message | None:
        """None: not a member's message, or an answer that carries none."""
        try:
            if dialled:
                asked[frame.opaque] = frame.code
                if frame.code == SLAB_PUSH:
                    return decode_push(frame.body, sender, frame.opaque)
                if frame.code == RequestCode.FETCH:
                    return decode_fetch(frame.body, frame.opaque)
                if frame.code == RequestCode.INSTALL_BASE:
                    return decode_install(frame.body, sender, frame.opaque)
                if frame.code == RequestCode.SNAPSHOT_PART:
                    return decode_part(frame.body, sender, frame.opaque)
                return decode_request(frame.code, frame.body, frame.opaque) if frame.code in JSON_CODES else None
            if frame.opaque == -1 and frame.code == SLAB_PUSH:
                return decode_push_answer(frame.body, -1)
            code = asked.pop(frame.opaque, None)
            if not frame.flag & FLAG_RESPONSE or frame.code != SUCCESS or code is None:
                return None
            if code in LIKE_A_PUSH:
                return decode_push_answer(frame.body, frame.opaque)
            if code == RequestCode.FETCH:
                return decode_fetch_answer(frame.body, frame.opaque)
            return decode_response(RequestCode(code), frame.body, frame.opaque) if code in JSON_CODES else None
        except BodyError as error:
            self._world.violate(Violation("frames", f"{sender} writes a body that nobody can read: {error}"))
            return None

    # --- clients: C2 ------------------------------------------------------------------------------------------------
    def _asks(self, frame: Frame, sender: str) -> list[bytes]:
        bodies = [bytes(body) for body in decode_append(frame.body).bodies]
        for body in bodies:
            if body in self._doubtful:
                text = f"{sender} sends {body[:24]!r} again, which {self._doubtful[body]}"
                self._world.violate(Violation("never_sent_again", text))
            self._doubtful[body] = "was sent, and not refused since"
        return bodies

    def _answers(self, frame: Frame, bodies: Any) -> None:
        if not bodies:  # no append
            return
        refused = frame.code in NOT_TAKEN
        if frame.code == SUCCESS:
            answer = decode_append_answer(frame.body)
            refused = answer.appended is AppendedByte.NOT_APPENDED
        for body in bodies:
            if refused:
                self._doubtful.pop(body, None)
            else:
                self._doubtful[body] = "was answered, and not refused"

    def waiting(self) -> str | None:
        """What a client asked over a connection that is still open, and nobody answered yet; None: nothing."""
        for socket in self._world.network.ends():
            open_ones = [] if socket.tap is None or not socket.dialled else _questions(socket.tap.asked)
            if open_ones and socket.loop.machine not in self._world.members and not socket.other.gone:
                return f"{socket.other.loop.machine} never answered requests {open_ones[:5]} of {socket.loop.machine}"
        return None

    def settled(self) -> None:
        """In a calm world, long after anybody asked: everything was answered. Raises."""
        text = self.waiting()
        if text is not None:
            raise Violation("answered_once", text)


def _questions(asked: dict[int, Any]) -> list[int]:
    return [opaque for opaque, what in asked.items() if not isinstance(what, _Stream) and what is not AWAITS]


def _end_of(socket: Socket) -> _End:
    if socket.tap is None:
        socket.tap = _End()
    end: _End = socket.tap
    return end
