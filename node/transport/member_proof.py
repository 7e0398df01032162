"""The proof of a shared secret between two members, for links without TLS (SAFETY C11).

    dialer -> accepter   HELLO   {…, nonce}                 reduced: nothing that only a member may know
    accepter -> dialer   answer  {…, nonce, mac}            reduced as well
    dialer -> accepter   PROOF   {the whole HELLO, mac}
    accepter -> dialer   answer  {the whole HELLO}

mac = HMAC-SHA256(secret, parts), each part behind its length (4 bytes, big-endian): "hello2", who proves ("accepter" or
"dialer"), the group id that the dialer named, the dialer's id, the accepter's id, both nonces (the dialer's first),
and the hash of what was said: SHA-256 of the HELLO's bytes, of the answer without its mac and, where the dialer proves,
of the whole HELLO without its mac.

It shows that the other end has the secret, not that it is n2, and does not help against somebody on the path: TLS does.

Invariants: a nonce is fresh for every connection and end, so nothing that was said before proves anything; who proves
is part of the mac, so nothing can be sent back; comparisons take the same time wherever the difference is; a proof that
is not exact raises ProofError and is worth nothing.
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final

from node.protocol.entry import BytesLike

NONCE_BYTES: Final = 32
NONCE_TEXT_MAX: Final = 128
ID_MAX: Final = 255
PURPOSE: Final = "hello2"
BY_DIALER: Final = "dialer"
BY_ACCEPTER: Final = "accepter"
# What may be sent before the proof. Base fields of every body, the verdict, and what two versions need to agree.
SENT_BEFORE_PROOF: Final = frozenset(
    {
        "caps", "code", "detail", "group", "group_id", "localId", "mac", "node_id", "nonce", "remoteId",
        "version_max", "version_min",
    }
)  # fmt: skip
Fields = Mapping[str, Any]


class ProofError(ValueError):
    """The other end does not prove that it has the secret; the text may be shown to it."""


def fresh_nonce() -> str:
    """From the system's generator."""
    return os.urandom(NONCE_BYTES).hex()


def canonical(fields: Fields) -> bytes:
    """One form for equal content: what both ends hash. Raises ProofError where there is none."""
    try:
        return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
    except (ValueError, RecursionError) as error:
        raise ProofError("the body cannot be written again") from error


def reduced(whole: Fields) -> dict[str, Any]:
    """The fields of a HELLO that may be sent before the proof."""
    return {name: value for name, value in whole.items() if name in SENT_BEFORE_PROOF and name != "mac"}


def parse(body: BytesLike) -> dict[str, Any]:
    """A JSON object, or ProofError."""
    try:
        values = json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise ProofError("the body is no JSON") from error
    if not isinstance(values, dict):
        raise ProofError("the body is no JSON object")
    return values


def _text(fields: Fields, name: str, most: int = NONCE_TEXT_MAX) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or len(value) > most or not value.isascii():
        raise ProofError(f"{name} is missing or no text")
    return value


def _without_mac(fields: Fields) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name != "mac"}


@dataclass(frozen=True, slots=True)
class Said:
    """What both ends of one connection have heard when one of them proves itself."""

    group_id: str
    dialer: str
    accepter: str
    dialer_nonce: str
    accepter_nonce: str
    content: tuple[bytes, ...]  # HELLO, answer without its mac, and the whole HELLO without its mac where it is there


def make_mac(secret: bytes, prover: str, said: Said) -> str:
    """See the module's docstring."""
    digest = sha256(b"".join(sha256(one).digest() for one in said.content)).hexdigest()
    parts = (PURPOSE, prover, said.group_id, said.dialer, said.accepter, said.dialer_nonce, said.accepter_nonce, digest)
    raw = b"".join(len(part.encode()).to_bytes(4, "big") + part.encode() for part in parts)
    return hmac.new(secret, raw, sha256).hexdigest()


