"""The client's appends against a member that a test plays: every outcome, once, and nothing sent twice in doubt."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from node.client import AppendResult, LedgerClient, NotAppended, OutcomeUnknown
from node.client.appends import (
    IN_FLIGHT_BYTES_MAX,
    MERGE_BYTES_MAX,
    MERGE_ENTRIES_MAX,
    MERGED_RUN_ENTRIES_MAX,
    RETRIED,
)
from node.protocol.codes import RequestCode, ResponseCode
from node.transport.bodies import dump
from node.transport.connection import Connection
from node.transport.remoting import Frame
from node.transport.slab_frames import AppendAnswer, AppendedByte, AppendRequest, decode_append, encode_append_answer
from tests.unit.test_committed_stream import until

Script = Callable[[AppendRequest], AppendAnswer | None]


class Member:
    """Says that it leads, and answers appends as the script says; None: it closes the connection."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.appends: list[list[bytes]] = []
        self.silent = False
        self.held: list[tuple[Connection, Frame]] | None = None  # what is answered later

    async def start(self) -> str:
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(lambda: Connection(self._frame, lambda _one: None), "127.0.0.1", 0)
        return f"n0-127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    def _frame(self, connection: Connection, frame: Frame) -> None:
        if frame.code == RequestCode.METADATA:
            connection.answer(frame, dump({"code": 200, "leaderId": "n0"}))
            return
        request = decode_append(frame.body)
        self.appends.append(list(request.bodies))
        if self.silent:
            return
        if self.held is not None:
            self.held.append((connection, frame))
            return
        self._answer(connection, frame, request)

    def let_go(self) -> None:
        held, self.held = self.held or [], None
        for connection, frame in held:
            self._answer(connection, frame, decode_append(frame.body))

    def _answer(self, connection: Connection, frame: Frame, request: AppendRequest) -> None:
        answer = self.script(request)
        if answer is None:
            connection.abort()
        else:
            connection.answer(frame, encode_append_answer(answer))


def against(script: Script, work: Callable[[LedgerClient, Member], Awaitable[Any]], **options: Any) -> Member:
    async def main() -> Member:
        member = Member(script)
        client = LedgerClient(await member.start(), group="g", **options)
        try:
            async with asyncio.timeout(20):
                await work(client, member)
        finally:
            await client.close()
            member.server.close()
        return member

    return asyncio.run(main())


def counting() -> Script:
    """A log that begins at 0."""
    ends = [0]

    def script(request: AppendRequest) -> AppendAnswer:
        first, ends[0] = ends[0], ends[0] + len(request.bodies)
        return AppendAnswer(200, first, ends[0] - 1, 3, AppendedByte.YES)

    return script


def test_the_appends_of_one_turn_leave_in_few_frames_and_each_gets_its_index() -> None:
    count = 2 * MERGE_ENTRIES_MAX + 10

    async def work(client: LedgerClient, _member: Member) -> None:
        assert await client.append(b"first") == AppendResult(0, 0, 3)
        results = await asyncio.gather(*(client.append(b"%d" % number) for number in range(count)))
        assert results == [AppendResult(1 + number, 1 + number, 3) for number in range(count)]
        assert await client.append_many([b"a", b"b", b"c"]) == AppendResult(count + 1, count + 3, 3)
        assert await client.append(b"last", expected_index=count + 4) == AppendResult(count + 4, count + 4, 3)

    member = against(counting(), work)
    assert [len(bodies) for bodies in member.appends] == [1, 1, MERGE_ENTRIES_MAX, MERGE_ENTRIES_MAX, 9, 3, 1]
    assert [body for bodies in member.appends[1:5] for body in bodies] == [b"%d" % number for number in range(count)]


def test_short_runs_share_a_frame_and_long_ones_keep_their_place() -> None:
    long = [b"l"] * (MERGED_RUN_ENTRIES_MAX + 1)

    async def work(client: LedgerClient, _member: Member) -> None:
        await client.append(b"warm")
        calls = [client.append(b"a"), client.append_many([b"b", b"c"]), client.append_many(long), client.append(b"d")]
        results = await asyncio.gather(*calls, client.append_many([b"e"] * 3))
        end = 3 + len(long)
        assert [(result.first_index, result.last_index) for result in results] == [
            (1, 1), (2, 3), (4, end), (end + 1, end + 1), (end + 2, end + 4)
        ]  # fmt: skip

    member = against(counting(), work)
    assert member.appends == [[b"warm"], [b"a"], [b"b", b"c"], long, [b"d", b"e", b"e", b"e"]]


