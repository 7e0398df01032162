"""From a request's code to its handler, and from the handler's reply to the answer.

A handler gets a `Call` and returns a `Reply`, or None where it answers later with `Call.answer` (a put that waits for
its commit, a pull that is held). Invariants: every two-way request is answered once at most; whatever a handler raises
ends in an answer, never in the connection's end; a request that wants no answer gets none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol

from node.protocol.entry import BytesLike
from node.rocketmq.codes import Answer
from node.rocketmq.command import Command, response
from node.rocketmq.header_fields import HeaderError
from node.rocketmq.java_json import BodyError

log = logging.getLogger(__name__)

TEXT_MAX: Final = 1024


class Reply(NamedTuple):
    """`fields` None: the answer has no extFields at all, as where Java makes it without a header class."""

    code: int = Answer.SUCCESS
    fields: Mapping[str, str] | None = None
    remark: str | None = None
    body: BytesLike = b""


class Refusal(Exception):
    """A handler's way to answer from within: with this reply."""

    def __init__(self, code: int, remark: str, fields: Mapping[str, str] | None = None) -> None:
        super().__init__(remark)
        self.reply = Reply(code, fields, remark)


class Peer(Protocol):
    """The connection that a request came over, as handlers see it."""

    @property
    def address(self) -> str:
        """ip:port of the other side."""

    @property
    def closed(self) -> bool: ...

    def send(self, command: Command) -> None:
        """Also a request of our own (39, 40)."""

    def send_encoded(self, data: bytes) -> None:
        """A command that is bytes already."""

    def note_open(self, change: int, body_bytes: int) -> None:
        """One of its requests more, or fewer, is not answered."""


class Call:
    """One request, and where its answer goes."""

    __slots__ = ("_open", "peer", "request")

    def __init__(self, peer: Peer, request: Command) -> None:
        self.peer, self.request = peer, request
        self._open = True
        peer.note_open(1, len(request.body))

    def hold(self) -> None:
        """It waits for something that may be long in coming (a message): it is not work that is under way. Its header
        and body are let go: nothing counts them meanwhile."""
        self.peer.note_open(-1, len(self.request.body))
        self.request = self.request._replace(fields=None, body=b"")

    def resume(self) -> None:
        self.peer.note_open(1, len(self.request.body))

    def drop(self) -> None:
        """It gets no answer, as with RocketMQ where a handler returns null."""
        if self._open:
            self._open = False
            self.peer.note_open(-1, len(self.request.body))

    def answer(self, reply: Reply) -> None:
        if not self._open:
            return
        self.drop()
        if not self.request.is_one_way and not self.peer.closed:
            self.peer.send(response(self.request, reply.code, reply.fields, reply.remark, reply.body))


Handler = Callable[[Call], Reply | None]


def reply_of(handler: Handler, call: Call) -> tuple[Reply | None, bool]:
    """What it answers, and whether the request's header and body were sound; whatever it raises is a reply."""
    try:
        return handler(call), True
    except Refusal as refusal:
        return refusal.reply, True
    except (HeaderError, BodyError) as error:
        return Reply(Answer.SYSTEM_ERROR, None, str(error)[:TEXT_MAX]), False
    except Exception as error:
        log.exception("request %d failed", call.request.code)
        return Reply(Answer.SYSTEM_ERROR, None, f"{type(error).__name__}: {error}"[:TEXT_MAX]), True


class Dispatcher:
    """One table of handlers. A code that is not in it is answered NOT_SUPPORTED."""

    def __init__(self, handlers: Mapping[int, Handler]) -> None:
        self._handlers = dict(handlers)

    def handle(self, peer: Peer, request: Command) -> bool:
        """Whether it was a request that is served here, and its header and body were sound."""
        call = Call(peer, request)
        handler = self._handlers.get(request.code)
        if handler is None:
            remark = f" request type {request.code} not supported"
            call.answer(Reply(Answer.REQUEST_CODE_NOT_SUPPORTED, None, remark))
            return False
        reply, sound = reply_of(handler, call)
        if reply is not None:
            call.answer(reply)
        return sound
