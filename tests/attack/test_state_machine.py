"""Attacks on a group with a state machine by whoever may write and read, drawn from a seed (ATTACK_SEED draws others).

Real members, each with its state machine's process. Whatever is asked, every engine and every state machine is the same
process afterwards, their memory is bounded, and others write, read and watch as before. Facts are waited for, never
times.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from node.client import LedgerError
from node.client.kv import KvClient
from node.protocol.codes import RequestCode
from node.protocol.kv import (
    TTL_MS_MAX,
    VALUE_BYTES_MAX,
    If,
    KvCommand,
    Op,
    ask_get,
    ask_range,
    ask_watch,
    encode_command,
)
from node.transport.committed_frames import StreamKind, StreamRequest, encode_stream_request
from node.transport.machine_frames import QuestionRequest, encode_question
from node.transport.remoting import Frame, encode_frame
from node.transport.slab_frames import AppendRequest, ReadMode, encode_append
from tests.attack.memory import Memory
from tests.attack.test_member_port import drawn
from tests.process.group import Group, all_vote
from tests.process.undisturbed import WITHIN_S

pytestmark = [pytest.mark.process, pytest.mark.long]
LARGE: Final = b"large"
MEMORY_MIB: Final = 400  # of an engine and of a state machine: 8 MiB of a request, and what several clients have open
Make = Callable[[random.Random], tuple[RequestCode, bytes]]


def commands(*bodies: bytes) -> tuple[RequestCode, bytes]:
    return RequestCode.COMMAND, b"".join(encode_append(AppendRequest(list(bodies))))


def questions(rng: random.Random, *asked: bytes, wait_ms: int = 5000) -> tuple[RequestCode, bytes]:
    return RequestCode.QUESTION, encode_question(QuestionRequest(list(asked), rng.choice(list(ReadMode)), wait_ms))


def failing(rng: random.Random) -> tuple[RequestCode, bytes]:
    """Conditions that do not hold, on a long value."""
    one = encode_command(KvCommand(Op.PUT, LARGE, b"", condition=If.INDEX_IS, expected_index=rng.randrange(1 << 60)))
    return commands(*[one] * rng.randrange(2, 500))


def gets(rng: random.Random) -> tuple[RequestCode, bytes]:
    return questions(rng, *[ask_get(LARGE)] * rng.randrange(1, 1024))


def everything(rng: random.Random) -> tuple[RequestCode, bytes]:
    return questions(rng, *[ask_range(b"", b"", rng.randrange(1, 1001))] * rng.randrange(1, 500))


def watches(rng: random.Random) -> tuple[RequestCode, bytes]:
    """For what never comes, from the beginning on."""
    asked = [ask_watch(rng.randbytes(rng.randrange(1, 900)), rng.randrange(5)) for _ in range(rng.randrange(1, 900))]
    return questions(rng, *asked, wait_ms=rng.randrange(1, 60_001))


def lives(rng: random.Random) -> tuple[RequestCode, bytes]:
    """Times to live of all lengths, also those that nobody may give, of the same few keys."""
    bodies = []
    for _ in range(rng.randrange(1, 300)):
        ttl_ms = rng.choice([1, 5, 1000, TTL_MS_MAX, TTL_MS_MAX + 1, -1, (1 << 63) - 1])
        key = b"life %d" % rng.randrange(5)
        bodies.append(struct.pack(">BBqqHI", 1, 0, ttl_ms, -1, len(key), 0) + key)
    return commands(*bodies)


def nonsense(rng: random.Random) -> tuple[RequestCode, bytes]:
    bodies = [rng.randbytes(rng.choice([0, 3, 30, 2000, VALUE_BYTES_MAX + 2000])) for _ in range(rng.randrange(1, 4))]
    return commands(*bodies) if rng.random() < 0.5 else questions(rng, *[one[:50_000] for one in bodies])


def streams(rng: random.Random) -> tuple[RequestCode, bytes]:
    subscribe = StreamRequest(StreamKind.SUBSCRIBE, 1, rng.randrange(100, 9999))
    return RequestCode.COMMITTED_STREAM, encode_stream_request(subscribe)


KINDS: Final[tuple[Make, ...]] = (failing, gets, everything, watches, lives, nonsense, streams)


def children(pid: int) -> list[int]:
    return sorted(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def test_nothing_that_is_asked_of_a_state_machine_ends_it_or_its_engine(tmp_path: Path) -> None:
    rng = drawn("state machine")
    group = Group(tmp_path, flush="async")
    group.token += ("--state-machine", "kv")
    group.start_all()
    held: list[socket.socket] = []
    try:

        async def work() -> None:
            client = group.client(deadline_s=WITHIN_S)
            kv = KvClient(client, deadline_s=WITHIN_S)
            await all_vote(client, group.peers, WITHIN_S)
            await kv.put(LARGE, bytes(VALUE_BYTES_MAX))
            first_index = await kv.put(b"mine", b"0")
            before = {
                one: ((await client.state(one))["boot_id"], children(group.processes[one].pid)) for one in group.peers
            }
            leader = await client.leader()
            pids = [group.processes[leader].pid, *children(group.processes[leader].pid)]
            watching = kv.watch(b"mine", from_index=first_index)
            with contextlib.ExitStack() as stack:
                memories = [stack.enter_context(Memory(pid)) for pid in pids]
                for number in range(1, 8):
                    await asyncio.to_thread(attack, group, leader, rng, held)
                    await put_surely(kv, b"mine", b"%d" % number)
                    item = await kv.get(b"mine")
                    assert item is not None and item.value == b"%d" % number
                seen = [await anext(watching) for _ in range(3)]
                assert [one.key for one in seen] == [b"mine"] * 3
            print([f"{one.most_mib:.0f} MiB" for one in memories])
            assert all(one.most_mib < MEMORY_MIB for one in memories)
            for one in held:
                one.close()
            for one, (boot_id, processes) in before.items():
                assert (await client.state(one))["boot_id"] == boot_id, f"the engine of {one} ended"
                assert children(group.processes[one].pid) == processes, f"the state machine of {one} ended"
            await watching.aclose()
            await client.close()

        asyncio.run(work())
    finally:
        for one in held:
            one.close()
        group.close()


async def put_surely(kv: KvClient, key: bytes, value: bytes) -> None:
    """Until it is known to be there: a busy machine may tell the result of applying it too late."""
    ends_s = time.monotonic() + WITHIN_S
    while True:
        try:
            await kv.put(key, value)
            return
        except LedgerError:
            if time.monotonic() > ends_s:
                raise


def attack(group: Group, leader: str, rng: random.Random, held: list[socket.socket]) -> None:
    """Connections that ask and take no answer, or take some; some stay open."""
    host, _, port = group.peers[leader].rpartition(":")
    for _ in range(12):
        one = socket.create_connection((host, int(port)), timeout=WITHIN_S)
        held.append(one)
        one.settimeout(0.2)
        kinds = rng.sample(KINDS, rng.randrange(1, 3))
        with contextlib.suppress(OSError):  # it is not read from any more, or was ended
            for number in range(rng.randrange(1, 12)):
                code, body = rng.choice(kinds)(rng)
                one.sendall(encode_frame(Frame(code, number, body)))
            if rng.random() < 0.5:
                one.recv(1 << 16)
        if rng.random() < 0.3:
            held.pop().close()
