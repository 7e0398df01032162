"""One round of retention: what is asked again before each file, and what is said of a file that did not go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from node.config_models import RetentionTable
from node.engine.pin_leases import MACHINE
from node.engine.retention import BY_POLICY, Retention, Trimmed
from node.store.retention import DataFile, Need, Plan, Survey

FILES = tuple(DataFile(10 * at, 10 * at + 9, 100, 0.0) for at in range(3))
ON = RetentionTable(enabled=True)


class Member:
    """A log of four files of ten entries each, all committed; `needed` by others, `safe` here up to an entry."""

    def __init__(self, table: RetentionTable = ON) -> None:
        self.needed: list[Need] = []
        self.safe, self.kept_from = 99, None  # type: tuple[int, int | None]
        self.gone: list[int] = []
        self.goes_not = -1  # a file with this entry stays, and nobody says why
        self.survey_seen = Survey(FILES, 400, 0.0, 3, 1000, 500)
        self.full: list[bool] = []
        self.noted: list[dict[str, Any]] = []
        held = SimpleNamespace(needs=lambda: list(self.needed), removable_through=lambda: self.safe)
        disk = SimpleNamespace(
            disk_full=lambda full, *_args, **_named: self.full.append(full), retention_held=lambda *_: None
        )
        self.replica = SimpleNamespace(
            held=held, config=SimpleNamespace(applies=False), committed_index=99, disk=disk,
            member=SimpleNamespace(disk_full=False, short_of_space=False),
        )  # fmt: skip
        self.store = SimpleNamespace(
            begin_index=0, pins=SimpleNamespace(held=list), kept_for_snapshot=lambda _committed: self.kept_from
        )
        self.retention = Retention(self, self.store, self, table)  # type: ignore[arg-type]

    def now_ns(self) -> int:
        return 0

    def step(self, act: Callable[[], object]) -> None:
        act()

    def note(self, _kind: str, _severity: str, detail: dict[str, Any]) -> None:
        self.noted.append(detail)

    def survey(self, _files_max: int, done: Callable[[Survey], None]) -> None:
        done(self.survey_seen)

    def remove_prefix(self, through_index: int, _forced: bool, done: Callable[[str], None]) -> None:
        self.gone.append(through_index)
        if not self.goes_not <= through_index < self.goes_not + 10:
            self.store.begin_index = through_index + 1
        asyncio.get_running_loop().call_soon(done, "")

    async def round(self, meanwhile: Callable[[], None] = lambda: None) -> str:
        """All three files, by the policy; `meanwhile` comes right behind the first one. Why it ended."""
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.retention._begin(Plan(FILES, "it is 03 o'clock"), BY_POLICY, ended.set_result)
        meanwhile()
        return await ended

    async def trim(self, through_index: int, *, forced: bool) -> Trimmed:
        ended: asyncio.Future[Trimmed] = asyncio.get_running_loop().create_future()
        self.retention.trim(through_index, 10, forced=forced, dry_run=False, done=ended.set_result)
        return await ended


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.engine.retention.FILE_PAUSE_S", 0.0)


def run(work: Callable[[], Any]) -> None:
    asyncio.run(work())


def test_all_files_of_a_plan_go_one_by_one() -> None:
    async def work() -> None:
        member = Member()
        assert await member.round() == ""
        assert member.gone == [9, 19, 29] and member.noted[-1]["files"] == 3

    run(work)


def test_what_is_not_safe_here_any_more_stays_though_nobody_needs_it() -> None:
    """Damage was found meanwhile: what lies below may be all that tells what was written."""

    async def work() -> None:
        member = Member()
        problem = await member.round(lambda: setattr(member, "safe", 15))
        assert "not safe on this disk any more" in problem and member.gone == [9]

    run(work)


def test_a_need_that_comes_meanwhile_ends_the_round() -> None:
    async def work() -> None:
        member = Member()
        problem = await member.round(lambda: member.needed.append(Need("audit", 12, "has pinned entries from 12 on")))
        assert "audit has pinned entries" in problem and member.gone == [9]

    run(work)


def test_a_file_that_stayed_is_not_counted_as_gone() -> None:
    """The store leaves a prefix whose last entry is damaged, and raises nothing."""

    async def work() -> None:
        member = Member()
        member.goes_not = 10
        problem = await member.round()
        assert "entry 19 is damaged" in problem and member.gone == [9, 19]
        assert (member.noted[-1]["files"], member.noted[-1]["to_index"]) == (1, 9)

    run(work)


@pytest.mark.parametrize(("kept_from", "through"), [(None, 29), (20, 19), (12, 9)])
def test_no_force_goes_past_what_the_newest_snapshot_needs(kept_from: int | None, through: int) -> None:
    """It goes past all other needs."""

    async def work() -> None:
        member = Member()
        member.kept_from = kept_from
        member.needed.append(Need("voter n2", 0, "is not connected"))
        ended = await member.trim(29, forced=True)
        assert member.gone[-1] == through and ended.begin_index == through + 1

    run(work)


def test_no_force_goes_past_what_the_state_machine_applies_again() -> None:
    """It went past that, too; the next restart had nothing to build the state of."""

    async def work() -> None:
        member = Member()
        member.store.pins.held = lambda: [("audit", 0), (MACHINE, 15)]
        ended = await member.trim(29, forced=True)
        assert member.gone == [9] and ended.begin_index == 10
        assert member.noted[-1]["left_behind"] == ["audit (from entry 0 on)"]
        member.survey_seen = Survey(FILES[1:], 300, 0.0, 3, 1000, 500)
        ended = await member.trim(29, forced=True)
        assert member.gone == [9] and "the state machine needs entries from 15 on" in ended.problem

    run(work)


@pytest.mark.parametrize(("free", "refuses"), [(101, False), (100, True), (99, True)])
def test_writes_are_refused_from_the_full_ratio_on(free: int, refuses: bool) -> None:
    async def work() -> None:
        table = RetentionTable(enabled=True, disk_full_ratio=0.9)
        member = Member(table)
        member.survey_seen = Survey((), 400, 0.0, 0, 1000, free)
        member.retention.look()
        assert member.retention.refuses_writes is refuses and member.full == ([True] if refuses else [])
        member.retention.stop()

    run(work)


def test_a_policy_that_is_off_refuses_nothing() -> None:
    async def work() -> None:
        member = Member()
        member.survey_seen = Survey((), 400, 0.0, 0, 1000, 1)
        member.retention.look()
        assert member.retention.refuses_writes
        member.retention.change(RetentionTable(enabled=False))
        assert not member.retention.refuses_writes
        member.retention.stop()

    run(work)
