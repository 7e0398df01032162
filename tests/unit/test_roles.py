"""A broker's roles: the table, the steps of a change, what is given up, and what an old master may not answer."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from node.broker import authority as authority_module
from node.broker.authority import Authority
from node.broker.role_changes import RoleChangeHandler
from node.broker.roles import (
    STEPS,
    TRANSITIONS,
    BrokerRole,
    Change,
    RaftEvent,
    RaftState,
    Step,
    broker_id_of,
    events,
    flow_chart,
)
from tests.unit.engine_kit import until

ROOT = Path(__file__).parents[2]
LEADER, FOLLOWER, CANDIDATE = RaftState.LEADER, RaftState.FOLLOWER, RaftState.CANDIDATE


# --- the table ----------------------------------------------------------------------------------------------------
def test_every_state_and_role_is_in_the_table() -> None:
    assert set(TRANSITIONS) == {(state, role) for state in RaftState for role in (None, *BrokerRole)}
    assert set(STEPS) == set(Change)
    assert {step for steps in STEPS.values() for step in steps} == set(Step)


def test_the_flow_chart_in_the_docs_is_drawn_from_the_table() -> None:
    assert f"```mermaid\n{flow_chart()}\n```\n" in (ROOT / "docs/roles.md").read_text()


def test_three_java_brokers_went_through_the_same_roles(vectors: Path) -> None:
    """The recorded events of each, put to our table: before each event the role is the recorded one."""
    names = {"ASYNC_MASTER": None, "SYNC_MASTER": BrokerRole.MASTER, "SLAVE": BrokerRole.SLAVE}
    said = json.loads((vectors / "rocketmq" / "role-change.json").read_text())["events"]
    seen = 0
    for number, name in enumerate(("n0", "n1", "n2")):
        assert broker_id_of(name) == number + 1
        role: BrokerRole | None = None
        for line in said[name]:
            if found := re.search(r"Begin handling .* role=(\w+) currStoreRole=(\w+)", line):
                seen += 1
                assert names[found[2]] is role, line
                change = TRANSITIONS[RaftState[found[1]], role]
                role = {Change.TO_SLAVE: BrokerRole.SLAVE, Change.TO_MASTER: BrokerRole.MASTER}.get(change, role)
    assert seen == 23


def test_a_look_for_votes_is_no_event_and_two_leaderships_have_a_slave_between() -> None:
    follows = RaftEvent(FOLLOWER, 3, "n1")
    assert events(None, -1, 3, None, leads=False) == []  # it has just begun
    assert events(None, 3, 4, None, leads=False) == [RaftEvent(CANDIDATE, 4, None)]
    assert events(None, 3, 3, "n1", leads=False) == [follows]
    assert events(follows, 3, 3, "n1", leads=False) == []
    assert events(follows, 3, 3, None, leads=False) == []  # pre-vote
    assert events(follows, 3, 4, None, leads=False) == [RaftEvent(CANDIDATE, 4, None)]
    leads = RaftEvent(LEADER, 4, "n0")
    assert events(follows, 3, 4, "n0", leads=True) == [leads]
    assert events(leads, 4, 4, "n0", leads=True) == []
    assert events(leads, 4, 4, None, leads=False) == [RaftEvent(CANDIDATE, 4, None)]  # it heard no quorum
    assert events(leads, 4, 6, "n0", leads=True) == [RaftEvent(CANDIDATE, 6, None), RaftEvent(LEADER, 6, "n0")]


# --- who runs it ----------------------------------------------------------------------------------------------------
class Story:
    """A handler whose steps are noted, and wait or fail where the test says so."""

    def __init__(self) -> None:
        self.taken: list[Step] = []
        self.waits: dict[Step, asyncio.Event] = {}
        self.fails: dict[Step, int] = {}
        self.noted: list[dict[str, Any]] = []
        actions = {step: self.action(step) for step in Step}
        self.handler = RoleChangeHandler("n4", actions, lambda _kind, _severity, said: self.noted.append(said))

    def action(self, step: Step) -> Callable[[], Awaitable[None]]:
        async def act() -> None:
            self.taken.append(step)
            if self.fails.get(step, 0):
                self.fails[step] -= 1
                raise OSError("as the test says")
            if step in self.waits:
                await self.waits[step].wait()

        return act

    def is_role(self, role: BrokerRole) -> Callable[[], bool]:
        """And idle."""
        return lambda: self.handler.role is role and bool(self.noted) and self.handler.timeline[-1].outcome == "done"


def tell(story_of: Callable[[Story], Awaitable[None]]) -> None:
    async def whole() -> None:
        story = Story()
        running = asyncio.create_task(story.handler.run())
        try:
            await story_of(story)
        finally:
            running.cancel()
            await asyncio.wait([running])

    asyncio.run(whole())


def test_steps_are_taken_in_order_and_are_in_the_timeline() -> None:
    async def story_of(story: Story) -> None:
        handler = story.handler
        assert (handler.role, handler.broker_id) == (None, -1)
        handler.heard(1, "n0", leads=False)
        await until(story.is_role(BrokerRole.SLAVE))
        assert (story.taken, handler.broker_id, handler.term) == (list(STEPS[Change.TO_SLAVE]), 5, 1)
        handler.heard(2, "n4", leads=True)
        await until(story.is_role(BrokerRole.MASTER))
        assert story.taken == [*STEPS[Change.TO_SLAVE], *STEPS[Change.TO_MASTER]]
        assert (handler.broker_id, handler.term) == (0, 2)
        assert [one["change"] for one in story.noted] == ["changeToSlave", "changeToMaster"]
        steps = story.noted[1]["steps"]
        assert [one["step"] for one in steps] == [step.value for step in STEPS[Change.TO_MASTER]]
        assert all(one["took_ms"] >= 0 for one in steps)

    tell(story_of)


def test_a_change_to_master_is_given_up_when_the_leadership_is_gone() -> None:
    async def story_of(story: Story) -> None:
        story.waits[Step.REACH_END] = asyncio.Event()  # what never is committed
        story.handler.heard(1, "n4", leads=True)
        await until(lambda: story.taken[-1:] == [Step.REACH_END])
        change = story.handler.timeline[-1]
        change.began_s -= 60.0
        change.steps[-1].began_s -= 50.0
        said = change.as_said()
        assert said["outcome"] == "running" and said["took_ms"] >= 60_000, "by now"
        assert 50_000 <= said["steps"][-1]["took_ms"] < said["took_ms"]
        story.handler.heard(2, "n1", leads=False)
        await until(story.is_role(BrokerRole.SLAVE))
        assert [one["outcome"] for one in story.noted] == ["given up", "done"]
        assert change.as_said() == change.as_said() == story.noted[0], "what has ended grows no more"
        assert Step.MASTER_ROLE not in story.taken

    tell(story_of)


def test_a_leadership_that_is_over_before_its_turn_is_passed_over() -> None:
    async def story_of(story: Story) -> None:
        story.handler.heard(1, "n4", leads=True)
        story.handler.heard(1, None, leads=False)
        await until(story.is_role(BrokerRole.SLAVE))
        assert story.taken == list(STEPS[Change.TO_SLAVE])

    tell(story_of)


def test_the_next_leadership_of_the_same_member_begins_with_a_slave() -> None:
    async def story_of(story: Story) -> None:
        story.handler.heard(1, "n4", leads=True)
        await until(story.is_role(BrokerRole.MASTER))
        story.handler.heard(3, "n4", leads=True)
        await until(lambda: story.handler.term == 3 and story.handler.role is BrokerRole.MASTER)
        changes = [one["change"] for one in story.noted[:2]]
        assert changes == ["changeToMaster", "changeToSlave"]

    tell(story_of)


def test_a_step_that_fails_is_tried_again_by_a_leader_and_passed_over_by_a_slave() -> None:
    async def story_of(story: Story) -> None:
        story.fails = {Step.RECOVER_TOPIC_QUEUE_TABLE: 1, Step.SLAVE_ROLE: 1}
        story.handler.heard(1, "n4", leads=True)
        await until(story.is_role(BrokerRole.MASTER))
        assert [one["outcome"] for one in story.noted] == ["failed", "done"]
        assert story.noted[0]["steps"][-1]["error"] == "OSError: as the test says"
        story.handler.engine_away()
        await until(story.is_role(BrokerRole.SLAVE))
        assert story.taken[-len(STEPS[Change.TO_SLAVE]) :] == list(STEPS[Change.TO_SLAVE])

    tell(story_of)


# --- what an old master may not answer -------------------------------------------------------------------------------
class Group:
    """What a broker can ask: the engine's linearizable read, and a clock."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.committed = 7
        self.log_term = 1
        self.reads = 0
        self.answers = asyncio.Event()
        self.answers.set()
        self.authority = Authority(self.read, self.reached, lambda: self.log_term, lambda: self.now_s)
        self.authority.is_master(1)

    async def read(self) -> int:
        self.reads += 1
        await self.answers.wait()
        return self.committed

    async def reached(self, index: int) -> None:
        assert index == self.committed


