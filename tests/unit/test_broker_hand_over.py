"""A leader whose broker takes no messages: leadership goes to the other members, one after the other."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from node.control import broker_hand_over
from node.control.broker_hand_over import AFTER_S, AGAIN_S_MAX, PATIENCE_S, BrokerHandOver, voters_behind
from node.control.broker_link import NotUnderstood, refusal
from node.control.engine_link import EngineSilent
from node.control.problems import Problem
from node.protocol.codes import ResponseCode
from node.rocketmq.codes import Answer
from node.views.state import PeerView, StateView

Json = dict[str, Any]
DONE: Json = {"code": int(ResponseCode.SUCCESS), "leaderId": "n2", "term": 8}
BEHIND: Json = {"code": int(ResponseCode.FALL_BEHIND_TOO_MUCH), "detail": "n2 is behind"}


class Node:
    """A control plane with a clock of its own, whose engine leads and answers transfers as `answer` says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, self_id: str = "n1") -> None:
        self.now_s, self.asked = 1000.0, []  # type: tuple[float, list[Json]]
        self.answer: Json | Exception = DONE
        self.role: str | None = None  # of the broker, as it says when it is asked patiently; None: it says nothing
        peers = tuple(PeerView(id=one, is_voter=one != "n3") for one in ("n2", "n0", "n1", "n3"))
        self.state = StateView(engine="ok", self_id=self_id, role="LEADER", term=7, peers=peers)
        timing = SimpleNamespace(leadership_transfer_wait_timeout_ms=500)
        parts: Any = SimpleNamespace(
            link=self, snapshots=SimpleNamespace(get=self.get),
            settings=SimpleNamespace(timing=timing, node=self),
        )  # fmt: skip
        self.preferred_leaders: tuple[str, ...] = ()
        self.hangs = True  # its broker, rather than being gone
        self.ended = 0  # how often it was
        self.hand_over = BrokerHandOver(parts, self)  # type: ignore[arg-type]
        monkeypatch.setattr(broker_hand_over, "ask_for_another_broker", self.another_broker)
        monkeypatch.setattr(broker_hand_over, "time", SimpleNamespace(monotonic=lambda: self.now_s))

    async def get(self, _view: object) -> StateView:
        return self.state

    async def broker(self, within_s: float, *, patient: bool) -> Any:
        assert patient and within_s == PATIENCE_S
        if self.role == "busy":
            raise refusal(Answer.SYSTEM_BUSY, "8 such questions are being answered: try again")
        if self.role == "of another version":
            raise NotUnderstood(503, "The broker cannot be understood", "role is missing")
        if self.role is None:
            raise Problem(503, "The broker does not answer", "no answer in time")
        return SimpleNamespace(role=self.role)

    def another_broker(self) -> bool:
        self.ended += 1
        return True

    async def json(self, _code: object, fields: Json, _timeout_s: float) -> Json:
        self.asked.append(fields)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def silent_for(self, seconds: float) -> list[float]:
        """Looks at it each second; after how long each try came."""
        begin_s, tries = self.now_s, list[float]()
        while self.now_s - begin_s <= seconds:
            before = len(self.asked)
            asyncio.run(self.hand_over.look(begin_s, is_master=False))
            tries += [self.now_s - begin_s] * (len(self.asked) - before)
            self.now_s += 1
        return tries


def test_a_leader_whose_broker_is_silent_hands_over_and_no_restart_makes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch)
    assert node.silent_for(AFTER_S - 1) == []
    asyncio.run(node.hand_over.look(None, is_master=False))
    assert node.silent_for(AFTER_S - 1) == [], "it was back meanwhile"
    asyncio.run(node.hand_over.look(None, is_master=False))
    assert node.silent_for(AFTER_S) == [AFTER_S]
    assert node.asked == [{"transfereeId": "n2", "deadlineMs": 500, "ifTerm": 7}]


