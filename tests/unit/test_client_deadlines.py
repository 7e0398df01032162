"""A client's call ends at its deadline, whatever it waits for: a dial, a question, others' entries, a redirect.

Nothing here looks at a clock: what a call must not wait for takes an hour, and a test that waits for it fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from node.client import LedgerClient, NotAppended, OutcomeUnknown, Unreachable
from node.client.link import GroupIdentity, MemberLink
from node.client.retry import BACK_OFF_GROWTH, BACK_OFF_S_MAX, BACK_OFF_S_MIN
from node.protocol.codes import RemotingCode, RequestCode, ResponseCode
from node.transport.bodies import dump
from node.transport.connection import Connection
from node.transport.remoting import Frame
from node.transport.slab_frames import AppendAnswer, AppendedByte, encode_append_answer

WITHIN_S = 20.0
DEADLINE_S = 0.2
HOUR_S = 3600.0
GROUP_ID = "0" * 32

Came = Callable[[Connection, Frame], None]


def silent(_connection: Connection, _frame: Frame) -> None:
    """A process that is stopped."""


def metadata(leader_id: str | None, group_id: str | None = None) -> bytes:
    return dump({"code": 200, "group": "default", "groupId": group_id, "leaderId": leader_id, "term": -1})


@asynccontextmanager
async def listening(came: Came) -> AsyncIterator[str]:
    open_ones: list[Connection] = []
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(came, lambda _: None, open_ones.append), "127.0.0.1", 0
    )
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for one in open_ones:
            one.abort()


def against(came: Came, work: Callable[[LedgerClient], Awaitable[Any]], **options: Any) -> None:
    async def main() -> None:
        async with listening(came) as address:
            client = LedgerClient({"n0": address}, **{"deadline_s": DEADLINE_S, **options})
            try:
                await work(client)
            finally:
                await client.close()

    asyncio.run(asyncio.wait_for(main(), WITHIN_S))


CALLS: dict[str, Callable[[LedgerClient], Awaitable[Any]]] = {
    "append": lambda client: client.append(b"x"),
    "append_many": lambda client: client.append_many([b"x", b"y"], expected_index=0),
    "read": lambda client: client.read(0, 1),
    "committed_index": lambda client: client.committed_index(),
    "leader": lambda client: client.leader(),
    "open_lane": lambda client: client.open_lane(),
    "transfer": lambda client: client.transfer(),
    "state": lambda client: client.state("n0"),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_dial_takes_no_more_than_the_call_has(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The member accepts and does not say whose it is, so nothing was sent to it."""
    monkeypatch.setattr("node.client.link.DIAL_WITHIN_S", HOUR_S)
    monkeypatch.setattr("node.client.leader.ANSWER_WITHIN_S", HOUR_S)

    async def work(client: LedgerClient) -> None:
        with pytest.raises(Unreachable):
            await CALLS[call](client)

    against(silent, work, group_id=GROUP_ID)


@pytest.mark.parametrize("call", [one for one in CALLS if one != "state"])
def test_who_leads_is_asked_no_longer_than_the_call_has(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.client.leader.ANSWER_WITHIN_S", HOUR_S)

    async def work(client: LedgerClient) -> None:
        with pytest.raises(Unreachable):
            await CALLS[call](client)

    against(silent, work)


def test_a_later_deadline_does_not_end_with_the_earlier_one_that_dials_for_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first connection says nothing, every later one answers."""
    monkeypatch.setattr("node.client.link.DIAL_WITHIN_S", HOUR_S)
    met: list[Connection] = []

    def came(connection: Connection, frame: Frame) -> None:
        if connection not in met:
            met.append(connection)
        if met.index(connection) > 0:
            connection.answer(frame, metadata("n0", GROUP_ID))

    async def main() -> None:
        async with listening(came) as address:
            link = MemberLink("n0", address, GroupIdentity("default", GROUP_ID))
            early = asyncio.ensure_future(link.ask(RequestCode.METADATA, {}, DEADLINE_S))
            late = asyncio.ensure_future(link.ask(RequestCode.METADATA, {}, HOUR_S))
            with pytest.raises(ConnectionError, match="no connection in time"):
                await early
            assert (await late).text("leaderId") == "n0"
            assert len(met) == 2
            link.close()

    asyncio.run(asyncio.wait_for(main(), WITHIN_S))


def test_what_waits_in_line_for_a_plain_dledger_was_not_appended() -> None:
    """It takes one entry after another and answers none: the first may be there, the others cannot be."""
    sent: list[Frame] = []

    def came(connection: Connection, frame: Frame) -> None:
        if frame.code == RequestCode.METADATA:
            connection.answer(frame, metadata("n0"))
        elif frame.code == RequestCode.APPEND:
            sent.append(frame)
        else:
            connection.refuse(frame, RemotingCode.REQUEST_CODE_NOT_SUPPORTED, "not known")

    async def work(client: LedgerClient) -> None:
        calls = (client.append_many([b"x"] * 1, expected_index=None) for _ in range(3))
        found = await asyncio.gather(*calls, return_exceptions=True)
        kinds = [type(one) for one in found]
        # The next in line may still get its turn in the moment between the first one's deadline and its own.
        assert kinds.count(OutcomeUnknown) == len(sent) < 3
        assert set(kinds) <= {OutcomeUnknown, Unreachable, NotAppended}

    against(came, work)


def test_two_members_that_name_each_other_are_not_asked_as_fast_as_they_answer() -> None:
    """Every second redirect waits, longer each time: the deadline bounds how many there can be."""
    asked: list[str] = []
    deadline_s = 0.5

    def member(own: str, other: str) -> Came:
        def came(connection: Connection, frame: Frame) -> None:
            if frame.code == RequestCode.METADATA:
                connection.answer(frame, metadata(own))
                return
            asked.append(own)
            answer = AppendAnswer(ResponseCode.NOT_LEADER, -1, -1, 1, AppendedByte.NOT_APPENDED, other)
            connection.answer(frame, encode_append_answer(answer))

        return came

    async def main() -> None:
        async with listening(member("n0", "n1")) as first, listening(member("n1", "n0")) as second:
            client = LedgerClient({"n0": first, "n1": second}, deadline_s=deadline_s)
            with pytest.raises(NotAppended, match="NOT_LEADER"):
                await client.append(b"x")
            await client.close()

    asyncio.run(asyncio.wait_for(main(), WITHIN_S))
    pauses, waited_s, wait_s = 0, 0.0, BACK_OFF_S_MIN
    while waited_s < deadline_s:  # the shortest that they can be
        pauses, waited_s, wait_s = pauses + 1, waited_s + wait_s / 2, min(wait_s * BACK_OFF_GROWTH, BACK_OFF_S_MAX)
    assert 2 <= len(asked) <= 2 * (pauses + 1)
