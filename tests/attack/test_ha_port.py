"""Attacks on the HA port of a master in classic mode, drawn from a seed (ATTACK_SEED has others drawn).

Strangers have no secret of the pair's. While they are there and after it, a broker that proves the secret is answered
as before, and messages are taken and given.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any, Final

import pytest

from node.ha.asking import NoMaster, ask
from node.ha.frames import ASK, JSON_BYTES_MAX, SAY, encode_report, slave_says
from node.ha.handshake import Hello
from node.ha.lineage import Lineage
from node.ha.proof import Proof
from node.ha.service import CONNECTIONS_MAX
from tests.attack.memory import Memory
from tests.attack.remoting_kit import SECRET, WITHIN_S, AttackedBroker, drawn

pytestmark = pytest.mark.process
MEMORY_MIB: Final = 48  # 64 connections of 256 KiB objects, and what reading takes
OWN: Final = Hello(Lineage(), 0, 0, 1 << 30)


class Master(AttackedBroker):
    """With what another broker of the pair hears of it."""

    def asked(self, secret: bytes = SECRET) -> Hello:
        return asyncio.run(ask(("127.0.0.1", self.ha), OWN, Proof([secret]), WITHIN_S))

    def unharmed(self) -> None:
        super().unharmed()
        said = self.asked()
        assert (said.role, said.lineage) == ("ASYNC_MASTER", self.first.lineage)
        assert said.end > 0

    @property
    def first(self) -> Hello:
        if not hasattr(self, "_first"):
            self._first = self.asked()
        return self._first


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Master]:
    one = Master(tmp_path_factory.mktemp("ha"))
    try:
        one.unharmed()
        yield one
    finally:
        one.close()


def _silent(_rng: random.Random) -> bytes:
    return b""


def _half(rng: random.Random) -> bytes:
    """Of a report, of an object's head, of an object."""
    whole = encode_report(ASK) + slave_says({"x": "y" * rng.randrange(1000, JSON_BYTES_MAX - 100)})
    return whole[: rng.choice([rng.randrange(1, 8), rng.randrange(9, 20), len(whole) - 1])]


def _long(rng: random.Random) -> bytes:
    size = rng.choice([-1, -(2**31), JSON_BYTES_MAX + 1, 2**31 - 1])
    return encode_report(ASK) + struct.pack(">qi", SAY, size) + rng.randbytes(rng.randrange(1 << 20))


def _noise(rng: random.Random) -> bytes:
    return rng.choice([b"", encode_report(ASK)]) + rng.randbytes(rng.randrange(1, 1 << 16))


def _a_slave_of_rocketmqs(rng: random.Random) -> bytes:
    return b"".join(encode_report(rng.randrange(1 << 40)) for _ in range(rng.randrange(1, 10_000)))


def _lies(rng: random.Random) -> bytes:
    said: dict[str, Any] = OWN.to_json() | {"slave": "a slave", "run": "r", "nonce": rng.randbytes(32).hex()}
    said["lineage"] = said["lineage"] | {"epoch": rng.randrange(1 << 30)}
    said |= rng.choice([{}, {"mac": rng.randbytes(32).hex()}, {"mac": 7}, {"nonce": 7}])
    return encode_report(ASK) + slave_says(said) * rng.choice([1, 500])


def _deep(rng: random.Random) -> bytes:
    depth = rng.choice([900, 980, 990, 100_000])
    body = b'{"mac":"m","nonce":"%s","a":%s%s}' % (b"n" * 64, b"[" * depth, b"]" * depth)
    return encode_report(ASK) + struct.pack(">qi", SAY, len(body)) + body


def _questions(rng: random.Random) -> bytes:
    """As one that is judged asks; this one is not."""
    return encode_report(ASK) + slave_says({"ranges": [[0, 64 << 20]]}) * rng.randrange(1, 1000)


STRANGERS: Final[list[Callable[[random.Random], bytes]]] = [
    _silent, _half, _long, _noise, _a_slave_of_rocketmqs, _lies, _deep, _questions,
]  # fmt: skip


@pytest.mark.parametrize("make", STRANGERS, ids=lambda make: make.__name__.strip("_"))
def test_strangers_keep_nobody_out_and_move_nothing(master: Master, make: Callable[[random.Random], bytes]) -> None:
    """More of them than there are places; none reads what it is answered."""
    rng = drawn(make.__name__)
    with ExitStack() as held, Memory(master.process.pid) as memory:
        for number in range(rng.randrange(CONNECTIONS_MAX, 3 * CONNECTIONS_MAX)):
            one = socket.create_connection(("127.0.0.1", master.ha), timeout=WITHIN_S)
            held.callback(one.close)
            with suppress(OSError):  # it was closed while it sent
                one.sendall(make(rng))
            if number % 50 == 0:
                master.unharmed()
        master.unharmed()
    assert memory.most_mib < MEMORY_MIB
    master.unharmed()


def test_who_does_not_prove_the_secret_learns_no_more_than_the_epochs(master: Master) -> None:
    with pytest.raises(NoMaster):
        master.asked(b"another secret, of another pair")
    with socket.create_connection(("127.0.0.1", master.ha), timeout=WITHIN_S) as one, one.makefile("rb") as answers:
        one.sendall(encode_report(ASK))
        offset, size = struct.unpack(">qi", answers.read(12))
        said = json.loads(answers.read(size))
        assert offset == SAY
        assert set(said) == {*OWN.to_json(), "nonce"}
        one.sendall(slave_says(OWN.to_json() | {"slave": "a slave", "nonce": said["nonce"], "mac": "0" * 64}))
        assert answers.read() == b""  # no verdict, and nothing of the log
    master.unharmed()
