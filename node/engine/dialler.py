"""Keeps our connection to each peer: dials it, greets it, judges its HELLO, and dials again when it ends.

One task per peer, which goes on whatever happens. Invariants: the first frame is HELLO, and its verdict decides; a
link's `outbound` is set only while its HELLO is accepted; why a peer cannot be reached is reported each time that it is
another reason; what answers at a peer's address without being that member is reported to the core (SAFETY C8).
"""

from __future__ import annotations

import asyncio
import os
import random
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Protocol

from node.background import Background, reason_of
from node.consensus.replica import Replica
from node.consensus.strangers import Stranger
from node.engine.member_handshake import MemberHandshake
from node.engine.peer_link import Link
from node.protocol.codes import RemotingCode, RequestCode, ResponseCode
from node.protocol.messages import Message
from node.protocol.peers import split_address
from node.transport.bodies import encode_message
from node.transport.connection import Connection, dial
from node.transport.remoting import Frame

DIAL_WITHIN_S: Final = 2.0
REDIAL_S_MIN: Final = 0.03
REDIAL_S_MAX: Final = 1.0
OPAQUE_MASK: Final = 0x7FFFFFFF


class Driver(Protocol):
    """What dialling, and the links, need of the engine."""

    replica: Replica
    now_ns: Callable[[], int]

    def late_ns(self, since_ns: int, now_ns: int) -> int: ...
    def receive(self, sender: str, message: Message) -> None: ...
    def read_done(self) -> None: ...
    def peer_connected(self, peer_id: str) -> None: ...
    def peer_lost(self, peer_id: str) -> None: ...
    def next_seq(self) -> int: ...
    def note(self, kind: str, severity: str, detail: dict[str, object]) -> None: ...
    def stranger_met(self, peer_id: str, kind: Stranger, text: str) -> None: ...
    def nobody_there(self, peer_id: str) -> None: ...


