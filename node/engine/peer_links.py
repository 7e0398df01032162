"""Two connections to every peer: ours to it carries our requests, its to us carries its requests and our answers.

Invariants: the first frame of a member connection is HELLO, and its verdict decides; member codes, and answers to ours,
count only on a connection whose HELLO (proven by certificate or secret where one is asked for) was that member's
(SAFETY C7). Sends are allowed to get lost: a peer that does not read gets no more entries once a push window of them
waits for it, and nothing at all once BACKLOG_BYTES_MAX do. Entries keep their order among themselves; everything else
passes those that wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Final

from node.consensus.strangers import Stranger
from node.engine.dialler import OPAQUE_MASK, Dialler, Driver
from node.engine.member_handshake import MemberHandshake, Trust
from node.engine.peer_link import Link
from node.protocol.codes import RemotingCode, RequestCode, ResponseCode
from node.protocol.messages import (
    FetchRequest,
    FetchResponse,
    Hello,
    InstallRequest,
    Message,
    PushKind,
    PushRequest,
    PushResponse,
    SnapshotPart,
)
from node.transport.bodies import BodyError, decode_request, decode_response, dump, encode_message, request_code
from node.transport.connection import Connection
from node.transport.fetch_frames import decode_fetch, decode_fetch_answer, encode_fetch, encode_fetch_answer
from node.transport.install_frames import decode_install, encode_install
from node.transport.member_proof import ProofError
from node.transport.remoting import FLAG_ONE_WAY, FLAG_RESPONSE, Frame, plain_frame
from node.transport.slab_frames import PushEncoder, decode_push, decode_push_answer, encode_push_answer
from node.transport.snapshot_frames import decode_part, encode_part

PLAIN_CODES: Final = frozenset({RequestCode.PUSH, RequestCode.PULL, RequestCode.INSTALL_SNAPSHOT})  # DLedger's
SERVED_CODES: Final = frozenset(
    {
        RequestCode.VOTE, RequestCode.PRE_VOTE, RequestCode.HEART_BEAT, RequestCode.SLAB_PUSH, RequestCode.READ_INDEX,
        RequestCode.FETCH, RequestCode.INSTALL_BASE, RequestCode.SNAPSHOT_PART,
    }
)  # fmt: skip
MEMBER_CODES: Final = SERVED_CODES | PLAIN_CODES | {RequestCode.HELLO, RequestCode.PROOF}
SLAB_PUSH: Final = RequestCode.SLAB_PUSH
LIKE_A_PUSH: Final = frozenset({SLAB_PUSH, RequestCode.INSTALL_BASE, RequestCode.SNAPSHOT_PART})  # so answered
SUCCESS: Final = RemotingCode.SUCCESS
SUCCESS_CODE: Final = ResponseCode.SUCCESS
NOT_ASKED: Final = (None, -1)
UNASKED: Final = FLAG_RESPONSE | FLAG_ONE_WAY
SETTLED_AFTER_S: Final = 0.3
BACKLOG_BYTES_MAX: Final = 8 * 1024 * 1024  # in the transport: the longest frame and a part, and short ones behind
PENDING_MAX: Final = 8192
GREETING_MAX: Final = 256


class PeerLinks:
    """All of them."""

    def __init__(
        self, driver: Driver, group: str, self_id: str, peers: Mapping[str, str], tls: ssl.SSLContext | None,
        trust: Trust,
    ) -> None:  # fmt: skip
        self._driver, self._group, self._self_id = driver, group, self_id
        self._peers = dict(peers)  # ids to addresses; who comes and goes is known by it
        self._handshake = MemberHandshake(driver, group, self_id, trust, self._accepted)
        self._dialler = Dialler(driver, group, self_id, self._peers, tls, self._handshake, self._answered)
        self._links = {peer_id: self._link(peer_id) for peer_id in peers if peer_id != self_id}
        # HELLOs whose answers the core owes: by our own number, for several may wait in one member's name.
        self._greeting: dict[int, tuple[Connection, Frame]] = {}
        self._pushes = PushEncoder()
        self._window_bytes = driver.replica.config.push_window_bytes

    def renew_tls(self, tls: ssl.SSLContext) -> None:
        """For connections that are opened from now on."""
        self._dialler.renew(tls)

    def renew_trust(self, trust: Trust) -> None:
        """For proofs from now on; whoever has proved itself is not asked again."""
        self._handshake.trust = trust

    def start(self) -> None:
        """Dials every peer, for ever and whatever happens."""
        for peer_id, link in self._links.items():
            if self._peers[peer_id]:
                self._dialler.keep(link)

    def _link(self, peer_id: str) -> Link:
        link = Link(peer_id)
        self._driver.replica.peers.of[peer_id].link = link.health  # what is known of a peer is asked there
        return link

    def follow(self, members: Mapping[str, str], guests: Container[str]) -> None:
        """Who belongs to the group now, and where: whoever came is dialled, whoever left is not any more.

        A guest (a member that our configuration does not know, SAFETY M3) has the connection that it opened.
        """
        for peer_id in [one for one in self._links if one not in members and one not in guests]:
            self._remove(peer_id)
        for peer_id, address in members.items():
            if peer_id == self._self_id:
                continue
            if peer_id in self._links and self._peers.get(peer_id, address) != address:
                self._remove(peer_id)
            self._add(peer_id, address)

    def _add(self, peer_id: str, address: str) -> None:
        """Dialled for ever, unless nobody knows where; what is known of the peer is asked there.

        One that had left and is back is greeted anew: what our connection said, it said of the member before.
        """
        self._peers[peer_id] = address
        link, peer = self._links.setdefault(peer_id, Link(peer_id)), self._driver.replica.peers.of[peer_id]
        if peer.link is not link.health and link.outbound is not None:
            link.outbound.close()
        peer.link = link.health
        if address and link.keeper is None:
            self._dialler.keep(link)

    def _remove(self, peer_id: str) -> None:
        """Its connections end, and it is not dialled again."""
        self._peers.pop(peer_id, None)
        link = self._links.pop(peer_id)
        if link.keeper is not None:
            link.keeper.cancel()
        for connection in (link.outbound, link.inbound):
            if connection is not None:
                connection.close()

    async def stop(self) -> None:
        await self._dialler.stop()
        for link in self._links.values():
            for connection in (link.outbound, link.inbound):
                if connection is not None:
                    connection.close()

    # --- outbound -----------------------------------------------------------------------------------------------
    def _answered(self, link: Link, connection: Connection, frame: Frame) -> None:
        """An answer on our own connection."""
        if not frame.flag & FLAG_RESPONSE:
            return
        if connection.peer_id is not None:
            link.health.heard_at_ns = self._driver.now_ns()
        try:
            if frame.opaque == -1 and frame.code == SLAB_PUSH:
                if connection.peer_id is not None:
                    self._driver.receive(link.peer_id, decode_push_answer(frame.body, -1))
                return
            code, seq = link.pending.pop(frame.opaque, NOT_ASKED)
            if code is None:
                return
            if code is RequestCode.HEART_BEAT and link.health.heard_at_ns is not None:
                link.health.answered(frame.opaque, link.health.heard_at_ns, self._driver.late_ns)
            if frame.code != SUCCESS:
                self._dialler.refused(link, code, frame)
            elif code in LIKE_A_PUSH:
                self._driver.receive(link.peer_id, decode_push_answer(frame.body, seq))
            elif code is RequestCode.FETCH:
                self._driver.receive(link.peer_id, decode_fetch_answer(frame.body, seq))
            elif code in (RequestCode.HELLO, RequestCode.PROOF):
                self._dialler.hello_answered(link, connection, frame, seq)
            else:
                self._driver.receive(link.peer_id, decode_response(code, frame.body, seq))
        except ProofError as error:
            self._dialler.met(
                link, Stranger.UNPROVEN, f"what answers there does not prove the members' secret: {error}"
            )
            connection.abort()
        except BodyError as error:
            if link.outbound is not None:
                self._driver.note("bad_answer", "warning", {"peer": link.peer_id, "text": str(error)})
                link.outbound.abort()
            else:
                self._dialler.met(link, Stranger.FOREIGN, f"answers nonsense: {error}")
                connection.abort()

    # --- inbound ------------------------------------------------------------------------------------------------
    def handle(self, connection: Connection, frame: Frame) -> None:
        """A HELLO or a member code on a connection that was opened to us."""
        if connection.peer_id is not None:
            self.heard(connection.peer_id)
        try:
            if frame.code == SLAB_PUSH and connection.peer_id is not None:
                self._driver.receive(connection.peer_id, decode_push(frame.body, connection.peer_id, frame.opaque))
            elif frame.code == RequestCode.HELLO:
                self._handshake.hello(connection, frame)
            elif frame.code == RequestCode.PROOF:
                self._handshake.proof(connection, frame)
            elif connection.peer_id is None:
                text = "a member's request on a connection without that member's HELLO"
                connection.answer(frame, self._refusal(ResponseCode.UNEXPECTED_MEMBER, text))
            elif frame.code == RequestCode.FETCH:
                self._driver.receive(connection.peer_id, decode_fetch(frame.body, frame.opaque))
            elif frame.code == RequestCode.INSTALL_BASE:
                request = decode_install(frame.body, connection.peer_id, frame.opaque)
                self._driver.receive(connection.peer_id, request)
            elif frame.code == RequestCode.SNAPSHOT_PART:
                self._driver.receive(connection.peer_id, decode_part(frame.body, connection.peer_id, frame.opaque))
            elif frame.code in SERVED_CODES or frame.code == RequestCode.LEADERSHIP_TRANSFER:
                self._driver.receive(connection.peer_id, decode_request(frame.code, frame.body, frame.opaque))
            else:
                connection.refuse(frame, RemotingCode.REQUEST_CODE_NOT_SUPPORTED, f"{frame.code} is not served here")
        except BodyError as error:
            self._driver.note("bad_request", "warning", {"peer": connection.peer_id, "text": str(error)})
            connection.answer(frame, self._refusal(ResponseCode.UNEXPECTED_ARGUMENT, str(error)))
            if connection.peer_id is not None:
                connection.close()  # a member that sends nonsense starts over

    def heard(self, peer_id: str) -> None:
        """A frame of that member has come, or a part of one."""
        link = self._links.get(peer_id)
        if link is not None:
            link.health.heard_at_ns = self._driver.now_ns()

    def _refusal(self, code: ResponseCode, text: str) -> bytes:
        return dump({"code": int(code), "group": self._group, "localId": self._self_id, "detail": text})

    def _accepted(self, connection: Connection, frame: Frame, hello: Hello) -> None:
        """A HELLO that may go to the core, whose answer says whether it is taken."""
        number = self._driver.next_seq()
        self._greeting[number] = (connection, frame)
        if len(self._greeting) > GREETING_MAX:
            del self._greeting[next(iter(self._greeting))]
        self._driver.receive(hello.node_id, replace(hello, seq=number))

    def closed(self, connection: Connection) -> None:
        """A connection that was opened to us is gone."""
        link = self._links.get(connection.peer_id or "")
        if link is None or link.inbound is not connection:
            return
        link.inbound = link.health.in_since_ns = None
        if self._handshake.trust.lenient and not connection.proven:
            self._driver.nobody_there(link.peer_id)  # ends the alarm about one that proved nothing
        # The peer is likely gone: ours to it is opened anew, unless it is younger than this news (else two nodes could
        # go on closing each other's fresh connections).
        if link.outbound is not None and asyncio.get_running_loop().time() - link.connected_at < SETTLED_AFTER_S:
            return
        if link.outbound is not None:
            link.why = f"its connection to this member ended: {connection.end_reason}"
            link.outbound.abort()  # its end reports the loss
        else:
            self._driver.peer_lost(link.peer_id)

    # --- sending ------------------------------------------------------------------------------------------------
    def send(self, to: str, message: Message) -> None:
        """Requests over our connection, answers over the peer's; what cannot be sent is dropped."""
        link = self._links.get(to)
        if type(message) is PushRequest:
            if link is not None and link.outbound is not None:
                self._push(link, link.outbound, message)
            return
        if type(message) is PushResponse:
            if link is not None and link.inbound is not None:
                self._answer_push(link.inbound, message)
            return
        if isinstance(message, Hello) and message.answer:
            self._send_hello_answer(to, message)
            return
        if link is None:
            return
        code = request_code(message)
        if code is None:
            self._send_answer(link, message)
        elif link.outbound is not None and link.outbound.backlog_bytes < BACKLOG_BYTES_MAX:
            self._send_request(link, link.outbound, code, message)

    def _push(self, link: Link, connection: Connection, push: PushRequest) -> None:
        """Entries wait for those before them; an order passes them, and a COMPARE makes them void."""
        opaque = push.seq & OPAQUE_MASK
        if push.slab is None:
            if push.kind is PushKind.COMPARE:
                connection.withdraw_long()
            if connection.backlog_bytes < BACKLOG_BYTES_MAX:
                self._asked(link, opaque, SLAB_PUSH, push.seq)
                connection.send(self._pushes.frame(push, opaque))
        elif connection.waiting_bytes < self._window_bytes:
            pending = link.pending
            pending[opaque] = (SLAB_PUSH, push.seq)  # `_asked`, as each append comes by here
            if len(pending) > PENDING_MAX:
                del pending[next(iter(pending))]
            connection.send_long(self._pushes.frame(push, opaque))

    @staticmethod
    def _asked(link: Link, opaque: int, code: RequestCode, seq: int) -> None:
        link.pending[opaque] = (code, seq)
        if len(link.pending) > PENDING_MAX:
            del link.pending[next(iter(link.pending))]

    def _send_request(self, link: Link, connection: Connection, code: RequestCode, message: Message) -> None:
        opaque = message.seq & OPAQUE_MASK
        self._asked(link, opaque, code, message.seq)
        if isinstance(message, SnapshotPart):  # keeps its place among entries; what is short passes
            if connection.waiting_bytes < self._window_bytes:
                connection.send_long(plain_frame(code, 0, opaque, encode_part(message)))
            return
        if code is RequestCode.HEART_BEAT:
            link.health.asked(opaque, self._driver.now_ns())
        if isinstance(message, FetchRequest):
            connection.send_body(code, 0, opaque, [encode_fetch(message)])
        elif isinstance(message, InstallRequest):
            connection.send_body(code, 0, opaque, [encode_install(message)])
        else:
            body = encode_message(message, self._group, self._self_id, link.peer_id)
            connection.send_body(code, 0, opaque, [body])

    @staticmethod
    def _answer_push(connection: Connection, answer: PushResponse) -> None:
        """What was not asked for (-1) says so."""
        if connection.backlog_bytes > BACKLOG_BYTES_MAX:
            return
        code, flag = (SLAB_PUSH, UNASKED) if answer.seq == -1 else (SUCCESS, FLAG_RESPONSE)
        connection.send_body(code, flag, answer.seq, [encode_push_answer(answer)])

    def _send_answer(self, link: Link, message: Message) -> None:
        connection = link.inbound
        if connection is None or connection.backlog_bytes > BACKLOG_BYTES_MAX:
            return
        if isinstance(message, FetchResponse):
            if connection.waiting_bytes < self._window_bytes:
                answer = encode_fetch_answer(message)
                connection.send_long(plain_frame(RemotingCode.SUCCESS, FLAG_RESPONSE, message.seq, answer))
            return
        else:
            body = encode_message(message, self._group, self._self_id, link.peer_id)
        connection.send_body(RemotingCode.SUCCESS, FLAG_RESPONSE, message.seq, [body])

    def _send_hello_answer(self, to: str, answer: Hello) -> None:
        connection, frame = self._greeting.pop(answer.seq, (None, None))
        if connection is None or frame is None or connection.closed:
            return
        connection.answer(frame, encode_message(answer, self._group, self._self_id, to))
        link = self._links.get(to)
        if link is None and answer.code is SUCCESS_CODE and to in self._driver.replica.guests:
            link = self._links[to] = Link(to)
        if answer.code is not SUCCESS_CODE or link is None:
            connection.close()
            return
        connection.peer_id = to
        connection.earn()
        connection.carry_members()
        previous, link.inbound = link.inbound, connection
        link.health.heard_at_ns = link.health.in_since_ns = self._driver.now_ns()
        if previous is not None and previous is not connection:
            with contextlib.suppress(OSError):
                previous.abort()