def test_one_at_a_time_leaves_at_once_and_company_waits_for_company() -> None:
    async def work(client: LedgerClient, member: Member) -> None:
        for _ in range(2):
            await client.append(b"alone")
        link = client._links["n0"]
        alone = client.submit(b"alone")
        assert len(link._pending) == 1  # in the same turn
        await asyncio.gather(alone, *(client.submit(b"joins") for _ in range(4)))
        for _ in range(2):
            pair = [client.submit(b"a pair") for _ in range(2)]
            assert not link._pending
            await asyncio.gather(*pair)

    sent = [b",".join(bodies) for bodies in against(counting(), work).appends]
    assert sent == [*[b"alone"] * 3, b",".join([b"joins"] * 4), *[b"a pair,a pair"] * 2]


def test_a_refusal_that_may_pass_is_tried_again() -> None:
    good, refusals = counting(), [ResponseCode.LEADER_PENDING_FULL, ResponseCode.LEADER_NOT_READY]

    def script(request: AppendRequest) -> AppendAnswer | None:
        if refusals:
            return AppendAnswer(refusals.pop(), -1, -1, -1, AppendedByte.NOT_APPENDED)
        return good(request)

    async def work(client: LedgerClient, _member: Member) -> None:
        assert (await client.append(b"x")).first_index == 0
        refusals.append(ResponseCode.LEADER_PENDING_FULL)
        assert (await client.append(b"y")).first_index == 1

    assert len(against(script, work).appends) == 5


def test_a_client_comes_back_when_it_was_told_to_and_not_before() -> None:
    full = ResponseCode.LEADER_PENDING_FULL
    at: list[float] = []
    good, retry_ms = counting(), [150, 100]

    def script(request: AppendRequest) -> AppendAnswer | None:
        at.append(asyncio.get_running_loop().time())
        if retry_ms:
            return AppendAnswer(full, -1, -1, -1, AppendedByte.NOT_APPENDED, "n0", "", "full", retry_ms.pop())
        return good(request)

    async def work(client: LedgerClient, _member: Member) -> None:
        assert (await client.append(b"x")).first_index == 0
        assert at[1] - at[0] >= 0.1 and at[2] - at[1] >= 0.15
        retry_ms.append(60_000)
        with pytest.raises(NotAppended) as refused:  # at once: there is no time for another try
            await client.append(b"y")
        assert (refused.value.code, refused.value.retry_after_s) == (full, 60)

    assert len(against(script, work, deadline_s=5).appends) == 4


def test_one_bad_body_does_not_spoil_the_others_of_its_frame() -> None:
    good = counting()

    def script(request: AppendRequest) -> AppendAnswer | None:
        if b"bad" in list(request.bodies):
            return AppendAnswer(ResponseCode.UNEXPECTED_ARGUMENT, -1, -1, -1, AppendedByte.NOT_APPENDED)
        return good(request)

    async def work(client: LedgerClient, _member: Member) -> None:
        await client.append(b"warm")
        calls = [client.append(b"a"), client.append_many([b"x", b"bad"]), client.append_many([b"c", b"d"])]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(result) for result in results] == [AppendResult, NotAppended, AppendResult]

    against(script, work)


@pytest.mark.parametrize("batch", [False, True])
def test_what_was_sent_and_not_answered_is_unknown_and_not_sent_again(batch: bool) -> None:
    async def work(client: LedgerClient, member: Member) -> None:
        def append() -> Awaitable[AppendResult]:
            return client.append_many([b"x", b"y"]) if batch else client.append(b"x")

        await append()
        member.script = lambda _request: None  # the connection closes
        with pytest.raises(OutcomeUnknown, match="got lost"):
            await append()
        member.script = counting()
        await append()  # dials again
        member.silent = True
        with pytest.raises(OutcomeUnknown, match="did not answer within"):
            await append()
        member.silent = False
        unknown = AppendAnswer(ResponseCode.WAIT_QUORUM_ACK_TIMEOUT, 7, 8, 3, AppendedByte.UNKNOWN)
        member.script = lambda _request: unknown
        with pytest.raises(OutcomeUnknown) as reported:
            await append()
        assert (reported.value.first_index, reported.value.last_index, reported.value.term) == (7, 8, 3)

    assert len(against(counting(), work, deadline_s=0.5).appends) == 5


