"""A client between members: what a lost connection means, who is asked next, from where a watch goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from node.client import LedgerClient, NotAppended, OutcomeUnknown, Unreachable
from node.client.append_group import Group
from node.client.appends import Appends
from node.client.committed import CommittedPosition, CommittedStream
from node.client.kv import KvClient
from node.client.lane import Lane
from node.client.link import GroupIdentity, Lost, MemberLink
from node.client.machine import Answered, MachineClient
from node.client.retry import Retry
from node.protocol.codes import RequestCode, ResponseCode
from node.protocol.kv import (
    EventType,
    If,
    KvCommand,
    KvEvent,
    KvResult,
    KvWatched,
    Op,
    Status,
    ask_watch,
    encode_watched,
)
from node.transport.bodies import Fields
from node.transport.lane_frames import LaneAnswer
from node.transport.machine_frames import decode_question, encode_question_answer


def run(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(story())  # type: ignore[arg-type]


class Connection:
    """One that is open until it is closed; what is sent over it is lost."""

    closed = False

    def send_body(self, *_: object) -> None:
        pass

    def abort(self) -> None:
        self.closed = True


# --- one link ---------------------------------------------------------------------------------------------------------
def test_the_end_of_an_earlier_connection_is_none_of_this_one() -> None:
    async def story() -> None:
        link, old, new = MemberLink("n0", "127.0.0.1:1", "g"), Connection(), Connection()
        ended: list[object] = []
        link._connection = new  # type: ignore[assignment]
        link.call(RequestCode.FAST_READ, [b""], ended.append)
        link._on_closed(old)  # type: ignore[arg-type]
        assert ended == []
        link._on_closed(new)  # type: ignore[arg-type]
        assert [type(one) for one in ended] == [Lost] and ended[0].sent  # type: ignore[attr-defined]

    run(story)


@pytest.mark.parametrize("group_id", ["5e" * 16, None])
def test_each_new_connection_is_asked_whose_it_is_and_what_it_speaks(
    monkeypatch: pytest.MonkeyPatch, group_id: str | None
) -> None:
    """A member may have been replaced by another group's, also by one of another name, or a plain one by one of ours
    (SAFETY C9)."""

    async def dial(*_: object) -> None:
        pass

    monkeypatch.setattr("node.client.link.dial", dial)

    async def story() -> None:
        link = MemberLink("n0", "127.0.0.1:1", GroupIdentity("g", group_id))
        asked: list[object] = []

        async def check(connection: object) -> None:
            asked.append(connection)

        link._check_group = check  # type: ignore[method-assign, assignment]
        for times in (1, 2):
            await link.connect()
            assert len(asked) == times and not link.plain
            link.plain, link._connection = True, None

    run(story)


@pytest.mark.parametrize("refused", [True, False])
def test_a_patience_that_ends_says_the_last_refusal_where_there_was_one(refused: bool) -> None:
    """It promises more than that nobody was reached: when there will be room, and who leads."""

    async def story() -> None:
        retry = Retry(0.0)
        retry.reason = "n0 answers 500"
        retry.not_appended = NotAppended("no room", retry_after_s=2.0) if refused else None
        with pytest.raises(NotAppended if refused else Unreachable) as ended:
            await retry.pause()
        assert not refused or ended.value is retry.not_appended

    run(story)


@pytest.mark.parametrize(("hint_s", "waits_s"), [(0.2, 0.2), (2.0, 2.0), (4.0, 2.0), (15.0, 2.0), (80.0, 10.0)])
def test_a_long_wait_for_room_is_asked_about_again_before_its_end(
    monkeypatch: pytest.MonkeyPatch, hint_s: float, waits_s: float
) -> None:
    """The hint was reckoned when the links were at their slowest: who sleeps it out leaves them idle behind that."""

    async def story() -> None:
        slept: list[float] = []

        async def sleep(delay_s: float) -> None:
            slept.append(delay_s)

        monkeypatch.setattr("node.client.retry.asyncio.sleep", sleep)
        retry = Retry(100.0)
        retry.hint_s = hint_s
        await retry.pause()
        assert [waits_s <= one <= waits_s * 1.06 for one in slept] == [True]

    run(story)


# --- appends ----------------------------------------------------------------------------------------------------------
class Leaders:
    """One member that is connected; what is to be done later is kept, and not done."""

    follow_redirects = True

    def __init__(self) -> None:
        self.asked: list[Callable[[Any], None]] = []
        self.link: Any = SimpleNamespace(member_id="n0", plain=False, call=self._call)

    def _call(self, _code: object, _pieces: object, done: Callable[[Any], None]) -> int:
        self.asked.append(done)
        return len(self.asked)

    def leader_at_hand(self) -> Any:
        return self.link

    def spawn(self, _work: object) -> None:
        pass


def test_calls_that_are_sent_apart_keep_their_length() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        group = Group([b"a", b"b", b"c", b"d"], [loop.create_future(), loop.create_future()], [(0, 3)])
        apart = group.apart()
        assert [list(one.bodies) for one in apart] == [[b"a", b"b", b"c"], [b"d"]]
        assert [list(one.results(5, 1)) for one in apart] == [[(5, 7, 1)], [(5, 5, 1)]]

    run(story)


def test_another_try_has_what_is_left_of_the_time() -> None:
    """Neither a refusal nor what is sent apart begins a deadline anew."""

    async def story() -> None:
        left: list[float] = []

        def goes_on(_group: object, _first: object, left_s: float) -> None:
            left.append(left_s)

        async def refused(*_: object) -> Any:
            raise NotAppended("one entry a request", code=ResponseCode.UNSUPPORTED)

        leaders = Leaders()
        appends = Appends(leaders, 600.0, 100)  # type: ignore[arg-type]
        appends._go_on, appends._deliver = goes_on, refused  # type: ignore[method-assign, assignment]
        calls = [appends.submit(b"x"), appends.submit(b"y")]
        appends._flush()
        [group] = appends._open
        group.due_s = asyncio.get_running_loop().time() + 5.0
        leaders.asked[0](Lost("the connection closed", sent=False))
        await Appends._go_on(appends, group, None, 4.0)
        assert len(left) == 3 and all(one <= 5.0 for one in left)
        for call in calls:
            call.cancel()
        appends.close()

    run(story)


# --- who leads --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("leader", "asked", "named", "at_once", "then"),
    [
        ("n0", "n0", "n1", True, "n1"),
        (
            None,
            "n0",
            "n1",
            False,
            "n1",
        ),  # n1 may name n0: they are not asked as fast as they answer
        ("n2", "n0", "n1", False, "n1"),
        ("n0", "n0", "n9", False, None),  # nobody knows where n9 is: all are asked
        ("n0", "n0", "", False, None),
        ("n0", "n0", "n0", False, None),
    ],
)
def test_who_names_a_leader(leader: str | None, asked: str, named: str, at_once: bool, then: str | None) -> None:
    async def story() -> None:
        client = LedgerClient({one: f"127.0.0.1:{at}" for at, one in enumerate(("n0", "n1", "n2"), 1)})
        client._leader_id = leader
        assert client.redirected(client.link_of(asked), named) is at_once
        assert client._leader_id == then
        await client.close()

    run(story)


def test_behind_a_transfer_the_leader_is_looked_for_anew_and_it_is_waited_for_as_long_as_it_may_take() -> None:
    async def story() -> None:
        client = LedgerClient({"n0": "127.0.0.1:1", "n1": "127.0.0.1:2"}, deadline_s=1.0)
        client._leader_id, waited = "n0", []

        async def ask(code: RequestCode, _fields: object, within_s: float, *, redial: bool = True) -> Fields:
            waited.append((code, within_s))
            moved: dict[str, Any] = {"code": 200, "leaderId": "n1", "term": 2}
            return Fields({"role": "LEADER"} if code is RequestCode.INTROSPECT else moved)

        client.link_of("n0").ask = ask  # type: ignore[method-assign]
        assert (await client.transfer("n1", deadline_ms=60_000))["leaderId"] == "n1"
        assert client._leader_id is None
        assert [within_s > 60 for code, within_s in waited if code is RequestCode.LEADERSHIP_TRANSFER] == [True]
        await client.close()

    run(story)


def test_a_transfer_is_asked_of_who_leads_now_where_the_former_leader_is_gone() -> None:
    """Nothing was sent to that one; a transfer that was sent is not repeated."""

    async def story() -> None:
        client = LedgerClient({"n0": "127.0.0.1:1", "n1": "127.0.0.1:2"})
        client._leader_id, asked = "n0", []

        def answers(member_id: str, lost: Lost | None) -> Any:
            async def ask(code: RequestCode, _fields: object, _within_s: float, *, redial: bool = True) -> Fields:
                asked.append((member_id, code))
                if lost is not None and (not lost.sent or code is RequestCode.LEADERSHIP_TRANSFER):
                    raise lost
                return Fields({"role": "LEADER"} if code is RequestCode.INTROSPECT else {"code": 200, "leaderId": "n0"})

            return ask

        async def probe(_retry: object) -> None:
            client._leader_id = "n1"

        client._probe = probe  # type: ignore[method-assign]
        client.link_of("n0").ask = answers("n0", Lost("nothing listens", sent=False))  # type: ignore[method-assign]
        client.link_of("n1").ask = answers("n1", None)  # type: ignore[method-assign]
        assert (await client.transfer("n0"))["leaderId"] == "n0"
        assert [one for one, code in asked if code is RequestCode.LEADERSHIP_TRANSFER] == ["n1"]
        asked.clear()
        client.link_of("n1").ask = answers("n1", Lost("it closed", sent=True))  # type: ignore[method-assign]
        with pytest.raises(OutcomeUnknown):
            await client.transfer("n0")
        assert [one for one, code in asked if code is RequestCode.LEADERSHIP_TRANSFER] == ["n1"]
        await client.close()

    run(story)


def test_a_member_that_has_moved_is_asked_where_it_is_now() -> None:
    async def story() -> None:
        client = LedgerClient({"n0": "127.0.0.1:1", "n1": "127.0.0.1:2"})
        before = client._own_link("n0")
        client._links["n0"] = MemberLink("n0", "127.0.0.1:3", client._identity)
        assert client._own_link("n0").address == "127.0.0.1:3"
        before = client._own_link("n0")
        before._connection = Connection()  # type: ignore[assignment]
        client._links["n0"] = MemberLink("n0", "127.0.0.1:4", client._identity)
        assert client._own_link("n0") is before, "one that answers has not moved"
        await client.close()

    run(story)


def test_who_leads_beside_a_silent_member_is_asked_from_then_on() -> None:
    async def story() -> None:
        client = LedgerClient({"n0": "127.0.0.1:1", "n1": "127.0.0.1:2"})
        client._leader_id, silent = "n0", client.link_of("n0")

        async def found(_links: object) -> str:
            return "n1"

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("node.client.ledger_client.find_leader", found)
            await client._look_elsewhere(silent)
        assert client._leader_id == "n1"
        await client.close()

    run(story)


# --- lanes, commands, watches -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("entries", "size", "fits"), [(2, 60, True), (3, 60, False), (2, 61, False)])
def test_a_window_is_as_many_entries_and_bytes(entries: int, size: int, fits: bool) -> None:
    async def story() -> None:
        link: Any = SimpleNamespace(member_id="n0", call=lambda *_: 1)
        opened = LaneAnswer(ResponseCode.SUCCESS, 1, 1, 0, 4, 100, 0, "n0")
        lane = Lane(link, opened, 5.0)
        assert lane.has_room(9, 900), "one alone always has"
        answer = lane.append([bytes(20)] * 2)
        assert lane.has_room(entries, size) is fits
        answer.cancel()

    run(story)


@pytest.mark.parametrize("is_open", [True, False])
def test_a_command_whose_answer_is_lost_is_sent_once(is_open: bool) -> None:
    """However its connection stands by now."""

    async def story() -> None:
        sent: list[object] = []

        async def request(*call: object) -> bytes:
            sent.append(call)
            raise Lost("the connection closed", sent=True)

        link = SimpleNamespace(member_id="n0", request=request, open=is_open)

        async def leader_link(_retry: object) -> Any:
            return link

        client: Any = SimpleNamespace(leader_link=leader_link, forget=lambda _link: None)
        with pytest.raises(OutcomeUnknown):
            await MachineClient(client, 1.0).run([b"x"])
        assert len(sent) == 1

    run(story)


def test_a_question_that_waits_leaves_time_for_its_answer_also_where_it_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A watch of keys that nobody writes to goes on over a change of the leader."""

    class Kept(Retry):
        def __init__(self, deadline_s: float) -> None:
            super().__init__(deadline_s)
            made.append(self)

    made: list[Retry] = []
    monkeypatch.setattr("node.client.machine.Retry", Kept)

    async def story() -> None:
        waits: list[tuple[float, float]] = []

        async def request(_code: object, pieces: Sequence[bytes], timeout_s: float) -> bytes:
            waits.append((decode_question(b"".join(pieces)).wait_ms / 1000, timeout_s))
            if len(waits) == 1:
                made[0]._deadline -= 17.0  # so long it waited for something to happen, until its leader was gone
                raise Lost("the connection closed", sent=True)
            return b"".join(encode_question_answer([(ResponseCode.TIMEOUT, 4, b"")]))

        async def leader_link(_retry: object) -> Any:
            return SimpleNamespace(member_id="n0", request=request)

        client: Any = SimpleNamespace(leader_link=leader_link, forget=lambda _link: None)
        assert await MachineClient(client, 10.0).ask(b"x", wait_ms=20_000) is None
        assert [round(wait_s) for wait_s, _ in waits] == [20, 3]
        assert all(timeout_s - wait_s > 9.5 for wait_s, timeout_s in waits)

    run(story)


