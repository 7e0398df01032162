"""What is wrong with a broker, as alarms of its member's state, and as problems with a next step."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node.config import load
from node.control import broker_alarms, ha, stalled_consumers
from node.control.broker_alarms import BrokerAlarms, troubles
from node.control.broker_link import SILENT_WITHIN_S, WITHIN_S, BrokerLink, refusal
from node.control.metrics import exposition
from node.control.openapi import examples
from node.control.problems import Problem
from node.control.stalled_consumers import STANDS_STILL_S, StalledConsumers
from node.message_client.errors import Unavailable
from node.rocketmq.codes import Answer
from node.rocketmq.command import Command
from node.views.broker import BrokerSaid, GroupStand, GroupStands
from node.views.closures import ClosuresView
from node.views.reading import read
from node.views.replication import WatermarksView
from node.views.state import AlarmView, StateView
from tests.unit.engine_kit import until
from tests.unit.test_message_rest import Rest, run
from tests.unit.test_problems import Story

Json = dict[str, Any]
WAITING = ("schedule", "transactions")


def said(**changes: Any) -> BrokerSaid:
    """As a broker says it itself, beside what REST shows of it."""
    shown: Json = json.loads(json.dumps(examples()["get /api/v1/broker"]["response"]))
    dispatch = shown["dispatch"] | {name: changes.pop(name) for name in list(changes) if name in shown["dispatch"]}
    role_changes = [{**one, "began_at_ms": 1} for one in shown["role_changes"]]
    own = {"dispatch": dispatch, "role_changes": role_changes, "name_servers": [], **dict.fromkeys(WAITING)}
    return read(BrokerSaid, shown | own | changes)


def waiting(*levels: Json) -> Json:
    return {"waiting": 6, "delivered": 1, "levels": list(levels)}


def level(number: int, overdue_ms: int, waiting: int = 3) -> Json:
    return {"level": number, "delay_ms": 1000, "waiting": waiting, "due_ms": 1, "overdue_ms": overdue_ms}


def undecided(unanswered: int, producers: int) -> Json:
    group = {"producer_group": "tickets", "open": 9, "producers": producers}
    return {"open": 9, "all_read": True, "oldest_born_ms": 1, "unanswered": unanswered, "checks_max": 15,
            "groups": [group]}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "leads", "codes"),
    [
        ({}, True, []), ({"role": "SLAVE"}, False, []), ({"role": None}, False, []),
        ({"role": "SLAVE"}, True, ["broker_not_master"]),
        ({"role": None, "role_changes": []}, True, ["broker_not_master"]),
        ({"stopped_by": "no record", "behind_ms": 9000}, True, ["broker_dispatch_stopped"]),
        ({"behind_ms": 1500, "behind_entries": 7}, True, ["broker_dispatch_behind"]), ({"behind_ms": 900}, True, []),
        ({"name_servers": [{"address": "h:1", "registered_ms": None}]}, True, ["broker_not_registered"]),
        ({"damaged_messages": [{"offset": 8, "message": None}]}, False, ["broker_message_damaged"]),
        ({"name_servers": [{"address": "h:1", "registered_ms": 5}]}, True, []),
        ({"name_servers": [{"address": "h:1", "registered_ms": None}], "role": None}, False, []),
        ({"schedule": waiting(level(1, 900), level(2, 4900))}, True, []), ({"schedule": None}, False, []),
        ({"schedule": waiting(level(1, 900), level(2, 5100))}, True, ["broker_schedule_behind"]),
        ({"transactions": undecided(0, 0)}, True, []), ({"transactions": None}, False, []),
        ({"transactions": undecided(2, 1)}, True, ["broker_transactions_unanswered"]),
    ],
)  # fmt: skip
def test_what_is_wrong_follows_from_what_a_broker_says(changes: Json, leads: bool, codes: list[str]) -> None:
    assert list(troubles(said(**changes), leads=leads)) == codes


def test_an_alarm_names_the_cause_as_far_as_it_is_known() -> None:
    late = said(schedule=waiting(level(2, 5100), level(7, 41_000), level(9, 0)))
    assert troubles(late, leads=True)["broker_schedule_behind"] == (
        "messages are due and not delivered: 6 wait in level 2, 7, the oldest due 41 s ago"
    )
    asked = "2 transactions were asked about three times or more"
    for producers, why in ((0, "no producer of tickets is connected"), (1, "their producers do not decide")):
        found = troubles(said(transactions=undecided(2, producers)), leads=True)
        assert found["broker_transactions_unanswered"] == f"{asked}: {why}"


def test_an_alarm_stands_once_it_has_lasted_and_no_state_waits_for_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    class Link:
        answers: asyncio.Event
        asked = 0

        async def broker(self, _within_s: float) -> BrokerSaid:
            await self.answers.wait()
            self.asked += 1
            raise Problem(503, "The broker does not answer", "nothing listens there")

    async def story() -> None:
        link: Any = Link()
        link.answers = asyncio.Event()
        monkeypatch.setattr(broker_alarms, "EVERY_S", 0.01)
        monkeypatch.setattr(broker_alarms, "GRACE_S", 1e9)
        alarms = BrokerAlarms(link, "n0")
        alarms.start()
        assert alarms.now() == (), "it hangs, and nobody waits"
        link.answers.set()
        await until(lambda: link.asked > 2)
        assert alarms.now() == (), "it has not lasted"
        monkeypatch.setattr(broker_alarms, "GRACE_S", 0.0)
        [one] = alarms.now()
        assert (one.code, one.text) == ("broker_down", "nothing listens there")
        asked = link.asked
        await until(lambda: link.asked > asked + 2)
        assert alarms.now()[0].since == one.since
        await alarms.close()

    asyncio.run(story())


def group(waiting: int, oldest_ms: int, members: int = 1, **changes: Any) -> GroupStand:
    stand = GroupStand(
        group="boards", consume_enabled=True, lag_messages=waiting, lag_ms=90_000, lag_since_ms=oldest_ms,
        oldest_at=None, members=members,
    )  # fmt: skip
    return stand.model_copy(update=changes)


def page(*items: GroupStand, then: str | None = None) -> GroupStands:
    return GroupStands(items=items, next=then)


@pytest.mark.parametrize(
    ("looks", "code"),
    [
        ([group(10, 5), group(900, 5)], "broker_consumers_stuck"),
        ([group(10, 5), group(900, 7)], None),  # slow, and it moves
        ([group(10, 5, oldest_at=("T", 0, 3)), group(900, 5, oldest_at=("T", 0, 7))], None),  # all carry one time
        ([group(10, 5, oldest_at=("T", 0, 3)), group(900, 5, oldest_at=("T", 0, 3))], "broker_consumers_stuck"),
        ([group(900, 5), group(900, 5)], None),  # nothing comes
        ([group(10, 5, 0), group(900, 5, 0)], "broker_consumers_gone"),
        ([group(10, 5, 0), group(900, 9, 0)], "broker_consumers_gone"),  # the oldest have expired meanwhile
        ([group(10, 5), group(900, 5, 0)], "broker_consumers_gone"),  # it was stopped, and is known to be gone by now
        ([group(10, 5), group(900, 7, 0)], None),  # it has just left
        ([group(0, 5, 0), group(0, 5, 0)], None),
        ([group(10, 5, consume_enabled=False), group(900, 5, consume_enabled=False)], None),
    ],
)
def test_a_consumer_group_that_gets_nowhere_is_named(looks: list[GroupStand], code: str | None) -> None:
    """A consumer that was stopped or had ended raised no problem, however much waited for it."""
    consumers = StalledConsumers()

    def look(one: GroupStand, now_s: float) -> dict[str, str]:
        consumers.observe([one], now_s)
        return consumers.stalled()

    assert look(looks[0], 0.0) == {}
    assert look(looks[1], STANDS_STILL_S - 1) == {}, "not for long enough"
    more = looks[1].lag_messages and looks[1].lag_messages + (code is not None)
    again = looks[1].model_copy(update={"lag_messages": more})
    found = look(again, STANDS_STILL_S)
    assert found == ({} if code is None else {code: "boards (901 wait, the oldest for 90 s)"})


def test_only_the_master_looks_at_consumers(monkeypatch: pytest.MonkeyPatch) -> None:
    class Link:
        role, asked = "MASTER", 0

        async def broker(self, _within_s: float) -> BrokerSaid:
            return said(role=self.role, leader_id="n0")

        async def group_stands(self, _limit: int, _cursor: str | None) -> GroupStands:
            self.asked += 1
            return page(group(9 + self.asked, 5, 0))

    async def story() -> None:
        link: Any = Link()
        monkeypatch.setattr(broker_alarms, "EVERY_S", 0.0)
        monkeypatch.setattr(broker_alarms, "GRACE_S", 0.0)
        monkeypatch.setattr(broker_alarms, "GROUPS_EVERY", 1)
        monkeypatch.setattr(stalled_consumers, "STANDS_STILL_S", 0.0)
        alarms = BrokerAlarms(link, "n0")
        alarms.start()
        await until(lambda: bool(alarms.now()))
        [one] = alarms.now()
        assert (one.code, one.severity) == ("broker_consumers_gone", "info")
        link.role = "SLAVE"
        await until(lambda: "broker_consumers_gone" not in {one.code for one in alarms.now()})
        await alarms.close()

    asyncio.run(story())


def test_every_consumer_group_is_looked_at_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first thousand by name only it was said that they get nowhere."""
    pages: dict[str | None, tuple[list[str], str | None]] = {
        None: (["a", "b"], "b"), "b": (["c", "d"], "d"), "d": (["e"], None),
    }  # fmt: skip

    class Link:
        asked = 0

        async def broker(self, _within_s: float) -> BrokerSaid:
            return said(role="MASTER", leader_id="n0")

        async def group_stands(self, _limit: int, cursor: str | None) -> GroupStands:
            self.asked += 1
            names, following = pages[cursor]
            return page(*(group(9 + self.asked * (one == "e"), 5, group=one) for one in names), then=following)

    async def story() -> None:
        link: Any = Link()
        monkeypatch.setattr(broker_alarms, "EVERY_S", 0.0)
        monkeypatch.setattr(broker_alarms, "GRACE_S", 0.0)
        monkeypatch.setattr(stalled_consumers, "STANDS_STILL_S", 0.0)
        alarms = BrokerAlarms(link, "n0")
        alarms.start()
        await until(lambda: bool(alarms.now()))
        [one] = alarms.now()
        assert one.code == "broker_consumers_stuck" and one.text.startswith("e (")
        await alarms.close()

    asyncio.run(story())