def test_each_voter_has_its_turn_and_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leadership comes back where the others' brokers are silent, too."""
    node = Node(monkeypatch)
    assert node.silent_for(100) == [5, 10, 20, 40, 80]
    assert [one["transfereeId"] for one in node.asked] == ["n2", "n0", "n2", "n0", "n2"]
    tries = node.silent_for(2000)
    assert tries[-1] - tries[-2] == AGAIN_S_MAX
    asyncio.run(node.hand_over.look(None, is_master=True))
    assert node.silent_for(10) == [5, 10], "it had answered"


@pytest.mark.parametrize("hangs", [True, False])
def test_a_preferred_member_keeps_leadership_no_longer_each_time_it_comes_back(
    monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    """The others prefer it, so it came back within seconds, and stayed for 10 s, 20 s and in the end for 5 minutes, in
    which no broker took messages."""
    node = Node(monkeypatch)
    node.preferred_leaders, node.hangs = ("n1",), hangs
    assert node.silent_for(9) == [5, 6, 7, 8, 9]
    assert node.ended == (1 if hangs else 0), "once: one that starts may be long at it"


def test_a_broker_that_hangs_is_ended_only_once_leadership_came_back(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch)
    assert node.silent_for(9) == [5] and node.ended == 0, "somebody may look at it with a debugger"
    asyncio.run(node.hand_over.look(None, is_master=False))
    assert node.silent_for(10) == [10] and node.ended == 0, "it had answered meanwhile"
    assert node.silent_for(80) == [20, 40, 80] and node.ended == 1


def test_brokers_that_are_all_slow_to_become_master_get_ever_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each was a slave that answered well once another one led: leadership went round every 5 s for good."""
    node = Node(monkeypatch)
    node.role = "SLAVE"
    for after_s in (5, 10, 20, 40):
        assert node.silent_for(after_s) == [after_s]
        asyncio.run(node.hand_over.look(None, is_master=False))
    asyncio.run(node.hand_over.look(None, is_master=True))
    asyncio.run(node.hand_over.look(None, is_master=False))
    assert node.silent_for(AFTER_S) == [AFTER_S], "it was the master meanwhile"


@pytest.mark.parametrize("answer", [BEHIND, EngineSilent("no answer")])
def test_one_that_does_not_take_it_leaves_the_turn_to_the_next(
    monkeypatch: pytest.MonkeyPatch, answer: Json | Exception
) -> None:
    node = Node(monkeypatch)
    node.answer = answer
    assert node.silent_for(12) == [5, 6, 11, 12]
    assert [one["transfereeId"] for one in node.asked] == ["n2", "n0", "n2", "n0"]


@pytest.mark.parametrize(
    ("role", "tries"), [("MASTER", []), ("busy", []), ("of another version", []), ("SLAVE", [5, 10, 20])]
)
def test_a_broker_that_is_only_slow_keeps_leadership_and_one_that_is_no_master_does_not(
    monkeypatch: pytest.MonkeyPatch, role: str, tries: list[int]
) -> None:
    node = Node(monkeypatch)
    node.role = role
    assert node.silent_for(30) == tries


@pytest.mark.parametrize("changes", [{"role": "FOLLOWER"}, {"engine": "down"}, {"peers": (PeerView(id="n1"),)}])
def test_only_a_leader_that_has_others_hands_over(monkeypatch: pytest.MonkeyPatch, changes: Json) -> None:
    node = Node(monkeypatch)
    leads, node.state = node.state, node.state.model_copy(update=changes)
    assert node.silent_for(30) == []
    node.state = leads
    assert node.silent_for(6) == [5]


@pytest.mark.parametrize(("self_id", "order"), [("n0", ["n1", "n2"]), ("n1", ["n2", "n0"]), ("n2", ["n0", "n1"])])
def test_leaders_that_all_hand_on_let_everybody_lead(
    monkeypatch: pytest.MonkeyPatch, self_id: str, order: list[str]
) -> None:
    assert voters_behind(Node(monkeypatch, self_id).state) == order
