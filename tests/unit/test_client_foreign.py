"""Where a member of another group listens at an address that a client knows: nothing of its own goes there (C9)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from node.client import Denied, LedgerClient, LedgerError, OutcomeUnknown, Unreachable
from node.client import link as links_module
from node.client.leader import find_leader
from node.client.link import MemberLink
from node.protocol.codes import RequestCode, ResponseCode
from node.transport.bodies import dump
from node.transport.connection import Connection
from node.transport.remoting import FLAG_RESPONSE, Frame
from tests.unit.test_client_leader import ScriptedMember

FOREIGN = int(ResponseCode.UNKNOWN_GROUP)


def run(story: Callable[[AsyncExitStack], Awaitable[None]]) -> None:
    async def work() -> None:
        async with AsyncExitStack() as stack, asyncio.timeout(60):
            await story(stack)

    asyncio.run(work())


async def listening(stack: AsyncExitStack, member: ScriptedMember, port: int = 0) -> ScriptedMember:
    await member.listen(port)
    stack.push_async_callback(member.close)
    return member


def client_of(stack: AsyncExitStack, **members: ScriptedMember) -> LedgerClient:
    client = LedgerClient({name: member.address for name, member in members.items()}, group="g", deadline_s=10.0)
    stack.push_async_callback(client.close)
    return client


async def taken_over(stack: AsyncExitStack, gone: ScriptedMember) -> ScriptedMember:
    """Another group's leader, where that member listened."""
    await gone.close()
    return await listening(stack, ScriptedMember("a", code=FOREIGN), int(gone.address.rpartition(":")[2]))


def test_what_listens_where_a_member_did_gets_no_append_of_another_group() -> None:
    """Also where the client never heard of the group's id: the name says enough."""

    async def story(stack: AsyncExitStack) -> None:
        member = await listening(stack, ScriptedMember("a"))
        client = client_of(stack, a=member)
        await client.append(b"ours")
        foreign = await taken_over(stack, member)
        for _ in range(3):
            with pytest.raises((Denied, OutcomeUnknown)) as refused:
                await client.append(b"for our group alone")
        assert isinstance(refused.value, Denied)
        assert foreign.appended == 0

    run(story)


@pytest.mark.parametrize("follow_redirects", [True, False])
@pytest.mark.parametrize(
    ("code", "error", "says"),
    [
        # By its own name alone, before it says of which group it is: also one whose group is called the same.
        (int(ResponseCode.UNKNOWN_MEMBER), Unreachable, "not a that listens at"),
        (FOREIGN, Denied, "UNKNOWN_GROUP"),
        (500, Unreachable, None),
        (12345, Unreachable, None),
    ],
)
def test_who_refuses_to_say_whose_member_it_is_gets_no_append(
    code: int, error: type[LedgerError], says: str | None, follow_redirects: bool
) -> None:
    """Each of these was taken for a yes, where no leader is asked for, or by another code than those of groups."""

    async def story(stack: AsyncExitStack) -> None:
        member = await listening(stack, ScriptedMember("a", code=code))
        deadline_s = 0.5 if error is Unreachable else 10.0
        client = LedgerClient(
            {"a": member.address}, group="g", group_id="ours", deadline_s=deadline_s, follow_redirects=follow_redirects
        )
        stack.push_async_callback(client.close)
        with pytest.raises(error, match=says):
            await client.append(b"for our group alone")
        assert member.appended == 0

    run(story)


@pytest.mark.parametrize("odd", [{"opaque": 7}, {"flag": 0}], ids=str)
def test_a_frame_that_answers_nothing_lets_nothing_be_sent(odd: dict[str, int]) -> None:
    async def story(stack: AsyncExitStack) -> None:
        member = await listening(stack, ScriptedMember("a"))
        answer = member.answer

        def answer_oddly(connection: Connection, frame: Frame) -> None:
            if frame.code == RequestCode.METADATA:
                body = dump({"code": 200, "group": "g", "leaderId": "a", "term": -1})
                sent = {"opaque": frame.opaque, "flag": FLAG_RESPONSE} | odd
                connection.send_body(200, sent["flag"], sent["opaque"], [body])
            else:
                answer(connection, frame)

        member.answer = answer_oddly  # type: ignore[method-assign]
        client = LedgerClient({"a": member.address}, group="g", deadline_s=0.5, follow_redirects=False)
        stack.push_async_callback(client.close)
        with pytest.raises(Unreachable):
            await client.append(b"for our group alone")
        assert member.appended == 0

    run(story)


def test_a_member_far_away_has_a_dials_time_for_the_answer_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over TLS a dial is three round trips; with this question in the same two seconds it was four."""
    monkeypatch.setattr("node.client.link.DIAL_WITHIN_S", 4.0)
    dial = links_module.dial

    async def slowly(*given: Any) -> None:
        await asyncio.sleep(2.1)
        await dial(*given)

    monkeypatch.setattr(links_module, "dial", slowly)

    async def story(stack: AsyncExitStack) -> None:
        member = await listening(stack, ScriptedMember("a"))
        answer = member.answer

        def later(connection: Connection, frame: Frame) -> None:
            is_first = frame.opaque == links_module.CHECK_OPAQUE
            asyncio.get_running_loop().call_later(2.1 if is_first else 0, answer, connection, frame)

        member.answer = later  # type: ignore[method-assign]
        client = client_of(stack, a=member)
        await client.append(b"x")
        assert member.appended == 1

    run(story)


def test_one_address_of_another_group_keeps_no_client_from_its_own() -> None:
    """It was a member's that was removed, say. Whoever of ours leads is found, in whatever order they answer."""

    async def story(stack: AsyncExitStack) -> None:
        foreign = await listening(stack, ScriptedMember("a", code=FOREIGN))
        ours = await listening(stack, ScriptedMember("b"))
        links = [MemberLink(name, member.address, "g") for name, member in (("a", foreign), ("b", ours))]
        for link in links:
            stack.callback(link.close)
        held: list[tuple[Any, Any]] | None = []
        answer, refuse = ours.answer, foreign.answer

        def answer_second(*asked: Any) -> None:
            answer(*asked) if held is None else held.append(asked)

        def refuse_first(*asked: Any) -> None:
            nonlocal held
            refuse(*asked)
            waiting, held = held or [], None
            for one in waiting:
                answer(*one)

        ours.answer, foreign.answer = answer_second, refuse_first  # type: ignore[method-assign]
        assert await find_leader(links) == "b"

    run(story)


def test_a_client_finds_its_own_leader_after_the_address_of_its_last_one_is_anothers() -> None:
    async def story(stack: AsyncExitStack) -> None:
        old, new = await listening(stack, ScriptedMember("a")), await listening(stack, ScriptedMember("a"))
        client = client_of(stack, a=old, b=new)
        await client.append(b"while a leads")
        foreign = await taken_over(stack, old)
        new.says = "b"
        with pytest.raises((Denied, OutcomeUnknown)):
            while True:
                await client.append(b"to a, as far as is known")
        await client.append(b"to b")
        assert (foreign.appended, new.appended) == (0, 1)

    run(story)


@pytest.mark.parametrize(("wrong", "error"), [
    ({"group": 5}, TypeError), ({"group": None}, TypeError), ({"peers": {"a": 5}}, TypeError),
    ({"peers": {"a": "no port"}}, ValueError),
])  # fmt: skip
def test_what_can_name_no_group_and_no_member_makes_no_client(wrong: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        LedgerClient(**{"peers": {"a": "127.0.0.1:1"}, "group": "g"} | wrong)