@pytest.mark.parametrize("code", sorted(RETRIED))
def test_an_unknown_outcome_is_not_sent_again_whatever_its_code_says(code: ResponseCode) -> None:
    """A leader that steps down answers with its reason, which of a refusal would be worth another try."""
    unknown = AppendAnswer(code, 7, 7, 3, AppendedByte.UNKNOWN)

    async def work(client: LedgerClient, _member: Member) -> None:
        with pytest.raises(OutcomeUnknown) as reported:
            await client.append(b"x")
        assert (reported.value.code, reported.value.first_index) == (code, 7)

    assert against(lambda _request: unknown, work).appends == [[b"x"]]


def test_an_unknown_outcome_names_each_calls_own_entries_though_they_left_in_one_frame() -> None:
    """A producer that reads what it was told to read must find its own entry there (C2)."""
    refusals = [ResponseCode.LEADER_PENDING_FULL]
    counts: list[int] = []

    def script(request: AppendRequest) -> AppendAnswer | None:
        if request.bodies[0] == b"warm":
            return AppendAnswer(200, 2, 1 + len(request.bodies), 3, AppendedByte.YES)
        if refusals:
            return AppendAnswer(refusals.pop(), -1, -1, -1, AppendedByte.NOT_APPENDED)
        counts.append(len(request.bodies))
        return AppendAnswer(ResponseCode.WAIT_QUORUM_ACK_TIMEOUT, 3, 7, 3, AppendedByte.UNKNOWN, detail="no quorum")

    async def work(client: LedgerClient, member: Member) -> None:
        await client.append(b"warm")
        await asyncio.gather(client.append(b"warm"), client.append(b"warm"))  # nobody is alone any more
        calls = [client.append(b"m1"), client.append(b"m2"), client.append_many([b"a", b"b"]), client.append(b"m3")]
        reported = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(one, OutcomeUnknown) for one in reported)
        assert [(one.first_index, one.last_index, one.term) for one in reported] == [
            (3, 3, 3), (4, 4, 3), (5, 6, 3), (7, 7, 3),
        ]  # fmt: skip
        assert {one.code for one in reported} == {ResponseCode.WAIT_QUORUM_ACK_TIMEOUT}
        assert len({id(one) for one in reported}) == 4  # an exception that two raise gets both tracebacks
        # What cannot be shared out, and what nobody named, names nothing.
        few = AppendAnswer(ResponseCode.TERM_CHANGED, 3, 3, 3, AppendedByte.UNKNOWN)
        for answer in (few, None):
            member.script = lambda _request, answer=answer: answer  # type: ignore[misc]
            reported = await asyncio.gather(client.append(b"x"), client.append(b"y"), return_exceptions=True)
            assert [(one.first_index, one.last_index) for one in reported] == [(-1, -1)] * 2

    against(script, work)
    assert counts == [5]


def test_closing_ends_what_waits_as_unknown() -> None:
    async def work(client: LedgerClient, member: Member) -> None:
        await client.append(b"warm")
        member.silent = True
        waiting = [asyncio.ensure_future(client.append(b"x")), asyncio.ensure_future(client.append_many([b"y", b"z"]))]
        await asyncio.sleep(0.05)
        waiting.append(asyncio.ensure_future(client.append(b"not even sent")))
        await asyncio.sleep(0)
        await client.close()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(result) for result in results] == [OutcomeUnknown] * 3

    against(counting(), work)


def test_what_waits_is_bounded() -> None:
    async def work(client: LedgerClient, member: Member) -> None:
        await client.append(b"warm")
        results = await asyncio.gather(*(client.append(b"%d" % number) for number in range(100)))
        assert sorted(result.first_index for result in results) == list(range(1, 101))

    member = against(counting(), work, in_flight_max=7)
    assert max(map(len, member.appends)) <= 7


def test_large_bodies_wait_for_room_and_not_in_the_connection() -> None:
    """There their deadline would end them as unknown before they left, and they would be in memory twice."""
    fit, count = IN_FLIGHT_BYTES_MAX // MERGE_BYTES_MAX, 40

    async def work(client: LedgerClient, member: Member) -> None:
        await client.append(b"warm")
        member.held = []
        futures = [client.submit(bytes(MERGE_BYTES_MAX)) for _ in range(count)]
        futures += [client.submit(b"small")]
        await until(lambda: len(member.held or ()) == fit)
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert len(member.held) == fit, "nothing more comes before there is room"
        member.let_go()
        results = await asyncio.gather(*futures)
        assert [one.first_index for one in results] == list(range(1, count + 2))

    against(counting(), work)