def test_a_lease_counts_for_its_term_and_its_time_only() -> None:
    async def story() -> None:
        group = Group()
        authority = group.authority
        assert not authority.holds()
        authority.pushed(1, 101.0)
        assert authority.holds()
        group.now_s = 101.0  # stopped, and resumed: what was pushed meanwhile counts from when it was asked for
        assert not authority.holds()
        authority.pushed(1, 102.0)
        authority.is_master(None)
        assert not authority.holds()
        authority.is_master(2)
        assert not authority.holds()

    asyncio.run(story())


def test_without_a_lease_a_read_confirms_unless_a_later_term_is_in_the_log() -> None:
    async def story() -> None:
        group = Group()
        assert await group.authority.confirm()
        group.log_term = 2  # the read was answered by another leader, whose first entry lies below what it said
        assert not await group.authority.confirm()
        group.authority.is_master(None)
        assert await group.authority.confirm()  # a slave: what it has is as new as the group's

    asyncio.run(story())


def test_a_role_that_changes_meanwhile_confirms_nothing() -> None:
    async def story() -> None:
        group = Group()
        for before, after in ((1, None), (None, 2)):
            group.authority.is_master(before)
            group.answers.clear()
            confirmed = group.authority.confirm()
            reads = group.reads
            await until(lambda reads=reads: group.reads > reads)
            group.authority.is_master(after)
            group.answers.set()
            assert not await confirmed

    asyncio.run(story())


