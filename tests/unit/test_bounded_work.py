"""No request of a client's holds the loop for long: entries, JSON, headers, and what costs more than its bytes."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import struct
import time
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from node.engine.proposals import TURN_ENTRIES, Proposals
from node.engine.slow_requests import (
    ANSWER_BYTES_AHEAD,
    ANSWER_BYTES_FIRST,
    CROWD,
    CROWDED_MAX,
    LOOK_AGAIN_S,
    LOOKED_AT_MAX,
    NEW_BYTES,
    SHARE,
    SHARE_OF_NEW,
    TOOK_NS_MAX,
    WAIT_NS_MIN,
    WAITING_MAX,
    SlowRequests,
)
from node.protocol.codes import RequestCode, ResponseCode
from node.transport.json_fields import BODY_BYTES_MAX, VALUES_MAX, BodyError, load
from node.transport.receive_buffer import FIRST_BYTES, FULL_BYTES
from node.transport.remoting import (
    HEADER_BYTES_MAX,
    FrameDecoder,
    FrameError,
    decode_frame,
    encode_frame,
)
from node.transport.remoting import Frame as RemotingFrame
from node.transport.slab_frames import (
    ENTRIES_PER_REQUEST_MAX,
    AppendRequest,
    decode_append,
    decode_append_answer,
    encode_append,
)
from tests.unit.test_client_access import OWN, beside

MAX = ENTRIES_PER_REQUEST_MAX


def test_an_append_of_too_many_entries_is_none_and_says_the_limit() -> None:
    assert len(decode_append(b"".join(encode_append(AppendRequest([b""] * MAX)))).bodies) == MAX
    for count in (MAX + 1, 4_000_000):
        with pytest.raises(BodyError, match=str(MAX)):
            decode_append(struct.pack(">iqI", 0, -1, count) + bytes(4 * count))


@pytest.mark.parametrize(
    "body",
    [b'{"a":"' + b"x" * BODY_BYTES_MAX + b'"}', b'{"a":[' + b"0," * VALUES_MAX + b"0,0]}", b"[" * 60_000,
     b'{"a":' * 10_000, b'{"a":' + b"9" * 60_000 + b"}"],
)  # fmt: skip
def test_json_that_is_long_in_any_way_is_refused(body: bytes) -> None:
    with pytest.raises(BodyError):
        load(body)


@pytest.mark.parametrize("kind", [0, 1])
def test_a_long_header_is_refused_before_it_is_read(kind: int) -> None:
    def head(size: int) -> bytes:
        return struct.pack(">iI", 4 + size, kind << 24 | size)

    with pytest.raises(FrameError, match="header"):
        decode_frame(head(HEADER_BYTES_MAX + 1) + bytes(HEADER_BYTES_MAX + 1))
    decoder = FrameDecoder()
    raw = head(HEADER_BYTES_MAX + 1)
    decoder.writable()[: len(raw)] = raw
    assert not decoder.filled(len(raw)) and decoder.broken is not None
    assert decode_frame(encode_frame(RemotingFrame(5, 6, b"", remark="r" * 10_000))).remark


def test_a_turn_takes_as_many_entries_as_bytes() -> None:
    class Taken:
        leader_id = None

        def __init__(self) -> None:
            self.turns: list[int] = []

        def propose_many(self, proposals: Any, _now: int) -> None:
            self.turns.append(sum(len(one.bodies) for one in proposals))

    class One:
        size_bytes, origin = 0, None

        def __init__(self, count: int) -> None:
            self.bodies, self.count, self.on_done = [b""] * count, count, lambda _outcome: None

    core, rng = Taken(), random.Random(5)
    proposals = Proposals(core, [])
    counts = [rng.randrange(1, MAX) for _ in range(100)]
    for count in counts:
        proposals.add(object(), One(count), ordered=False)  # type: ignore[arg-type]
    while proposals.waiting:
        proposals.propose(0)
    assert sum(core.turns) == sum(counts) and max(core.turns) < TURN_ENTRIES + MAX


class Asking:
    """A connection, as slow requests see it."""

    def __init__(self) -> None:
        self.closed, self.backlog_bytes, self.stopped, self.reads_little = False, 0, False, False

    def stop_reading(self, _why: str) -> None:
        self.stopped = True

    def resume_reading(self, _why: str) -> None:
        self.stopped = False

    def read_little(self) -> None:
        self.reads_little = True


def test_slow_requests_are_served_one_a_turn_in_turns_and_only_to_those_who_take_answers() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        slow, many, few, gone, deaf = SlowRequests(loop, time.monotonic_ns), *(Asking() for _ in range(4))
        served: list[tuple[Any, int]] = []
        deaf.backlog_bytes = ANSWER_BYTES_AHEAD + 1
        for one, count in ((many, 200), (few, 2), (gone, 5), (deaf, 3)):
            for number in range(count):
                slow.add(one, partial(served.append, (one, number)))  # type: ignore[arg-type]
        slow.drop(gone)  # type: ignore[arg-type]
        assert not served and many.stopped and many.reads_little and not few.stopped
        turns = 0
        while len(served) < 202:
            before = len(served)
            await asyncio.sleep(0)
            assert len(served) - before <= 1
            assert (turns := turns + 1) < 10_000
        assert {one for one, _number in served} == {many, few} and not many.stopped
        assert [number for one, number in served if one is many] == list(range(200))
        assert few in [one for one, _number in served[:4]]
        deaf.backlog_bytes = 0
        assert WAITING_MAX < 200
        for _ in range(10_000):
            await asyncio.sleep(0.001)
            if len(served) == 205:
                break
        assert len(served) == 205

    asyncio.run(main())


class LoopAlone:
    """Turns of a loop whose clock moves only with what is served and what is waited for."""

    def __init__(self) -> None:
        self.now_ns, self.served_ns = 0, 0
        self.next: list[tuple[int, Callable[[], None]]] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        self.next.append((self.now_ns, call))

    def call_later(self, after_s: float, call: Callable[[], None]) -> None:
        self.next.append((self.now_ns + round(after_s * 1e9), call))

    def serve(self, takes_ns: int) -> None:
        self.now_ns += takes_ns
        self.served_ns += takes_ns


@pytest.mark.parametrize(("taken_bytes", "share"), [(NEW_BYTES, SHARE), (NEW_BYTES - 1, SHARE_OF_NEW)])
def test_slow_requests_leave_most_of_the_loop_to_everything_else(taken_bytes: int, share: int) -> None:
    """400 connections that looked at the state, and took no answer, kept a leader's loop until another one led."""
    for takes_ns in (300_000, 2_000_000, 40_000_000):
        loop = LoopAlone()
        slow = SlowRequests(loop, lambda loop=loop: loop.now_ns)  # type: ignore[arg-type, misc]
        for one in (Asking() for _ in range(400)):
            slow.gave(one, taken_bytes)  # type: ignore[arg-type]
            slow.add(one, lambda loop=loop, takes_ns=takes_ns: loop.serve(takes_ns))  # type: ignore[arg-type, misc]
        count = 0
        while loop.next:
            at_ns, call = loop.next.pop()
            loop.now_ns = max(loop.now_ns, at_ns)
            call()
            count += 1
            assert loop.served_ns <= loop.now_ns / share + WAIT_NS_MIN + takes_ns
        assert loop.served_ns == 400 * takes_ns and count <= 401


