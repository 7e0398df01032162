"""The member handshake: authenticates a connection as a member's, by certificate, shared secret, or its word.

By its word only where neither TLS nor a secret is configured, or where the secret is "optional" (SAFETY C11). A secret
is not asked for over TLS, which proves more.

Invariants: with a required secret, nothing reaches the core and nothing is answered before the proof; `Hello.proven`
and `Connection.proven` are set here and nowhere else; a member's HELLO on a proven connection names that member.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from node.consensus.replica import Replica
from node.protocol.codes import RequestCode, ResponseCode
from node.protocol.messages import Hello, Message
from node.transport.bodies import BodyError, decode_request, decode_response, dump, encode_message, load
from node.transport.connection import Connection
from node.transport.hello_body import check_length
from node.transport.member_proof import AccepterProof, DialerProof, ProofError, parse
from node.transport.remoting import Frame

SUCCESS: Final = int(ResponseCode.SUCCESS)


class Driver(Protocol):
    """What the handshake needs of the engine."""

    replica: Replica

    def receive(self, sender: str, message: Message) -> None: ...
    def next_seq(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Trust:
    """What makes a member one. `secrets` empty: none is configured; `required`: nobody passes without it."""

    tls: bool = False
    secrets: tuple[bytes, ...] = ()
    required: bool = True

    @property
    def asks(self) -> bool:
        """Whether the secret is asked for."""
        return bool(self.secrets) and not self.tls

    @property
    def lenient(self) -> bool:
        """Whether a member that proves nothing passes all the same, under an alarm."""
        return self.asks and not self.required


class MemberHandshake:
    """One per engine. `accepted(connection, frame, hello)` takes what may go to the core."""

    def __init__(
        self, driver: Driver, group: str, self_id: str, trust: Trust,
        accepted: Callable[[Connection, Frame, Hello], None],
    ) -> None:  # fmt: skip
        self._driver, self._group, self._self_id = driver, group, self_id
        self.trust, self._accepted = trust, accepted

    @property
    def _ourselves(self) -> str:
        """Why a HELLO in our own name is refused: a stranger's, or ours, met at an address given for another member."""
        return f"this is {self._self_id} itself; is the address that of another member?"

    def _whole(self, to: str) -> dict[str, Any]:
        """Our own HELLO for that peer, as its body's fields."""
        hello = self._driver.replica.hello(self._driver.next_seq(), to)
        fields: dict[str, Any] = json.loads(encode_message(hello, self._group, self._self_id, to))
        return fields

    # --- a connection that we opened --------------------------------------------------------------------------------
    def first_frame(self, connection: Connection, peer_id: str) -> bytes | None:
        """The body of the HELLO that begins a proof; None where no secret is asked for."""
        if not self.trust.asks:
            return None
        proof = DialerProof(self.trust.secrets, self._self_id, peer_id)
        connection.proof = proof
        return proof.hello(self._whole(peer_id), tell_all=self.trust.lenient)

    def next_frame(self, connection: Connection, peer_id: str, answer: Frame) -> bytes | None:
        """The body of our PROOF, once the accepter proved itself; None where there is nothing (more) to prove.

        Raises ProofError.
        """
        proof, connection.proof = connection.proof, None
        if not isinstance(proof, DialerProof):
            return None
        fields = parse(answer.body)
        if fields.get("code") != SUCCESS:
            return None  # a refusal, which says why
        if fields.get("mac") is None and self.trust.lenient:
            return None
        body = proof.proof(fields, self._whole(peer_id))
        connection.proven = True
        return body

    def answer_of(self, connection: Connection, frame: Frame, seq: int) -> Hello:
        """The peer's HELLO that answers ours. Raises BodyError."""
        answer = decode_response(RequestCode.HELLO, frame.body, seq)
        assert isinstance(answer, Hello)
        return replace(answer, proven=self.trust.tls or connection.proven)

    # --- a connection that was opened to us -------------------------------------------------------------------------
    def hello(self, connection: Connection, frame: Frame) -> None:
        """A HELLO. Raises BodyError."""
        check_length(frame.body)
        if self.trust.asks and not connection.proven:
            if load(frame.body).values.get("nonce") is not None:
                self._offer(connection, frame)
                return
            if self.trust.required:
                self._refuse(connection, frame, "a member proves the secret here, and this HELLO begins no proof")
                return
        self._take(connection, frame)

    def _offer(self, connection: Connection, frame: Frame) -> None:
        """Proves ourselves to whoever asks, and tells nothing else."""
        try:
            proof = AccepterProof(self.trust.secrets, self._self_id, frame.body)
        except ProofError as error:
            raise BodyError(str(error)) from error
        group = load(frame.body).text("group")
        if group != self._group:
            self._refuse(connection, frame, "this is another group", ResponseCode.UNKNOWN_GROUP)
        elif proof.node_id == self._self_id:
            self._refuse(connection, frame, self._ourselves, ResponseCode.UNKNOWN_MEMBER)
        else:
            connection.proof = proof
            connection.answer(frame, proof.answer(self._whole(proof.node_id)))

    def proof(self, connection: Connection, frame: Frame) -> None:
        """A PROOF: the HELLO in it counts, if it proves the secret. Raises BodyError."""
        check_length(frame.body)
        proof, connection.proof = connection.proof, None
        if not isinstance(proof, AccepterProof):
            self._refuse(connection, frame, "a proof follows a HELLO that was answered")
            return
        try:
            proof.check(frame.body)
        except ProofError as error:
            self._refuse(connection, frame, f"this proves no member: {error}")
            return
        connection.proven = True
        self._take(connection, frame)

    def _take(self, connection: Connection, frame: Frame) -> None:
        hello = decode_request(RequestCode.HELLO, frame.body, frame.opaque)
        assert isinstance(hello, Hello)
        name, wanted = connection.certificate_name, load(frame.body).text("remoteId", self._self_id)
        if self.trust.tls and name != hello.node_id:
            self._refuse(connection, frame, f"the certificate names {name!r}, the HELLO {hello.node_id!r}")
        elif hello.node_id == self._self_id:
            self._refuse(connection, frame, self._ourselves, ResponseCode.UNKNOWN_MEMBER)
        elif wanted != self._self_id:  # before it takes the place of that member's true connection
            text = f"this is {self._self_id}; was its address given for another member's?"
            self._refuse(connection, frame, text, ResponseCode.UNKNOWN_MEMBER)
        elif connection.peer_id not in (None, hello.node_id):
            self._refuse(connection, frame, f"this connection is {connection.peer_id}'s, not {hello.node_id!r}'s")
        elif not hello.store_id and hello.nonce is not None:
            self._refuse(connection, frame, f"{self._self_id} has no secret_file, and members there prove a secret")
        else:
            self._accepted(connection, frame, replace(hello, proven=self.trust.tls or connection.proven))

    def _refuse(
        self, connection: Connection, frame: Frame, text: str, code: ResponseCode = ResponseCode.UNEXPECTED_MEMBER
    ) -> None:
        fields = {"code": int(code), "group": self._group, "localId": self._self_id, "detail": text}
        connection.answer(frame, dump(fields))
        connection.close()