def watched(answers: Sequence[KvWatched]) -> tuple[KvClient, list[bytes]]:
    """A client whose state machine answers so; and what it was asked."""
    left, asked = list(answers), []  # type: tuple[list[KvWatched], list[bytes]]

    async def ask(question: bytes, **_: object) -> Answered:
        asked.append(question)
        return Answered(encode_watched(left.pop(0)) if left else b"", 41)

    kv = KvClient(LedgerClient({"n0": "127.0.0.1:1"}))
    kv._machine.ask = ask  # type: ignore[method-assign, assignment]
    return kv, asked


def test_a_watch_goes_on_behind_what_was_seen_and_leaves_out_nothing() -> None:
    """Also where many entries did nothing to its keys."""

    async def story() -> None:
        event = KvEvent(EventType.PUT, b"k", 12, b"v")
        kv, asked = watched([KvWatched(False, 10, []), KvWatched(False, 15, [event]), KvWatched(False, 20, [event])])
        watching = kv.watch(b"k", from_index=3)
        assert [await anext(watching), await anext(watching)] == [event, event]
        assert asked == [ask_watch(b"k", one) for one in (3, 10, 15)]
        await watching.aclose()

    run(story)


def test_a_watch_from_now_on_begins_behind_what_is_applied() -> None:
    async def story() -> None:
        kv, asked = watched([])
        with pytest.raises(Exception, match="cannot be read"):
            await anext(kv.watch(b"k"))
        assert asked[-1] == ask_watch(b"k", 42)

    run(story)


