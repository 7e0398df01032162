"""A command that is committed and that its state machine cannot apply: one true thing is said of it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from node.control.machine_calls import commands
from node.control.problems import Problem
from node.transport.machine_frames import CommandAnswer, encode_command_answer
from node.transport.slab_frames import AppendAnswer, AppendedByte

UNAPPLIED = "committed, but the result of applying it is unknown: it was not applied in time"


def refusal(appended: AppendedByte, detail: str) -> Problem:
    """What the control plane makes of it."""
    answer = CommandAnswer(AppendAnswer(200, 7, 7, 3, appended, detail=detail), False, ())

    async def request(*_: object) -> bytes:
        return encode_command_answer(answer)

    parts: Any = SimpleNamespace(link=SimpleNamespace(request=request), snapshots=SimpleNamespace(outdate=lambda: None))
    with pytest.raises(Problem) as refused:
        asyncio.run(commands(parts, [b"x"]))
    return refused.value


def test_what_is_committed_is_not_said_to_come_perhaps() -> None:
    """It said "committed" and "may still commit" in one sentence."""
    one = refusal(AppendedByte.YES, UNAPPLIED)
    assert one.status == 504 and one.extra["outcome"] == "unknown" and one.extra["first_index"] == 7
    assert "may still commit" not in one.detail and "committed" in one.detail and "stays in the log" in one.detail


@pytest.mark.parametrize("detail", ["", "no quorum of acks in time"])
def test_what_may_commit_is_not_said_to_be_committed(detail: str) -> None:
    one = refusal(AppendedByte.UNKNOWN, detail)
    assert "may still commit" in one.detail and "committed," not in one.detail and one.extra["first_index"] == 7