def test_reads_are_shared_by_who_came_before_they_began() -> None:
    async def story() -> None:
        group = Group()
        group.answers.clear()
        first = group.authority.confirm()
        assert group.authority.confirm() is first
        await until(lambda: group.reads == 1)
        later = group.authority.confirm()
        assert later is not first
        group.answers.set()
        assert await first and await later and group.reads == 2

    asyncio.run(story())


def test_who_cannot_ask_is_no_master(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        group = Group()
        group.answers.clear()
        assert not await group.authority.confirm()
        waits = group.authority.confirm()
        await group.authority.close()
        assert waits.cancelled()

    monkeypatch.setattr(authority_module, "CONFIRMED_WITHIN_S", 0.01)
    asyncio.run(story())


def test_each_name_of_document_3_has_one_here_that_is_there() -> None:
    """The table in the docs, name by name."""
    rows = (ROOT / "docs/roles.md").read_text().split("## Document 3, name by name")[1].split("\n## ")[0].splitlines()
    rows = [row for row in rows if row.startswith("| ")][1:]
    named = 0
    for row in rows:
        _there, here = row.strip("| ").split(" | ")
        code = ""
        for word in reversed(re.findall(r"`(\[?[\w ./\]-]+)`", here)):  # a file stands behind its names
            if word.endswith(".py"):
                code = (ROOT / word).read_text()
            elif code and " " not in word:
                assert re.search(rf"^\s*(?:(?:async )?def |class )?{word}\b", code, re.MULTILINE), word
                named += 1
    text = " ".join(rows)
    for name in ("DLedgerCommitLog", "AppendHook", "dividedCommitlogOffset", "changeToMaster", "recoverTopicQueueTable",
                 "handleSlaveSynchronize", "registerBrokerAll", "startProcessorByHa", "MessageSerializer"):  # fmt: skip
        assert name in text
    assert named > 30
