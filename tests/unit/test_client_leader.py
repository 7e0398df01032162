"""How a client finds the leader, and leaves one that has fallen silent. Members here are sockets with a script."""

from __future__ import annotations

import asyncio
import re
import socket
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field

import pytest

from node.client import Denied, LedgerClient, OutcomeUnknown, Unreachable
from node.client import link as link_module
from node.client.errors import Closed
from node.client.leader import find_leader, no_leader_among
from node.client.link import GroupIdentity, MemberLink
from node.protocol.codes import RequestCode, ResponseCode
from node.transport.bodies import dump
from node.transport.connection import Connection
from node.transport.remoting import Frame
from node.transport.slab_frames import AppendAnswer, AppendedByte, encode_append_answer
from tests.ports import free_ports
from tests.unit.engine_kit import until


@dataclass
class ScriptedMember:
    """Names a leader when asked, and appends; `silent` says nothing at all, as a stopped process does."""

    says: str | None
    silent: bool = False
    code: int = 200
    appended: int = 0
    sends_to: str | None = None  # it does not lead any more, and names who does
    refused: int = 0
    address: str = ""
    peers: dict[str, str] = field(default_factory=dict)
    connections: list[Connection] = field(default_factory=list)

    async def listen(self, port: int = 0) -> ScriptedMember:
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(
            lambda: Connection(self.answer, lambda _: None, self.connections.append), "127.0.0.1", port
        )
        self.address = f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    def answer(self, connection: Connection, frame: Frame) -> None:
        if self.silent:
            return
        if frame.code == RequestCode.METADATA:
            fields = {"code": self.code, "group": "g", "leaderId": self.says, "term": -1, "peers": self.peers}
            connection.answer(frame, dump(fields))
        elif frame.code == RequestCode.FAST_APPEND and self.sends_to is not None:
            self.refused += 1
            refused = AppendAnswer(
                ResponseCode.NOT_LEADER,
                -1,
                -1,
                1,
                AppendedByte.NOT_APPENDED,
                leader_id=self.sends_to,
                detail="it follows",
            )
            connection.answer(frame, encode_append_answer(refused))
        elif frame.code == RequestCode.FAST_APPEND:
            self.appended += 1
            index = self.appended
            connection.answer(
                frame, encode_append_answer(AppendAnswer(ResponseCode.SUCCESS, index, index, 1, AppendedByte.YES))
            )

    async def close(self) -> None:
        self.server.close()
        for connection in self.connections:
            connection.abort()
        await asyncio.sleep(0)


async def ask(members: dict[str, ScriptedMember]) -> str | None:
    async with AsyncExitStack() as stack:
        links = []
        for name, member in members.items():
            await member.listen()
            stack.push_async_callback(member.close)
            links.append(MemberLink(name, member.address, "g"))
            stack.callback(links[-1].close)
        return await find_leader(links)


def test_a_member_is_believed_about_itself_only() -> None:
    assert asyncio.run(ask({"a": ScriptedMember("b"), "b": ScriptedMember("b"), "c": ScriptedMember("a")})) == "b"
    assert asyncio.run(ask({"a": ScriptedMember("b"), "b": ScriptedMember(None), "c": ScriptedMember("b")})) is None
    assert asyncio.run(ask({"a": ScriptedMember("z"), "b": ScriptedMember(None)})) is None


def test_a_silent_member_does_not_hold_up_the_question() -> None:
    stopped = ScriptedMember("a", silent=True)
    assert asyncio.run(ask({"a": stopped, "b": ScriptedMember("a"), "c": ScriptedMember(None)})) is None
    assert asyncio.run(ask({"a": stopped, "b": ScriptedMember("c"), "c": ScriptedMember("c")})) == "c"


def test_a_client_of_another_group_is_told_so() -> None:
    foreign = int(ResponseCode.UNKNOWN_GROUP)
    with pytest.raises(Denied):
        asyncio.run(ask({"a": ScriptedMember("a", code=foreign), "b": ScriptedMember("b", code=foreign)}))


