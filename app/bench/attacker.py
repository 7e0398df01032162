"""One stranger at a member port, for `bench attacked`: `python -m app.bench.attacker ATTACK HOST:PORT GROUP SEED`.

Each attack goes on as fast as it can until its process is ended. What it draws comes from the seed. It prints a line
once it has begun.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from node.protocol.codes import RequestCode

HELD: Final = 400  # connections at once
LONG_HELD: Final = 30
MIB: Final = 1 << 20
UNREAD_REQUESTS: Final = 2000
TERM_STEP: Final = 1 << 20
FROM_ANY_MEMBER: Final = 3  # the mode of a read that asks no leader
WAIT_S: Final = 5.0


def request(code: RequestCode, body: bytes) -> bytes:
    """A frame."""
    header = json.dumps({"code": int(code), "flag": 0, "language": "PYTHON", "opaque": 1, "version": 0}).encode()
    return struct.pack(">iI", 4 + len(header) + len(body), len(header)) + header + body


@dataclass(slots=True)
class Stranger:
    """Where it attacks, and the connections that it holds."""

    host: str
    port: int
    group: str
    rng: random.Random
    held: deque[socket.socket] = field(default_factory=deque)

    def connected(self, at_most: int = HELD, wait_s: float = WAIT_S) -> socket.socket:
        """One more connection; the one held longest goes for it."""
        if len(self.held) >= at_most:
            self.held.popleft().close()
        one = socket.create_connection((self.host, self.port), timeout=wait_s)
        self.held.append(one)
        return one

    def named(self, **fields: object) -> bytes:
        return json.dumps({"group": self.group, **fields}).encode()

    def answered(self, one: socket.socket, sent: bytes) -> None:
        """Sends, and takes the one answer."""
        one.sendall(sent)
        left = int.from_bytes(one.recv(4, socket.MSG_WAITALL), "big")
        while left > 0 and (taken := one.recv(min(left, MIB))):
            left -= len(taken)


def silent(by: Stranger) -> None:
    by.connected()


def open_and_leave(by: Stranger) -> None:
    by.connected(at_most=1)


def half_frames(by: Stranger) -> None:
    head = struct.pack(">iI", by.rng.randrange(1 << 16, 1 << 24), 100) + bytes(by.rng.randrange(1, 1 << 15))
    by.connected().sendall(head[: by.rng.choice([3, 8, len(head)])])


def long_frames(by: Stranger) -> None:
    """Frames of 4 to 16 MiB, all but their end, half of them with a client's place."""
    one = by.connected(LONG_HELD, wait_s=0.2)
    if by.rng.random() < 0.5:
        by.answered(one, request(RequestCode.METADATA, by.named()))
    size = by.rng.randrange(4 * MIB, 16 * MIB)
    one.sendall(struct.pack(">iI", size, 100) + bytes(size - 100))


def forged(by: Stranger) -> None:
    """Says that it is a member, from a term far above."""
    one = by.connected()
    word = {"leaderId": "n1", "localId": "n1", "remoteId": "n0", "term": by.rng.randrange(1, 9) * TERM_STEP}
    by.answered(one, request(RequestCode.HEART_BEAT, by.named(**word, commitIndex=0)))
    by.answered(one, request(RequestCode.VOTE, by.named(**word, ledgerEndIndex=1 << 40, ledgerEndTerm=1 << 40)))
    by.answered(one, request(RequestCode.SLAB_PUSH, by.rng.randbytes(200)))
    by.answered(one, request(RequestCode.HELLO, by.named(**word, node_id="n1", nonce="aa")))


def much_work(by: Stranger) -> None:
    """Requests that are short for what they ask."""
    one, count = by.connected(), by.rng.randrange(20_000, 400_000)
    in_json = b'{"group":"' + by.group.encode() + b'","batchMsgs":[' + b'"",' * count + b'""]}'
    by.answered(one, request(RequestCode.APPEND, in_json))
    by.answered(one, request(RequestCode.FAST_APPEND, struct.pack(">iqI", 0, -1, count) + bytes(4 * count)))


def requests(by: Stranger) -> None:
    """Valid ones, one after the other, on many connections."""
    one = by.connected()
    for _ in range(100):
        by.answered(one, request(RequestCode.METADATA, by.named()))


def unread(by: Stranger) -> None:
    """Asks much and takes no answer."""
    one = by.connected(wait_s=0.2)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.sendall(request(RequestCode.INTROSPECT, by.named(what="state")) * UNREAD_REQUESTS)


def unread_reads(by: Stranger) -> None:
    """Reads as much of the log as is given at once, again and again, and takes none of it."""
    one = by.connected(wait_s=0.2)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    from_index = by.rng.randrange(1000)
    one.sendall(request(RequestCode.FAST_READ, struct.pack(">qiB", from_index, MIB, FROM_ANY_MEMBER)) * UNREAD_REQUESTS)


ATTACKS: Final[dict[str, Callable[[Stranger], None]]] = {
    "silent connections": silent,
    "opened and left": open_and_leave,
    "half frames": half_frames,
    "long frames": long_frames,
    "forged members": forged,
    "much work": much_work,
    "requests": requests,
    "unread answers": unread,
    "unread reads": unread_reads,
}


def main(attack: str, address: str, group: str, seed: str) -> None:
    host, _, port = address.rpartition(":")
    by = Stranger(host, int(port), group, random.Random(f"{seed} {attack}"))
    print("begun", flush=True)
    while True:
        with contextlib.suppress(OSError):  # its connection went to another one, or it is not read from
            ATTACKS[attack](by)


if __name__ == "__main__":
    main(*sys.argv[1:])
