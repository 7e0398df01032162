"""The proof of a shared secret between two brokers of a pair, within their handshake (`[node] secret_file`).

    master -> slave   hello   {..., nonce}
    slave -> master   hello   {..., nonce, mac}     nothing is judged before this mac is right
    master -> slave   verdict {..., mac}            nothing is done before this one is

mac = HMAC-SHA256(secret, parts), each part behind its length (4 bytes, big-endian): "ha1", who proves ("master" or
"slave"), the SHA-256 of the master's hello, in a verdict's of the slave's hello, and of what is said without its mac.
As between members, it shows that the other end has the secret, and does not help against somebody on the path.

Invariants: nonces are fresh and within every mac; who proves is part of it, so nothing can be sent back; of several
secrets the first is proved and any is taken, so that they are changed one broker after the other; all of them are
compared, each in constant time.
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

NONCE_BYTES: Final = 32
NONCE_LETTERS_MAX: Final = 128
PURPOSE: Final = b"ha1"
MASTER: Final = b"master"
SLAVE: Final = b"slave"
Said = Mapping[str, Any]


class Proof:
    """`secrets`: the one to prove first."""

    def __init__(self, secrets: Sequence[bytes]) -> None:
        self._secrets = tuple(secrets)

    def renew(self, secrets: Sequence[bytes]) -> None:
        """From the next handshake on; connections that are proved stay."""
        self._secrets = tuple(secrets)

    def nonce(self) -> str:
        return os.urandom(NONCE_BYTES).hex()

    def mac(self, by: bytes, *said: Said) -> str:
        return _mac(self._secrets[0], by, said)

    def is_proved(self, by: bytes, shown: object, *said: Said) -> bool:
        """Whether whoever said this, and all before it, has one of the secrets."""
        if not isinstance(shown, str):
            return False
        given = shown.encode("utf-8", "replace")
        found = [hmac.compare_digest(_mac(one, by, said).encode(), given) for one in self._secrets]
        return any(found)


def has_nonce(said: Said) -> bool:
    found = said.get("nonce")
    return isinstance(found, str) and 2 * NONCE_BYTES <= len(found) <= NONCE_LETTERS_MAX


def _mac(secret: bytes, by: bytes, said: Sequence[Said]) -> str:
    parts = [PURPOSE, by, *(sha256(_canonical(one)).digest() for one in said)]
    return hmac.new(secret, b"".join(len(part).to_bytes(4, "big") + part for part in parts), sha256).hexdigest()


def _canonical(said: Said) -> bytes:
    """One form for equal content, without its mac."""
    content = {name: value for name, value in said.items() if name != "mac"}
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
