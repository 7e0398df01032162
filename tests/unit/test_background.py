"""Supervised background tasks: restarted, reported, cancelled, and the only way to start one."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path

import pytest

from node import background
from node.background import Background, reason_of

ROOT = Path(__file__).parents[2]

# Who may start a task by hand: it waits for it in the same function, so that no failure can go unseen.
WAITED_FOR_ON_THE_SPOT = {
    "node/__main__.py", "node/broker/role_changes.py", "node/ha/keeper.py",
    "node/broker/__main__.py", "node/broker/classic/process.py", "node/client/leader.py", "app/commands/producing.py",
    "app/demo/pair.py", "app/demo/processes.py", "app/demo/run.py", "app/demo/relay.py",
    "app/bench/attacked.py", "app/bench/busy.py", "app/bench/failover.py", "app/bench/ha.py", "app/bench/members.py",
    "app/bench/memory.py", "app/bench/paced.py", "app/bench/slow_follower.py", "app/bench/slow_network.py",
    "app/bench/stalls.py",
    # Shielded: by whoever asks, their errors taken.
    "node/control/shared_work.py", "node/control/snapshots.py", "node/message_client/routes.py",
}  # fmt: skip


def test_what_must_go_on_is_started_again_with_back_off_and_each_failure_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []
    reported: list[str] = []
    nap = asyncio.sleep

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await nap(0)

    async def story() -> None:
        tasks = Background(lambda name, error: reported.append(f"{name}: {reason_of(error)}"))
        left = [UnicodeError("label empty or too long"), KeyError("term"), RuntimeError()]

        async def work() -> None:
            await nap(0)
            if left:
                raise left.pop(0)

        monkeypatch.setattr(background.asyncio, "sleep", sleep)
        await tasks.keep("dial n1", work)
        assert not tasks.failing
        assert len(tasks) == 0

    asyncio.run(story())
    assert reported == [
        "dial n1: UnicodeError: label empty or too long",
        "dial n1: KeyError: 'term'",
        "dial n1: RuntimeError",
    ]
    assert waits == [0.1, 0.2, 0.4]


def test_a_failure_is_shown_while_it_lasts_and_a_stop_is_none(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        tasks = Background()

        async def broken() -> None:
            raise ValueError("odd")

        tasks.keep("poll n1", broken)
        for _ in range(3):
            await asyncio.sleep(0)
        assert tasks.failing == {"poll n1": "ValueError: odd"}
        await tasks.stop()
        assert len(tasks) == 0

    asyncio.run(story())
    assert [record.getMessage() for record in caplog.records] == ["poll n1 failed: ValueError: odd"]
    assert caplog.records[0].exc_info is not None


def test_a_single_run_is_reported_and_a_report_that_fails_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def report(_name: str, _error: BaseException) -> None:
        raise OSError("the pipe is broken")

    async def story() -> None:
        tasks = Background(report)

        async def broken() -> None:
            raise ValueError("odd")

        await tasks.run("once", broken())
        tasks.run("never begun", asyncio.sleep(100))
        await tasks.stop()

    asyncio.run(story())
    assert "ValueError: odd" in caplog.records[0].getMessage()
    assert "the pipe is broken" in caplog.records[0].getMessage()


def test_a_stop_waits_for_what_cleans_up_and_for_what_that_starts() -> None:
    async def story() -> None:
        tasks = Background()
        ended: list[str] = []

        async def clean_up() -> None:
            await asyncio.sleep(0)
            ended.append("late")

        async def work() -> None:
            try:
                await asyncio.sleep(100)
            finally:
                await asyncio.sleep(0)
                ended.append("work")
                tasks.run("late", clean_up())

        tasks.run("work", work())
        await asyncio.sleep(0)
        await tasks.stop()
        assert ended[0] == "work"
        assert len(tasks) == 0

    asyncio.run(story())


def test_there_is_no_other_way_to_start_a_task() -> None:
    found: set[str] = set()
    for path in [*(ROOT / "node").rglob("*.py"), *(ROOT / "app").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Attribute) and called.attr in ("create_task", "ensure_future"):
                found.add(path.relative_to(ROOT).as_posix())
    assert found - {"node/background.py"} <= WAITED_FOR_ON_THE_SPOT
