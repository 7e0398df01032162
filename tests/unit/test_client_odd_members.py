"""What a client makes of members that refuse, fail over a request, are busy, or belong to somebody else.

Each member here is a socket with a script: what it answers to METADATA, and to everything else, in turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from node.client import (
    AnotherGroup,
    Denied,
    LedgerClient,
    LedgerError,
    NotAppended,
    OutcomeUnknown,
    Unreachable,
    Unsupported,
)
from node.client.machine import MachineClient
from node.protocol.codes import RemotingCode, RequestCode, ResponseCode
from node.transport.bodies import dump
from node.transport.committed_frames import PushedPosition, encode_position
from node.transport.connection import Connection
from node.transport.machine_frames import CommandAnswer, encode_command_answer
from node.transport.remoting import FLAG_ONE_WAY, Frame
from node.transport.slab_frames import AppendAnswer, AppendedByte, ReadAnswer, encode_append_answer, encode_read_answer
from tests.unit.engine_kit import until

Reply = Callable[[Connection, Frame], None]
SENT = AppendAnswer(200, 0, 0, 1, AppendedByte.YES)
EMPTY_LOG = b"".join(map(bytes, encode_read_answer(ReadAnswer(200, -1, -1, -1, 0))))
NO_LANE = {"term": -1, "lane": -1, "endIndex": -1, "windowEntries": -1, "windowBytes": -1, "lastTimeMs": -1}


def body(content: bytes) -> Reply:
    return lambda connection, frame: connection.answer(frame, content)


def remoting(code: RemotingCode) -> Reply:
    return lambda connection, frame: connection.refuse(frame, code, f"it says {code.name}")


def hang_up(connection: Connection, _frame: Frame) -> None:
    connection.abort()


class Member:
    """Says that `n0` leads; answers what else is asked with one reply after the other, the last one for good."""

    def __init__(self, *replies: Reply, **metadata: object) -> None:
        self.replies, self.metadata = list(replies), metadata
        self.asked: list[Frame] = []
        self.connections: list[Connection] = []

    async def start(self) -> str:
        loop = asyncio.get_running_loop()
        made = self.connections.append
        self.server = await loop.create_server(lambda: Connection(self._frame, lambda _: None, made), "127.0.0.1", 0)
        return f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    def _frame(self, connection: Connection, frame: Frame) -> None:
        if frame.code == RequestCode.METADATA:
            connection.answer(frame, dump({"code": 200, "leaderId": "n0", **self.metadata}))
            return
        if frame.flag == FLAG_ONE_WAY:
            return
        self.asked.append(frame)
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        reply(connection, frame)

    async def hang_up_on(self, client: LedgerClient) -> None:
        for connection in self.connections:
            connection.abort()
        await until(lambda: not client.link_of("n0").open)


def with_client(member: Member, work: Callable[[LedgerClient], Awaitable[None]], **options: Any) -> Member:
    async def story() -> None:
        client = LedgerClient({"n0": await member.start()}, group="g", **options)
        try:
            async with asyncio.timeout(20):
                await work(client)
        finally:
            await client.close()
            member.server.close()

    asyncio.run(story())
    return member


# --- reads ------------------------------------------------------------------------------------------------------------
def test_a_busy_member_is_asked_again_and_not_as_fast_as_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def slept(delay: float, *more: Any) -> None:
        pauses.append(delay)
        await sleep(delay, *more)

    async def work(client: LedgerClient) -> None:
        monkeypatch.setattr(asyncio, "sleep", slept)
        assert await client.read(0, 1) == []
        monkeypatch.undo()

    member = with_client(Member(*[remoting(RemotingCode.SYSTEM_BUSY)] * 3, body(EMPTY_LOG)), work)
    assert len(member.asked) == 4 and len(pauses) == 3 and min(pauses) > 0


def test_a_member_that_fails_over_a_read_is_not_asked_the_same_again() -> None:
    async def work(client: LedgerClient) -> None:
        with pytest.raises(LedgerError, match="it says SYSTEM_ERROR"):
            await client.read(0, 1)

    assert len(with_client(Member(remoting(RemotingCode.SYSTEM_ERROR)), work).asked) == 1


def test_a_read_that_nobody_answers_says_so() -> None:
    async def work(client: LedgerClient) -> None:
        with pytest.raises(Unreachable, match="no answer in time"):
            await client.read(0, 1)

    with_client(Member(lambda _connection, _frame: None), work, deadline_s=0.3)


# --- whose member it is -----------------------------------------------------------------------------------------------
def test_who_has_learned_its_groups_id_sends_nothing_to_another_one_of_that_name() -> None:
    """Learned from the member itself; at its address another group's is met later (SAFETY C9)."""

    async def work(client: LedgerClient) -> None:
        await client.read(0, 1)
        assert client.group_id == "first"
        member.metadata["groupId"] = "second"
        await member.hang_up_on(client)
        with pytest.raises(AnotherGroup, match="its id is second, not first"):
            await client.append(b"not for you")

    member = Member(body(EMPTY_LOG), groupId="first")
    with_client(member, work)
    assert [frame.code for frame in member.asked] == [RequestCode.FAST_READ]