def test_it_is_known_since_when_a_broker_takes_no_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silent, and then back without being master, is one such time."""
    monkeypatch.setattr(broker_alarms, "EVERY_S", 0.0)
    heard: list[float | None] = []
    known: set[tuple[str | None, bool]] = set()

    class Link:
        role: str | None = "MASTER"

        async def group_stands(self, _limit: int, _cursor: str | None) -> GroupStands:
            return page()

        async def broker(self, _within_s: float) -> BrokerSaid:
            if self.role is None:
                raise Problem(503, "The broker does not answer", "nothing listens there")
            if self.role == "busy":  # whoever may read can ask it as much as it answers at once
                raise refusal(Answer.SYSTEM_BUSY, "8 such questions are being answered: try again")
            return said(role=self.role, leader_id="n0")

    link: Any = Link()

    async def idle(idle_since_s: float | None, *, is_master: bool) -> None:
        heard.append(idle_since_s)
        known.add((link.role, is_master))

    async def story() -> None:
        alarms = BrokerAlarms(link, "n0", idle)
        alarms.start()
        for role in ("MASTER", "busy"):
            link.role = role
            seen = len(heard)
            await until(lambda seen=seen: len(heard) > seen + 2)  # type: ignore[misc]
        assert set(heard) == {None} and {one for role, one in known if role == "MASTER"} == {True}
        for role in (None, "SLAVE"):
            link.role = role
            seen = len(heard)
            await until(lambda seen=seen: len(heard) > seen + 2)  # type: ignore[misc]
        assert len(set(heard)) == 2 and heard[-1] is not None
        link.role = None
        await until(lambda: "broker_down" in alarms._found)
        link.role = "busy"
        await until(lambda: heard[-1] is None)
        assert not alarms._found, "it answers"
        link.role = "MASTER"
        await until(lambda: (link.role, True) in known)
        await alarms.close()
        assert known >= {("MASTER", True), ("SLAVE", False), (None, False)}

    asyncio.run(story())


def test_a_state_says_that_the_broker_is_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_alarms, "EVERY_S", 0.0)
    monkeypatch.setattr(broker_alarms, "GRACE_S", 0.0)

    async def work(rest: Rest) -> None:
        rest.alarms.start()
        for _ in range(1200):
            state = await rest.get("/state")
            if state["alarms"]:
                break
            await asyncio.sleep(0.05)
        assert [one["code"] for one in state["alarms"]] == ["broker_down"]
        await rest.alarms.close()

    run(tmp_path, work, with_broker=False)


def test_a_broker_that_answers_nothing_is_said_to_in_less_time_than_consoles_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each question waited for 5 s, so that the console, which waits for two, blamed the control plane."""
    limits: list[float] = []

    async def command(_link: object, _code: int, _fields: object, _body: bytes, within_s: float) -> Command:
        limits.append(within_s)
        if len(limits) < 3:
            raise Unavailable("no answer in time")
        return Command(Answer.SUCCESS, 1, body=b"{}")

    monkeypatch.setattr(BrokerLink, "command", command)

    async def scenario() -> None:
        link = BrokerLink(load({"peers": "n0-127.0.0.1:1", "broker.address": "127.0.0.1:2"}))
        for _ in range(2):
            with pytest.raises(Problem, match="does not answer"):
                await link.json("topics")
        await link.json("topics")
        await link.json("topics")

    asyncio.run(scenario())
    assert limits == [WITHIN_S, SILENT_WITHIN_S, SILENT_WITHIN_S, WITHIN_S]