class Dialler:
    """One per engine. `answered(link, connection, frame)` takes every frame of a connection that was opened here."""

    def __init__(
        self, driver: Driver, group: str, self_id: str, addresses: Mapping[str, str], tls: ssl.SSLContext | None,
        handshake: MemberHandshake, answered: Callable[[Link, Connection, Frame], None],
    ) -> None:  # fmt: skip
        self._driver, self._group, self._self_id, self._addresses = driver, group, self_id, addresses
        self._tls, self._handshake, self._answered = tls, handshake, answered
        self._stopping = False
        self._dialling = Background(self._failed)

    def renew(self, tls: ssl.SSLContext) -> None:
        """For what is dialled from now on."""
        self._tls = tls

    def keep(self, link: Link) -> None:
        """Dials that peer, for ever and whatever happens."""
        link.keeper = self._dialling.keep(f"the link to {link.peer_id}", partial(self._keep, link))

    async def stop(self) -> None:
        self._stopping = True
        await self._dialling.stop()

    def _failed(self, name: str, error: BaseException) -> None:
        self._driver.note("task_failed", "critical", {"task": name, "text": reason_of(error)})

    # --- one connection -----------------------------------------------------------------------------------------
    async def _keep(self, link: Link) -> None:
        wait_s = REDIAL_S_MIN
        while True:
            if await self._once(link):
                wait_s = REDIAL_S_MIN
            await asyncio.sleep(wait_s * random.uniform(0.7, 1.3))
            wait_s = min(wait_s * 2, REDIAL_S_MAX)

    async def _once(self, link: Link) -> bool:
        """One connection from its dial to its end; whether it was ever accepted."""
        loop = asyncio.get_running_loop()
        link.hello, link.closed, link.pending = loop.create_future(), asyncio.Event(), {}
        connection = Connection(
            partial(self._answered, link), partial(self._dialled_lost, link),
            after_read=self._driver.read_done,
        )  # fmt: skip
        host, port = split_address(self._addresses[link.peer_id])
        accepted = opened = False
        try:
            async with asyncio.timeout(DIAL_WITHIN_S):
                await dial(connection, host, port, self._tls)
                opened = True
                connection.carry_members()
                if self._tls is not None and connection.certificate_name != link.peer_id:
                    raise ConnectionError(f"the certificate names {connection.certificate_name!r}")
                self._greet(link, connection)
                accepted = await link.hello
            if accepted:
                link.outbound, link.connected_at = connection, loop.time()
                link.health.out_since_ns = self._driver.now_ns()
                link.unreachable = link.why = ""
                self._driver.note("peer_connected", "info", {"peer": link.peer_id})
                self._driver.peer_connected(link.peer_id)
                await link.closed.wait()
            else:
                ended = f"it ended before: {connection.end_reason}" if connection.closed else "it was refused"
                self._note_unreachable(link, f"HELLO was not answered with a yes, {ended}")
        except (OSError, TimeoutError) as error:
            if isinstance(error, ssl.SSLError) or "certificate" in str(error):
                self.met(link, Stranger.FOREIGN, str(error))
            elif not opened:
                self._driver.nobody_there(link.peer_id)
            self._note_unreachable(link, _why_not(error, opened))
        finally:
            connection.abort()
            self._lost(link, connection)  # also where it closed before it was taken for ours
        return accepted

    def _note_unreachable(self, link: Link, text: str) -> None:
        """Why there is no connection, each time that it is another reason."""
        if text != link.unreachable:
            link.unreachable = text
            address = self._addresses[link.peer_id]
            self._driver.note("peer_unreachable", "warning", {"peer": link.peer_id, "reason": text, "address": address})

    def _greet(self, link: Link, connection: Connection) -> None:
        """The first frame."""
        body, seq = self._handshake.first_frame(connection, link.peer_id), self._driver.next_seq()
        if body is None:
            hello = self._driver.replica.hello(seq, link.peer_id)
            body = encode_message(hello, self._group, self._self_id, link.peer_id)
        self._ask(link, connection, RequestCode.HELLO, body, seq)

    @staticmethod
    def _ask(link: Link, connection: Connection, code: RequestCode, body: bytes, seq: int) -> None:
        link.pending[seq & OPAQUE_MASK] = (code, seq)
        connection.send_body(code, 0, seq & OPAQUE_MASK, [body])

    def _dialled_lost(self, link: Link, connection: Connection) -> None:
        if connection.broken is not None and link.outbound is None:
            self.met(link, Stranger.FOREIGN, f"what answers there speaks another protocol: {connection.broken}")
        self._lost(link, connection)

    def _lost(self, link: Link, connection: Connection) -> None:
        link.closed.set()
        if link.hello is not None and not link.hello.done():
            link.hello.set_result(False)
        if link.outbound is connection:
            link.outbound = None
            link.health.out_lost()
            if not self._stopping:
                reason = link.why or connection.end_reason
                self._driver.note("peer_lost", "warning", {"peer": link.peer_id, "reason": reason})
            self._driver.peer_lost(link.peer_id)

    # --- what it answers ----------------------------------------------------------------------------------------
    def met(self, link: Link, kind: Stranger, text: str) -> None:
        """What answers at this peer's address is no member of ours (SAFETY C8)."""
        self._driver.stranger_met(link.peer_id, kind, f"{link.peer_id} at {self._addresses[link.peer_id]}: {text}")

    def refused(self, link: Link, code: RequestCode, frame: Frame) -> None:
        """A request of ours was answered with a remoting error."""
        if code is RequestCode.HELLO and frame.code == RemotingCode.REQUEST_CODE_NOT_SUPPORTED:
            self.met(link, Stranger.PLAIN, "a plain DLedger node answers there")
        elif code is RequestCode.HELLO and frame.code != RemotingCode.SYSTEM_BUSY:
            self.met(link, Stranger.FOREIGN, f"the HELLO is answered with remoting code {frame.code}")
        if link.hello is not None and not link.hello.done():
            link.hello.set_result(False)

    def hello_answered(self, link: Link, connection: Connection, frame: Frame, seq: int) -> None:
        """An answer to our HELLO, or to the PROOF after it. Raises ProofError, BodyError."""
        proof = self._handshake.next_frame(connection, link.peer_id, frame)
        if proof is not None:
            self._ask(link, connection, RequestCode.PROOF, proof, self._driver.next_seq())
            return
        answer = self._handshake.answer_of(connection, frame, seq)
        self._driver.receive(link.peer_id, answer)
        known = self._driver.replica.peers.of.get(link.peer_id)
        good = answer.code is ResponseCode.SUCCESS and known is not None and known.hello is answer
        if good:
            connection.peer_id = link.peer_id
        if link.hello is not None and not link.hello.done():
            link.hello.set_result(good)


def _why_not(error: OSError, opened: bool) -> str:
    """Why a dial came to nothing."""
    if isinstance(error, TimeoutError):
        return f"{'no answer to HELLO' if opened else 'no connection'} within {DIAL_WITHIN_S:.0f} s"
    return os.strerror(error.errno) if error.errno is not None and error.errno > 0 else str(error)