def test_a_cancelled_append_leaves_the_others_alone() -> None:
    async def work(client: LedgerClient, _member: Member) -> None:
        await client.append(b"warm")
        gone = asyncio.ensure_future(client.append(b"gone"))
        stays = asyncio.ensure_future(client.append(b"stays"))
        await asyncio.sleep(0)
        gone.cancel()
        assert (await stays).first_index == 2
        assert (await client.append(b"after")).first_index == 3

    against(counting(), work)


def test_what_is_submitted_lies_in_the_order_of_the_calls_whatever_else_the_turn_asks_for() -> None:
    async def work(client: LedgerClient, _member: Member) -> None:
        await client.append(b"warm")
        first = client.submit(b"a")
        run = asyncio.ensure_future(client.append_many([b"b", b"c"]))
        await asyncio.sleep(0)
        assert await client.append_many([b"d"] * (MERGED_RUN_ENTRIES_MAX + 1)) == AppendResult(4, 260, 3)
        more = [client.submit(b"e"), client.submit(b"f" * MERGE_BYTES_MAX), client.submit(b"g")]
        assert await first == AppendResult(1, 1, 3)
        assert await run == AppendResult(2, 3, 3)
        assert [result.first_index for result in await asyncio.gather(*more)] == [261, 262, 263]

    member = against(counting(), work)
    assert [body[:1] for bodies in member.appends[1:] for body in bodies] == [
        *(b"a b c".split()),
        *[b"d"] * 257,
        b"e",
        b"f",
        b"g",
    ]


def test_what_is_submitted_beyond_the_bound_waits_in_order_and_leaves_bounded() -> None:
    async def work(client: LedgerClient, _member: Member) -> None:
        futures = [client.submit(b"%d" % number) for number in range(100)]
        futures[50].cancel()  # still here: it is not sent at all
        run = asyncio.ensure_future(client.append_many([b"run"]))
        results = await asyncio.gather(*futures, return_exceptions=True)
        assert (await run).first_index == 99
        indexes = [result.first_index for result in results if isinstance(result, AppendResult)]
        assert indexes == list(range(99))

    member = against(counting(), work, in_flight_max=7)
    assert max(map(len, member.appends)) <= 7
    sent = [body for bodies in member.appends for body in bodies]
    assert sent == [b"%d" % number for number in range(100) if number != 50] + [b"run"]


def test_a_submitted_append_may_be_cancelled_and_its_error_comes_through_the_future() -> None:
    good = counting()

    async def work(client: LedgerClient, member: Member) -> None:
        futures = [client.submit(b"%d" % number) for number in range(5)]
        futures[0].cancel()
        futures[3].cancel()
        results = await asyncio.gather(*futures, return_exceptions=True)
        assert [getattr(result, "first_index", None) for result in results] == [None, 1, 2, None, 4]
        member.script = lambda _request: AppendAnswer(ResponseCode.DISK_FULL, -1, -1, -1, AppendedByte.NOT_APPENDED)
        refused = client.submit(b"x")
        assert isinstance(refused, asyncio.Future) and not refused.done()
        with pytest.raises(NotAppended, match="DISK_FULL"):
            await refused
        member.silent = True
        with pytest.raises(OutcomeUnknown, match="did not answer within"):
            await asyncio.gather(client.submit(b"y"), client.append(b"z"))
        member.silent, member.script = False, good
        assert (await client.submit(b"after")).first_index == 5

    against(good, work, deadline_s=0.3)


def test_closing_tells_what_was_sent_from_what_was_not() -> None:
    async def work(client: LedgerClient, member: Member) -> None:
        await client.append(b"warm")
        member.silent = True
        futures = [client.submit(b"x") for _ in range(5)]
        again: list[asyncio.Future[AppendResult]] = []
        futures[0].add_done_callback(lambda _one: again.append(client.submit(b"for ever")))
        await asyncio.sleep(0.05)
        await client.close()
        results = await asyncio.gather(*futures, *again, return_exceptions=True)
        assert [type(result) for result in results] == [OutcomeUnknown] * 3 + [NotAppended] * 3

    against(counting(), work, in_flight_max=3)


def test_bodies_that_are_not_bytes_are_copied_at_once() -> None:
    async def work(client: LedgerClient, member: Member) -> None:
        body = bytearray(b"before")
        futures = [client.submit(b"warm"), client.submit(body)]  # type: ignore[arg-type]
        body[:] = b"behind"
        await asyncio.gather(*futures)
        assert b"before" in member.appends[-1]

    against(counting(), work)