async def leave_the_silent_one() -> None:
    old, new = await ScriptedMember("old").listen(), await ScriptedMember("old").listen()
    client = LedgerClient({"old": old.address, "new": new.address}, group="g", deadline_s=3600.0)
    try:
        await client.append(b"before")
        old.silent = True
        waiting = asyncio.create_task(client.append(b"sent to the silent one"))
        await asyncio.sleep(0)
        new.says = "new"
        with pytest.raises(OutcomeUnknown, match="fell silent"):
            await waiting
        await client.append(b"after")
        assert (old.appended, new.appended) == (1, 1)
    finally:
        await client.close()
        await old.close()
        await new.close()


def test_what_waits_at_a_silent_leader_is_unknown_once_another_leads_and_not_at_its_deadline() -> None:
    asyncio.run(asyncio.wait_for(leave_the_silent_one(), 60))


async def ask_the_one_that_led() -> None:
    """It is slow, and another leads by now: whoever asks this very member waits for its answer."""
    slow, new = await ScriptedMember("slow").listen(), await ScriptedMember("slow").listen()
    client = LedgerClient({"slow": slow.address, "new": new.address}, group="g", deadline_s=3600.0)
    asked: list[tuple[Connection, Frame]] = []
    answer = slow.answer

    def hold(connection: Connection, frame: Frame) -> None:
        if frame.code == RequestCode.INTROSPECT:
            asked.append((connection, frame))
        elif not asked:
            answer(connection, frame)

    slow.answer = hold  # type: ignore[method-assign]
    try:
        await client.append(b"while it leads")
        state = asyncio.create_task(client.state("slow"))
        while not asked:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        waiting = asyncio.create_task(client.append(b"sent to the silent one"))
        await asyncio.sleep(0)
        new.says = "new"
        with pytest.raises(OutcomeUnknown, match="fell silent"):
            await waiting
        ((connection, frame),) = asked
        connection.answer(frame, dump({"role": "FOLLOWER"}))
        assert await state == {"role": "FOLLOWER"}
    finally:
        await client.close()
        await slow.close()
        await new.close()


async def follow_the_leadership(named: str) -> tuple[ScriptedMember, ScriptedMember]:
    """Of an append that the old leader refuses, naming somebody; another one follows."""
    old, new = ScriptedMember("a"), ScriptedMember("a")
    async with AsyncExitStack() as stack:
        for member in (old, new):
            await member.listen()
            stack.push_async_callback(member.close)
        client = LedgerClient({"a": old.address, "b": new.address}, group="g", deadline_s=10)
        stack.push_async_callback(client.close)
        await client.append(b"first")
        assert old.appended == 1
        old.says = new.says = "b"
        old.sends_to = named
        await client.append(b"second")
        await client.append(b"third")
    return old, new


@pytest.mark.parametrize("named", ["b", "", "nobody that it knows"])
def test_an_append_that_a_former_leader_refuses_goes_on_at_the_new_one(named: str) -> None:
    """Once for each client, and not for each append."""
    old, new = asyncio.run(follow_the_leadership(named))
    assert (old.appended, old.refused, new.appended) == (1, 1, 2)


def test_who_asks_one_member_is_not_sent_away_where_another_leads() -> None:
    asyncio.run(asyncio.wait_for(ask_the_one_that_led(), 60))


async def stay_with_the_slow_one() -> bool:
    """No other leader: a slow answer is waited for, however long the silence."""
    slow, other = await ScriptedMember("slow").listen(), await ScriptedMember("slow").listen()
    client = LedgerClient({"slow": slow.address, "other": other.address}, group="g", deadline_s=3600.0)
    looks = asyncio.Event()
    held: list[tuple[Connection, Frame]] = []
    answer, asked_other = slow.answer, other.answer

    def hold(connection: Connection, frame: Frame) -> None:
        if frame.code == RequestCode.FAST_APPEND:
            held.append((connection, frame))
        else:
            answer(connection, frame)

    def note(connection: Connection, frame: Frame) -> None:
        asked_other(connection, frame)
        if held:
            looks.set()

    slow.answer, other.answer = hold, note  # type: ignore[method-assign]
    try:
        waiting = asyncio.create_task(client.append(b"slow"))
        await looks.wait()  # the client has asked elsewhere, and was told of nobody else
        answer(*held[0])
        await waiting
        return other.appended == 0
    finally:
        await client.close()
        await slow.close()
        await other.close()