def test_a_pause_in_the_middle_of_a_slow_request_delays_the_next_by_a_moment() -> None:
    loop = LoopAlone()
    slow = SlowRequests(loop, lambda: loop.now_ns)  # type: ignore[arg-type]
    slow.now_or_later(Asking(), lambda: loop.serve(60_000_000_000))  # type: ignore[arg-type]
    slow.add(Asking(), lambda: loop.serve(0))  # type: ignore[arg-type]
    ((at_ns, _call),) = loop.next
    assert at_ns <= loop.now_ns + SHARE_OF_NEW * TOOK_NS_MAX


def test_those_who_take_no_answers_cost_the_others_nothing() -> None:
    """A thousand of them were looked at for each request served; their order and their later requests stay theirs."""
    loop, served = LoopAlone(), list[str]()
    slow = SlowRequests(loop, lambda: loop.now_ns)  # type: ignore[arg-type]
    deaf, taking = Asking(), Asking()
    deaf.backlog_bytes = ANSWER_BYTES_AHEAD + 1

    def turns(until: str) -> None:
        while until not in served:
            at_ns, call = loop.next.pop()
            loop.now_ns = max(loop.now_ns, at_ns)
            call()

    for one, name in ((deaf, "deaf 1"), (taking, "taking 1")):
        slow.add(one, partial(served.append, name))  # type: ignore[arg-type]
    turns("taking 1")
    assert served == ["taking 1"]
    slow.now_or_later(deaf, partial(served.append, "deaf 2"))  # type: ignore[arg-type]
    slow.add(taking, partial(served.append, "taking 2"))  # type: ignore[arg-type]
    turns("taking 2")
    deaf.backlog_bytes = 0
    turns("deaf 2")
    assert served == ["taking 1", "taking 2", "deaf 1", "deaf 2"]
    deaf.backlog_bytes = ANSWER_BYTES_AHEAD + 1
    slow.add(deaf, partial(served.append, "deaf 3"))  # type: ignore[arg-type]
    loop.next.pop()[1]()
    slow.drop(deaf)  # type: ignore[arg-type]
    deaf.closed, deaf.backlog_bytes = True, 0
    slow.add(deaf, partial(served.append, "deaf 3"))  # type: ignore[arg-type]
    while loop.next:
        loop.next.pop()[1]()
    assert "deaf 3" not in served


