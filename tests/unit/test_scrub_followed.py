"""A scrub that somebody asked for is done when that very pass is, and not by one before it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from node.control import repair


def test_a_pass_before_it_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def seen(last: int | None, running: int | None) -> Any:
        known = None if last is None else SimpleNamespace(number=last, to_json=lambda: {"number": last})
        goes_on = None if running is None else SimpleNamespace(number=running, next_index=5, last_index=9)
        return SimpleNamespace(scrub=SimpleNamespace(last=known, running=goes_on))

    looks = [seen(None, 4), seen(3, 4), seen(3, 4), seen(4, None)]

    async def ask(*_: Any) -> dict[str, Any]:
        return {"passNumber": 4}

    async def look(_parts: Any) -> Any:
        return looks.pop(0)

    monkeypatch.setattr(repair, "ask", ask)
    monkeypatch.setattr(repair, "look", look)
    operation: dict[str, Any] = {}
    ended = asyncio.run(repair.follow_scrub(SimpleNamespace(), operation))  # type: ignore[arg-type]
    assert (ended["state"], ended["outcome"]) == ("done", {"number": 4}) and not looks
    assert operation["progress"] == "entry 5 of 9"