def test_a_slow_leader_is_not_left_while_nobody_else_leads() -> None:
    assert asyncio.run(asyncio.wait_for(stay_with_the_slow_one(), 60))


def test_a_question_that_is_withdrawn_leaves_no_connection_behind() -> None:
    async def story() -> None:
        heard, ended = asyncio.Queue[int](), asyncio.Queue[str]()
        server = await asyncio.get_running_loop().create_server(
            lambda: Connection(
                lambda _, frame: heard.put_nowait(frame.code), lambda one: ended.put_nowait(one.end_reason)
            ),
            "127.0.0.1",
            0,
        )
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        link = MemberLink("n1", address, GroupIdentity("g", "known"))
        for _ in range(3):  # as `find_leader` does it with who has not answered when another one has
            asked = asyncio.ensure_future(link.connect())
            assert await heard.get() == RequestCode.METADATA  # connected: its group is being asked
            asked.cancel()
            await asyncio.wait([asked])
            async with asyncio.timeout(10):
                await ended.get()
        server.close()

    asyncio.run(story())


def test_whoever_reaches_nobody_hears_where_it_asked() -> None:
    async def work() -> None:
        silent = MemberLink("n0", "127.0.0.1:1", "g")
        assert no_leader_among([silent]).startswith("no member answers (n0 at 127.0.0.1:1): start them")
        async with AsyncExitStack() as stack:
            member = await ScriptedMember(None).listen()
            stack.push_async_callback(member.close)
            link = MemberLink("n1", member.address, "g")
            await link.connect()
            assert no_leader_among([silent, link]) == "no member that answers leads"
            member.says = "n0"
            assert await find_leader([silent, link]) is None
            said = no_leader_among([silent, link])
            assert said == "no member that answers leads; the others follow n0 at 127.0.0.1:1, which does not answer"
            member.silent = True  # what it said earlier is no answer
            assert await find_leader([silent, link]) is None
            assert no_leader_among([silent, link]) == "no member that answers leads"
            link.close()

    asyncio.run(work())