def test_of_many_who_take_no_answers_a_few_are_looked_at_at_a_time_and_none_is_forgotten() -> None:
    """A thousand of them were looked at a hundred times a second: a fifth of a core, for as long as they stayed."""
    loop, looks, served = LoopAlone(), list[int](), list[int]()
    slow = SlowRequests(loop, lambda: loop.now_ns)  # type: ignore[arg-type]

    class Deaf(Asking):
        takes = False

        @property
        def backlog_bytes(self) -> int:  # type: ignore[override]
            looks.append(loop.now_ns)
            return 0 if self.takes else ANSWER_BYTES_AHEAD + 1

        @backlog_bytes.setter
        def backlog_bytes(self, _given: int) -> None: ...

    def until(end_ns: int) -> None:
        while loop.next and loop.next[-1][0] <= end_ns:
            at_ns, call = loop.next.pop()
            loop.now_ns = max(loop.now_ns, at_ns)
            call()

    crowd, second_ns = [Deaf() for _ in range(1000)], 1_000_000_000
    for number, one in enumerate(crowd):
        slow.add(one, partial(served.append, number))  # type: ignore[arg-type]
    until(0)
    looks.clear()
    until(second_ns)
    a_look = 3  # each asks for it so often at most
    assert len(crowd) <= len(looks) <= a_look * LOOKED_AT_MAX * (1 / LOOK_AGAIN_S + 1)
    assert not served
    for one in crowd[::7]:
        one.takes = True
    until(2 * second_ns)
    assert sorted(served) == list(range(len(crowd)))[::7]