@pytest.mark.parametrize(("old", "condition"), [(None, If.INDEX_IS), (b"", If.VALUE_IS), (b"x", If.VALUE_IS)])
def test_an_empty_value_is_a_value(old: bytes | None, condition: If) -> None:
    async def story() -> None:
        kv, written = KvClient(LedgerClient({"n0": "127.0.0.1:1"})), []

        async def write(command: KvCommand) -> KvResult:
            written.append(command)
            return KvResult(Status.DONE, True, 1, b"")

        kv.write = write  # type: ignore[method-assign]
        await kv.compare_and_set(b"k", old, b"new")
        assert [(one.op, one.condition) for one in written] == [(Op.PUT, condition)]

    run(story)


def test_a_stream_that_was_served_has_its_whole_patience_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patience is counted from when the last position was taken: a stream lasts longer than any deadline, and so may
    whoever takes its positions be at each of them."""

    async def story() -> None:
        made: list[float] = []

        class Counted(Retry):
            def __init__(self, deadline_s: float) -> None:
                super().__init__(deadline_s)
                made.append(deadline_s)

        position = CommittedPosition("n0", 4, 4, 1, "n0", True, 0.0)

        class Served:
            def __init__(self, *_: object) -> None:
                pass

            async def next(self) -> CommittedPosition:
                return position

            def end(self) -> None:
                pass

        async def connect() -> None:
            pass

        async def leader_link(_retry: object) -> Any:
            return SimpleNamespace(member_id="n0", connect=connect)

        monkeypatch.setattr("node.client.committed.Retry", Counted)
        monkeypatch.setattr("node.client.committed.Subscription", Served)
        client: Any = SimpleNamespace(leader_link=leader_link, forget=lambda _link: None)
        stream = CommittedStream(client, None, 5, 1000, 7.0, lambda: 0.0).positions()
        for times in (1, 2):
            assert await anext(stream) == position
            assert made == [7.0] * times
        await stream.aclose()

    run(story)
