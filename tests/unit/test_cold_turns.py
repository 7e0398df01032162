"""Clients' reads of the disk leave a thread, and most of its time, to the log's own reads."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

from node.client import LedgerClient
from node.engine.cold_turns import ColdTurns
from node.engine.disk import Disk
from node.engine.host import READER_THREADS
from node.engine.slow_requests import NEW_BYTES, SHARE, SHARE_OF_NEW, WAIT_NS_MIN, SlowRequests
from node.protocol.codes import RequestCode
from node.store.memory_store import MemoryStore
from node.transport.remoting import Frame as RemotingFrame
from node.transport.remoting import encode_frame
from node.transport.slab_frames import ReadMode, ReadRequest, encode_read
from tests.unit.test_bounded_work import Asking, LoopAlone
from tests.unit.test_client_access import OWN, beside

Ended = Callable[[], None]
LIMIT_BYTES = 100  # of each client's read here


class Turns:
    """With a disk that ends its reads when it is told to."""

    def __init__(self) -> None:
        self.loop = LoopAlone()
        self.slow = SlowRequests(self.loop, lambda: self.loop.now_ns)  # type: ignore[arg-type]
        self.cold = ColdTurns(self.loop, lambda: self.loop.now_ns, self.slow)  # type: ignore[arg-type]
        self.reading: deque[tuple[Asking, Ended]] = deque()
        self.begun: list[Asking] = []
        self.cancelled: list[Asking] = []

    def add(self, one: Asking) -> None:
        def read(ended: Ended) -> None:
            self.begun.append(one)
            self.reading.append((one, ended))

        self.cold.add(one, read, partial(self.cancelled.append, one))  # type: ignore[arg-type]

    def end_one(self, took_ns: int) -> None:
        _one, ended = self.reading.popleft()
        self.loop.now_ns += took_ns
        ended()

    def run_until_a_read_begins(self) -> None:
        while not self.reading:
            at_ns, call = self.loop.next.pop()
            self.loop.now_ns = max(self.loop.now_ns, at_ns)
            call()


def test_one_read_of_clients_is_under_way_at_a_time_and_they_take_their_share_of_the_time() -> None:
    assert READER_THREADS > 1, "one of them reads for clients"
    for given_bytes, share in ((NEW_BYTES, SHARE), (NEW_BYTES - 1, SHARE_OF_NEW)):
        turns, took_ns, took_in_all_ns = Turns(), 3_000_000, 0
        crowd = [Asking() for _ in range(200)]
        for one in crowd:
            turns.slow.gave(one, given_bytes)  # type: ignore[arg-type]
            turns.add(one)
        for _ in crowd:
            turns.run_until_a_read_begins()
            assert len(turns.reading) == 1
            turns.end_one(took_ns)
            took_in_all_ns += took_ns
            assert took_in_all_ns <= turns.loop.now_ns / share + WAIT_NS_MIN + took_ns
        assert turns.begun == crowd


def test_while_its_read_is_under_way_nothing_else_of_a_connection_is_served() -> None:
    turns, one, other, served = Turns(), Asking(), Asking(), list[str]()
    turns.add(one)
    turns.slow.now_or_later(one, partial(served.append, "its next"))  # type: ignore[arg-type]
    turns.slow.now_or_later(other, partial(served.append, "another's"))  # type: ignore[arg-type]
    while turns.loop.next:
        turns.loop.next.pop()[1]()
    assert served == ["another's"]
    turns.end_one(0)
    while turns.loop.next:
        at_ns, call = turns.loop.next.pop()
        turns.loop.now_ns = max(turns.loop.now_ns, at_ns)
        call()
    assert served == ["another's", "its next"]


def test_a_connection_that_ended_has_no_read_begun_and_none_of_its_requests_served() -> None:
    turns, first, second, third, served = Turns(), Asking(), Asking(), Asking(), list[str]()
    for one in (first, second):
        turns.add(one)
    turns.slow.now_or_later(second, partial(served.append, "its next"))  # type: ignore[arg-type]
    for one in (first, second, third):
        one.closed = True
        turns.slow.drop(one)  # type: ignore[arg-type]
        turns.cold.drop(one)  # type: ignore[arg-type]
    turns.add(third)
    assert (turns.begun, turns.cancelled) == ([first], [second, third])
    turns.end_one(0)
    while turns.loop.next:
        turns.loop.next.pop()[1]()
    assert not served and turns.begun == [first]


def test_however_much_clients_read_from_disk_one_read_is_given_to_its_threads(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """300 connections' reads lay before that of a follower that caught up."""
    monkeypatch.setattr(MemoryStore, "recent_slab", lambda *_asked: None)
    most = under_way = 0
    read_slab = Disk.read_slab

    def counted(self: Disk, first_index: int, max_bytes: int, done):  # type: ignore[no-untyped-def]
        nonlocal most, under_way
        if max_bytes > LIMIT_BYTES:  # the log's own, for what is applied: it waits for nobody
            read_slab(self, first_index, max_bytes, done)
            return

        def ended(*found):  # type: ignore[no-untyped-def]
            nonlocal under_way
            under_way -= 1
            done(*found)

        under_way += 1
        most = max(most, under_way)
        read_slab(self, first_index, max_bytes, ended)

    monkeypatch.setattr(Disk, "read_slab", counted)
    fast = encode_frame(
        RemotingFrame(RequestCode.FAST_READ, 1, encode_read(ReadRequest(0, LIMIT_BYTES, ReadMode.UNSAFE)))
    )
    in_json = encode_frame(RemotingFrame(RequestCode.GET, 2, b'{"group":"default","beginIndex":0}'))

    async def work(peers: str, port: int) -> None:
        nonlocal most
        client = LedgerClient(peers, deadline_s=30, token=OWN)
        for _ in range(5):
            await client.append(bytes(100))
        held, most = list[asyncio.StreamWriter](), 0
        for number in range(60):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write((fast if number % 2 else in_json) * 30)
            held.append(writer)
            if number > 50:
                for _ in range(30):
                    size = int.from_bytes(await reader.readexactly(4), "big")
                    await reader.readexactly(size)
        assert most == 1
        assert len(await client.read(0, 5)) == 5
        for writer in held:
            writer.close()
        await client.close()

    beside(tmp_path, ["anonymous = append + read"], work)