def test_whoever_gave_a_name_that_nobody_knows_hears_which(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody_knows(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async def work() -> None:
        async with AsyncExitStack() as stack:
            member = await ScriptedMember(None).listen()
            stack.push_async_callback(member.close)
            link, lost = MemberLink("n1", member.address, "g"), MemberLink("n0", "no-such-host:20911", "g")
            stack.callback(link.close)
            await link.connect()
            monkeypatch.setattr(socket, "getaddrinfo", nobody_knows)
            why = "the host name no-such-host cannot be resolved (Name or service not known)"
            with pytest.raises(ConnectionError, match=re.escape(f"n0 at no-such-host:20911: {why}")):
                await lost.connect()
            assert no_leader_among([lost]) == f"no member answers (n0 at no-such-host:20911): n0: {why}"
            assert no_leader_among([lost, link]) == f"no member that answers leads; n0: {why}"

    asyncio.run(work())


def test_a_dial_under_way_ends_when_its_client_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    dialling = asyncio.Event()

    async def nobody_answers(*_: object) -> None:
        dialling.set()
        await asyncio.Event().wait()

    async def work() -> None:
        client = LedgerClient({"n0": "127.0.0.1:1"}, group="g", deadline_s=3600.0)
        waiting = asyncio.create_task(client.read(0, 1))
        await dialling.wait()
        await client.close()
        with pytest.raises(Closed):
            async with asyncio.timeout(30):
                await waiting

    monkeypatch.setattr(link_module, "dial", nobody_answers)
    monkeypatch.setattr(link_module, "DIAL_WITHIN_S", 3600.0)
    asyncio.run(work())


async def append_to_one_elsewhere(*, moved: bool) -> None:
    """The client looks for the leader at `given`, the other member says `said`; it is at one of the two, at last."""
    given, said = free_ports(2)
    follower, leader = await ScriptedMember("n1").listen(), ScriptedMember("n1")
    follower.peers = {"n0": follower.address, "n1": f"127.0.0.1:{said}"}
    client = LedgerClient({"n0": follower.address, "n1": f"127.0.0.1:{given}"}, group="g", deadline_s=1.0)
    try:
        with pytest.raises(Unreachable):
            await client.append(b"nobody is there")  # both places were looked at by then
        await leader.listen(said if moved else given)
        while True:
            with suppress(Unreachable):
                assert (await client.append(b"to whoever leads")).first_index == 1
                break
    finally:
        await client.close()
        await follower.close()
        await leader.close()


@pytest.mark.parametrize("moved", [True, False])
def test_a_leader_is_looked_for_where_the_others_say_it_is_and_where_the_client_was_told(moved: bool) -> None:
    asyncio.run(asyncio.wait_for(append_to_one_elsewhere(moved=moved), 60))


def test_a_member_under_which_nothing_happens_is_not_doubted_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time all others are asked who leads: it was ten times a second for as long as a watch had nothing to say."""

    async def story() -> None:
        monkeypatch.setattr(link_module, "LOOK_EVERY_S", 0.002)
        member = await ScriptedMember("a").listen()
        link = MemberLink("a", member.address, "g")
        doubts: list[int] = []
        enough = asyncio.Event()

        def doubt(silent: MemberLink) -> None:
            doubts.append(silent._silent_looks)
            if silent._silent_looks >= 102 or len(doubts) > 11:
                enough.set()

        link.on_silence = doubt
        await link.connect()
        link.call(RequestCode.QUESTION, [b"anything new?"], lambda _: None)
        await enough.wait()
        assert doubts == [3, 4, 6, 9, 13, 19, 28, 42, 62, 82, 102]
        enough.clear()
        await link.ask(RequestCode.METADATA, {}, 5.0)
        await enough.wait()
        assert 3 in doubts[11:], "what was heard from is given the same time again"
        link.close()
        await member.close()

    asyncio.run(asyncio.wait_for(story(), 60))


class Forgotten(ScriptedMember):
    """Hears nothing of its first connection any more, and of later ones all: a firewall has forgotten that one. Or it
    is only slow: `slow` appends nothing, and answers everything else."""

    deaf = slow = False

    def answer(self, connection: Connection, frame: Frame) -> None:
        if self.deaf and connection is self.connections[0]:
            return
        if not (self.slow and frame.code == RequestCode.FAST_APPEND):
            super().answer(connection, frame)


@pytest.mark.parametrize("slow", [False, True])
def test_a_connection_that_leads_nowhere_is_dialled_anew_and_a_slow_one_is_not(
    monkeypatch: pytest.MonkeyPatch, slow: bool
) -> None:
    """Nothing closed it for a quarter of an hour: each call in that time went over it, and was unknown at its
    deadline."""
    monkeypatch.setattr(link_module, "DOUBTED_S", 0.05)

    async def story() -> None:
        member = await Forgotten("n0").listen()
        client = LedgerClient({"n0": member.address}, group="g", deadline_s=0.2)
        link = client.link_of("n0")
        try:
            await client.append(b"before")
            member.slow, member.deaf = slow, not slow
            with pytest.raises(OutcomeUnknown):
                await client.append(b"on its way to nowhere")
            await until(lambda: link._doubt_timer is None)
            assert link.open is slow
            member.slow = False
            await client.append(b"after")
            assert len(member.connections) == (1 if slow else 2) and member.appended == 2
        finally:
            await client.close()
            await member.close()

    asyncio.run(story())