# --- the token --------------------------------------------------------------------------------------------------------
pushed = body(encode_position(PushedPosition(ResponseCode.SUCCESS, 7, 5, 9, 3, True, "n0", 0, 0)))


def test_a_stream_that_is_first_on_its_connection_shows_the_token() -> None:
    """After a loss the new connection is asked whose it is, without the token; then the stream comes."""

    async def work(client: LedgerClient) -> None:
        await client.read(0, 1)
        await member.hang_up_on(client)
        member.asked.clear()
        positions = client.committed()
        assert (await anext(positions)).committed_index == 5
        await positions.aclose()

    member = Member(body(EMPTY_LOG), pushed, groupId="first")
    with_client(member, work, token="a-token-of-sixteen")
    assert member.asked[0].ext_fields == {"token": "a-token-of-sixteen"}


# --- the stream of committed positions --------------------------------------------------------------------------------
def test_a_stream_is_opened_again_where_a_member_is_busy() -> None:
    async def work(client: LedgerClient) -> None:
        positions = client.committed()
        assert (await anext(positions)).committed_index == 5
        await positions.aclose()

    with_client(Member(remoting(RemotingCode.SYSTEM_BUSY), pushed), work)


def test_a_stream_ends_where_a_member_fails_over_it() -> None:
    async def work(client: LedgerClient) -> None:
        with pytest.raises(LedgerError, match="it says SYSTEM_ERROR"):
            await anext(client.committed())

    assert len(with_client(Member(remoting(RemotingCode.SYSTEM_ERROR)), work).asked) == 1


# --- commands ---------------------------------------------------------------------------------------------------------
def refused(code: ResponseCode) -> Reply:
    append = AppendAnswer(code, -1, -1, 1, AppendedByte.NOT_APPENDED, detail="not this one")
    return body(encode_command_answer(CommandAnswer(append, False)))


APPLIED = body(encode_command_answer(CommandAnswer(SENT, True, [b"done"])))


def test_a_command_that_is_refused_for_what_it_is_ends_at_once_and_one_that_comes_early_goes_again() -> None:
    async def work(client: LedgerClient) -> None:
        machine = MachineClient(client)
        with pytest.raises(NotAppended, match="not this one") as ended:
            await machine.command(b"x")
        assert ended.value.code is ResponseCode.UNEXPECTED_ARGUMENT and len(member.asked) == 1
        assert (await machine.command(b"x")).results == [b"done"]

    member = Member(refused(ResponseCode.UNEXPECTED_ARGUMENT), refused(ResponseCode.LEADER_PENDING_FULL), APPLIED)
    assert len(with_client(member, work).asked) == 3


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (remoting(RemotingCode.REQUEST_CODE_NOT_SUPPORTED), Unsupported),
        (remoting(RemotingCode.SYSTEM_ERROR), OutcomeUnknown),
        (body(b"\x01"), OutcomeUnknown),
        (hang_up, OutcomeUnknown),
        (refused(ResponseCode.UNEXPECTED_MEMBER), Denied),
    ],
)
def test_how_a_command_ends(reply: Reply, error: type[Exception]) -> None:
    async def work(client: LedgerClient) -> None:
        with pytest.raises(error):
            await MachineClient(client).command(b"x")

    assert len(with_client(Member(reply, APPLIED), work).asked) == 1, "nothing is sent twice"


# --- lanes ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("code", "error"),
    [(ResponseCode.UNEXPECTED_MEMBER, Denied), (ResponseCode.UNEXPECTED_ARGUMENT, NotAppended)],
)
def test_a_lane_that_is_refused_for_good_is_asked_for_once(code: ResponseCode, error: type[Exception]) -> None:
    async def work(client: LedgerClient) -> None:
        with pytest.raises(error) as ended:
            await client.open_lane()
        assert type(ended.value) is error

    assert len(with_client(Member(body(dump({**NO_LANE, "code": int(code)}))), work).asked) == 1


# --- an operator's actions --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("answer", [{"code": 200}, {"code": 200, "passNumber": True}, {"code": 500, "passNumber": 3}])
def test_a_scrub_has_begun_where_its_pass_is_named(answer: dict[str, object]) -> None:
    async def work(client: LedgerClient) -> None:
        with pytest.raises(LedgerError):
            await client.scrub("n0")

    with_client(Member(body(dump(answer))), work)


def test_the_appends_of_a_plain_answer_are_as_many_as_were_sent() -> None:
    """One answer for another number of entries than the frame had cannot be shared out: nobody knows."""

    async def work(client: LedgerClient) -> None:
        with pytest.raises(OutcomeUnknown):
            await client.append_many([b"a", b"b"])

    assert len(with_client(Member(body(encode_append_answer(SENT))), work).asked) == 1
