"""One client's connection to one member: requests by opaque, answers as futures.

A member that is stopped or cut off leaves its connections open: nothing closes, and nothing comes. While requests wait,
a link listens, and says when nothing was heard for SILENT_AFTER_LOOKS looks; what to do about it is its owner's affair.
It says so again when it was silent for half as long once more, every SAID_EVERY_LOOKS_MAX looks at last: whoever looks
for another leader then finds one in time, and a watch under which nothing happens costs a question every two seconds.

Invariants: a request's future is done exactly once; `Lost.sent` says whether bytes of it may have left, which is what
separates "not appended" from "unknown".
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from node.client.arguments import text_of
from node.client.errors import DENIED, AnotherGroup, Closed, Denied, NotAppended, UnknownGroup, WrongLoop
from node.loop_home import LoopHome
from node.protocol.codes import RemotingCode, RequestCode, ResponseCode
from node.protocol.entry import BytesLike
from node.protocol.group_members import MEMBERS_MAX
from node.protocol.peers import check_peers, split_address
from node.transport.bodies import BodyError, Fields, dump, load
from node.transport.connection import Connection, HostUnknown, dial
from node.transport.remoting import FLAG_ONE_WAY, Frame, FrameError

DIAL_WITHIN_S: Final = 2.0
OPAQUE_MAX: Final = 0x7FFFFFFF
CHECK_OPAQUE: Final = 0  # of the question whose member it is; all others are numbered from 1 on
HUNG_UP: Final = "the connection closed"
LOOK_EVERY_S: Final = 0.1
SILENT_AFTER_LOOKS: Final = 3
SAID_EVERY_LOOKS_MAX: Final = 20
DOUBTED_S: Final = 2.0  # as long as a member has to say whose it is


class Lost(ConnectionError):
    """The connection is gone; `sent`: whether the request may have reached the member."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class RemotingError(LookupError):
    """The member answered outside the protocol's bodies: it could not read the request, or failed over it."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class NotSupported(RemotingError):
    """Remoting code 3: the member does not know the request, and did nothing with it."""


class GroupIdentity:
    """Which group a client speaks to: its name, and its id as soon as a member has sent it (SAFETY C9)."""

    def __init__(self, group: str, group_id: str | None = None) -> None:
        """Raises TypeError."""
        self.group, self.group_id = text_of("group", group), group_id
        self.members: dict[str, str] = {}  # as its members named them last, and where these are reached
        self.state_machine: str | None = None  # its kind; None: not known, or none

    def learn(self, answer: Fields) -> None:
        """What one that passed `check` says: who the voters are, for they come and go (SAFETY M1), and what their state
        machine is."""
        self.state_machine = answer.optional_text("stateMachine") or self.state_machine
        named = answer.values.get("peers")
        if isinstance(named, dict) and len(named) <= MEMBERS_MAX:
            known = {str(one): str(at) for one, at in named.items() if at}
            with suppress(ValueError):
                self.members = check_peers(known)

    def check(self, link: MemberLink, answer: Fields) -> None:
        """Whoever answered METADATA is that member and of this group, as far as it says.

        Raises Denied, AnotherGroup, UnknownGroup, and Lost for any other refusal: another member refuses by its own
        name, before it says of which group it is.
        """
        if answer.code() in DENIED:
            text = f"{link.member_id} at {link.address} answers {answer.code().name}"
            link.give_up(text)
            raise UnknownGroup(text) if answer.code() is ResponseCode.UNKNOWN_GROUP else Denied(text)
        if answer.code() is not ResponseCode.SUCCESS:
            text = f"{link.member_id} at {link.address} answers {answer.code().name}"
            if answer.code() is ResponseCode.UNKNOWN_MEMBER:
                text = link.misnamed = f"it is not {link.member_id} that listens at {link.address}"
            link.give_up(text)
            raise Lost(text, sent=False)
        reported = answer.optional_text("groupId")
        if reported is None:
            return  # it has no id yet, or is of a release that knows of none
        if self.group_id is None:
            self.group_id = reported
        elif reported != self.group_id:
            text = f"{link.member_id} at {link.address} belongs to another group {self.group!r}"
            link.give_up(text)
            raise AnotherGroup(f"{text}: its id is {reported}, not {self.group_id}")


class MemberLink:
    """Dials when needed, and again after a loss. Each new connection is asked whose it is, for an address may be
    another group's by now: nothing else is sent to that one, nor is it shown the token."""

    def __init__(
        self, member_id: str, address: str, group: str | GroupIdentity, tls: ssl.SSLContext | None = None,
        token: str | None = None, home: LoopHome | None = None,
    ) -> None:  # fmt: skip
        self.home = home or LoopHome(WrongLoop)
        self._token, self._unshown = token, False  # what gives us our rights: shown once on each connection
        self.member_id, self.address = member_id, address
        self.identity = group if isinstance(group, GroupIdentity) else GroupIdentity(group)
        self._group, self._tls = self.identity.group, tls
        self._checking: tuple[Connection, asyncio.Future[Frame | Exception]] | None = None
        self._connection: Connection | None = None
        # Whether a plain DLedger is at the other end of this connection: it refused a request of ours with remoting
        # code 3. Nothing else says so, and the next connection is asked anew.
        self.plain = False
        # Who leads, as it said when it was last asked: "" where it knows nobody, None where it gave no answer.
        self.named_leader: str | None = None
        self._pending: dict[int, Callable[[Frame | Exception], None]] = {}
        self._opaque = 0
        self._streams: dict[int, Callable[[Frame | Exception], None]] = {}
        self._dialing: asyncio.Lock = asyncio.Lock()
        self._failed_dials, self._why_not = 0, ""
        self._patience: asyncio.Timeout | None = None  # of the newest dial
        self._closed = False
        # Called again and again while requests wait and nothing comes; None: nobody wants to know.
        self.on_silence: Callable[[MemberLink], None] | None = None
        self._look_timer: asyncio.TimerHandle | None = None
        self._heard, self._heard_then, self._silent_looks = 0, 0, 0
        self._say_after_looks = SILENT_AFTER_LOOKS
        self._doubt_timer: asyncio.TimerHandle | None = None
        self.hung_up = False  # its newest connection was closed by the other side
        self.foreign = False  # when it was dialled last, another group's member answered
        self.misnamed = ""  # or its address is wrong: another member answers there, or nobody knows the host's name

    def another(self) -> MemberLink:
        """One more to the same member, for the same event loop."""
        return MemberLink(self.member_id, self.address, self.identity, self._tls, self._token, self.home)

    @property
    def dialling(self) -> bool:
        """Whether somebody waits for a connection just now."""
        return self._dialing.locked()

    @property
    def open(self) -> bool:
        return self._connection is not None and not self._connection.closed

    async def connect(self) -> None:
        """Opens the connection. Raises Lost (nothing sent), Denied, AnotherGroup, Closed, WrongLoop.

        Who waits while another dials has its answer, too: a member that is silent costs all of them one dial's time.
        A caller that has less time than a dial gives up its own alone: whoever waits behind it dials again.
        """
        self.home.check()
        failed_before = self._failed_dials
        async with self._dialing:
            self._check_open_client()
            if self.open:
                return
            if self._failed_dials != failed_before:
                raise Lost(self._why_not, sent=False)
            connection, self.hung_up, self.misnamed = Connection(self._on_frame, self._on_closed), False, ""
            host, port = split_address(self.address)
            try:
                async with asyncio.timeout(DIAL_WITHIN_S) as self._patience:
                    await dial(connection, host, port, self._tls)
                # Its own: far away, TLS alone is most of a dial's.
                async with asyncio.timeout(DIAL_WITHIN_S) as self._patience:
                    await self._check_group(connection)
            except (OSError, TimeoutError, RemotingError, BodyError) as error:
                connection.abort()
                self._check_open_client()
                self._failed_dials += 1
                if isinstance(error, HostUnknown):
                    self.misnamed = f"{self.member_id}: {error}"
                self._why_not = f"{self.member_id} at {self.address}: {str(error) or 'no connection in time'}"
                raise Lost(self._why_not, sent=False) from error
            except BaseException as error:  # another group's; or whoever wanted it is not interested any more
                self.foreign = isinstance(error, Denied)
                connection.abort()
                raise
            if self._closed:
                connection.abort()
            self._check_open_client()
            self._connection, self.plain, self.foreign = connection, False, False
            self._unshown = self._token is not None

    def _check_open_client(self) -> None:
        if self._closed:
            raise Closed("the client is closed")

    async def _check_group(self, connection: Connection) -> None:
        """Asks whose member this is, before anything is sent that it could append."""
        answer: asyncio.Future[Frame | Exception] = asyncio.get_running_loop().create_future()
        self._checking = connection, answer
        try:
            connection.send_body(RequestCode.METADATA, 0, CHECK_OPAQUE, [self._asking({})])
            self.identity.check(self, load(body_of(self, await answer)))
        finally:
            self._checking = None

    def call(self, code: RequestCode, pieces: Sequence[bytes], done: Callable[[Frame | Exception], None]) -> int:
        """Sends a request over the open connection; `done` gets the answer, or why there is none, exactly once.

        Returns the request's number. Raises FrameError where it is too long; then `done` is never called.
        """
        connection = self._connection
        self._opaque = opaque = self._opaque % OPAQUE_MAX + 1
        if connection is None or connection.closed:
            done(Lost(f"{self.member_id} is not connected", sent=False))
            return opaque
        self._send(connection, code, opaque, pieces)
        self._pending[opaque] = done
        if self._look_timer is None and self.on_silence is not None:
            self._look_later()
        return opaque

    def _send(self, connection: Connection, code: RequestCode, opaque: int, pieces: Sequence[bytes]) -> None:
        """A request; the first one has our token in its header's fields, which the member remembers."""
        if self._unshown:
            self._unshown = False
            connection.send_frame(Frame(code, opaque, b"".join(pieces), ext_fields={"token": self._token or ""}))
        else:
            connection.send_body(code, 0, opaque, pieces)

    def open_stream(self, code: RequestCode, pieces: Sequence[bytes], each: Callable[[Frame | Exception], None]) -> int:
        """Subscribes over the open connection; `each` gets what is pushed, and last why nothing comes any more.

        The stream's number. Raises Lost where there is no connection.
        """
        connection = self._connection
        if connection is None or connection.closed:
            raise Lost(f"{self.member_id} is not connected", sent=False)
        self._opaque = opaque = self._opaque % OPAQUE_MAX + 1
        self._streams[opaque] = each
        self._send(connection, code, opaque, pieces)
        return opaque

    def send_on_stream(self, code: RequestCode, opaque: int, pieces: Sequence[bytes]) -> None:
        """Says something that has no answer of its own; nothing if the stream has ended."""
        if opaque in self._streams and self._connection is not None:
            self._connection.send_body(code, FLAG_ONE_WAY, opaque, pieces)

    def end_stream(self, code: RequestCode, opaque: int, pieces: Sequence[bytes]) -> None:
        """Nobody wants it any more; what is still pushed is dropped."""
        self.send_on_stream(code, opaque, pieces)
        self._streams.pop(opaque, None)

    def fail_one(self, opaque: int, error: Exception) -> None:
        """Gives one request up, at its deadline; its answer, should it still come, is for nobody."""
        waiting = self._pending.pop(opaque, None)
        if waiting is not None:
            waiting(error)
            self.doubt()

    def doubt(self) -> None:
        """Something that was to come has not come in time. Is anybody there? Whose way was forgotten by a firewall, or
        whose machine is gone, leaves the connection open for a quarter of an hour."""
        connection = self._connection
        if connection is None or connection.closed or self._doubt_timer is not None:
            return
        opaque = self.call(RequestCode.METADATA, [self._asking({})], lambda _: None)
        doubted = connection, self._heard, connection.backlog_bytes, opaque
        self._doubt_timer = asyncio.get_running_loop().call_later(DOUBTED_S, self._judge, *doubted)

    def _judge(self, connection: Connection, heard: int, untaken_bytes: int, opaque: int) -> None:
        """Gives up a connection over which nothing came since, and nothing left: the next request dials anew."""
        self._doubt_timer = None
        self._pending.pop(opaque, None)
        if connection is not self._connection or connection.closed:
            return
        if self._heard == heard and connection.backlog_bytes >= untaken_bytes:
            self.give_up("nothing comes from it any more")

    async def request(
        self, code: RequestCode, pieces: Sequence[bytes], timeout_s: float, *, redial: bool = True
    ) -> BytesLike:
        """The answer's body, at most `timeout_s` from now, dialling included. Raises TimeoutError where it was sent,
        Lost, RemotingError, AnotherGroup, Closed, WrongLoop, and NotAppended where it is too long. Without
        `redial` it goes over the connection that is open, whose other end is known, or nowhere."""
        answer: asyncio.Future[Frame | Exception] = asyncio.get_running_loop().create_future()
        opaque = 0  # of a request that was not sent
        try:
            async with asyncio.timeout(timeout_s):
                if redial:
                    await self.connect()
                opaque = self.call(code, pieces, lambda outcome: None if answer.done() else answer.set_result(outcome))
                outcome = await answer
        except TimeoutError as error:
            if not opaque:
                raise Lost(f"{self.member_id} at {self.address}: no connection in time", sent=False) from error
            self.doubt()
            raise
        except FrameError as error:
            raise NotAppended(str(error), code=ResponseCode.UNEXPECTED_ARGUMENT) from error
        finally:
            self._pending.pop(opaque, None)
        return body_of(self, outcome)

    async def ask(self, code: RequestCode, fields: dict[str, Any], timeout_s: float, *, redial: bool = True) -> Fields:
        """A JSON request and its JSON answer. Raises as `request`, and BodyError."""
        return load(await self.request(code, [self._asking(fields)], timeout_s, redial=redial))

    def _asking(self, fields: dict[str, Any]) -> bytes:
        base = {"code": int(ResponseCode.SUCCESS), "group": self._group, "remoteId": self.member_id, "term": -1}
        return dump(base | fields)

    def _look_later(self) -> None:
        self._look_timer = asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._look)

    def _look(self) -> None:
        """Ten times a second, while anything waits: did anything come since?"""
        self._look_timer = None
        is_silent = bool(self._pending) and self._heard == self._heard_then
        self._heard_then = self._heard
        if not is_silent:
            self._silent_looks, self._say_after_looks = 0, SILENT_AFTER_LOOKS
            if not self._pending:
                return
        else:
            self._silent_looks += 1
            if self._silent_looks >= self._say_after_looks and self.on_silence is not None:
                self._say_after_looks = self._silent_looks + min(self._silent_looks // 2, SAID_EVERY_LOOKS_MAX)
                self.on_silence(self)
        self._look_later()

    def _on_frame(self, connection: Connection, frame: Frame) -> None:
        self._heard += 1
        is_ours = frame.opaque in (CHECK_OPAQUE, -1) and frame.is_response
        if self._checking is not None and is_ours and self._checked(connection, frame):
            return
        if frame.opaque == -1 and frame.is_response and frame.remark:  # the member could not read us at all
            self._fail(frame.remark)
            return
        waiting = self._pending.pop(frame.opaque, None) or self._streams.get(frame.opaque)
        if waiting is not None:
            waiting(frame)

    def _checked(self, connection: Connection, outcome: Frame | Exception) -> bool:
        """Whether it is the answer to `_check_group`, or the end of that connection."""
        if self._checking is None or self._checking[0] is not connection:
            return False
        if not self._checking[1].done():
            self._checking[1].set_result(outcome)
        return True

    def _on_closed(self, connection: Connection) -> None:
        if self._checked(connection, Lost(f"{self.member_id}: {HUNG_UP}", sent=False)):
            self.hung_up = True
        elif self._connection is connection:
            self.hung_up = True
            self._fail(HUNG_UP)

    def _fail(self, why: str) -> None:
        pending, self._pending = self._pending, {}
        streams, self._streams = self._streams, {}
        for waiting in (*pending.values(), *streams.values()):
            waiting(Lost(f"{self.member_id} at {self.address}: {why}", sent=True))

    def give_up(self, why: str) -> None:
        """Whatever waits here ends as lost; the next request dials again."""
        connection, self._connection = self._connection, None
        self._fail(why)
        if connection is not None:
            connection.abort()

    def close(self) -> None:
        """For good: what waits here ends as lost, a dial under way too, and nothing is dialled any more."""
        self._closed = True
        if self._patience is not None:
            with suppress(RuntimeError):  # that dial has ended
                self._patience.reschedule(0.0)
        for timer in filter(None, (self._look_timer, self._doubt_timer)):
            timer.cancel()
        self._look_timer = self._doubt_timer = None
        self.on_silence = None
        if self._connection is not None:
            self._connection.abort()


def body_of(link: MemberLink, outcome: Frame | Exception) -> BytesLike:
    """The body of a request's answer. Raises RemotingError, or whatever there is in place of an answer."""
    if isinstance(outcome, Exception):
        raise outcome
    if outcome.code != RemotingCode.SUCCESS:
        kind = NotSupported if outcome.code == RemotingCode.REQUEST_CODE_NOT_SUPPORTED else RemotingError
        raise kind(f"{link.member_id} answers {outcome.code}: {(outcome.remark or '').strip()}", outcome.code)
    return outcome.body


__all__ = ["BodyError", "GroupIdentity", "Lost", "MemberLink", "NotSupported", "RemotingError", "body_of"]