def test_a_connection_may_have_as_much_to_take_as_it_took_before() -> None:
    """Ever new ones that took nothing were given 2 MiB each: half of a leader's loop went into their reads."""
    loop, served = LoopAlone(), list[str]()
    slow = SlowRequests(loop, lambda: loop.now_ns)  # type: ignore[arg-type]
    deaf, taking = Asking(), Asking()
    deaf.backlog_bytes = ANSWER_BYTES_FIRST + 1
    for one, name in ((deaf, "deaf"), (taking, "taking")):
        slow.gave(one, ANSWER_BYTES_FIRST)  # type: ignore[arg-type]
        slow.add(one, partial(served.append, name))  # type: ignore[arg-type]
    loop.next.pop()[1]()
    assert served == ["taking"]

    ahead_bytes = [slow.ahead_bytes(taking)]  # type: ignore[arg-type]
    while ahead_bytes[-1] < ANSWER_BYTES_AHEAD:
        slow.gave(taking, ahead_bytes[-1])  # type: ignore[arg-type]
        ahead_bytes.append(slow.ahead_bytes(taking))  # type: ignore[arg-type]
    assert ahead_bytes == [ANSWER_BYTES_FIRST << times for times in range(len(ahead_bytes))]
    slow.gave(taking, 100 * ANSWER_BYTES_AHEAD)  # type: ignore[arg-type]
    assert slow.ahead_bytes(taking) == ANSWER_BYTES_AHEAD  # type: ignore[arg-type]
    taking.closed = True
    slow.drop(taking)  # type: ignore[arg-type]
    slow.gave(taking, ANSWER_BYTES_AHEAD)  # type: ignore[arg-type]
    assert slow.ahead_bytes(taking) == ANSWER_BYTES_FIRST  # type: ignore[arg-type]


def test_what_waits_of_a_connection_that_ends_is_kept_no_longer() -> None:
    """It stayed until its turn came: 1,635 of 1,024 connections at a time, and 38,000 requests of theirs."""
    loop = LoopAlone()
    slow = SlowRequests(loop, lambda: loop.now_ns)  # type: ignore[arg-type]
    for deaf in (False, True):
        one, body = Asking(), Asking()  # the latter stands for a request's frame
        one.backlog_bytes = deaf * (ANSWER_BYTES_AHEAD + 1)
        slow.add(one, partial(id, body))  # type: ignore[arg-type]
        if deaf:
            loop.next.pop()[1]()
        held = weakref.ref(body)
        del body
        assert held() is not None
        slow.drop(one)  # type: ignore[arg-type]
        assert held() is None


