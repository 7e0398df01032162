"""A member that is asked to stop hands its leadership over first, within bounds, and says what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from node.config import load
from node.consensus.api import TransferOutcome
from node.engine.engine import Engine
from node.engine.retirement import WITHIN_NS
from node.protocol.codes import ResponseCode, Role
from node.store.memory_store import MemoryStore
from tests.ports import free_ports
from tests.unit.engine_kit import until


def looped(test: Callable[[Path], Awaitable[None]]) -> Callable[[Path], None]:
    @wraps(test)
    def run(tmp_path: Path) -> None:
        asyncio.run(test(tmp_path))  # type: ignore[arg-type]

    return run


class Group:
    """Members in this process; `codes` are those of the ones that ended."""

    def __init__(self, place: Path, size: int) -> None:
        ports = free_ports(size)
        peers = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(ports))
        self.tasks: dict[str, asyncio.Task[int]] = {}
        self.engines: dict[str, Engine] = {}
        for name in [f"n{number}" for number in range(size)]:
            settings = load({"node.id": name, "peers": peers, "node.data": str(place / name)}, None, {})
            self.engines[name] = Engine(settings, MemoryStore(store_id=name))

    async def start(self) -> None:
        for name, engine in self.engines.items():
            up = asyncio.Event()
            self.tasks[name] = asyncio.create_task(engine.run(lambda _port, up=up: up.set()))  # type: ignore[misc]
            await up.wait()

    def leader(self) -> Engine | None:
        """Who leads, and has everybody in step."""
        for engine in self.engines.values():
            replica = engine.replica
            able = replica.handover.transferees.by_what_they_hold()
            if replica.role is Role.LEADER and len(able) == len(self.engines) - 1:
                return engine
        return None


@asynccontextmanager
async def group_of(place: Path, size: int) -> AsyncIterator[tuple[Group, Engine]]:
    group = Group(place, size)
    await group.start()
    try:
        await until(lambda: group.leader() is not None)
        leader = group.leader()
        assert leader is not None
        yield group, leader
    finally:
        for engine in group.engines.values():
            engine.stop()
        await asyncio.gather(*group.tasks.values())


def said(engine: Engine, kind: str) -> list[dict[str, Any]]:
    return [dict(one.detail) for one in engine.events.since(None).items if one.kind == kind]


@looped
async def test_leadership_has_moved_when_a_leader_that_was_asked_to_stop_ends(tmp_path: Path) -> None:
    async with group_of(tmp_path, 3) as (group, leader):
        name, term = leader.settings.node.id, leader.replica.term
        others = [one for one in group.engines.values() if one is not leader]
        leader.retirement.begin()
        assert await group.tasks[name] == 0
        assert any(one.replica.role is Role.LEADER and one.replica.term > term for one in others)
        (handed,) = said(leader, "handed_over")
        assert handed["to"] != name and handed["from_term"] == term
        assert handed["reason"].startswith(f"leadership is handed over: {handed['to']} leads term ")


@looped
async def test_who_does_not_lead_ends_at_once_and_says_nothing(tmp_path: Path) -> None:
    async with group_of(tmp_path, 3) as (group, leader):
        follower = next(one for one in group.engines.values() if one is not leader)
        follower.retirement.begin()
        assert await group.tasks[follower.settings.node.id] == 0
        assert said(follower, "handed_over") == said(follower, "not_handed_over") == []
        assert leader.replica.role is Role.LEADER


@looped
async def test_the_only_voter_ends_at_once_and_says_why_it_handed_nothing_over(tmp_path: Path) -> None:
    async with group_of(tmp_path, 1) as (group, leader):
        leader.retirement.begin()
        assert await group.tasks["n0"] == 0
        (kept,) = said(leader, "not_handed_over")
        assert kept["reason"] == "leadership is not handed over: it is the only voter"


@looped
async def test_a_refusal_leads_to_the_next_one_and_then_to_the_end(tmp_path: Path) -> None:
    async with group_of(tmp_path, 3) as (group, leader):
        asked: list[str | None] = []

        def refuse(to: str | None, _deadline: Any, _term: Any, done: Any, reason: str = "") -> None:
            asked.append(to)
            done(TransferOutcome(ResponseCode.DISK_FULL, to, "n0", 1, f"{to} refused to take leadership"))

        leader.transfer = refuse  # type: ignore[method-assign, assignment]
        leader.retirement.begin()
        assert await group.tasks[leader.settings.node.id] == 0
        others = [name for name, one in group.engines.items() if one is not leader]
        assert sorted(str(one) for one in asked) == others
        (kept,) = said(leader, "not_handed_over")
        assert kept["reason"].endswith(f"{asked[-1]} refused to take leadership")


@looped
async def test_one_that_says_nothing_leaves_time_for_the_next(tmp_path: Path) -> None:
    """A process that stands still keeps its connection, and does not refuse."""
    async with group_of(tmp_path, 3) as (group, leader):
        asked: dict[str | None, int] = {}

        def silent(to: str | None, deadline_ms: int, _term: Any, done: Any, reason: str = "") -> None:
            asked[to] = deadline_ms
            done(TransferOutcome(ResponseCode.TAKE_LEADERSHIP_FAILED, to, "n0", 1, f"{to} did not take over in time"))

        leader.transfer = silent  # type: ignore[method-assign, assignment]
        leader.retirement.begin()
        assert await group.tasks[leader.settings.node.id] == 0
        first, second = asked.values()
        assert first <= WITHIN_NS // 1_000_000 // 2 and len(asked) == 2 and second > 0


@looped
async def test_nobody_is_waited_for_longer_than_the_bound_or_when_asked_twice(tmp_path: Path) -> None:
    async with group_of(tmp_path, 3) as (group, leader):
        leader.transfer = lambda *_args, **_named: None  # type: ignore[method-assign, assignment]
        clock = leader.now_ns
        leader.retirement.begin()
        await asyncio.sleep(0)
        assert not leader._ended.is_set(), "it is under way"
        leader.now_ns = lambda: clock() + WITHIN_NS  # type: ignore[method-assign, assignment]
        assert await group.tasks[leader.settings.node.id] == 0
        (kept,) = said(leader, "not_handed_over")
        assert kept["reason"] == "leadership is not handed over: no time was left for it"
    async with group_of(tmp_path / "again", 3) as (group, leader):
        leader.transfer = lambda *_args, **_named: None  # type: ignore[method-assign, assignment]
        leader.retirement.begin()
        leader.retirement.begin()
        assert await group.tasks[leader.settings.node.id] == 0
