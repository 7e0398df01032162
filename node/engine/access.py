"""What whoever is at the other end of a connection may ask for: rights by certificate name, token, or none of them.

A token travels as the field `token` of a frame's header, of the first one that needs it, and counts for the whole
connection; requests in JSON may carry it in their body as well, and there it counts for that request. Invariants:
tokens are compared in constant time; an address is no credential where a token file or a row is in force.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Sequence
from typing import Final

from node.access_rows import ALL, Right, Row
from node.protocol.codes import RequestCode
from node.transport.connection import Connection

TOKEN_FIELD: Final = "token"
NODE: Final = "node"  # how whoever shows the node's own token is called
NEEDED: Final = {
    RequestCode.FAST_APPEND: Right.APPEND,
    RequestCode.LANE_APPEND: Right.APPEND,
    RequestCode.OPEN_LANE: Right.APPEND,
    RequestCode.APPEND: Right.APPEND,
    RequestCode.COMMAND: Right.APPEND,
    RequestCode.QUESTION: Right.READ,
    RequestCode.FAST_READ: Right.READ,
    RequestCode.AWAITED_READ: Right.READ,
    RequestCode.GET: Right.READ,
    RequestCode.COMMITTED_STREAM: Right.READ,
    RequestCode.INTROSPECT: Right.OBSERVE,
    RequestCode.LEADERSHIP_TRANSFER: Right.OPERATE,
    RequestCode.OPERATOR_ACTION: Right.OPERATE,
    RequestCode.METADATA: Right.NOTHING,  # who the members are: so a client finds where to show its token
}


class Access:
    """One engine's. `tokens` are what the rows' files hold, in their order."""

    def __init__(self, own_token: str | None, rows: Sequence[Row], tokens: Sequence[str]) -> None:
        files = [row for row in rows if row.kind == "token"]
        self._tokens = [
            (token.encode(), row.rights, f"token {row.path.name}") for token, row in zip(tokens, files, strict=True)
        ]
        if own_token is not None:
            self._tokens.append((own_token.encode(), ALL, NODE))
        self._certificates = {row.name: row.rights for row in rows if row.kind == "certificate"}
        said = [row.rights for row in rows if row.kind == "anonymous"]
        self._anonymous = said[0] if said else Right.NOTHING if rows else Right.APPEND | Right.READ
        self._local = self._anonymous if rows or own_token is not None else ALL

    def of_token(self, token: str) -> Right:
        """What whoever shows it may do beside what it may do anyway."""
        found, shown = Right.NOTHING, token.encode("utf-8", "replace")
        for known, rights, _ in self._tokens:
            if hmac.compare_digest(known, shown):
                found |= rights
        return found

    def name_of(self, token: str) -> str:
        """Whose token it is, by its file's name; empty where no file holds it. The first row counts."""
        shown = token.encode("utf-8", "replace")
        return next((name for known, _, name in self._tokens if hmac.compare_digest(known, shown)), "")

    def certificate_of(self, connection: Connection) -> str:
        """The certificate's name that the other end showed, where a row names it; empty otherwise."""
        name = connection.certificate_name if self._certificates else None
        return f"certificate {name}" if name in self._certificates else ""

    def of_connection(self, connection: Connection) -> Right:
        """Without any token."""
        rights = self._local if is_local(connection.peer_host) else self._anonymous
        name = connection.certificate_name if self._certificates else None
        return rights if name is None else rights | self._certificates.get(name, Right.NOTHING)


def is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def refusal_text(needed: Right) -> str:
    """What to do about it."""
    right = (needed.name or "that").lower()
    return (
        f"this needs the right to {right} here: show this member's token, the content of its [node] token_file, or a"
        " token or certificate that has it in [access]"
    )
