"""The stream of committed positions: pushed when it moves, one at a time, with a lease never counted too long."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from node.client import CommittedPosition, Denied, LedgerClient, LedgerClientSync, LedgerError, Unreachable, Unsupported
from node.client.committed import Subscription, position_of
from node.config import load
from node.consensus.api import MS
from node.engine import committed_stream
from node.engine.committed_stream import CommittedStreams
from node.engine.engine import Engine
from node.protocol.codes import RemotingCode, RequestCode, ResponseCode, Role, VoterState
from node.protocol.messages import HeartBeatRequest, HeartBeatResponse, TransferRequest
from node.store.log_store import HardState
from node.store.memory_store import MemoryStore
from node.transport.committed_frames import (
    PushedPosition,
    StreamKind,
    StreamRequest,
    decode_position,
    decode_stream_request,
    encode_position,
    encode_stream_request,
)
from node.transport.remoting import FLAG_RESPONSE, Frame
from node.transport.slab_frames import BodyError
from tests.ports import free_ports
from tests.unit.core_kit import Leader
from tests.unit.engine_kit import running, until


# --- frames -----------------------------------------------------------------------------------------------------------
def test_frames_travel_whole() -> None:
    for request in (StreamRequest(StreamKind.SUBSCRIBE, 5, 1000), StreamRequest(StreamKind.TAKEN)):
        assert decode_stream_request(encode_stream_request(request)) == request
    for position in (
        PushedPosition(ResponseCode.SUCCESS, 7, 5, 9, 3, True, "n1", 450 * MS, 2 * MS),
        PushedPosition(ResponseCode.INCONSISTENT_STATE),
    ):
        assert decode_position(encode_position(position)) == position


@pytest.mark.parametrize(
    "body",
    [
        b"", bytes(7), bytes(9), bytes([2, 0, 0, 5, 0, 0, 3, 232]), bytes([1, 9, 0, 5, 0, 0, 3, 232]),
        encode_stream_request(StreamRequest(StreamKind.SUBSCRIBE, 0, 1000)),
        encode_stream_request(StreamRequest(StreamKind.SUBSCRIBE, 5, 9)),
        encode_stream_request(StreamRequest(StreamKind.SUBSCRIBE, 5, 60_001)),
        encode_stream_request(StreamRequest(StreamKind.SUBSCRIBE, 500, 100)),
    ],
)  # fmt: skip
def test_a_request_that_says_nothing_is_refused(body: bytes) -> None:
    with pytest.raises(BodyError):
        decode_stream_request(body)


def test_a_position_that_cannot_be_is_refused() -> None:
    good = encode_position(PushedPosition(ResponseCode.SUCCESS, 1, 5, 9, 3, True, "n1"))
    beyond = encode_position(PushedPosition(ResponseCode.SUCCESS, 1, 9, 5, 3))
    for body in (b"", good[:-1], good + b"x", b"\x02" + good[1:], beyond):
        with pytest.raises(BodyError):
            decode_position(body)


# --- the member's half, on a clock of the test's ----------------------------------------------------------------------
class Client:
    """A connection that keeps what is sent over it."""

    def __init__(self) -> None:
        self.closed = False
        self.got: list[PushedPosition] = []
        self.refused: list[int] = []

    def send_body(self, code: int, _flag: int, _opaque: int, pieces: list[bytes]) -> None:
        assert code == RemotingCode.SUCCESS
        self.got.append(decode_position(b"".join(pieces)))

    def refuse(self, _frame: Frame, code: RemotingCode, _remark: str) -> None:
        self.refused.append(code)


class Kit:
    """n0 leads; the streams run on its clock, and timers fire when the test lets time pass."""

    def __init__(self, **changes: Any) -> None:
        self.leader = Leader(**changes)
        self.solo = self.leader.solo
        self.held_back = False
        self.streams = CommittedStreams(self.solo.replica, lambda: self.solo.now, lambda: self.held_back)
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.streams._loop = self  # type: ignore[assignment]

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Any:
        timer = (self.solo.now + delay_s * 1e9, call)
        self.timers.append(timer)
        kit = self

        class Handle:
            def cancel(self) -> None:
                kit.timers.remove(timer)

        return Handle()

    def say(self, client: Client, kind: StreamKind, *, opaque: int = 1, interval: int = 0, alive: int = 0) -> None:
        body = encode_stream_request(StreamRequest(kind, interval, alive))
        self.streams.handle(client, Frame(RequestCode.COMMITTED_STREAM, opaque, body))  # type: ignore[arg-type]

    def subscribe(self, client: Client, *, opaque: int = 1, interval: int = 5, alive: int = 1000) -> None:
        self.say(client, StreamKind.SUBSCRIBE, opaque=opaque, interval=interval, alive=alive)

    def commit(self, count: int = 1) -> None:
        """So many entries; the end of that turn."""
        pushes = self.leader.propose([b"x"] * count)
        self.solo.sync()
        self.solo.ack("n1", pushes[-1], self.solo.store.end_index)
        self.streams.moved()

    def wait(self, milliseconds: float) -> None:
        until = self.solo.now + int(milliseconds * MS)
        while self.timers and min(at for at, _ in self.timers) <= until:
            timer = min(self.timers, key=lambda one: one[0])
            self.timers.remove(timer)
            self.solo.now = max(self.solo.now, int(timer[0]))
            timer[1]()
        self.solo.now = until


@pytest.fixture
def kit() -> Any:
    async def made() -> Kit:
        return Kit()

    return asyncio.run(made())


def test_a_subscriber_is_told_at_once_and_then_when_it_moves(kit: Kit) -> None:
    client = Client()
    kit.subscribe(client)
    [first] = client.got
    assert (first.committed_index, first.end_index, first.term, first.leads, first.leader_id) == (0, 0, 1, True, "n0")
    kit.say(client, StreamKind.TAKEN)
    kit.streams.moved()
    assert len(client.got) == 1, "nothing moved"
    kit.wait(6)
    kit.commit()
    assert [one.committed_index for one in client.got] == [0, 1]
    assert [one.number for one in client.got] == [1, 2]


def test_what_moves_often_is_told_once_an_interval(kit: Kit) -> None:
    client = Client()
    kit.subscribe(client, interval=50)
    kit.say(client, StreamKind.TAKEN)
    for _ in range(5):
        kit.wait(5)
        kit.commit()
    assert len(client.got) == 1
    kit.wait(30)
    assert [one.committed_index for one in client.got] == [0, 5]


def test_a_slow_client_is_behind_by_one_frame_and_then_told_the_newest(kit: Kit) -> None:
    slow, quick = Client(), Client()
    kit.subscribe(slow)
    kit.subscribe(quick)
    for _ in range(20):
        kit.say(quick, StreamKind.TAKEN)
        kit.wait(6)
        kit.commit()
    assert len(slow.got) == 1 and len(quick.got) == 21
    kit.say(slow, StreamKind.TAKEN)
    assert [one.committed_index for one in slow.got] == [0, 20]


def test_where_nothing_moves_the_keep_alive_says_so(kit: Kit) -> None:
    client = Client()
    kit.subscribe(client, alive=100)
    for number in range(3):
        kit.say(client, StreamKind.TAKEN)
        kit.wait(80)
        assert len(client.got) == number + 1
        kit.wait(20)
    assert len(client.got) == 4 and {one.committed_index for one in client.got} == {0}


def test_one_that_takes_nothing_is_dropped_and_told_when_it_comes_back(kit: Kit) -> None:
    client, gone = Client(), Client()
    kit.subscribe(client)
    kit.subscribe(gone, alive=100)
    kit.say(gone, StreamKind.TAKEN)
    gone.closed = True
    kit.wait(committed_stream.UNTAKEN_NS / MS + 100)
    assert kit.streams.streams == {} and len(client.got) == len(gone.got) == 1
    kit.say(client, StreamKind.TAKEN)
    assert client.got[-1].code is ResponseCode.INCONSISTENT_STATE
    kit.subscribe(client)
    assert client.got[-1].code is ResponseCode.SUCCESS
    kit.say(client, StreamKind.CANCEL)
    kit.commit()
    assert kit.streams.streams == {}


def test_streams_are_bounded(kit: Kit) -> None:
    client = Client()
    for opaque in range(committed_stream.STREAMS_PER_CONNECTION_MAX + 1):
        kit.subscribe(client, opaque=opaque)
    assert client.refused == [RemotingCode.SYSTEM_BUSY]
    kit.subscribe(client, opaque=3)  # one that is there may begin anew
    assert len(client.refused) == 1
    kit.streams.handle(client, Frame(RequestCode.COMMITTED_STREAM, 99, b"?"))  # type: ignore[arg-type]
    assert client.got[-1].code is ResponseCode.UNEXPECTED_ARGUMENT


def test_a_flood_of_subscriptions_does_not_look_at_every_stream_for_each(kit: Kit) -> None:
    """Five hundred of one read, beside a thousand streams, held a leader's loop for 0.24 s."""
    looks = 0

    class Looked(Client):
        @property
        def closed(self) -> bool:
            nonlocal looks
            looks += 1
            return self.ended

        @closed.setter
        def closed(self, ended: bool) -> None:
            self.ended = ended

    each = committed_stream.STREAMS_PER_CONNECTION_MAX
    holding = [Looked() for _ in range(committed_stream.STREAMS_MAX // each)]
    for client in holding:
        for opaque in range(each):
            kit.subscribe(client, opaque=opaque)
    assert len(kit.streams.streams) == committed_stream.STREAMS_MAX
    late, looks = Looked(), 0
    for opaque in range(500):
        kit.subscribe(late, opaque=opaque)
    mine = each - 1  # as many as whoever has most, less one
    assert len(late.refused) == 500 - mine and looks <= committed_stream.STREAMS_MAX
    holding[0].closed = True
    kit.streams.closed(holding[0])  # type: ignore[arg-type]
    left = len(kit.streams.streams)
    assert committed_stream.STREAMS_MAX - each <= left < committed_stream.STREAMS_MAX
    kit.subscribe(late, opaque=1000)
    assert len(late.refused) == 500 - mine and len(kit.streams.streams) == left + 1
    for client in (*holding, late):
        kit.streams.closed(client)  # type: ignore[arg-type]
    assert not kit.streams.streams and not kit.streams._mine and not any(kit.streams._having)


def test_nobody_keeps_others_out_by_having_many_streams(kit: Kit) -> None:
    """64 connections that took all that was pushed to them had all streams for good; a broker then followed nothing."""
    each = committed_stream.STREAMS_PER_CONNECTION_MAX
    holding = [Client() for _ in range(committed_stream.STREAMS_MAX // each)]
    for client in holding:
        for opaque in range(each):
            kit.subscribe(client, opaque=opaque)
    came = [Client() for _ in range(100)]
    for client in came:
        kit.subscribe(client)
        assert not client.refused and client.got[-1].code is ResponseCode.SUCCESS
    assert len(kit.streams.streams) == committed_stream.STREAMS_MAX
    ended = [[one.code for one in client.got].count(ResponseCode.INCONSISTENT_STATE) for client in holding]
    assert sum(ended) == len(came) and max(ended) - min(ended) <= 1
    assert not any(one.code is ResponseCode.INCONSISTENT_STATE for client in came for one in client.got)
    for client in (*holding, *came):
        kit.streams.closed(client)  # type: ignore[arg-type]
    assert not kit.streams.streams and not kit.streams._mine and not any(kit.streams._having)


def test_where_everybody_has_one_stream_a_newcomer_gets_that_of_who_came_last(kit: Kit) -> None:
    first = Client()
    kit.subscribe(first)
    for _ in range(committed_stream.STREAMS_MAX + 50):
        client = Client()
        kit.subscribe(client)
        assert not client.refused
    kit.subscribe(client, opaque=5)
    assert client.refused == [RemotingCode.SYSTEM_BUSY]  # it has one, as everybody has
    assert [one.code for one in first.got] == [ResponseCode.SUCCESS]
    assert len(kit.streams.streams) == committed_stream.STREAMS_MAX


def test_a_term_that_is_being_saved_is_not_told(kit: Kit) -> None:
    client = Client()
    kit.subscribe(client)
    kit.say(client, StreamKind.TAKEN)
    kit.wait(10)
    kit.held_back = True
    kit.solo.replica.member.adopt_term(7, kit.solo.now, "a test says so")
    kit.streams.moved()
    kit.wait(10)
    assert [one.term for one in client.got] == [1]
    kit.held_back = False
    kit.wait(2)
    assert [(one.term, one.leads, one.leader_id) for one in client.got[1:]] == [(7, False, None)]


def test_the_lease_is_that_of_the_leader_and_says_how_long_it_was_waited() -> None:
    async def made() -> Kit:
        return Kit(lease_reads=True)

    kit = asyncio.run(made())
    client = Client()
    kit.subscribe(client, alive=100)
    first = client.got[-1]
    assert kit.solo.replica.leadership is not None
    assert first.lease_ns == kit.solo.replica.leadership.reads.lease_left_ns(kit.solo.now)
    kit.say(client, StreamKind.TAKEN)
    kit.wait(100)
    assert client.got[-1].waited_ns == 100 * MS
    assert client.got[-1].lease_ns <= max(0, first.lease_ns - 100 * MS)


def test_leadership_goes_to_nobody_else_before_every_lease_that_was_told_has_run_out() -> None:
    """What a subscriber was told cannot be taken back (E7): the take-leadership waits for it, and no more is told."""

    async def made() -> Kit:
        return Kit(lease_reads=True)

    kit = asyncio.run(made())
    client, solo, replica = Client(), kit.solo, kit.solo.replica
    for to, message in solo.tick(200):
        if to == "n1" and isinstance(message, HeartBeatRequest):
            end = solo.store.end_index
            answer = HeartBeatResponse(message.seq, replica.term, ResponseCode.SUCCESS, end, VoterState.VOTER)
            solo.receive("n1", answer)
    kit.subscribe(client, alive=10)
    told = client.got[-1].lease_ns
    assert told > 0
    until = solo.now + told
    outcomes = kit.leader.transfer("n1")
    kit.say(client, StreamKind.TAKEN)
    kit.wait(15)
    assert client.got[-1].lease_ns == 0 and outcomes == []
    taken_at: list[int] = []
    while not taken_at and solo.now < until + 300 * MS:
        sent = solo.tick(10)
        for to, message in sent:
            if to == "n1" and isinstance(message, HeartBeatRequest):
                end = solo.store.end_index
                answer = HeartBeatResponse(message.seq, replica.term, ResponseCode.SUCCESS, end, VoterState.VOTER)
                sent = [*sent, *solo.receive("n1", answer)]
        taken_at += [solo.now for _to, message in sent if isinstance(message, TransferRequest)]
    assert taken_at and taken_at[0] >= until


# --- both halves over sockets -----------------------------------------------------------------------------------------
@asynccontextmanager
async def group(tmp_path: Path, count: int = 1, **more: Any) -> AsyncGenerator[tuple[list[Engine], LedgerClient], None]:
    """So many engines and a client."""
    peers = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(free_ports(count)))
    engines = []
    for number in range(count):
        given = {"node.id": f"n{number}", "peers": peers, "node.data": str(tmp_path / str(number)), **more}
        store = MemoryStore(store_id=f"s{number}", hard_state=HardState())
        engines.append(Engine(load(given, None, {}), store))
    async with running(engines):
        client = LedgerClient(peers, deadline_s=10.0)
        try:
            yield engines, client
        finally:
            await client.close()


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await work()

    asyncio.run(bounded())


async def first_at(positions: AsyncGenerator[CommittedPosition, None], index: int) -> CommittedPosition:
    async for position in positions:
        if position.committed_index >= index:
            return position
    raise AssertionError("the stream ended")


def test_a_client_is_told_of_each_commit(tmp_path: Path) -> None:
    async def work() -> None:
        async with group(tmp_path) as (engines, client):
            positions = client.committed(keep_alive_ms=60_000)
            begun = await anext(positions)
            for _ in range(3):
                index = (await client.append(b"x")).last_index
                position = await first_at(positions, index)
                assert (position.member_id, position.leads, position.leader_id) == ("n0", True, "n0")
                assert position.term == begun.term and position.end_index >= index
            assert position.lease_until_s == float("-inf"), "lease reads are off"
            await positions.aclose()
            await client.append(b"y")
            await until(lambda: not engines[0].streams.streams)

    run(work)


def test_it_follows_the_leader_and_a_named_member_is_kept(tmp_path: Path) -> None:
    async def work() -> None:
        async with group(tmp_path, 3, **{"node.lease_reads": True}) as (engines, client):
            await client.append(b"x")
            positions = client.committed(keep_alive_ms=50)
            before = await first_at(positions, 0)
            loop = asyncio.get_running_loop()
            while before.lease_until_s <= loop.time():
                before = await anext(positions)
            assert before.lease_until_s < loop.time() + 1.0
            other = next(one for one in engines if one.replica.role is not Role.LEADER)
            named = client.committed(other.replica.config.self_id, keep_alive_ms=50)
            assert not (await anext(named)).leads
            await client.transfer(other.replica.config.self_id)
            async for position in positions:
                if position.leads and position.term > before.term:
                    break
            assert position.member_id == other.replica.config.self_id
            async for position in named:
                if position.leads:
                    break
            index = (await client.append(b"y")).last_index
            assert (await first_at(positions, index)).committed_index >= index
            await positions.aclose()
            await named.aclose()

    run(work)


def test_a_member_that_is_not_there_and_one_that_is_unknown(tmp_path: Path) -> None:
    async def work() -> None:
        [port] = free_ports(1)
        client = LedgerClient(f"n0-127.0.0.1:{port}", deadline_s=0.3)
        with pytest.raises(Unreachable):
            await anext(client.committed())
        with pytest.raises(LedgerError, match="is not one of n0"):
            await anext(client.committed("n7"))
        await client.close()

    run(work)


def test_a_member_that_does_not_know_it_says_so(tmp_path: Path) -> None:
    async def work() -> None:
        async with group(tmp_path) as (engines, client):
            await client.append(b"x")
            requests = engines[0].client_requests
            for served in (requests._handlers, *requests._served.values()):
                served.pop(RequestCode.COMMITTED_STREAM, None)
            with pytest.raises(Unsupported):
                await anext(client.committed())

    run(work)


def test_who_may_not_read_is_denied_at_once(tmp_path: Path) -> None:
    """And not called unreachable, after asking again until the deadline."""

    async def work() -> None:
        (tmp_path / "token").write_text("t" * 40)
        (tmp_path / "token").chmod(0o600)
        rights = {"node.token_file": str(tmp_path / "token"), "access.rows": "anonymous = append"}
        async with group(tmp_path, 1, **rights) as (_engines, client):
            await client.append(b"x")
            for member_id in (None, "n0"):
                with pytest.raises(Denied, match="UNEXPECTED_MEMBER"):
                    await asyncio.wait_for(anext(client.committed(member_id)), 2.0)

    run(work)


def test_a_connection_that_breaks_is_made_again(tmp_path: Path) -> None:
    async def work() -> None:
        async with group(tmp_path) as (engines, client):
            positions = client.committed(keep_alive_ms=50)
            await anext(positions)
            for connection in list(engines[0].process.port.connections):
                connection.abort()
            await anext(positions)  # over another one, which appends take, too
            index = (await client.append(b"x")).last_index
            assert (await first_at(positions, index)).committed_index >= index
            await positions.aclose()

    run(work)


def test_a_member_that_falls_silent_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.client.committed.SILENT_S_MIN", 0.1)

    async def work() -> None:
        async with group(tmp_path) as (engines, client):
            positions = client.committed(keep_alive_ms=20)
            await anext(positions)
            held = engines[0].streams.streams
            assert len(held) == 1
            held.clear()  # as if it stood still
            engines[0].client_requests.serve(RequestCode.COMMITTED_STREAM, lambda _c, _f: None)
            asking = asyncio.ensure_future(anext(positions))
            await asyncio.sleep(0.3)
            engines[0].client_requests.serve(RequestCode.COMMITTED_STREAM, engines[0].streams.handle)
            assert (await asking).leads
            await positions.aclose()

    run(work)


def test_blocking_code_is_told_of_each_commit_too(tmp_path: Path) -> None:
    def blocking(peers: str) -> None:
        with LedgerClientSync(peers, deadline_s=10.0) as client:
            with closing(client.committed(keep_alive_ms=60_000)) as positions:
                assert next(positions).leads
                for _ in range(3):
                    index = client.append(b"x").last_index
                    assert any(position.committed_index >= index for position in positions)
            with pytest.raises(LedgerError, match="n7 is not one of n0"):
                next(client.committed("n7"))

    async def work() -> None:
        async with group(tmp_path) as (engines, _client):
            await asyncio.to_thread(blocking, f"n0-{engines[0].settings.peers['n0']}")
            await until(lambda: not engines[0].streams.streams)

    run(work)


def test_a_blocking_stream_ends_with_its_client(tmp_path: Path) -> None:
    """A thread that waits for the next position while another one closes the client is not left waiting, whenever it
    gives its work to the loop: often enough, that is between the loop's last task and its end."""

    def take(client: LedgerClientSync, seen: list[CommittedPosition], told: threading.Event) -> None:
        for position in client.committed(keep_alive_ms=60_000):
            seen.append(position)
            told.set()

    def blocking(peers: str) -> None:
        seen: list[CommittedPosition] = []
        told = threading.Event()
        client = LedgerClientSync(peers, deadline_s=10.0)
        taker = threading.Thread(target=take, args=(client, seen, told), daemon=True)
        taker.start()
        assert told.wait(20.0)
        client.close()
        taker.join(20.0)
        assert not taker.is_alive() and seen
        assert list(client.committed()) == [], "nor is one begun afterwards"
        client.close()

    async def work() -> None:
        async with group(tmp_path) as (engines, _client):
            for _ in range(40):
                await asyncio.to_thread(blocking, f"n0-{engines[0].settings.peers['n0']}")

    run(work)


def test_the_lease_is_counted_from_what_the_client_did_last() -> None:
    """However long a push was under way, its lease never lasts longer than the member meant."""
    pushed = PushedPosition(ResponseCode.SUCCESS, 1, 5, 5, 2, True, "n1", 400 * MS, 100 * MS)
    position = position_of("n1", pushed, 1000.0)
    assert position.lease_until_s == pytest.approx(1000.5)


class Ways:
    """Between a client and its member, in the stead of a link: what is said lies here until the test hands it on."""

    member_id = "n0"

    def __init__(self) -> None:
        self.said: list[bytes] = []

    def open_stream(self, _code: RequestCode, pieces: list[bytes], each: Callable[[Frame | Exception], None]) -> int:
        self.each = each
        self.said += pieces
        return 1

    def send_on_stream(self, _code: RequestCode, _opaque: int, pieces: list[bytes]) -> None:
        self.said += pieces


@pytest.mark.parametrize("seed", range(5))
def test_no_lease_lasts_longer_at_the_client_than_the_member_means(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both halves together, on one clock, with ways and clients that take their time: the client's word for the end of
    a lease is never behind the member's own (E7)."""
    rng, lease_ns = random.Random(seed), 400 * MS

    async def story() -> None:
        kit, client, ways = Kit(lease_reads=True), Client(), Ways()
        monkeypatch.setattr(kit.solo.replica, "promise_lease", lambda _now: lease_ns)

        def later() -> None:
            kit.wait(rng.choice((0, 1, 30, 300)))

        request = encode_stream_request(StreamRequest(StreamKind.SUBSCRIBE, 5, 100))
        subscription = Subscription(ways, request, 60.0, lambda: kit.solo.now / 1e9)  # type: ignore[arg-type]
        for number in range(30):
            later()
            kit.streams.handle(client, Frame(RequestCode.COMMITTED_STREAM, 1, ways.said.pop()))  # type: ignore[arg-type]
            while len(client.got) <= number:
                kit.wait(1)
            ends_s = (kit.solo.now + lease_ns) / 1e9
            later()
            body = encode_position(client.got[number])
            ways.each(Frame(RemotingCode.SUCCESS, 1, body, FLAG_RESPONSE))
            later()
            position = await subscription.next()
            assert position.leads and position.lease_until_s <= ends_s + 1e-6

    asyncio.run(story())
