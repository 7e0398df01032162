"""A member's answers to clients' reads and to requests in DLedger's JSON: what was confirmed, what is gone, what is not
known."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node.access_rows import Right, rows_of
from node.config import load
from node.consensus.api import Appended, Outcome, ReadOutcome
from node.engine.access import Access
from node.engine.client_reads import ClientReads
from node.engine.engine import Engine
from node.engine.log_reads import LogReads
from node.engine.quota import Quota
from node.engine.slow_requests import SlowRequests
from node.protocol.codes import RequestCode, ResponseCode, Role
from node.protocol.entry import Slab
from node.store.faults.results import Fault
from node.store.memory_store import MemoryStore
from node.transport.bodies import dump
from node.transport.bodies import load as fields_of
from node.transport.connection import Connection
from node.transport.remoting import Frame
from node.transport.slab_frames import ReadMode, ReadRequest, decode_read_answer, encode_read
from tests.ports import free_ports
from tests.unit.engine_kit import running, until

NOT_CONFIRMED = ReadOutcome(ResponseCode.TERM_NOT_READY, -1, 1)


class Peer:
    """A client's connection that takes everything."""

    backlog_bytes, closed = 0, False

    def __init__(self) -> None:
        self.answers: list[bytes] = []

    def answer(self, _frame: Frame, *pieces: Any) -> None:
        self.answers.append(b"".join(bytes(one) for one in pieces))

    def stop_reading(self, _why: str) -> None:
        pass

    resume_reading = stop_reading


def served(mode: ReadMode, outcome: ReadOutcome) -> tuple[Peer, Quota]:
    """A read from entry 3 of a log that was trimmed up to 9."""

    async def ask() -> tuple[Peer, Quota]:
        store = SimpleNamespace(begin_index=10, end_index=20, faults=())
        log = SimpleNamespace(
            replica=SimpleNamespace(store=store, committed_index=20), read_index=lambda done, _way: done(outcome)
        )
        quota, peer = Quota(), Peer()
        slow, cold = SlowRequests(asyncio.get_running_loop(), lambda: 0), SimpleNamespace(add=print)
        reads = ClientReads(log, LogReads(store, None), quota, slow, cold)  # type: ignore[arg-type]
        body = encode_read(ReadRequest(3, 1000, mode))
        reads.handle(peer, Frame(RequestCode.FAST_READ, 1, body))  # type: ignore[arg-type]
        return peer, quota

    return asyncio.run(ask())


@pytest.mark.parametrize("mode", [ReadMode.UNSAFE, ReadMode.LINEARIZABLE])
def test_what_is_gone_is_answered_with_where_the_log_begins(mode: ReadMode) -> None:
    """Whoever follows a log goes on from there, a broker among them, which reads unsafely."""
    peer, quota = served(mode, ReadOutcome(ResponseCode.SUCCESS, 20, 1))
    [answer] = map(decode_read_answer, peer.answers)
    assert (answer.code, answer.first_index) == (ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN, 10)
    assert not quota._loads


def test_a_read_that_is_not_confirmed_gives_its_room_back() -> None:
    """Or a client that asks a member without a quorum is read from no more, for ever."""
    peer, quota = served(ReadMode.LINEARIZABLE, NOT_CONFIRMED)
    [answer] = map(decode_read_answer, peer.answers)
    assert answer.code == ResponseCode.TERM_NOT_READY and not quota._loads and not quota._node.requests


# --- ranges -----------------------------------------------------------------------------------------------------------
class Ring:
    """A store whose memory holds all of its entries, and the damaged ones as well."""

    def __init__(self, count: int) -> None:
        self.whole = MemoryStore()
        self.whole.append_as_leader([b"%03d" % number for number in range(count)], 1)
        self.begin_index, self.end_index = 0, count - 1
        self.faults: tuple[Fault, ...] = ()
        self.is_cold = False

    def recent_slab(self, first_index: int, max_bytes: int) -> Slab | None:
        return None if self.is_cold else self.whole.read_slab(first_index, max_bytes)


Found = tuple[ResponseCode, int]


def test_what_is_damaged_on_the_disk_is_not_served_from_memory() -> None:
    store, found = Ring(10), []  # type: tuple[Ring, list[Found]]
    store.faults = (Fault(4, 6, "crc_invalid"),)
    reads = LogReads(store, None)  # type: ignore[arg-type]
    for index in (0, 4, 6, 7):
        reads.committed(index, 1 << 20, 9, lambda code, count, _records: found.append((code, count)))
    ok, bad = ResponseCode.SUCCESS, ResponseCode.DISK_ERROR
    assert found == [(ok, 4), (bad, 0), (bad, 0), (ok, 3)]


@pytest.mark.parametrize(
    ("begin", "code"), [(0, ResponseCode.DISK_ERROR), (3, ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN)]
)
def test_what_was_removed_while_it_was_read_is_gone_and_not_damaged(begin: int, code: ResponseCode) -> None:
    store, found = Ring(10), []  # type: tuple[Ring, list[Found]]
    store.is_cold = True

    def read_slab(_first: int, _bytes: int, done: Callable[[Slab | None, str], None]) -> None:
        store.begin_index = begin
        done(None, "it is not there")

    reads = LogReads(store, SimpleNamespace(read_slab=read_slab))  # type: ignore[arg-type]
    reads.committed(2, 1 << 20, 9, lambda code, count, _records: found.append((code, count)))
    assert found == [(code, 0)]


