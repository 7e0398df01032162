"""What answers at a member's address lies, breaks off, or talks nonsense: a client's calls end in the client's own
errors, by their deadline, and leave nothing behind.

The first question (who leads) is answered properly, so that the call itself meets the nonsense, or not even that. What
is sent is drawn by seed.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import struct
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from node.client import LedgerClient, LedgerError
from node.client.kv import KvClient
from node.client.machine import MachineClient
from node.protocol.codes import RemotingCode, RequestCode, ResponseCode
from node.transport.connection import Connection
from node.transport.machine_frames import CommandAnswer, QuestionAnswer, encode_command_answer, encode_question_answer
from node.transport.remoting import FLAG_RESPONSE, Frame, encode_frame
from node.transport.slab_frames import AppendAnswer, AppendedByte, encode_append_answer

DEADLINE_S: Final = 0.3
WITHIN_S: Final = 20.0  # for a call that hangs
CLOSES: Final = 0.2  # the share of lies behind which the connection ends
SEEDS: Final = range(12)

Calls = dict[str, Callable[[LedgerClient], Awaitable[Any]]]
CALLS: Final[Calls] = {
    "append": lambda client: client.append(b"x"),
    "append_many": lambda client: client.append_many([b"x", b"y"]),
    "append_at": lambda client: client.append(b"x", expected_index=0),
    "read": lambda client: client.read(0, 3),
    "committed_index": lambda client: client.committed_index(),
    "leader": lambda client: client.leader(),
    "lane": lambda client: lane_append(client),
    "transfer": lambda client: client.transfer("n1"),
    "state": lambda client: client.state("n0"),
    "metadata": lambda client: client.metadata("n0"),
    "scrub": lambda client: client.scrub("n0"),
    "committed": lambda client: anext(client.committed(keep_alive_ms=50)),
    "command": lambda client: MachineClient(client, DEADLINE_S).command(b"x"),
    "put": lambda client: KvClient(client, deadline_s=DEADLINE_S).put(b"k", b"v"),
    "puts": lambda client: puts(KvClient(client, deadline_s=DEADLINE_S)),
    "get": lambda client: KvClient(client, deadline_s=DEADLINE_S).get(b"k"),
    "range": lambda client: KvClient(client, deadline_s=DEADLINE_S).range(),
    "watch": lambda client: anext(KvClient(client, deadline_s=DEADLINE_S).watch()),
}


async def lane_append(client: LedgerClient) -> Any:
    lane = await client.open_lane()
    return await lane.append([b"x"])


async def puts(store: KvClient) -> Any:
    return await asyncio.gather(*(store.put(b"k%d" % number, b"v") for number in range(40)))


class Member:
    """What listens at its address. `leads`: whether it says properly that it leads; all else are lies, by seed."""

    def __init__(self, rng: random.Random, *, leads: bool) -> None:
        self.rng, self.leads = rng, leads
        self.open: list[Connection] = []

    async def listen(self) -> tuple[asyncio.Server, str]:
        """The server, and its address."""
        server = await asyncio.get_running_loop().create_server(
            lambda: Connection(self.answer, lambda _: None, self.open.append), "127.0.0.1", 0
        )
        return server, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    def answer(self, connection: Connection, frame: Frame) -> None:
        if frame.code == RequestCode.METADATA and self.leads:
            told = {"code": 200, "group": "default", "leaderId": "n0", "term": 3, "peers": {}}
            connection.send([framed(frame, json.dumps(told).encode())])
            return
        sent = self.rng.choice(LIES)(self.rng, frame)
        if sent is None or self.rng.random() < CLOSES:
            connection.close()
        if sent:
            connection.send([sent])


def framed(frame: Frame, body: bytes, code: int = RemotingCode.SUCCESS, opaque: int | None = None) -> bytes:
    number = frame.opaque if opaque is None else opaque
    return encode_frame(Frame(code, number, body, FLAG_RESPONSE))


def odd_value(rng: random.Random) -> Any:
    return rng.choice(
        [None, True, -1, 0, 1 << 62, 1 << 70, 1e308, "", "n0", "a..b", "x" * 5000, [], [[1]], {}, {"a": {}}, "\x1b[2J"]
    )  # fmt: skip


NAMES: Final = (
    "code", "group", "groupId", "leaderId", "term", "peers", "index", "entry", "log", "detail", "passNumber", "epoch",
    "transfereeId", "lane", "endIndex", "window", "windowBytes", "committedIndex", "lastTimeMs",
)  # fmt: skip


def lie_in_json(rng: random.Random, frame: Frame) -> bytes:
    told = {name: odd_value(rng) for name in rng.sample(NAMES, rng.randrange(len(NAMES)))}
    if rng.random() < 0.5:
        told |= {"code": 200, "group": "default"}
    return framed(frame, json.dumps(told).encode())


def other_json(rng: random.Random, frame: Frame) -> bytes:
    body = rng.choice([b"", b"{", b"[]", b"null", b"1e999", b"[" * 5000, b'{"code":' + b"9" * 5000 + b"}", b"\xff\xfe"])
    return framed(frame, body)


def random_body(rng: random.Random, frame: Frame) -> bytes:
    return framed(frame, rng.randbytes(rng.randrange(300)))


def small_numbers(rng: random.Random, frame: Frame) -> bytes:
    """Binary bodies are heads of a few numbers."""
    numbers = [rng.choice([-1, 0, 1, 2, 7, 200, 404, 1 << 31, (1 << 63) - 1]) for _ in range(rng.randrange(12))]
    kind = rng.choice(["q", "i", "H", "B"])
    raw = b"".join(struct.pack(">q", one)[8 - struct.calcsize(kind) :] for one in numbers)
    return framed(frame, struct.pack(">i", rng.choice([200, 0, 404])) + raw)


def appended(rng: random.Random, frame: Frame) -> bytes:
    """A sound answer to an append, or to commands, with numbers that cannot be."""
    numbers = [rng.choice([-5, -1, 0, 3, (1 << 62)]) for _ in range(3)]
    said = AppendAnswer(
        rng.choice([200, 404, 424, 999]), *numbers, rng.choice(list(AppendedByte)),
        rng.choice(["", "n0", "n1", "a..b"]), rng.choice(["", "a..b:1", "127.0.0.1:99999999"]), "\x1b[2J",
        rng.choice([0, 1, 1 << 31]),
    )  # fmt: skip
    results = [b"r" * rng.randrange(40) for _ in range(rng.choice([0, 1, 2, 39, 41]))]

    if frame.code == RequestCode.COMMAND:
        return framed(frame, encode_command_answer(CommandAnswer(said, True, results)))
    return framed(frame, encode_append_answer(said))


def answered(rng: random.Random, frame: Frame) -> bytes:
    """Sound frames of answers to questions, with contents that are none."""
    numbers = (struct.pack(">q", rng.choice([0, 1, 5, 1 << 40]))[rng.randrange(8) :] for _ in range(rng.randrange(6)))
    content = rng.choice([b"\0", b"\1"]) + b"".join(numbers)
    one = QuestionAnswer(ResponseCode.SUCCESS, rng.choice([-1, 0, 9]), content)
    return framed(frame, b"".join(encode_question_answer([one])))


def cut_answer(rng: random.Random, frame: Frame) -> bytes:
    said = encode_command_answer(
        CommandAnswer(AppendAnswer(200, 3, 3, 1, AppendedByte.YES, "", "", "", 0), True, [b"r"])
    )
    return framed(frame, said[: rng.randrange(len(said))])


def other_code(rng: random.Random, frame: Frame) -> bytes:
    return framed(frame, b"{}", code=rng.choice([1, 2, 3, 4, 77, (1 << 31) - 1]))


def others_answer(rng: random.Random, frame: Frame) -> bytes:
    return framed(frame, b"{}", opaque=rng.choice([-1, 0, frame.opaque + 1, (1 << 31) - 1]))


def twice(rng: random.Random, frame: Frame) -> bytes:
    body = json.dumps({"code": 200, "leaderId": "n0"}).encode()
    return framed(frame, body) * 3


def garbage(rng: random.Random, _frame: Frame) -> bytes:
    return rng.randbytes(rng.randrange(1, 200))


def odd_length(rng: random.Random, _frame: Frame) -> bytes:
    length = rng.choice([-(1 << 31), -1, 0, 3, (1 << 24) + 1, (1 << 31) - 1])
    return struct.pack(">iI", length, rng.choice([0, 1 << 24, 0xFFFFFFFF]))


def half(rng: random.Random, frame: Frame) -> bytes:
    whole = framed(frame, b"{}" * 50)
    return whole[: rng.randrange(len(whole))]


def silent(_rng: random.Random, _frame: Frame) -> bytes:
    return b""


def gone(_rng: random.Random, _frame: Frame) -> None:
    return None


LIES: Final = (
    lie_in_json, other_json, random_body, small_numbers, appended, answered, cut_answer, other_code, others_answer,
    twice, garbage, odd_length, half, silent, gone,
)  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_a_lie_ends_in_an_error_of_the_clients_own(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or in a lie that could be true."""
    monkeypatch.setattr("node.client.kv.WATCH_WAIT_MS", 100)  # so long a watch may be left without an answer
    unseen: list[dict[str, Any]] = []

    async def one(seed: int, leads: bool) -> str:
        rng = random.Random(f"{call} {leads} {seed}")
        member = Member(rng, leads=leads)
        server, address = await member.listen()
        client = LedgerClient({"n0": address}, deadline_s=DEADLINE_S)
        try:
            await asyncio.wait_for(CALLS[call](client), WITHIN_S)
        except LedgerError as error:
            assert str(error), "an error says what is wrong"
            return type(error).__name__
        except TimeoutError:
            pytest.fail(f"{call} hangs (seed {seed}, {leads=})")
        except Exception as error:
            raise AssertionError(f"{call} raises {type(error).__name__} (seed {seed}, {leads=})") from error
        finally:
            await client.close()
            server.close()
            for connection in member.open:
                connection.abort()
        return "believed"

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, said: unseen.append(said))
        await asyncio.gather(*(one(seed, leads) for seed in SEEDS for leads in (True, False)))
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(main())
    assert not unseen
