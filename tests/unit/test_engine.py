"""The engine over a log in memory, one member, a real socket: full disks, dead disks, order, back-pressure, tokens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node.client import LedgerClient, NotAppended, OutcomeUnknown
from node.config import load
from node.consensus.effects import Send
from node.engine.access import Access
from node.engine.engine import EXIT_CRASHED, Engine
from node.engine.quota import ENTRIES_MAX, REQUESTS_MAX, Quota
from node.protocol.codes import FlushMode, RequestCode, ResponseCode, Role
from node.protocol.messages import HeartBeatRequest, Message, TransferRequest, TransferTicket
from node.store.errors import StoreIOError
from node.store.log_store import HardState
from node.store.memory_store import MemoryStore
from node.transport.bodies import encode_message
from node.transport.connection import Connection, dial
from node.transport.remoting import FLAG_ONE_WAY, Frame
from node.transport.slab_frames import AppendRequest, decode_append_answer, encode_append
from tests.ports import free_ports
from tests.unit.engine_kit import running

Work = Callable[[Engine, LedgerClient], Awaitable[None]]


def run(tmp_path: Path, store: MemoryStore, work: Work, flush: FlushMode = FlushMode.SYNC, *, size: int = 1) -> int:
    """Runs one engine of a group of `size` until `work` is done; returns what its process would exit with.

    The group has an id: one without gives itself one, by an entry that comes with the leader's next tick.
    """
    store.hard_state = replace(store.hard_state, group_id="5e" * 16)

    async def both() -> int:
        ports = enumerate(free_ports(size))
        peers = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in ports)
        settings = load({"node.id": "n0", "peers": peers, "node.data": str(tmp_path), "node.flush": flush}, None, {})
        engine = Engine(settings, store)
        async with running([engine]) as codes:
            client = LedgerClient(peers, deadline_s=5.0)
            try:
                await work(engine, client)
            finally:
                await client.close()
        return codes[0]

    return asyncio.run(both())


def test_a_full_disk_is_said_and_the_engine_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.engine.duties.DISK_FULL_RETRY_S", 0.2)

    class ShortOfSpace(MemoryStore):
        """On a disk that says itself whether there is space."""

        short, asked = False, 0

        def has_space(self) -> bool:
            assert threading.current_thread() is not threading.main_thread(), "not on the loop (S9)"
            self.asked += 1
            return not (self.full or self.short)

    store = ShortOfSpace()

    async def work(engine: Engine, client: LedgerClient) -> None:
        await client.append(b"fits")
        store.full = True
        with pytest.raises(NotAppended) as caught:
            await client.append(b"does not fit")
        assert caught.value.code is ResponseCode.DISK_FULL
        state = await client.state("n0")
        assert (state["role"], state["disk"]["full"]) == ("LEADER", True)
        assert [alarm["code"] for alarm in state["alarms"]] == ["disk_full"]
        since = state["alarms"][0]["since"]
        assert [entry.body for entry in await client.read(0, 10)] == [b"fits"]
        await _until(lambda: not engine.replica.member.disk_full)  # the next append may try
        with pytest.raises(NotAppended):
            await client.append(b"does not fit either")
        state = await client.state("n0")
        assert [(one["code"], one["since"]) for one in state["alarms"]] == [("disk_full", since)]
        store.full, store.short = False, True
        await _until(lambda: not engine.replica.member.disk_full)
        assert (await client.append(b"fits into what was allocated before")).first_index > 0
        tries = store.asked
        await _until(lambda: store.asked > tries + 2)
        assert [code for code, _ in engine.replica.member.alarms] == ["disk_full"]
        store.short = False
        await _until(lambda: not engine.replica.member.alarms)
        assert (await client.append(b"fits again")).first_index > 0

    assert run(tmp_path, store, work) == 0


def test_a_failed_sync_ends_the_engine_and_says_why(tmp_path: Path) -> None:
    store = MemoryStore()

    async def work(engine: Engine, client: LedgerClient) -> None:
        await client.append(b"kept")

        def broken() -> None:
            raise StoreIOError("fdatasync: input/output error")

        store.on_sync = broken
        with pytest.raises(OutcomeUnknown):
            await client.append(b"lost?")
        assert "input/output error" in engine.reason

    assert run(tmp_path, store, work) == EXIT_CRASHED


def test_async_syncs_in_the_background(tmp_path: Path) -> None:
    store = MemoryStore()

    async def work(_engine: Engine, client: LedgerClient) -> None:
        index = (await client.append(b"x")).first_index
        await _until(lambda: store.durable_index >= index)

    assert run(tmp_path, store, work, FlushMode.ASYNC) == 0


def test_appends_of_one_turn_become_one_slab(tmp_path: Path) -> None:
    store = MemoryStore()
    slabs: list[int] = []
    write = store.append_as_leader

    def counted(bodies: Any, term: int, magic: int = 1, *form: int) -> Any:
        slabs.append(len(bodies))
        return write(bodies, term, magic, *form)

    store.append_as_leader = counted  # type: ignore[method-assign]

    async def work(_engine: Engine, client: LedgerClient) -> None:
        await asyncio.gather(*(client.append(b"%d" % number) for number in range(100)))
        assert 100 in slabs

    assert run(tmp_path, store, work) == 0


def test_after_a_failure_ordered_appends_of_that_connection_are_refused(tmp_path: Path) -> None:
    async def work(engine: Engine, _client: LedgerClient) -> None:
        answers: dict[int, tuple[int, int]] = {}
        done = asyncio.Event()

        def answered(_connection: Connection, frame: Frame) -> None:
            answer = decode_append_answer(frame.body)
            answers[frame.opaque] = (answer.code, answer.first_index)
            if len(answers) == 4:
                done.set()

        connection = Connection(answered, lambda _: None)
        host, _, port = engine.settings.self_address.rpartition(":")
        await dial(connection, host, int(port))
        await _until(lambda: engine.replica.role == "LEADER")
        requests = [(b"a", -1, True), (b"b", 7777, True), (b"c", -1, True), (b"d", -1, False)]
        for opaque, (body, expected, ordered) in enumerate(requests):
            pieces = encode_append(AppendRequest([body], expected, ordered))
            connection.send_body(RequestCode.FAST_APPEND, 0, opaque, pieces)
        await asyncio.wait_for(done.wait(), 10)
        connection.close()
        assert [answers[opaque][0] for opaque in range(4)] == [200, 408, 408, 200]
        assert answers[3][1] == answers[0][1] + 1

    assert run(tmp_path, MemoryStore(), work) == 0


def test_introspection_and_transfer_from_elsewhere_need_the_token(tmp_path: Path) -> None:
    async def work(engine: Engine, client: LedgerClient) -> None:
        await client.append(b"x")
        (connection,) = engine.process.port.connections
        connection.peer_host, connection.rights, connection.served = "192.0.2.7", 0, None
        with contextlib.suppress(Exception):
            assert await client.state("n0") is None
        answer = await client._links["n0"].ask(RequestCode.INTROSPECT, {"what": "state"}, 5)
        assert answer.code() is ResponseCode.UNEXPECTED_MEMBER
        answer = await client._links["n0"].ask(RequestCode.LEADERSHIP_TRANSFER, {}, 5)
        assert answer.code() is ResponseCode.UNEXPECTED_MEMBER
        take_token(engine, "secret")
        answer = await client._links["n0"].ask(RequestCode.INTROSPECT, {"what": "state", "token": "secret"}, 5)
        assert answer.values["self_id"] == "n0"

    assert run(tmp_path, MemoryStore(), work) == 0


def take_token(engine: Engine, token: str) -> None:
    """As if it had been started with that token file; nothing that was granted before counts."""
    engine.client_requests._access = Access(token, (), ())
    for connection in engine.process.port.connections:
        connection.rights, connection.served = 0, None


def test_where_a_token_file_is_set_loopback_is_no_credential(tmp_path: Path) -> None:
    async def work(engine: Engine, client: LedgerClient) -> None:
        take_token(engine, "secret")
        await client.append(b"x")  # appends and reads need none
        link = client._links["n0"]
        for code, fields in (
            (RequestCode.INTROSPECT, {"what": "state"}),
            (RequestCode.LEADERSHIP_TRANSFER, {}),
            (RequestCode.OPERATOR_ACTION, {"what": "scrub"}),
        ):
            for token in ({}, {"token": "Secret"}, {"token": "secret "}, {"token": "sécret"}):
                answer = await link.ask(code, fields | token, 5)
                assert answer.code() is ResponseCode.UNEXPECTED_MEMBER
                assert "token_file" in answer.text("detail")
            answer = await link.ask(code, fields | {"token": "secret"}, 5)
            assert "detail" not in answer.values or "token" not in str(answer.values["detail"])

    assert run(tmp_path, MemoryStore(), work) == 0


async def _until(holds: Callable[[], bool]) -> None:
    for _ in range(1000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never became so")


class Reader:
    """What the quota sees of a connection."""

    def __init__(self) -> None:
        self.stopped = False

    def stop_reading(self, why: str) -> None:
        self.stopped = True

    def resume_reading(self, why: str) -> None:
        self.stopped = False


def test_what_nobody_waits_for_is_given_back_as_well(tmp_path: Path) -> None:
    """Answered or not (one-way), read or refused: a request that is over takes no room of those that come (C5)."""

    async def work(engine: Engine, client: LedgerClient) -> None:
        await client.append(b"first")
        connection = Connection(lambda _one, _frame: None, lambda _one: None)
        await dial(connection, "127.0.0.1", int(client.peers["n0"].rpartition(":")[2]))
        pieces = encode_append(AppendRequest([b"x" * 100] * 3))
        for _ in range(20):
            connection.send_body(RequestCode.FAST_APPEND, FLAG_ONE_WAY, 7, pieces)
        await _until(lambda: engine.store.end_index >= 61)
        with pytest.raises(NotAppended):
            await client.append(b"elsewhere", expected_index=3)
        await client.read(0, 5)
        quota = engine.client_requests._quota
        await _until(lambda: not quota._loads)
        load_now = quota._node
        assert (load_now.requests, load_now.entries, load_now.bytes) == (0, 0, 0)
        connection.abort()

    assert run(tmp_path, MemoryStore(), work) == 0


def test_a_transfer_of_another_term_moves_nothing(tmp_path: Path) -> None:
    """Who looked before an election means the leader of then."""

    async def work(engine: Engine, client: LedgerClient) -> None:
        await client.append(b"first")
        term = engine.replica.term
        for if_term in (term - 1, term + 1):
            answer = await client.transfer("n0", if_term=if_term)
            assert answer["code"] == ResponseCode.INCONSISTENT_TERM, answer
        assert (await client.transfer("n0", if_term=term))["code"] != ResponseCode.INCONSISTENT_TERM

    assert run(tmp_path, MemoryStore(), work) == 0


def test_a_connection_over_its_limit_is_not_read_from_until_below_half() -> None:
    quota, greedy, modest = Quota(), Reader(), Reader()
    for _ in range(REQUESTS_MAX):
        quota.take(greedy, 1, 10)
    assert not greedy.stopped
    quota.take(greedy, 1, 10)
    quota.take(modest, 1, 10)
    assert (greedy.stopped, modest.stopped) == (True, False)
    for given in range(REQUESTS_MAX + 1):
        assert greedy.stopped == (given <= REQUESTS_MAX // 2)
        quota.give(greedy, 1, 10)
    assert not greedy.stopped


def test_a_node_over_its_limit_stops_whoever_asks_for_more() -> None:
    quota, readers = Quota(), [Reader() for _ in range(6)]
    for reader in readers:
        quota.take(reader, ENTRIES_MAX, 10)
    assert [reader.stopped for reader in readers] == [False, False, False, False, True, True]
    for reader in readers:
        quota.give(reader, ENTRIES_MAX, 10)
    assert not any(reader.stopped for reader in readers)


class CarefulStore(MemoryStore):
    """A disk that takes its time over term and vote, and remembers which thread it was."""

    faults_unsaved = True

    def __init__(self) -> None:
        super().__init__()
        self.may_save = threading.Event()
        self.saved_by: set[int] = set()

    def save_hard_state(self, state: HardState) -> None:
        self.may_save.wait(30)
        self.saved_by.add(threading.get_ident())
        super().save_hard_state(state)

    def save_faults(self) -> None:
        self.saved_by.add(threading.get_ident())
        self.faults_unsaved = False


def test_s9_term_and_vote_are_saved_off_the_loop_and_only_what_speaks_of_them_waits(tmp_path: Path) -> None:
    store = CarefulStore()

    async def work(engine: Engine, client: LedgerClient) -> None:
        try:
            await _until(lambda: engine.replica.role is Role.LEADER)
            assert (await client.state("n0"))["role"] == "LEADER"  # answered while that is being saved
            term = engine.replica.term
            assert term > 0 and store.hard_state.term == 0 and engine.replica.member.durable_hard.term == 0
            append = asyncio.create_task(client.append(b"x"))
            await _until(lambda: store.end_index >= 1)
            assert engine.replica.hello(1, "n0").term == 0
            ticket = store.prepare_sync()
            assert ticket is not None
            engine.replica.disk.flushed(engine.replica.log_epoch, store.finish_sync(ticket), engine.now_ns())
            engine.read_done()
            assert engine.replica.committed_index == 1
            await asyncio.sleep(0.05)
            assert not append.done(), "an answer that depends on the term left before it was durable"
        finally:
            store.may_save.set()
        assert (await append).term == term
        assert store.hard_state.term == term == engine.replica.hello(1, "n0").term

    assert run(tmp_path, store, work) == 0
    assert store.saved_by and threading.get_ident() not in store.saved_by and not store.faults_unsaved


def test_an_answer_that_was_held_back_goes_to_the_connection_that_asked(tmp_path: Path) -> None:
    """Two HELLOs in the name of one member, the second unfit, while the first one's answer waits for a record."""
    store = CarefulStore()
    store.hard_state = HardState()  # it becomes a voter with the first HELLO

    async def work(engine: Engine, _client: LedgerClient) -> None:
        answers: dict[int, dict[str, Any]] = {}
        host, _, port = engine.settings.self_address.rpartition(":")
        good = replace(engine.replica.hello(1, "n1"), node_id="n1", store_id="theirs")
        connections = []
        for number, hello in enumerate((good, replace(good, flush=FlushMode.ASYNC))):

            def answered(_connection: Connection, frame: Frame, number: int = number) -> None:
                answers[number] = json.loads(bytes(frame.body))

            connection = Connection(answered, lambda _: None)
            connections.append(connection)
            await dial(connection, host, int(port))
            body = encode_message(hello, "default", "n1", "n0")
            connection.send_body(RequestCode.HELLO, 0, 7, [body])
        await asyncio.sleep(0.1)  # both HELLOs wait for the record that the first one made necessary
        assert not answers
        store.may_save.set()
        await _until(lambda: len(answers) == 2)
        assert (answers[0]["code"], answers[1]["code"]) == (200, int(ResponseCode.UNEXPECTED_ARGUMENT))
        for connection in connections:
            connection.close()

    try:
        assert run(tmp_path, store, work, size=2) == 0
    finally:
        store.may_save.set()


def test_e7_an_order_to_take_leadership_that_is_stale_when_its_record_is_durable_never_leaves(tmp_path: Path) -> None:
    async def work(engine: Engine, client: LedgerClient) -> None:
        await client.append(b"x")
        sent: list[Message] = []
        engine.links.send = lambda _to, message: sent.append(message)  # type: ignore[method-assign]
        end, term = engine.store.end_index, engine.replica.term
        order = TransferRequest(1, term, "n1", end, TransferTicket(term, "n1", "nonce"))
        beat = HeartBeatRequest(2, "n0", term)
        number = engine.duties.held.ordered(spoken_of=True)
        for message in (order, beat):
            engine.duties.held.hold(Send("n1", message))
        engine.duties.saved(number, engine.replica.member.hard)  # no transfer is under way any more
        assert sent == [beat]

    assert run(tmp_path, MemoryStore(), work) == 0