def test_of_a_crowd_each_may_have_fewer_requests_wait() -> None:
    loop = LoopAlone()
    slow = SlowRequests(loop, lambda: loop.now_ns)  # type: ignore[arg-type]
    crowd = [Asking() for _ in range(CROWD // CROWDED_MAX + 1)]
    alone = Asking()
    for _ in range(WAITING_MAX):
        slow.add(alone, int)  # type: ignore[arg-type]
    assert not alone.stopped
    for one in crowd:
        for _ in range(CROWDED_MAX + 1):
            slow.add(one, int)  # type: ignore[arg-type]
    assert crowd[-1].stopped and not crowd[0].stopped
    for one in crowd:
        slow.drop(one)  # type: ignore[arg-type]
    slow.add(late := Asking(), int)  # type: ignore[arg-type]
    for _ in range(WAITING_MAX - 1):
        slow.add(late, int)  # type: ignore[arg-type]
    assert not late.stopped
    while loop.next:
        loop.next.pop()[1]()


def test_an_engine_refuses_what_is_too_much_and_stores_nothing_of_it(tmp_path: Path) -> None:
    from node.client import LedgerClient
    from node.transport.connection import Connection, dial

    async def work(peers: str, port: int) -> None:
        client = LedgerClient(peers, deadline_s=20, token=OWN)
        await client.append(b"first")
        answers: asyncio.Queue[RemotingFrame] = asyncio.Queue()
        connection = Connection(lambda _one, frame: answers.put_nowait(frame), lambda _one: None)
        await dial(connection, "127.0.0.1", port)
        over = {"group": "default", "batchMsgs": [""] * 200_000}
        connection.send_body(RequestCode.APPEND, 0, 1, [json.dumps(over, separators=(",", ":")).encode()])
        fields = json.loads(bytes((await answers.get()).body))
        assert fields["code"] == ResponseCode.UNEXPECTED_ARGUMENT and "values" in fields["detail"]
        fits_parser = {"group": "default", "batchMsgs": [""] * (MAX + 1)}
        connection.send_body(RequestCode.APPEND, 0, 1, [json.dumps(fits_parser).encode()])
        assert str(MAX) in json.loads(bytes((await answers.get()).body))["detail"]
        connection.send_body(RequestCode.FAST_APPEND, 0, 2, encode_append(AppendRequest([b""] * (MAX + 1))))
        answer = decode_append_answer((await answers.get()).body)
        assert answer.appended == 1 and str(MAX) in answer.detail
        await client.append(b"second")
        assert [bytes(entry.body) for entry in await client.read(0, 100)] == [b"first", b"second"]
        run = await client.append_many([b""] * MAX)
        assert run.last_index - run.first_index == MAX - 1
        connection.abort()
        await client.close()

    beside(tmp_path, ["anonymous = append"], work)


def test_reads_that_nobody_takes_use_up_nothing_that_others_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They kept their share of the quota while they waited, and for ever once their connection had ended: a paced
    client was not read from any more, and its connection went for the next one of the flood."""
    from node.client import LedgerClient
    from node.transport.slab_frames import ReadMode, ReadRequest, encode_read

    monkeypatch.setattr("node.engine.quota.REQUESTS_MAX", 8)
    read = encode_frame(RemotingFrame(RequestCode.FAST_READ, 1, encode_read(ReadRequest(2, 1 << 20, ReadMode.UNSAFE))))

    async def work(peers: str, port: int) -> None:
        client = LedgerClient(peers, deadline_s=30, token=OWN)
        for _ in range(4):
            await client.append(bytes(1 << 20))
        for _ in range(4):
            held: list[asyncio.StreamWriter] = []
            for _ in range(3):
                reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
                writer.write(read * 40)
                assert await reader.readexactly(1)
                held.append(writer)
            await client.append(b"while they wait")
            for writer in held:
                writer.transport.abort()
        last = await client.append(b"after it")
        assert [bytes(one.body) for one in await client.read(last.first_index, 1)] == [b"after it"]
        await client.close()

    beside(tmp_path, ["anonymous = append + read"], work)


def test_connections_that_ended_leave_nothing_to_the_collector(tmp_path: Path) -> None:
    """What a flood of them left, in cycles, it looked at for half a second at once, and a heartbeat was late."""
    from node.engine.places import Place
    from node.transport.connection import Connection

    look = encode_frame(RemotingFrame(RequestCode.INTROSPECT, 1, b'{"group":"default","what":"state"}'))

    def there() -> int:
        return sum(isinstance(one, Connection | Place) for one in gc.get_objects())

    async def work(_peers: str, port: int) -> None:
        before = there()
        for asks in [True, False] * 10:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            if asks:
                writer.write(look * 10)
                await reader.readexactly(1)
            writer.transport.abort()
        for _ in range(6000):
            await asyncio.sleep(0.01)
            if there() == before:
                return
        raise AssertionError(f"{there() - before} are left")

    gc.disable()
    try:
        beside(tmp_path, ["anonymous = observe"], work)
    finally:
        gc.enable()


def test_the_first_reads_of_a_connection_are_small_and_grow_as_they_are_filled() -> None:
    """Each of hundreds of new connections had 550 requests decoded at once, and a leader fell silent over it."""
    decoder, sizes = FrameDecoder(), list[int]()
    frame = encode_frame(RemotingFrame(7, 1, b""))
    stream, found = frame * 10_000, 0
    while found < 5_000:  # whole frames and the beginning of one, each time
        room = decoder.writable()
        sizes.append(decoder.buffer_bytes)
        room[:], stream = stream[: len(room)], stream[len(room) :]
        found += len(decoder.filled(len(room)))
    assert sizes == sorted(sizes) and sizes[0] == FIRST_BYTES and sizes[-1] == FULL_BYTES
    assert len(set(sizes)) == 7
    left = len(frame) - decoder.unfinished_bytes
    decoder.writable()[:left] = frame[-left:]
    assert len(decoder.filled(left)) == 1
    for _ in range(3):  # what is not filled grows no more, and an idle one begins anew
        room = decoder.writable()
        room[: len(frame)] = frame
        assert len(decoder.filled(len(frame))) == 1 and len(room) == FULL_BYTES
    decoder.spare_memory()
    assert not decoder.buffer_bytes and len(decoder.writable()) == FIRST_BYTES
