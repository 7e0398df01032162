"""A client beside members that say nothing, and one that is closed: no call waits for others', and nothing is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from node.client import Closed, LedgerClient, NotAppended, Unreachable
from node.protocol.codes import RequestCode
from node.transport.bodies import dump
from node.transport.connection import Connection
from node.transport.remoting import Frame

WITHIN_S = 30.0


class Member:
    """Accepts, and says who leads where it is to; never anything else."""

    def __init__(self, *, leads: bool) -> None:
        self.leads = leads
        self.open = self.accepted = self.asked = 0
        self.address = ""

    def made(self) -> Connection:
        self.open += 1
        self.accepted += 1
        return Connection(self.came, self.gone)

    def gone(self, _connection: Connection) -> None:
        self.open -= 1

    def came(self, connection: Connection, frame: Frame) -> None:
        if self.leads and frame.code == RequestCode.METADATA:
            connection.answer(frame, dump({"code": 200, "group": "default", "leaderId": "n0", "term": -1}))
        else:
            self.asked += 1


@asynccontextmanager
async def member(*, leads: bool) -> AsyncIterator[Member]:
    one = Member(leads=leads)
    server = await asyncio.get_running_loop().create_server(one.made, "127.0.0.1", 0)
    one.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield one
    finally:
        server.close()


def run(work: object) -> None:
    asyncio.run(asyncio.wait_for(work, WITHIN_S))  # type: ignore[arg-type]


def test_who_waits_while_another_dials_has_its_answer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that accepts and stays silent costs ten calls one dial's time, not ten."""
    monkeypatch.setattr("node.client.link.DIAL_WITHIN_S", 0.2)

    async def work() -> None:
        async with member(leads=False) as silent:
            client = LedgerClient({"n0": silent.address}, group_id="0" * 32)
            found = await asyncio.gather(*(client.state("n0") for _ in range(10)), return_exceptions=True)
            assert {type(one) for one in found} == {Unreachable}
            assert {str(one).rpartition(": ")[2] for one in found} == {"no connection in time"}
            assert silent.accepted == 1
            with pytest.raises(Unreachable):
                await client.state("n0")
            assert silent.accepted == 2, "a later call tries again"
            await client.close()

    run(work())


@pytest.mark.parametrize(("call", "error"), [("read", Closed), ("state", Unreachable)])
def test_a_call_under_way_ends_with_its_client_and_dials_no_more(call: str, error: type[Exception]) -> None:
    async def work() -> None:
        async with member(leads=True) as leader:
            client = LedgerClient({"n0": leader.address}, deadline_s=WITHIN_S)
            waiting = asyncio.ensure_future(client.read(0, 1) if call == "read" else client.state("n0"))
            while not leader.asked:  # noqa: ASYNC110 (a server of this loop)
                await asyncio.sleep(0.001)
            dialled = leader.accepted
            await client.close()
            with pytest.raises(error):
                await waiting
            while leader.open:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            assert leader.accepted == dialled

    run(work())


def test_a_closed_client_dials_nobody() -> None:
    async def work() -> None:
        async with member(leads=True) as leader:
            client = LedgerClient({"n0": leader.address}, deadline_s=WITHIN_S)
            await client.close()
            for call in (client.read(0, 1), client.state("n0"), client.leader(), client.committed_index()):
                with pytest.raises(Closed, match="the client is closed"):
                    await call
            with pytest.raises(NotAppended, match="closed"):
                await client.append(b"x")
            assert leader.accepted == 0

    run(work())


def test_a_client_that_is_closed_while_it_dials_keeps_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with member(leads=True) as leader:
            client = LedgerClient({"n0": leader.address}, deadline_s=WITHIN_S)
            waiting = asyncio.ensure_future(client.state("n0"))
            while not leader.accepted:  # noqa: ASYNC110
                await asyncio.sleep(0)
            client._own_links.close()
            with pytest.raises(Closed):
                await waiting
            while leader.open:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            await client.close()

    run(work())