def is_proved(secrets: Sequence[bytes], prover: str, said: Said, mac: str) -> bool:
    """Whether any of our secrets gives this mac; every one is tried, so that the time says nothing."""
    given = mac.encode()
    found = False
    for secret in secrets:
        found |= hmac.compare_digest(make_mac(secret, prover, said).encode(), given)
    return found


class DialerProof:
    """One connection that we opened: `hello`, then `proof` from what was answered."""

    def __init__(self, secrets: Sequence[bytes], self_id: str, peer_id: str) -> None:
        self._secrets, self._self_id, self._peer_id = secrets, self_id, peer_id
        self._nonce = fresh_nonce()
        self._hello = b""
        self._group_id = ""

    def hello(self, whole: Fields, *, tell_all: bool = False) -> bytes:
        """The first frame's body. `tell_all`: for a member of an older release, which takes nothing less."""
        fields = dict(whole) if tell_all else reduced(whole)
        fields["nonce"] = self._nonce
        self._group_id = str(fields.get("group_id") or "")
        self._hello = canonical(fields)
        return self._hello

    def proof(self, answer: Fields, whole: Fields) -> bytes:
        """Checks the accepter's proof, and gives the body of ours. Raises ProofError."""
        accepter_nonce, mac = _text(answer, "nonce"), _text(answer, "mac")
        heard = canonical(_without_mac(answer))
        said = Said(self._group_id, self._self_id, self._peer_id, self._nonce, accepter_nonce, (self._hello, heard))
        if not is_proved(self._secrets, BY_ACCEPTER, said, mac):
            other = answer.get("node_id")
            named = replace(said, accepter=other) if isinstance(other, str) and len(other) <= ID_MAX else said
            if is_proved(self._secrets, BY_ACCEPTER, named, mac):
                raise ProofError(f"it proves to be {other}, so that this is the address of {other}")
            raise ProofError("it has another secret")
        fields = _without_mac(whole)
        complete = Said(
            said.group_id, said.dialer, said.accepter, self._nonce, accepter_nonce, (*said.content, canonical(fields))
        )
        return canonical(fields | {"mac": make_mac(self._secrets[0], BY_DIALER, complete)})


class AccepterProof:
    """One HELLO on a connection that was opened to us: `answer` to it, then `check` what follows; good for one."""

    def __init__(self, secrets: Sequence[bytes], self_id: str, hello: BytesLike) -> None:
        """Raises ProofError where the HELLO carries no nonce."""
        fields = parse(hello)
        self.node_id = _text(fields, "node_id", ID_MAX)
        self._secrets, self._self_id, self._hello = secrets, self_id, bytes(hello)
        self._dialer_nonce = _text(fields, "nonce")
        self._group_id = _text(fields, "group_id", 255) if fields.get("group_id") is not None else ""
        self._nonce = fresh_nonce()
        self._answer = b""

    def answer(self, whole: Fields) -> bytes:
        """The body that proves us, and tells nothing more."""
        fields = reduced(whole) | {"nonce": self._nonce}
        self._answer = canonical(fields)
        return canonical(fields | {"mac": make_mac(self._secrets[0], BY_ACCEPTER, self._said())})

    def _said(self, *more: bytes) -> Said:
        content = (self._hello, self._answer, *more)
        return Said(self._group_id, self.node_id, self._self_id, self._dialer_nonce, self._nonce, content)

    def check(self, proof: BytesLike) -> None:
        """Returns where the dialer proved itself, and the whole HELLO with it; used once. Raises ProofError."""
        if not self._answer:
            raise ProofError("its HELLO was not answered, or proved already")
        try:
            fields = parse(proof)
            mac = _text(fields, "mac")
            said = self._said(canonical(_without_mac(fields)))
        finally:
            self._answer = b""
        if not is_proved(self._secrets, BY_DIALER, said, mac):
            raise ProofError("it has another secret")
        if fields.get("node_id") != self.node_id:
            raise ProofError("its HELLO named another member")