def test_a_broker_of_another_version_is_not_read_as_one_that_has_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def command(*_: object) -> Command:
        return Command(Answer.SUCCESS, 1, body=b'{"role": "MASTER", "dispatch": {}}')

    monkeypatch.setattr(BrokerLink, "command", command)
    link = BrokerLink(load({"peers": "n0-127.0.0.1:1", "broker.address": "127.0.0.1:2"}))
    with pytest.raises(Problem, match=r"cannot read \(\w+ is missing\): restart the node"):
        asyncio.run(link.broker())


def test_a_broker_of_another_version_is_not_taken_for_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may well take messages: leadership left its member every few seconds while a node was being upgraded."""

    async def command(*_: object) -> Command:
        return Command(Answer.SUCCESS, 1, body=b'{"role": "MASTER", "dispatch": {}}')

    monkeypatch.setattr(BrokerLink, "command", command)
    monkeypatch.setattr(broker_alarms, "GRACE_S", 0.0)
    alarms = BrokerAlarms(BrokerLink(load({"peers": "n0-127.0.0.1:1", "broker.address": "127.0.0.1:2"})), "n0")
    asyncio.run(alarms._look())
    [one] = alarms.now()
    assert one.code == "broker_down" and one.text.endswith("restart the node")
    assert alarms._idle_since_s is None


def test_the_broker_of_the_leader_takes_all_messages_with_it() -> None:
    story = Story()
    story.look(2)
    for one in ("n0", "n1"):
        story.node(one).alarms = [{"code": "broker_down", "severity": "warning", "text": "no answer in time"}]
    found = {one.node_id: one.severity for one in story.look(5).problems}
    assert found == {"n0": "critical", "n1": "attention"}


def test_a_problem_says_what_to_do() -> None:
    story = Story()
    alarm = AlarmView(code="broker_down", severity="warning", text="it does not answer")
    story.group.nodes["n1"].alarms = [alarm.to_json()]
    [one] = story.look(8).problems
    assert (one.code, one.node_id, one.severity) == ("alarm_broker_down", "n1", "attention")
    assert one.command is not None and one.command.startswith("quorumscope broker list --node http")
    assert one.docs == "docs/problems.md#a-broker-is-not-well" and "broker" in one.means


def test_the_metrics_have_the_figures_of_a_broker_and_none_that_it_does_not_say() -> None:
    late = said(schedule=waiting(level(2, 5100, 7)), transactions=undecided(2, 1), behind_entries=9)
    text = exposition(StateView(engine="ok", self_id="n0"), WatermarksView(), ClosuresView(), late)
    for line in (
        'quorumscope_broker_role{role="MASTER"} 1.0', "quorumscope_broker_dispatch_behind_entries 9.0",
        'quorumscope_broker_schedule_waiting{level="2"} 7.0', "quorumscope_broker_schedule_overdue_ms 5100.0",
        "quorumscope_broker_transactions_open 9.0", "quorumscope_broker_transactions_unanswered 2.0",
        "quorumscope_broker_name_servers_lost 0.0",
    ):  # fmt: skip
        assert f"\n{line}\n" in text
    slave = exposition(
        StateView(engine="ok", self_id="n0"), WatermarksView(), ClosuresView(), said(schedule=None, transactions=None)
    )
    assert "schedule" not in slave and "transactions" not in slave
    assert "quorumscope_broker" not in exposition(
        StateView(engine="ok", self_id="n0"), WatermarksView(), ClosuresView(), None
    )


def test_of_a_member_that_is_away_no_step_asks_its_broker_nor_reads_its_log_again() -> None:
    story = Story()
    story.group.nodes["n1"].alarms = [AlarmView(code="broker_schedule_behind", severity="warning").to_json()]
    story.look(8)
    story.group.nodes["n1"].alive = False
    found = {one.code: one for one in story.look(8).problems}
    step = found["alarm_broker_schedule_behind"]
    assert step.command is not None and step.command.startswith("quorumscope status --node http")
    assert "scrub" not in step.next_step and "bring n1 back" in step.next_step


def test_why_the_broker_of_a_pair_is_silent_is_a_reason_and_no_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages put it in brackets: "(This member's broker does not answer (127.0.0.1:2: …): look at its log.)."""

    async def command(*_: object) -> Command:
        raise Unavailable("127.0.0.1:2: no answer in time", sent=True)

    monkeypatch.setattr(BrokerLink, "command", command)
    settings = load({"peers": "n0-127.0.0.1:1", "broker.address": "127.0.0.1:2"})
    parts: Any = SimpleNamespace(settings=settings, broker=BrokerLink(settings))
    found = asyncio.run(ha.said(parts))
    assert (found.broker, found.reason) == ("down", "127.0.0.1:2: no answer in time")