# --- in DLedger's JSON, by an engine ----------------------------------------------------------------------------------
Ask = Callable[[RequestCode, dict[str, Any]], dict[str, Any]]


def with_leader(tmp_path: Path, work: Callable[[Engine, Ask], Awaitable[None]]) -> None:
    """One that leads a group of its own; `Ask` is answered at once."""

    async def both() -> None:
        [port] = free_ports(1)
        settings = load({"node.id": "n0", "peers": f"n0-127.0.0.1:{port}", "node.data": str(tmp_path)}, None, {})
        engine = Engine(settings, MemoryStore())
        async with running([engine]):
            await until(lambda: engine.replica.role is Role.LEADER and engine.replica.committed_index >= 0)

            def ask(code: RequestCode, fields: dict[str, Any]) -> dict[str, Any]:
                said = {"group": "default", "remoteId": "n0", "localId": "client", **fields}
                peer, frame = Peer(), Frame(code, 1, dump(said))
                engine.client_requests._handlers[code](peer, frame)  # type: ignore[arg-type]
                [answer] = peer.answers
                return dict(fields_of(answer).values)

            await work(engine, ask)

    asyncio.run(both())


@pytest.mark.parametrize(("appended", "index"), [(Appended.YES, 7), (Appended.UNKNOWN, 7), (Appended.NOT_APPENDED, -1)])
def test_an_append_that_may_be_in_the_log_is_answered_with_its_index(
    tmp_path: Path, appended: Appended, index: int
) -> None:
    """A refusal has none: who gets one appends again."""

    async def work(engine: Engine, ask: Ask) -> None:
        outcome = Outcome(ResponseCode.WAIT_QUORUM_ACK_TIMEOUT, 7, 7, 1, appended)
        engine.proposals.add = lambda _origin, proposal, ordered: proposal.on_done(outcome)  # type: ignore[method-assign]
        answer = ask(RequestCode.APPEND, {"body": "eA=="})
        assert (answer["code"], answer["index"]) == (ResponseCode.WAIT_QUORUM_ACK_TIMEOUT, index)

    with_leader(tmp_path, work)


def test_an_entry_is_given_only_where_the_quorum_confirmed_that_this_member_leads(tmp_path: Path) -> None:
    async def work(engine: Engine, ask: Ask) -> None:
        engine.read_index = lambda done, way=None: done(NOT_CONFIRMED)  # type: ignore[method-assign,assignment]
        answer = ask(RequestCode.GET, {"beginIndex": 0})
        assert (answer["code"], answer["entries"]) == (ResponseCode.TERM_NOT_READY, [])
        confirmed = ReadOutcome(ResponseCode.SUCCESS, 0, 1)
        engine.read_index = lambda done, way=None: done(confirmed)  # type: ignore[method-assign,assignment]
        assert ask(RequestCode.GET, {"beginIndex": 0})["code"] == 200

    with_leader(tmp_path, work)


@pytest.mark.parametrize(("ahead", "is_asked"), [(0, True), (1, False), (-1, False)])
def test_a_transfer_that_names_a_term_is_of_no_other_one(tmp_path: Path, ahead: int, is_asked: bool) -> None:
    """Of an earlier term it was meant for a leader that is gone."""

    async def work(engine: Engine, ask: Ask) -> None:
        asked: list[object] = []

        def transfer(to: str | None, *_: object) -> None:
            asked.append(to)
            raise LookupError

        engine.transfer = transfer  # type: ignore[method-assign,assignment]
        fields = {"transfereeId": "n1", "term": engine.replica.term + ahead}
        if is_asked:
            with pytest.raises(LookupError):
                ask(RequestCode.LEADERSHIP_TRANSFER, fields)
        else:
            assert ask(RequestCode.LEADERSHIP_TRANSFER, fields)["code"] == ResponseCode.INCONSISTENT_TERM
        assert asked == (["n1"] if is_asked else [])

    with_leader(tmp_path, work)


def test_what_tokens_give_adds_up_on_a_connection(tmp_path: Path) -> None:
    """A client may show one to read and another one to append; what was given stays given."""

    async def work(engine: Engine, _ask: Ask) -> None:
        requests = engine.client_requests
        requests._access = Access(None, rows_of(("token r = read", "token w = append")), ("reads", "writes"))
        connection = Connection(lambda *_: None, lambda _: None)
        both = Right.READ | Right.APPEND
        for token, rights in (("reads", Right.READ), ("writes", both), ("none", both)):
            refused: list[object] = []
            connection.answer = lambda *answer, refused=refused: refused.append(answer)  # type: ignore[method-assign,misc]
            requests.handle(connection, Frame(RequestCode.METADATA, 1, dump({}), ext_fields={"token": token}))
            assert connection.rights == rights

    with_leader(tmp_path, work)
